"""Memorisation centre of gravity: Σ l·w_l / Σ w_l over layers l = 1..L (§4.1). Needs no torch.

Weights are the scores of layer records, or the layer scores that a sweep of window records gives. `measure` is
the one reader of either kind: `plot`, `score` and `correlate` use it too. It is made for a million records.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, repeat
from math import frexp, fsum, isfinite, ldexp
from operator import itemgetter
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.groups import Cells, Group, Groups
from mltools.io.kinds import CogRecord, LayerRecord
from mltools.io.records import Record, Records
from mltools.windows import Span, format_layers, layer_scores

Head = tuple[str, int]  # what records are of: "window" or "layer", and L


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
            before weighing, as the paper does over seeds. Default: all tags, and then every record counts once.

    Raises:
        RowsError: records that are neither kind, a window or layer twice in a group, missing ones, negative
            weights.
    """
    for group in measure(records, by):
        tags = group.tags
        centre, scores = weigh(group)
        reason = "all weights are zero" if centre is None else None
        yield (
            CogRecord(
                str(tags.pop("tool")),
                group.n_layers,
                centre,
                scores,
                len(group.cells),
                reason,
                group.valid,
                group.valid_reason,
            ),
            tags,
        )


def weigh(group: "Measured") -> tuple[float | None, list[float]]:
    """Give a group's centre of gravity (None if all scores are 0) and its layer scores.

    Raises:
        RowsError: a negative score.
    """
    scores = group.scores()
    try:
        return centre_of_gravity(scores), scores
    except ValueError as error:
        named = ", ".join(f"{name}={value}" for name, value in group.key)
        raise RowsError(f"{group.first.place}: no centre of gravity: {error} ({named})") from None


def layers(records: Iterable[Records], by: Sequence[str] | None = None) -> Iterator[tuple[LayerRecord, dict[str, Any]]]:
    """Yield each group's layer scores as layer records with the group's columns; else as `mcog`."""
    for group in measure(records, by):
        tags = group.tags
        tool = str(tags.pop("tool"))
        for layer, score in enumerate(group.scores(), start=1):
            yield LayerRecord(tool, layer, group.n_layers, score), tags


@dataclass(slots=True, eq=False)
class Measured:
    """What the records of one group say: the value of each window, or of each layer (a window of one layer)."""

    key: Group
    first: Record
    kind: str = ""
    n_layers: int = 0
    cells: Cells[Span] = field(default_factory=Cells)
    validity: set[tuple[Any, Any]] = field(default_factory=set)

    @property
    def valid(self) -> bool | None:
        """False if a record is not valid, True if all are, None if that is not known of some."""
        found = {valid for valid, _ in self.validity}
        return False if False in found else None if None in found or not found else True

    @property
    def valid_reason(self) -> str | None:
        """Say why records are not valid."""
        reasons = {reason for valid, reason in self.validity if valid is False and reason}
        return ",".join(sorted({part for reason in reasons for part in reason.split(",")})) or None

    @property
    def tags(self) -> dict[str, Any]:
        """The columns that the group's records share."""
        return dict(self.key)

    def values(self) -> dict[Span, float]:
        """Give the value of each window or layer by (start, end), the mean over the runs.

        Raises:
            RowsError: runs that lack windows or layers which others have.
        """
        if self.cells.again:
            counts = {span: len(self.cells.runs(span)) for span in self.cells.first}
            few, many = min(counts, key=lambda span: counts[span]), max(counts, key=lambda span: counts[span])
            if counts[few] != counts[many]:
                raise RowsError(
                    f"{self.first.place}: {self.kind} {_shown(few)} has {counts[few]} records in its group, "
                    f"{self.kind} {_shown(many)} has {counts[many]}; the runs averaged must be complete"
                )
        return self.cells.means()

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
        missing = next(layer for layer in range(1, self.n_layers + 1) if (layer, layer) not in self.cells.first)
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
            add(part, groups, value, averaged=by is not None)
    found = list(groups)
    if not found:
        raise RowsError("no records came in")
    return found


def add(records: Records, groups: Groups[Measured], value: str | None = None, *, averaged: bool = False) -> None:
    """Enter the values of some records with the same columns into their groups, as `measure` does."""
    records = records.where("layer", lambda layer: layer != 0 or type(layer) is not int)
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
        group.validity |= _validity(records[run])
        repeated = group.cells.enter(spans[run], numbers[run], repeats=averaged)
        if repeated is not None:
            place, span = records.record(run.start + repeated).place, spans[run.start + repeated]
            raise RowsError(
                f"{place}: {group.kind} {_shown(span)} again in the same group; tag runs apart or average --by"
            )


def _validity(records: Records) -> set[tuple[Any, Any]]:
    """Give the different `valid` and `valid_reason` of records with the same columns; null where they have none."""
    columns = records.values[0]
    if "valid" not in columns:
        return {(None, None)}
    reasons = map(itemgetter("valid_reason"), records.values) if "valid_reason" in columns else repeat(None)
    try:
        found = set(zip(map(itemgetter("valid"), records.values), reasons, strict=False))
    except TypeError:
        found = set()  # a list, which cannot be hashed
    if found and all(type(valid) in (bool, type(None)) and isinstance(why, str | None) for valid, why in found):
        return found
    for record in records:
        if record.values["valid"] is not None:
            record.get("valid", bool)
        if "valid_reason" in columns:
            record.get("valid_reason", (str, type(None)))
    return found


def _claim(group: Measured, kind: str, n_layers: int, place: str) -> None:
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
        if whole and set(map(type, numbers)) <= {int, float} and isfinite(fsum(numbers)):
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
    return "window", ["layers", "start", "end", *width], value or "memorisation_error"


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


def _shown(span: Span) -> str:
    return format_layers(range(span[0], span[1] + 1))
