"""The F1 of probes layer by layer (Figures 5, 13 and 14), a line a target and set of rows; bands are ± one SD."""

from collections.abc import Iterable, Iterator
from functools import partial

from mltools.console import printable
from mltools.drawing.curves import Point, curves
from mltools.drawing.grouped import Asked, grouped, overlaid, without
from mltools.drawing.panels import Panel
from mltools.io.groups import Group
from mltools.io.records import Record, Records


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make a panel a group of records of `probe`; with `overlay`, groups that differ only in it share one.

    Raises:
        RowsError: other records, or without `by` a target and layer that comes twice.
        UsageError: a group without the column `overlay`.
    """
    found: dict[Group, dict[str, list[Record]]] = {}
    for key, members in grouped(records, asked.by, merged="target").items():
        name = overlaid(key, asked.overlay) if asked.overlay else ""
        found.setdefault(without(key, asked.overlay), {})[name] = members
    averaged = asked.by is not None
    drawn: list[Panel] = []
    for key, by_name in found.items():
        targets = {record.get("target", str) for members in by_name.values() for record in members}
        points = partial(_points, alone=bool(asked.overlay) and len(targets) == 1 and targets == {"noise"})
        drawn.append(
            curves(key, {name: (its, points) for name, its in by_name.items()}, "F1", averaged=averaged, band="± SD")
        )
    return drawn


def _points(record: Record, *, alone: bool) -> Iterator[tuple[str, Point | None]]:
    """Give the points of a record; where noise probes stand `alone`, their line needs no name of its own."""
    target = record.get("target", str)
    for column, rows in (("f1", "all"), ("f1_noisy", "noisy"), ("f1_clean", "clean")):
        if (target == "noise") != (rows == "all") or (target == "label" and rows == "clean"):
            continue
        mean, deviation = record.get(column, (float, int, type(None))), record.values.get(f"{column}_sd") or 0.0
        band = (max(mean - deviation, 0.0), min(mean + deviation, 1.0)) if mean is not None else None
        yield "" if alone else printable(f"{target}, {rows} rows"), band and (mean, *band)
