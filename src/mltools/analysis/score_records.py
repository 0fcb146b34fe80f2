"""Read window and layer records into groups: what each window, or each layer, was measured to be.

`read_layer_scores` is the one reader of either kind, for `mcog`, `plot`, `score` and `correlate`, made for a million
records.

Where runs of `retrain` are averaged, each run's errors are first divided by the error of its own full window, as the
released code does before it averages over seeds: a run that forgets more of everything would weigh more otherwise.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from mltools.analysis.layer_scores import LayerScores
from mltools.errors import RowsError
from mltools.io.groups import Group, Groups
from mltools.io.records import Record, Records, are_numbers
from mltools.layers import Span, format_span
from mltools.sweep import ERROR, SCALED, scaled

Head = tuple[str, int]  # what records are of: "window" or "layer", and L
CLEAN = "clean_accuracy"
MOST_LAYERS = 1_000_000
"""No model has more; a record that says so would keep whoever lists its layers busy for ever."""


def read_layer_scores(
    records: Iterable[Records],
    by: Sequence[str] | None = None,
    value: str | None = None,
    numbers: Collection[str] = (),
) -> list[LayerScores]:
    """Sort window and layer records into groups by `tool` and the columns `by` (default: every tag).

    Records of the embeddings (layer 0) and of the head (null) are passed over.

    Args:
        records: blocks of records, in any order.
        by: as in `mcog`.
        value: the column to read; default `memorisation_error` of windows, `score` of layers.
        numbers: columns that are no tags, as `value` is none.

    Raises:
        RowsError: records of neither kind, layers out of range, groups that mix kinds or numbers of layers, and
            a window or layer that comes twice, without `by` in a group and with it in a run of retrain.
    """
    numbers = {*numbers, *([value] if value else [])}
    runs = Groups(by, LayerScores, runs=by is not None, numbers=numbers)
    for block in filled(records, by) if value == SCALED else records:
        for part in block.by_columns():
            add(part, runs, value, averaged=by is not None)
    found = list(runs)
    if not found:
        raise RowsError("no records came in")
    return found if by is None else _averaged(found, {"tool", *by}, value or ERROR)


def read_layer_scores_each(
    records: Iterable[Records], by: Sequence[str] | None = None, values: Sequence[str] = ()
) -> list[LayerScores]:
    """Read several columns, each of which is named by a column `value` of its groups; none: as `read_layer_scores`."""
    if not values:
        return read_layer_scores(records, by)
    blocks = list(records)
    found = []
    for value in values:
        for group in read_layer_scores(blocks, by, value, values):
            group.key = (*(item for item in group.key if item[0] != "value"), ("value", value))
            found.append(group)
    return found


def _averaged(runs: Iterable[LayerScores], by: set[str], value: str) -> list[LayerScores]:
    """Put the runs of each group together."""
    groups: dict[Group, list[LayerScores]] = {}
    for run in runs:
        key = tuple(sorted((item for item in run.key if item[0] in by), key=itemgetter(0)))
        groups.setdefault(key, []).append(run)
    return [_together(members, by, value) for members in groups.values()]


def _together(runs: Sequence[LayerScores], by: set[str], value: str) -> LayerScores:
    """Average the runs of a group; those of retrain are scaled first."""
    first = runs[0]
    if len(runs) == 1:
        first.key = tuple(item for item in first.key if item[0] in by)
        return first
    group = LayerScores(tuple(item for item in first.key if item[0] in by), first.first, first.kind, first.n_layers)
    group.was_scaled = first.tags["tool"] == "retrain" and value == ERROR
    group.carried.join(run.carried for run in runs)
    group.runs = runs
    group.clean = [number for run in runs for number in run.clean]
    for run in runs:
        if (run.kind, run.n_layers) != (group.kind, group.n_layers):
            _claim(group, run.kind, run.n_layers, run.first.place)
        factor = _factor(group, run, by) if group.was_scaled else 1.0
        again = [(span, number) for span, numbers in run.cells.again.items() for number in numbers]
        for cells in (list(run.cells.first.items()), again):
            group.cells.enter([span for span, _ in cells], [number / factor for _, number in cells], repeats=True)
    return group


def _factor(group: LayerScores, run: LayerScores, by: set[str]) -> float:
    """Give what a run's errors are divided by; 1, with the reason in the group, where that is not known."""
    named = ", ".join(f"{name}={value}" for name, value in run.key if name not in by) or run.first.place
    full = run.cells.first.get((1, run.n_layers)) if group.kind == "window" else None
    if full:
        return full
    group.unscaled = group.unscaled or (
        f"errors of retrain are divided by the full window's before runs are averaged, and run {named} "
        + (
            "holds layer scores: average its windows"
            if group.kind == "layer"
            else f"lacks that window; run --layers 1-{run.n_layers}"
            if full is None
            else "has error 0 there"
        )
    )
    return 1.0


class _Full:
    """The error of a sweep's full window, once it is known."""

    def __init__(self, *_: object) -> None:
        self.error: float | None = None


def filled(records: Iterable[Records], by: Sequence[str] | None = None) -> list[Records]:
    """Fill in the scaled errors that are null because a window was run alone, from the same sweep's full window.

    Raises:
        RowsError: a window whose scaled error stays unknown.
    """
    parts = [part for block in records for part in block.by_columns()]
    sweeps = Groups(by, _Full, runs=True)
    for part in parts:
        for sweep, run in sweeps.runs(part):
            for record in part[run]:
                if record.values.get("start") == 1 and record.values.get("end") == record.values.get("layers"):
                    sweep.error = record.number(ERROR)
    for part in parts:
        if SCALED in part.values[0]:
            for sweep, run in sweeps.runs(part):
                _fill(part[run], sweep.error)
    return parts


