"""Memorisation centre of gravity: Σ l·w_l / Σ w_l over layers l = 1..L (§4.1). Needs no torch.

Weights are the scores of layer records, or the layer scores that a sweep of window records gives (`measured`).
"""

from collections.abc import Iterable, Iterator, Sequence
from math import frexp, ldexp
from typing import Any

from mltools.analysis.additive import solve_additive
from mltools.analysis.measured import Measured, measure
from mltools.errors import RowsError
from mltools.io.kinds import CogRecord, LayerRecord
from mltools.io.records import Records

MOST_SOLVED = 128
"""Layers up to which the additive solution is sought: its cost rises with their fourth power (80: 2 s)."""


def centre_of_gravity(weights: Sequence[float]) -> float | None:
    """Compute Σ l·w_l / Σ w_l, l from 1. In [1, L]; the same if all weights are scaled; None if all are 0.

    Raises:
        ValueError: a negative weight.
    """
    if any(not weight >= 0 for weight in weights):
        raise ValueError(f"a weight is negative ({min(weights):.4g})")
    top = max(weights, default=0.0)
    if not top > 0:
        return None
    exponent = frexp(top)[1]
    scaled = [ldexp(weight, -exponent) for weight in weights]  # exact; so that no sum can overflow or vanish
    centre = sum(layer * weight for layer, weight in enumerate(scaled, start=1)) / sum(scaled)
    return min(max(centre, 1.0), float(len(weights)))


def mcog(records: Iterable[Records], by: Sequence[str] | None = None) -> Iterator[tuple[CogRecord, dict[str, Any]]]:
    """Weigh each group of records: yields (M-CoG, the group's columns), groups in order of appearance.

    Args:
        records: window or layer records of any tool, in any order.
        by: columns to group by, besides `tool`; runs that fall into one group are averaged window by window
            before weighing, as the paper does over seeds, those of retrain scaled first. Default: all tags, and
            then every record counts once.

    Raises:
        RowsError: records that are neither kind, a window or layer twice in a group, missing layers, negative
            weights.
    """
    for group in measure(records, by):
        tags = group.tags
        yield _record(str(tags.pop("tool")), group), tags


def _record(tool: str, group: Measured) -> CogRecord:
    reason, weights, centre = group.unscorable, None, None
    if reason is None:
        centre, weights = weigh(group)
        reason = "all weights are zero" if centre is None else None
    return CogRecord(
        tool=tool,
        layers=group.n_layers,
        m_cog=centre,
        weights=weights,
        n_records=len(group.cells),
        reason=reason,
        valid=group.carried.valid,
        valid_reason=group.carried.valid_reason,
        widths=group.widths if weights is not None else None,
        **_solved(group),
    )


def _solved(group: Measured) -> dict[str, Any]:
    """Give the columns of the additive solution; it needs windows, and not all of any width."""
    reason = group.lacking
    if group.kind != "window":
        reason = "layer records hold no windows"
    elif group.n_layers > MOST_SOLVED:
        reason = f"more than {MOST_SOLVED} layers"
    if reason is not None:
        return {"solved_reason": reason}
    found = solve_additive(group.values(), group.n_layers)
    return {
        "m_cog_solved": found.centre,
        "offset": found.offset,
        "residual": found.residual,
        "solved_reason": found.reason,
    }


def weigh(group: Measured) -> tuple[float | None, list[float]]:
    """Give a group's centre of gravity (None if all scores are 0) and its layer scores.

    Raises:
        RowsError: a negative score; no scores.
    """
    scores = group.scores()
    try:
        return centre_of_gravity(scores), scores
    except ValueError as error:
        named = ", ".join(f"{name}={value}" for name, value in group.key)
        raise RowsError(f"{group.first.place}: no centre of gravity: {error} ({named})") from None


def layers(records: Iterable[Records], by: Sequence[str] | None = None) -> Iterator[tuple[LayerRecord, dict[str, Any]]]:
    """Yield each group's layer scores as layer records with the group's columns; else as `mcog`.

    Raises:
        RowsError: also where a group has no scores.
    """
    for group in measure(records, by):
        tags = group.tags
        tool = str(tags.pop("tool"))
        said = (group.carried.valid, group.carried.valid_reason, group.widths)
        for layer, score in enumerate(group.scores(), start=1):
            yield LayerRecord(tool, layer, group.n_layers, score, *said), tags
