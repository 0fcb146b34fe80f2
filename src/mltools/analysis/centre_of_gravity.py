"""Memorisation centre of gravity: Σ l·w_l / Σ w_l over layers l = 1..L (§4.1). Needs no torch.

Weights are the scores of layer records, or the layer scores that a sweep of window records gives (`layer_scores`).
"""

from collections.abc import Iterable, Iterator, Sequence
from math import frexp, ldexp
from statistics import fmean, stdev
from typing import Any

from mltools.analysis.additive import Additive, solve_additive
from mltools.analysis.carried import Carried, named_widths
from mltools.analysis.layer_scores import LayerScores
from mltools.analysis.score_records import read_layer_scores_each
from mltools.errors import RowsError, UsageError
from mltools.io.groups import GROUPING
from mltools.io.kinds import CogRecord, LayerRecord
from mltools.io.records import Records

Tags = dict[str, Any]

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


def mcog(
    records: Iterable[Records], by: Sequence[str] | None = None, values: Sequence[str] = ()
) -> Iterator[tuple[CogRecord, Tags]]:
    """Weigh each group of records: yields (M-CoG, the group's columns), groups in order of appearance.

    Args:
        records: window or layer records of any tool, in any order.
        by: columns to group by, besides `tool`; runs that fall into one group are averaged window by window
            before weighing, as the paper does over seeds, those of retrain scaled first. Default: all tags, and
            then every record counts once.
        values: columns to weigh, each in a group of its own; default the error of windows and the score of layers.

    Raises:
        RowsError: records that are neither kind, a window or layer twice in a group, missing layers, negative
            weights.
    """
    for group in read_layer_scores_each(records, by, values):
        tags = group.tags
        yield _record(str(tags.pop("tool")), group), tags


def _record(tool: str, group: LayerScores) -> CogRecord:
    reason, weights, centre = group.unscorable, None, None
    if reason is None:
        centre, weights = centre_and_scores(group)
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
        n_runs=len(group.runs) or 1,
        m_cog_sd=_deviation([centre_and_scores(run)[0] if run.unscorable is None else None for run in group.runs]),
        clean_error=group.clean_error,
        max_single_layer=group.max_single_layer,
        **_solved(group),
    )


def _deviation(numbers: Sequence[float | None]) -> float | None:
    """Give the sample standard deviation; null of fewer than two numbers, or where one is unknown."""
    known = [number for number in numbers if number is not None]
    return stdev(known) if len(known) == len(numbers) > 1 else None


def average(centres: Iterable[tuple[CogRecord, Tags]], over: Sequence[str]) -> Iterator[tuple[CogRecord, Tags]]:
    """Average the centres of gravity of groups that differ only in the columns `over` (Figure 7).

    Over `tool`, what is a matter of the tool (`part`, `target`) tells no groups apart either.

    Raises:
        UsageError: a column that no group has.
        RowsError: models of other depth, or windows of other widths, in one average.
    """
    columns = {*over, *(GROUPING if "tool" in over else ())}
    groups: dict[tuple[tuple[str, Any], ...], list[CogRecord]] = {}
    seen: set[str] = set()
    for record, tags in centres:
        named = {"tool": record.tool, **tags}
        seen |= named.keys()
        key = tuple(sorted((name, value) for name, value in named.items() if name not in columns))
        groups.setdefault(key, []).append(record)
    missing = [name for name in over if name not in seen]
    if missing:
        raise UsageError(f"--over {missing[0]}: no such tag (found: {', '.join(sorted(seen))})")
    for key, members in groups.items():
        yield _mean(members), {name: value for name, value in key if name != "tool"}


def _mean(members: Sequence[CogRecord]) -> CogRecord:
    tools = ",".join(dict.fromkeys(record.tool for record in members))
    for name, found in (
        ("numbers of layers", {record.layers for record in members}),
        ("widths of windows", {named_widths(record.widths, record.layers) for record in members if record.widths}),
    ):
        if len(found) > 1:
            raise RowsError(f"{tools}: centres of different {name} would be averaged ({', '.join(map(str, found))})")
    centres, solved = ([getattr(record, name) for record in members] for name in ("m_cog", "m_cog_solved"))
    carried = Carried({(record.valid, record.valid_reason, None, None) for record in members})
    return CogRecord(
        tool=tools,
        layers=members[0].layers,
        m_cog=None if None in centres else fmean(centres),
        weights=None,
        n_records=sum(record.n_records for record in members),
        reason=next((record.reason for record in members if record.reason), None),
        valid=carried.valid,
        valid_reason=carried.valid_reason,
        n_runs=len(members),
        m_cog_sd=_deviation(centres),
        m_cog_solved=None if None in solved else fmean(solved),
        solved_reason=next((record.solved_reason for record in members if record.solved_reason), None),
    )


def _solved(group: LayerScores) -> dict[str, Any]:
    """Give the columns of the additive solution; it needs windows, and not all of any width."""
    found = solve(group)
    return {
        "m_cog_solved": found.centre,
        "offset": found.offset,
        "residual": found.residual,
        "solved_reason": found.reason,
    }


def solve(group: LayerScores) -> Additive:
    """Solve a group's windows for what each layer alone adds; all null, with the reason, where they do not say it."""
    reason = group.lacking
    if group.kind != "window":
        reason = "layer records hold no windows"
    elif group.n_layers > MOST_SOLVED:
        reason = f"more than {MOST_SOLVED} layers"
    if reason is not None:
        return Additive(None, None, None, None, reason)
    return solve_additive(group.values(), group.n_layers)


def centre_and_scores(group: LayerScores) -> tuple[float | None, list[float]]:
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


def layers(
    records: Iterable[Records],
    by: Sequence[str] | None = None,
    values: Sequence[str] = (),
    *,
    solved: bool = False,
) -> Iterator[tuple[LayerRecord, Tags]]:
    """Yield each group's layer scores as layer records with the group's columns; else as `mcog`.

    Args:
        records: as `mcog`.
        by: as `mcog`.
        values: as `mcog`.
        solved: give the weights of the additive solution, instead of means over windows.

    Raises:
        RowsError: also where a group has no scores.
    """
    for group in read_layer_scores_each(records, by, values):
        tags = group.tags
        tool = str(tags.pop("tool"))
        said = (group.carried.valid, group.carried.valid_reason, group.widths)
        for layer, score in enumerate(_weights(group) if solved else group.scores(), start=1):
            yield LayerRecord(tool, layer, group.n_layers, score, *said), tags


def _weights(group: LayerScores) -> Sequence[float]:
    found = solve(group)
    if found.weights is None:
        raise RowsError(f"{group.first.place}: no additive solution: {found.reason}")
    return found.weights


def score_spread(group: LayerScores) -> list[float] | None:
    """Give the sample standard deviation of each layer's score over the runs averaged; None where there is one run."""
    if not group.runs or any(run.unscorable for run in group.runs):
        return None
    factors = [run.cells.first[1, run.n_layers] if group.was_scaled else 1.0 for run in group.runs]
    runs = [[score / factor for score in run.scores()] for run, factor in zip(group.runs, factors, strict=True)]
    return [stdev(scores) for scores in zip(*runs, strict=True)]