def _fill(records: Records, full: float | None) -> None:
    for record in records:
        if record.values[SCALED] is None:
            record.values[SCALED] = scaled(record.number(ERROR), full)
            if record.values[SCALED] is None:
                why = "is not among the records" if full is None else "has error 0"
                raise RowsError(f'{record.place}: "{SCALED}" is unknown: the full window of its sweep {why}')


def add(records: Records, groups: Groups[LayerScores], value: str | None = None, *, averaged: bool = False) -> None:
    """Enter the values of some records with the same columns into their groups, as `read_layer_scores` does."""
    windows, others = records.parted("start")
    if len(windows) and len(others):  # in Parquet, where each kind has the columns of the other
        start = 0
        for _, same in groupby(values["start"] is None for values in records.values):
            stop = start + len(list(same))
            add(records[start:stop], groups, value, averaged=averaged)
            start = stop
        return
    if not len(windows):
        records = others.where("layer", lambda layer: layer is not None and (layer != 0 or type(layer) is not int))
    if not len(records):
        return
    spans, numbers, heads = _read(records, value)
    if len(heads) > 1:
        for index in range(len(records)):
            add(records[index : index + 1], groups, value, averaged=averaged)
        return
    (head,) = heads
    for group, run in groups.runs(records):
        if head != (group.kind, group.n_layers):
            _claim(group, *head, records.record(run.start).place)
        group.carried.read(records[run])
        if head[0] == "window" and CLEAN in records.values[0]:
            group.clean.extend(map(itemgetter(CLEAN), records.values[run]))
        repeats = averaged and group.key[0] != ("tool", "retrain")
        repeated = group.cells.enter(spans[run], numbers[run], repeats=repeats)
        if repeated is not None:
            place, span = records.record(run.start + repeated).place, spans[run.start + repeated]
            advice = "tag runs apart" if averaged else "tag runs apart or average --by"
            raise RowsError(f"{place}: {group.kind} {format_span(span)} again in the same group; {advice}")


def _claim(group: LayerScores, kind: str, n_layers: int, place: str) -> None:
    """Note what a new group's records are of; for an old one, say how it differs."""
    if not group.kind:
        group.kind, group.n_layers = kind, n_layers
    elif n_layers != group.n_layers:
        raise RowsError(f"{place}: {n_layers} layers, others of its group have {group.n_layers}; group with --by")
    else:
        raise RowsError(f"{place}: window and layer records in one group; tag them apart or group with --by")


def _read(records: Records, value: str | None) -> tuple[list[Span], list[float], set[Head]]:
    """Read (start, end) and value of some records with the same columns, and what they are of."""
    kind, names, column = _plan(records.values[0], value)
    try:
        places = list(map(itemgetter(*names), records.values))
        numbers = list(map(itemgetter(column), records.values))
        whole = set(map(type, chain.from_iterable(places))) == {int}  # true and 1.0 are equal to 1, and no layers
        if whole and are_numbers(numbers):
            cells = list(map(_cells(kind).__getitem__, places))
            return list(map(itemgetter(1), cells)), numbers, set(map(itemgetter(0), cells))
    except (KeyError, TypeError, ValueError, OverflowError):
        pass  # some record is wrong or unusual: the careful way says which
    found = [_read_carefully(record, value) for record in records]
    return [span for _, span, _ in found], [number for *_, number in found], {head for head, _, _ in found}


def _plan(values: Mapping[str, Any], value: str | None) -> tuple[str, list[str], str]:
    """Say what a record is of, the columns that say where it belongs, and the column of its value."""
    if values.get("start") is None:
        return "layer", ["layers", "layer", "layer"], value or "score"
    width = ["width"] if values.get("width") is not None else []
    return "window", ["layers", "start", "end", *width], value or ERROR


class _Cells(dict[tuple[int, ...], tuple[Head, Span]]):
    """Cells of a kind by what names them, each checked once: of a million records few name different ones."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __missing__(self, place: tuple[int, ...]) -> tuple[Head, Span]:
        self[place] = _cell(self._kind, *place)
        return self[place]


_cells = cache(_Cells)


def _cell(kind: str, n_layers: int, start: int, end: int, width: int | None = None) -> tuple[Head, Span]:
    """Name a cell.

    Raises:
        ValueError: it is none; says why.
    """
    if n_layers > MOST_LAYERS:
        raise ValueError(f"{n_layers} layers are more than {MOST_LAYERS}")
    if not 1 <= start <= end <= n_layers:
        raise ValueError(f"{kind} {start if start == end else f'{start}-{end}'} outside 1-{n_layers}")
    if width is not None and width != end - start + 1:
        raise ValueError(f"window {start}-{end} of width {width} is not contiguous; M-CoG weighs contiguous windows")
    return (kind, n_layers), (start, end)


def _read_carefully(record: Record, value: str | None) -> tuple[Head, Span, float]:
    kind, names, column = _plan(record.values, value)
    try:
        head, span = _cell(kind, *(record.get(name, int) for name in names))
    except ValueError as error:
        raise RowsError(f"{record.place}: {error}") from None
    return head, span, record.number(column)
