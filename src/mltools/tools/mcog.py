"""Memorisation centre of gravity: Σ l·w_l / Σ w_l over layers l = 1..L (§4.1). Needs no torch.

Weights are the scores of layer records, or the layer scores that a sweep of window records gives. `measure` is
the one reader of either kind: `plot`, `score` and `correlate` use it too. It is made for a million records.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.groups import Group, Groups
from mltools.io.records import CogRecord, LayerRecord, Record
from mltools.windows import Span, format_layers, layer_scores


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


def mcog(records: Iterable[Record], by: Sequence[str] | None = None) -> Iterator[tuple[CogRecord, dict[str, Any]]]:
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


def layers(records: Iterable[Record], by: Sequence[str] | None = None) -> Iterator[tuple[LayerRecord, dict[str, Any]]]:
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
    cells: dict[Span, list[float]] = field(default_factory=dict)
    n_records: int = 0

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


def measure(records: Iterable[Record], by: Sequence[str] | None = None, value: str | None = None) -> list[Measured]:
    """Sort window and layer records into groups by `tool` and the columns `by` (default: every tag).

    Records of the embeddings (layer 0) are passed over.

    Args:
        records: records in any order.
        by: as in `mcog`.
        value: the column to read; default `memorisation_error` of windows, `score` of layers.

    Raises:
        RowsError: records of neither kind, layers out of range, groups that mix kinds or numbers of layers, and
            without `by` a window or layer that comes twice.
    """
    groups = Groups(by, Measured)
    for record in records:
        kind, n_layers, span, number = _read(record, value)
        if span[1] == 0:
            continue
        group = groups.find(record)
        if not group.cells:
            group.kind, group.n_layers = kind, n_layers
        elif n_layers != group.n_layers or kind is not group.kind:
            raise _mixed(record, group, n_layers)
        group.n_records += 1
        runs = group.cells.get(span)
        if runs is None:
            group.cells[span] = [number]
        elif by is not None:
            runs.append(number)
        else:
            raise RowsError(
                f"{record.place}: {kind} {_shown(span)} again in the same group; tag runs apart or average --by"
            )
    if not groups.found:
        raise RowsError("no records came in")
    return groups.found


def _read(record: Record, value: str | None) -> tuple[str, int, Span, float]:
    """Take (window or layer, L, (start, end), value) out of a record."""
    values = record.values
    start = values.get("start")
    if start is None:
        kind, start, column = "layer", values.get("layer"), value or "score"
        end = start
    else:
        kind, end, column = "window", values.get("end"), value or "memorisation_error"
    n_layers, number = values.get("layers"), values.get(column)
    if type(start) is int and type(end) is int and type(n_layers) is int and type(number) is float:
        whole = kind == "layer" or values.get("width", end - start + 1) == end - start + 1
        if 1 <= start <= end <= n_layers and whole and number - number == 0.0:
            return kind, n_layers, (start, end), number
    return _read_carefully(record, kind, column)


def _read_carefully(record: Record, kind: str, column: str) -> tuple[str, int, Span, float]:
    """Do the same for a record that is unusual or wrong, and say what is wrong."""
    start, end = (record.get(name, int) for name in (("start", "end") if kind == "window" else ("layer", "layer")))
    n_layers: int = record.get("layers", int)
    if kind == "layer" and start == 0:
        return kind, n_layers, (0, 0), 0.0
    if not 1 <= start <= end <= n_layers:
        shown = f"{start}" if start == end else f"{start}-{end}"
        raise RowsError(f"{record.place}: {kind} {shown} outside 1-{n_layers}")
    if kind == "window" and record.values.get("width", end - start + 1) != end - start + 1:
        window = record.values.get("window", f"{start}-{end}")
        raise RowsError(f"{record.place}: window {window} is not contiguous; M-CoG weighs contiguous windows")
    return kind, n_layers, (start, end), record.number(column)


def _mixed(record: Record, group: Measured, n_layers: int) -> RowsError:
    if n_layers == group.n_layers:
        return RowsError(f"{record.place}: window and layer records in one group; tag them apart or group with --by")
    return RowsError(f"{record.place}: {n_layers} layers, others of its group have {group.n_layers}; group with --by")


def _shown(span: Span) -> str:
    return format_layers(range(span[0], span[1] + 1))


def _named(tags: dict[str, Any]) -> str:
    return " (" + ", ".join(f"{key}={value}" for key, value in tags.items()) + ")" if tags else ""
