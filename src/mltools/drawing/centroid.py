"""Where clean and noisy rows lie between two classes, layer by layer (Figures 10, 11 and 15).

Lines are means, bands the central 75 %. All class pairs together, unless `by` names `assigned_label`.
"""

from collections.abc import Iterable, Iterator

from mltools.drawing.curves import Point, curves
from mltools.drawing.grouped import Asked, grouped, parts
from mltools.drawing.panels import Panel
from mltools.io.records import Record, Records

BAND = "central 75 %"
NAME = "projection (0: assigned class, 1: original)"


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make a panel a group of records of `centroid`.

    Raises:
        RowsError: other records, or without `by` a layer that comes twice.
    """
    paired = "assigned_label" in (asked.by or ())
    kept = (block.where("assigned_label", lambda label: (label is not None) == paired) for block in parts(records))
    groups = grouped(kept, asked.by).items()
    return [
        curves(key, {"": (its, _points)}, NAME, averaged=asked.by is not None, band=BAND, mark=0.5)
        for key, its in groups
    ]


def _points(record: Record) -> Iterator[tuple[str, Point | None]]:
    for group, name in (("assigned", "assigned class"), ("original", "original class"), ("noisy", "noisy rows")):
        columns = (f"{group}_mean", f"{group}_p12_5", f"{group}_p87_5")
        mean, low, high = (record.get(column, (float, int, type(None))) for column in columns)
        yield name, None if mean is None else (mean, low, high)
