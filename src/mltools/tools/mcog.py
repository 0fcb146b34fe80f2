"""Memorisation centre of gravity: Σ l·w_l / Σ w_l over layers l = 1..L (§4.1). Needs no torch.

Weights are the scores of layer records, or the layer scores that a sweep of window records gives. `measure` is
the one reader of either kind: `plot`, `score` and `correlate` use it too. It is made for a million records.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite
from operator import itemgetter
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.groups import Group, Groups
from mltools.io.records import CogRecord, LayerRecord, Record, Records
from mltools.windows import Span, format_layers, layer_scores

Cell = tuple[str, int, Span]  # window or layer, L, (start, end)


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


@dataclass(slots=True)
class Measured:
    """What the records of one group say: the value of each window, or of each layer (a window of one), run by run."""

    key: Group
    first: Record
    n_layers: int = 0
    kind: str = ""
    cells: dict[Span, tuple[float, ...]] = field(default_factory=dict)

    def claim(self, kind: str, n_layers: int, place: str) -> None:
        """Note what the group's records are of, and that all agree.

        Raises:
            RowsError: they do not.
        """
        if not self.cells:
            self.kind, self.n_layers = kind, n_layers
        elif n_layers != self.n_layers:
            raise RowsError(f"{place}: {n_layers} layers, others of its group have {self.n_layers}; group with --by")
        else:
            raise RowsError(f"{place}: window and layer records in one group; tag them apart or group with --by")

    @property
    def n_records(self) -> int:
        """How many records the group has."""
        return sum(map(len, self.cells.values()))

    def values(self) -> dict[Span, float]:
        """Average each window's or layer's value over the runs.

        Raises:
            RowsError: runs that lack windows or layers which others have.
        """
        counts = {span: len(runs) for span, runs in self.cells.items()}
        fewest, most = min(counts.values()), max(counts.values())
        if fewest == most == 1:
            return {span: runs[0] for span, runs in self.cells.items()}
        if fewest != most:
            few, many = (next(span for span, n in counts.items() if n == count) for count in (fewest, most))
            raise RowsError(
                f"{self.first.place}: {self.kind} {_shown(few)} has {fewest} records in its group, {self.kind} "
                f"{_shown(many)} has {most}; the runs averaged must be complete"
            )
        # sorted, so that the mean does not depend on the order of the records
        return {span: sum(sorted(runs)) / len(runs) for span, runs in self.cells.items()}

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
    cells, numbers = _read(records, value)
    for group, line, (kind, n_layers, span), number in zip(
        groups.assign(records), records.lines, cells, numbers, strict=True
    ):
        if n_layers != group.n_layers or kind != group.kind:
            group.claim(kind, n_layers, records.source.place(line))
        runs = group.cells.get(span)
        if runs is None:
            group.cells[span] = (number,)
        elif averaged:
            group.cells[span] = (*runs, number)
        else:
            place = records.source.place(line)
            raise RowsError(f"{place}: {kind} {_shown(span)} again in the same group; tag runs apart or average --by")


def _read(records: Records, value: str | None) -> tuple[list[Cell], list[float]]:
    """Read which window or layer each of some records with the same columns is of, and its value."""
    kind, names, column = _plan(records.values[0], value)
    try:
        places = list(map(itemgetter(*names), records.values))
        numbers = list(map(itemgetter(column), records.values))
        cells = {place: _cell(kind, *place) for place in set(places)}  # few differ, so that checks cost little
        if set(map(type, numbers)) <= {int, float} and isfinite(fsum(numbers)):
            return [cells[place] for place in places], numbers
    except (KeyError, TypeError, ValueError, OverflowError):
        pass  # some record is wrong or unusual: the careful way says which
    return [_read_carefully(record, value) for record in records], [record.number(column) for record in records]


def _plan(values: Mapping[str, Any], value: str | None) -> tuple[str, list[str], str]:
    """Say what a record is of, the columns that say where it belongs, and the column of its value."""
    if values.get("start") is None:
        return "layer", ["layers", "layer", "layer"], value or "score"
    width = ["width"] if values.get("width") is not None else []
    return "window", ["layers", "start", "end", *width], value or "memorisation_error"


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
    return kind, n_layers, (start, end)


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
