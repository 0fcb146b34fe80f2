"""Memorisation centre of gravity: Σ l·w_l / Σ w_l over layers l = 1..L (§4.1). Needs no torch.

Weights are the scores of layer records, or the layer scores that a sweep of window records gives. `measure` is
the one reader of either kind: `plot`, `score` and `correlate` use it too. It is made for a million records.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import fsum, isfinite
from operator import itemgetter
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.groups import Group, Groups
from mltools.io.records import CogRecord, LayerRecord, Record, Records
from mltools.windows import Span, format_layers, layer_scores

Cell = tuple[tuple[str, int], Span]  # (window or layer, L), (start, end)


def centre_of_gravity(weights: Sequence[float]) -> float:
    """Compute Σ l·w_l / Σ w_l, l from 1. In [1, L]; the same if all weights are scaled.

    Raises:
        ValueError: a negative weight, or all are zero.
    """
    if any(not weight >= 0 for weight in weights):
        raise ValueError(f"a weight is negative ({min(weights):.4g})")
    top = max(weights, default=0.0)
    if not top > 0:
        raise ValueError("all weights are zero")
    shares = [weight / top for weight in weights]  # so that neither sum can overflow or vanish
    centre = sum(layer * share for layer, share in enumerate(shares, start=1)) / sum(shares)
    return min(max(centre, 1.0), float(len(weights)))


def mcog(records: Iterable[Records], by: Sequence[str] | None = None) -> Iterator[tuple[CogRecord, dict[str, Any]]]:
    """Weigh each group of records: yields (M-CoG, the group's columns), groups in order of appearance.

    Args:
        records: window or layer records of any tool, in any order.
        by: columns to group by, besides `tool`; runs that fall into one group are averaged window by window
            before weighing, as the paper does over seeds. Default: all tags, and then every record counts once.

    Raises:
        RowsError: records that are neither kind, a window or layer twice in a group, missing ones, weights that
            are negative or all zero.
    """
    for group in measure(records, by):
        tags = dict(group.key)
        scores = group.scores()
        try:
            centre = centre_of_gravity(scores)
        except ValueError as error:
            raise RowsError(f"{group.first.place}: no centre of gravity: {error}{_named(tags)}") from None
        tool = str(tags.pop("tool"))
        yield CogRecord(tool, group.n_layers, centre, scores, group.n_records), tags


def layers(records: Iterable[Records], by: Sequence[str] | None = None) -> Iterator[tuple[LayerRecord, dict[str, Any]]]:
    """Yield each group's layer scores as layer records with the group's columns; else as `mcog`."""
    for group in measure(records, by):
        tags = dict(group.key)
        tool = str(tags.pop("tool"))
        for layer, score in enumerate(group.scores(), start=1):
            yield LayerRecord(tool, layer, group.n_layers, score), tags


@dataclass(slots=True, eq=False)
class Measured:
    """What the records of one group say: the value of each window, or of each layer (a window of one).

    `cells` has the first value of each, by (start, end); `again` those of further runs, where runs are averaged.
    """

    key: Group
    first: Record
    kind: str = ""
    n_layers: int = 0
    cells: dict[Span, float] = field(default_factory=dict)
    again: dict[Span, list[float]] = field(default_factory=dict)

    @property
    def n_records(self) -> int:
        """How many records the group has."""
        return len(self.cells) + sum(map(len, self.again.values()))

    def values(self) -> dict[Span, float]:
        """Give the value of each window or layer, the mean over the runs.

        Raises:
            RowsError: runs that lack windows or layers which others have.
        """
        if not self.again:
            return self.cells
        runs = {span: [number, *self.again.get(span, ())] for span, number in self.cells.items()}
        few, many = min(runs, key=lambda span: len(runs[span])), max(runs, key=lambda span: len(runs[span]))
        if len(runs[few]) != len(runs[many]):
            raise RowsError(
                f"{self.first.place}: {self.kind} {_shown(few)} has {len(runs[few])} records in its group, {self.kind} "
                f"{_shown(many)} has {len(runs[many])}; the runs averaged must be complete"
            )
        return {span: fsum(numbers) / len(numbers) for span, numbers in runs.items()}

    def scores(self) -> list[float]:
        """Give the score of each layer 1..L.

        Raises:
            RowsError: missing windows or layers; else as `values`.
        """
        try:
            return layer_scores(self.values(), self.n_layers)
        except UsageError as error:
            if self.kind == "window":
                raise RowsError(f"{self.first.place}: {error}") from None
        missing = next(layer for layer in range(1, self.n_layers + 1) if (layer, layer) not in self.cells)
        raise RowsError(f"{self.first.place}: layer {missing} of {self.n_layers} has no record in its group") from None


def measure(records: Iterable[Records], by: Sequence[str] | None = None, value: str | None = None) -> list[Measured]:
    """Sort window and layer records into groups by `tool` and the columns `by` (default: every tag).

    Records of the embeddings (layer 0) are passed over.

    Args:
        records: blocks of records, in any order.
        by: as in `mcog`.
        value: the column to read; default `memorisation_error` of windows, `score` of layers.

    Raises:
        RowsError: records of neither kind, layers out of range, groups that mix kinds or numbers of layers, and
            without `by` a window or layer that comes twice.
    """
    groups = Groups(by, Measured)
    for block in records:
        for part in block.by_columns():
            part = part.where("layer", lambda layer: layer != 0)
            if part.values:
                _add(part, groups, value, averaged=by is not None)
    found = list(groups)
    if not found:
        raise RowsError("no records came in")
    return found


def _add(records: Records, groups: Groups[Measured], value: str | None, *, averaged: bool) -> None:
    """Enter the values of some records with the same columns into their groups."""
    spans, numbers, heads = _read(records, value)
    if len(heads) > 1:
        for index in range(len(records)):
            _add(records[index : index + 1], groups, value, averaged=averaged)
        return
    ((kind, n_layers),) = heads
    for group, run in groups.runs(records):
        _claim(group, kind, n_layers, records, run.start)
        new = dict(zip(spans[run], numbers[run], strict=True))
        if len(new) == run.stop - run.start and group.cells.keys().isdisjoint(new):
            group.cells.update(new)
        else:
            _add_again(group, records[run], spans[run], numbers[run], averaged=averaged)


def _claim(group: Measured, kind: str, n_layers: int, records: Records, index: int) -> None:
    """Note what a group's records are of, and see that all agree."""
    if not group.cells:
        group.kind, group.n_layers = kind, n_layers
    elif n_layers != group.n_layers:
        place = records.record(index).place
        raise RowsError(f"{place}: {n_layers} layers, others of its group have {group.n_layers}; group with --by")
    elif kind != group.kind:
        place = records.record(index).place
        raise RowsError(f"{place}: window and layer records in one group; tag them apart or group with --by")


def _add_again(
    group: Measured, records: Records, spans: Sequence[Span], numbers: Sequence[float], *, averaged: bool
) -> None:
    """Enter values of which some are of windows or layers that the group has already."""
    for record, span, number in zip(records, spans, numbers, strict=True):
        if span not in group.cells:
            group.cells[span] = number
        elif averaged:
            group.again.setdefault(span, []).append(number)
        else:
            raise RowsError(
                f"{record.place}: {group.kind} {_shown(span)} again in the same group; tag runs apart or average --by"
            )


def _read(records: Records, value: str | None) -> tuple[list[Span], list[float], set[tuple[str, int]]]:
    """Read (start, end) and value of some records with the same columns, and what they are of: kinds and L."""
    kind, names, column = _plan(records.values[0], value)
    try:
        places = list(map(itemgetter(*names), records.values))
        numbers = list(map(itemgetter(column), records.values))
        cells = {place: _cell(kind, *place) for place in set(places)}  # few differ, so checking them costs little
        if set(map(type, numbers)) <= {int, float} and isfinite(fsum(numbers)):
            return [cells[place][1] for place in places], numbers, {head for head, _ in cells.values()}
    except (KeyError, TypeError, ValueError, OverflowError):
        pass  # some record is wrong or unusual: the careful way says which
    careful = [_read_carefully(record, value) for record in records]
    return [span for _, span in careful], [record.number(column) for record in records], {head for head, _ in careful}


def _plan(values: Mapping[str, Any], value: str | None) -> tuple[str, list[str], str]:
    """Say what a record is of, the columns that say where it belongs, and the column of its value."""
    if values.get("start") is None:
        return "layer", ["layers", "layer", "layer"], value or "score"
    width = ["width"] if values.get("width") is not None else []
    return "window", ["layers", "start", "end", *width], value or "memorisation_error"


@cache
def _cell(kind: str, n_layers: int, start: int, end: int, width: int | None = None) -> Cell:
    """Name a cell.

    Raises:
        ValueError: it is none; says why.
    """
    if not all(type(number) is int for number in (n_layers, start, end)):
        raise ValueError("is no whole number")
    if not 1 <= start <= end <= n_layers:
        raise ValueError(f"{kind} {start if start == end else f'{start}-{end}'} outside 1-{n_layers}")
    if width is not None and width != end - start + 1:
        raise ValueError(f"window {start}-{end} of width {width} is not contiguous; M-CoG weighs contiguous windows")
    return (kind, n_layers), (start, end)


def _read_carefully(record: Record, value: str | None) -> Cell:
    kind, names, _ = _plan(record.values, value)
    try:
        return _cell(kind, *(record.get(name, int) for name in names))
    except ValueError as error:
        raise RowsError(f"{record.place}: {error}") from None


def _shown(span: Span) -> str:
    return format_layers(range(span[0], span[1] + 1))


def _named(tags: dict[str, Any]) -> str:
    return " (" + ", ".join(f"{key}={value}" for key, value in tags.items()) + ")" if tags else ""
