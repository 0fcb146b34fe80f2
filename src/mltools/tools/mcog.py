"""Memorisation centre of gravity: Σ l·w_l / Σ w_l over layers l = 1..L (§4.1). Needs no torch.

Weights are the scores of layer records, or the layer scores that a sweep of window records gives.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.records import CogRecord, LayerRecord, Record, known_columns, tags_of
from mltools.windows import Window, layer_scores, parse_layers

Group = tuple[tuple[str, Any], ...]


def centre_of_gravity(weights: Sequence[float]) -> float:
    """Compute Σ l·w_l / Σ w_l, l from 1. In [1, L]; the same if all weights are scaled.

    Raises:
        ValueError: a negative weight, or all are zero.
    """
    if any(not weight >= 0 for weight in weights):
        raise ValueError(f"a weight is negative ({min(weights):.4g})")
    total = sum(weights)
    if not total > 0:
        raise ValueError("all weights are zero")
    centre = sum(layer * weight for layer, weight in enumerate(weights, start=1)) / total
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
    for key, members in group_records(records, by).items():
        tags = dict(key)
        scores, n_layers = weigh(members, averaged=by is not None)
        try:
            centre = centre_of_gravity(scores)
        except ValueError as error:
            raise RowsError(f"{members[0].place}: no centre of gravity: {error}{_named(tags)}") from None
        tool = str(tags.pop("tool"))
        yield CogRecord(tool, n_layers, centre, scores, len(members)), tags


def layers(records: Iterable[Record], by: Sequence[str] | None = None) -> Iterator[tuple[LayerRecord, dict[str, Any]]]:
    """Yield each group's layer scores as layer records with the group's columns; else as `mcog`."""
    for key, members in group_records(records, by).items():
        tags = dict(key)
        scores, n_layers = weigh(members, averaged=by is not None)
        tool = str(tags.pop("tool"))
        for layer, score in enumerate(scores, start=1):
            yield LayerRecord(tool, layer, n_layers, score), tags


def group_records(records: Iterable[Record], by: Sequence[str] | None) -> dict[Group, list[Record]]:
    """Sort records into groups by `tool` and the columns `by` (default: every tag)."""
    ignore = known_columns() - {"part", "target"}
    groups: dict[Group, list[Record]] = {}
    for record in records:
        if by is None:
            columns = tags_of(record.values, ignore)
        else:
            columns = {name: record.get(name, (str, int, float, bool, type(None))) for name in by if name != "tool"}
        key = (("tool", record.get("tool", str)), *columns.items())
        groups.setdefault(key, []).append(record)
    if not groups:
        raise RowsError("no records came in")
    return groups


def weigh(members: Sequence[Record], *, averaged: bool) -> tuple[list[float], int]:
    """Give the layer scores of one group of records, and L."""
    n_layers = layer_count(members)
    if "start" in members[0].values:
        errors = window_errors(members, n_layers, averaged=averaged)
        try:
            return layer_scores(errors, n_layers), n_layers
        except UsageError as error:
            raise RowsError(f"{members[0].place}: {error}") from None
    return _layer_values(members, n_layers, averaged), n_layers


def layer_count(members: Sequence[Record]) -> int:
    """Give L, the number of layers that all records of a group name."""
    counts = {record.get("layers", int): record for record in members}
    if len(counts) > 1:
        first, second, *_ = counts
        raise RowsError(f"{counts[second].place}: {second} layers, others of its group have {first}; group with --by")
    return int(next(iter(counts)))


def window_errors(
    members: Sequence[Record], n_layers: int, *, averaged: bool, column: str = "memorisation_error"
) -> dict[Window, float]:
    """Give the error of each window in one group of window records, averaged over its runs.

    Raises:
        RowsError: a window that is not contiguous or outside 1..L, one that comes again though runs are not to be
            averaged, or runs that lack some of the others' windows.
    """
    values: dict[Window, list[float]] = {}
    for record in members:
        try:
            window = Window(parse_layers(record.values.get("window") or _span(record), n_layers))
        except UsageError as error:
            raise RowsError(f"{record.place}: {error}") from None
        if not window.contiguous:
            raise RowsError(f"{record.place}: window {window} is not contiguous; M-CoG weighs contiguous windows")
        values.setdefault(window, []).append(record.number(column))
        if len(values[window]) > 1 and not averaged:
            raise RowsError(f"{record.place}: window {window} again in the same group; tag runs apart or average --by")
    _check_even(values, members[0], "window")
    return {window: sum(errors) / len(errors) for window, errors in values.items()}


def _span(record: Record) -> str:
    return f"{record.get('start', int)}-{record.get('end', int)}"


def _layer_values(members: Sequence[Record], n_layers: int, averaged: bool) -> list[float]:
    values: dict[int, list[float]] = {}
    for record in members:
        layer = record.get("layer", int)
        if not 1 <= layer <= n_layers:
            raise RowsError(f"{record.place}: layer {layer} outside 1-{n_layers}")
        values.setdefault(layer, []).append(record.number("score"))
        if len(values[layer]) > 1 and not averaged:
            raise RowsError(f"{record.place}: layer {layer} again in the same group; tag runs apart or average --by")
    missing = [layer for layer in range(1, n_layers + 1) if layer not in values]
    if missing:
        raise RowsError(f"{members[0].place}: layer {missing[0]} of {n_layers} has no record in its group")
    _check_even(values, members[0], "layer")
    return [sum(values[layer]) / len(values[layer]) for layer in range(1, n_layers + 1)]


def _check_even(values: dict[Any, list[float]], first: Record, what: str) -> None:
    counts = {key: len(items) for key, items in values.items()}
    fewest, most = min(counts, key=lambda k: counts[k]), max(counts, key=lambda k: counts[k])
    if counts[fewest] != counts[most]:
        raise RowsError(
            f"{first.place}: {what} {fewest} has {counts[fewest]} records in its group, {what} {most} has "
            f"{counts[most]}; the runs averaged must be complete"
        )


def _named(tags: dict[str, Any]) -> str:
    return " (" + ", ".join(f"{key}={value}" for key, value in tags.items()) + ")" if tags else ""
