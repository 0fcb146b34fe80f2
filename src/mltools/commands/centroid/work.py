"""Project rows onto the lines between class centroids, layer by layer (§5, released code §1.9). Needs no torch.

For an ordered pair of classes (a, b), with centroids μ of clean rows, a row x stands at
t(x) = (x − μ_a)·(μ_b − μ_a) / ‖μ_b − μ_a‖²: 0 at the centroid of a, 1 at that of b. Noisy rows that were given
label a and had b show how far they have moved. One matrix product a layer gives t of all rows for all pairs.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mltools.commands.centroid import CrossingName, Settings
from mltools.commands.centroid.projections import (
    GROUPS,
    MIN_CLEAN,
    STATISTICS,
    Floats,
    Ints,
    Layer,
    Projections,
    pair_counts,
    project_layer,
)
from mltools.console import Track, untracked
from mltools.errors import RowsError
from mltools.io.columns import table_ids
from mltools.io.examples import NO_NOISY
from mltools.io.kinds import CentroidRecord, EventRecord
from mltools.io.states import RowTable, States
from mltools.run import Run
from mltools.spec import bare

if TYPE_CHECKING:
    import polars as pl

DEFAULTS = bare(Settings)


LOW, HIGH = STATISTICS.index("p12_5"), STATISTICS.index("p87_5")
MIDDLE = 0.5
NO_PAIR = "no pair of classes has noisy rows and two centroids"


def centroid(
    states: States, progress: Track = untracked, projections: Projections | None = None
) -> Iterator[CentroidRecord]:
    """Yield, layer by layer, a record for each ordered pair of classes, then one for all pairs together.

    Args:
        states: of all rows, with noisy ones among them.
        progress: wraps the layers, to show progress.
        projections: filled with every row's projections.

    Raises:
        RowsError: fewer than two classes, no noisy or no clean rows, noisy rows whose original label is not known.
    """
    rows = states.rows
    pairs = (*_pairs(rows), None)
    clean, noisy = pair_counts(rows)
    names = ("baseline_noisy_accuracy", "baseline_clean_accuracy")
    baseline: dict[str, Any] = dict(zip(names, states.baseline, strict=True))

    def about(layer: Layer, pair: tuple[int, int] | None) -> dict[str, Any]:
        """Give the columns that say which rows are meant, how many, and why they have no values."""
        if pair is None:
            said: dict[str, Any] = dict.fromkeys(("assigned_label", "original_label", "distance"))
            reason = None if layer.n_pooled["noisy"] else NO_PAIR
            return {**said, "reason": reason, **{f"n_{group}": layer.n_pooled[group] for group in GROUPS}}
        a, b = pair
        return {
            "assigned_label": rows.names[a],
            "original_label": rows.names[b],
            "n_assigned": int(clean[a]),
            "n_original": int(clean[b]),
            "n_noisy": int(noisy[a, b]),
            "distance": _or_none(layer.distance[a, b]),
            "reason": _why_none(rows, clean, noisy, layer.distance, pair),
        }

    for layer in _track(states, progress, projections):
        for pair in pairs:
            columns = {**about(layer, pair), **_columns(layer, pair), **baseline}
            yield CentroidRecord(tool="centroid", layer=layer.number, layers=states.layers, **columns)


def events(
    states: States,
    settings: Settings = DEFAULTS,
    progress: Track = untracked,
    projections: Projections | None = None,
) -> Iterator[EventRecord]:
    """Yield the crossing and the initiation of each ordered pair of classes, then of all pairs together.

    Args:
        states: as in `centroid`.
        settings: which crossing counts.
        progress: as in `centroid`.
        projections: as in `centroid`.

    Raises:
        RowsError: as `centroid`.
    """
    rows = states.rows
    clean, noisy = pair_counts(rows)
    layers = list(_track(states, progress, projections))
    for pair in (*_pairs(rows), None):
        a, b = (rows.names[pair[0]], rows.names[pair[1]]) if pair else (None, None)
        means = [_at(layer, "noisy", pair)[0] for layer in layers]
        high = [_at(layer, "assigned", pair)[HIGH] for layer in layers]
        low = [_at(layer, "original", pair)[LOW] for layer in layers]
        why = [_why_none(rows, clean, noisy, layer.distance, pair) for layer in layers] if pair else [None]
        found = {
            "crossing": (crossing(means, settings.crossing), f"the noisy mean does not cross {MIDDLE}", means),
            "initiation": (initiation(high, low), "the classes overlap at the last layer", high),
        }
        for event, (layer, reason, values) in found.items():
            if np.isnan(values).any():
                reason = next((text for text in why if text), NO_PAIR)
            yield EventRecord("centroid", event, layer, states.layers, a, b, None if layer else reason)


def crossing(means: Sequence[float], how: CrossingName = "first") -> int | None:
    """Find the layer (from 1) at which the noisy rows' mean projection falls below 0.5; None if it never does.

    Args:
        means: of layers 1..L; below layer 1 it counts as above 0.5.
        how: `first`, the first layer below (§5); `last`, the last fall (as released); `stable`, the first layer
            from which on it stays below.
    """
    below = np.asarray(means) < MIDDLE
    if how == "stable":
        return _onset(below)
    before = np.concatenate(([True], np.asarray(means)[:-1] > MIDDLE))
    falls = np.flatnonzero(below & before)
    found = np.flatnonzero(below) if how == "first" else falls
    return int(found[0 if how == "first" else -1]) + 1 if len(found) else None


def initiation(assigned_high: Sequence[float], original_low: Sequence[float]) -> int | None:
    """Find the layer (from 1) from which on, up to L, the two classes' central 75 % stay apart; None if there is none.

    Args:
        assigned_high: 87.5th percentile of the assigned class, layers 1..L.
        original_low: 12.5th percentile of the original class.
    """
    return _onset(np.asarray(assigned_high) < np.asarray(original_low))


def _onset(holds: NDArray[np.bool_]) -> int | None:
    """The first layer from which on something holds up to the last; None if it does not hold there."""
    fails = np.flatnonzero(~holds)
    first = int(fails[-1]) + 2 if len(fails) else 1
    return first if first <= len(holds) else None


def _at(layer: Layer, group: str, pair: tuple[int, int] | None) -> Floats:
    return layer.pooled[group] if pair is None else layer.pairs[group][pair]


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _columns(layer: Layer, pair: tuple[int, int] | None) -> dict[str, Any]:
    """The statistics of a pair, or of all pairs, as columns of a record."""
    return {
        f"{group}_{name}": _or_none(value)
        for group in GROUPS
        for name, value in zip(STATISTICS, _at(layer, group, pair), strict=True)
    }


def _pairs(rows: RowTable) -> Iterator[tuple[int, int]]:
    """Every ordered pair of the classes that occur."""
    present = np.union1d(rows.label, rows.original_label).tolist()
    return ((a, b) for a in present for b in present if a != b)


def _why_none(rows: RowTable, clean: Ints, noisy: Ints, distance: Floats, pair: tuple[int, int]) -> str | None:
    """Say why a pair has values that are null."""
    for label in pair:
        if clean[label] < MIN_CLEAN:
            return f"{rows.names[label]} has {clean[label]} clean rows; a centroid needs {MIN_CLEAN}"
    if not distance[pair] > 0:
        return "the two centroids coincide"
    return None if noisy[pair] else "no noisy rows of this pair"


def _check(states: States) -> None:
    rows = states.rows
    if len(np.union1d(rows.label, rows.original_label)) < 2:
        raise RowsError(f"{states.name}: one class only ({rows.names[rows.label[0]]}); centroids need two")
    if not rows.noisy.any():
        raise RowsError(f"{states.name}: {NO_NOISY}")
    if rows.noisy.all():
        raise RowsError(f"{states.name}: every row is noisy; centroids are means of clean rows")
    lost = rows.noisy & (rows.label == rows.original_label)
    if lost.any():
        raise RowsError(
            f"{states.name}: {int(lost.sum())} noisy rows have no other original_label (first: row id "
            f"{rows.ids[int(lost.argmax())]!r}); it is needed to know where they come from"
        )


def _track(states: States, progress: Track, projections: Projections | None) -> Iterator[Layer]:
    _check(states)
    layers = (project_layer(states, number, projections) for number in range(1, states.layers + 1))
    return progress(layers, states.layers, "layers")


def per_row(projections: Projections, rows: RowTable) -> "pl.DataFrame":
    """Give every projection: a row for each (row, layer), and for each other class where it is clean.

    Columns: id, layer, label, other_label (a noisy row's original label), noisy, projection.
    """
    import polars as pl

    ids = pl.Series(table_ids(rows.ids))
    names = pl.Series(rows.names, dtype=pl.String)
    row = np.concatenate(projections.rows)
    return pl.DataFrame(
        {
            "id": ids.gather(row),
            "layer": np.repeat(projections.layers, [len(part) for part in projections.rows]),
            "label": names.gather(rows.label[row]),
            "other_label": names.gather(np.concatenate(projections.others)),
            "noisy": rows.noisy[row],
            "projection": np.concatenate(projections.values),
        }
    )


def run(run: Run) -> Iterator[CentroidRecord | EventRecord]:
    """Project the rows, and keep every projection if that is wanted."""
    settings: Settings = run.settings
    kept = Projections() if settings.per_row is not None else None

    with run.states() as states, threadpool_limits(settings.device.threads or 1, "blas"):  # products too small to share
        if settings.events:
            yield from events(states, settings, run.track, kept)
        else:
            yield from centroid(states, run.track, kept)
        if kept is not None:
            run.write_frame("per_row", per_row(kept, states.rows))
        run.report(rows=len(states), noisy=int(states.rows.noisy.sum()), layers=states.layers, width=None, dtype=None)
