"""The matrix of correlations of each table of `correlate` (Figures 8 and 9)."""

from collections.abc import Iterable, Sequence

from mltools.console import printable
from mltools.drawing.grouped import Asked, carried_by, grouped, title, validity, without
from mltools.drawing.panels import Grid, Panel
from mltools.errors import RowsError
from mltools.io.groups import Group
from mltools.io.records import Record, Records


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make a grid a table, a method and a value. Means over every two series (`correlate --mean`) are of no pair.

    Raises:
        RowsError: other records, none but means, or a pair that comes twice.
    """
    drawn: list[Panel] = []
    for key, members in grouped(records, asked.by).items():
        tables: dict[tuple[str, str], list[Record]] = {}
        for record in members:
            if record.values.get("n_pairs") is None:
                tables.setdefault((record.get("method", str), record.get("value", str)), []).append(record)
        for (method, value), table in tables.items():
            drawn.append(_grid(without(key, "tool"), value, f"{method} correlation", table))
    if not drawn:
        raise RowsError("only means over every two series, which are one number each; run correlate without --mean")
    return drawn


def _grid(key: Group, value: str, value_name: str, records: Sequence[Record]) -> Grid:
    pairs: dict[tuple[str, str], float | None] = {}
    for record in records:
        a, b = record.get("a", str), record.get("b", str)
        if (a, b) in pairs:
            raise RowsError(f"{record.place}: {a} and {b} again in the same table; tag tables apart or choose --by")
        pairs[a, b] = pairs[b, a] = record.get("correlation", (float, int, type(None)))
    names = list(dict.fromkeys(a for pair in pairs for a in pair))
    cells = [[1.0 if a == b else pairs.get((a, b)) for b in names] for a in names]
    shown = list(map(printable, names))
    said = {"key": (*key, ("value", value)), **validity(carried_by(records))}
    name = printable(f"{value} {title(key)}".strip())
    return Grid(name, printable(value_name), "", shown, "", shown, cells, low=-1.0, unit="signed", **said)
