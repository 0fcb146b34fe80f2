"""The layers of events and centres of gravity, a row a group (Figures 6, 7, 17 and 20)."""

from collections.abc import Iterable, Sequence

from mltools.analysis.carried import Carried
from mltools.console import printable
from mltools.drawing.grouped import (
    Asked,
    carried_by,
    check_depth,
    deviation,
    grouped,
    marked,
    mean,
    overlaid,
    parts,
    row_name,
    tell_of_undefined,
    validity,
    without,
)
from mltools.drawing.panels import Marks, Panel
from mltools.errors import RowsError
from mltools.io.records import Record, Records

Row = dict[str, list[float | None]]


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make one panel of the records of `centroid --events`, `probe --events` and `mcog`.

    Those of one pair of classes do not count. Rows are groups; layers of a row are averaged where `by` names columns.
    With `overlay`, groups that differ only in it are series of one row, such as models.

    Raises:
        RowsError: other records, without `by` an event that comes twice, or a mean over models of other depths.
        UsageError: a group without the column `overlay`.
    """
    kept = (block.where("assigned_label", lambda label: label is None) for block in parts(records))
    groups = grouped(kept, asked.by and [*asked.by, *filter(None, [asked.overlay])])
    several = len({_event(record)[0] for members in groups.values() for record in members}) > 1
    rows: dict[str, Row] = {}
    carried: dict[str, Carried] = {}
    for key, members in groups.items():
        name = row_name(without(key, asked.overlay))
        series = overlaid(key, asked.overlay) if asked.overlay else ""
        _collect(members, rows.setdefault(name, {}), series, several=several, averaged=asked.by is not None)
        carried.setdefault(name, Carried()).join([carried_by(members)])
    tell_of_undefined(
        (" of ".join(filter(None, (series, name))), numbers)
        for name, row in rows.items()
        for series, numbers in row.items()
    )
    series_names = list(dict.fromkeys(name for row in rows.values() for name in row))
    layers = [[mean(row.get(name)) for name in series_names] for row in rows.values()]
    lowest = min((layer for row in layers for layer in row if layer is not None), default=1)
    deepest = max(record.get("layers", int) for members in groups.values() for record in members)
    return [
        Marks(
            title="",
            axis=list(range(0 if lowest < 1 else 1, deepest + 1)),
            rows=[marked(name, carried[name]) for name in rows],
            series=series_names,
            layers=layers,
            spread=[[deviation(row.get(name)) for name in series_names] for row in rows.values()],
            **validity(Carried().join(carried.values())),
        )
    ]


def _collect(records: Sequence[Record], row: Row, series: str, *, several: bool, averaged: bool) -> None:
    """Add the layers of some events to a row, by name; undefined ones are None."""
    members: dict[str, list[Record]] = {}
    for record in records:
        event, layer = _event(record)
        name = " ".join(filter(None, (series, event if several or not series else "")))
        if name in row and not averaged:
            raise RowsError(f"{record.place}: {name} again in the same group; tag runs apart or average --by")
        members.setdefault(name, []).append(record)
        row.setdefault(name, []).append(layer)
    for name, alike in members.items():
        check_depth(alike, name)


def _event(record: Record) -> tuple[str, float | None]:
    if record.values.get("event") is not None:
        return printable(record.get("event", str)), record.get("layer", (int, float, type(None)))
    return printable(f"{record.get('tool', str)} M-CoG"), record.get("m_cog", (int, float, type(None)))
