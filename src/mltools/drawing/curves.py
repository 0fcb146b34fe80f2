"""Curves over layers that records hold point by point, with a band around each: what `probe` and `centroid` show."""

from collections.abc import Callable, Iterator, Sequence

from mltools.drawing.grouped import carried_by, check_depth, marked, tell_of_undefined, title, validity
from mltools.drawing.panels import Line, Lines
from mltools.errors import RowsError
from mltools.io.groups import Cells, Group
from mltools.io.records import Record

Point = tuple[float, float, float]
"""A value and the ends of the band around it."""
Points = Callable[[Record], Iterator[tuple[str, Point | None]]]
"""Gives the points of a record, each with the name of its curve."""


def curves(
    key: Group,
    curves: dict[str, tuple[Sequence[Record], Points]],
    value_name: str,
    *,
    averaged: bool,
    band: str,
    mark: float | None = None,
) -> Lines:
    """Collect the points of some records into lines, averaging those of the same line and layer.

    Args:
        key: the columns of the panel.
        curves: records, and how they are read, by a name that goes before those of their lines; "" for none.
        value_name: what the points are.
        averaged: whether a point may come several times.
        band: what the bands are.
        mark: a value to draw a rule at.

    Raises:
        RowsError: a point that comes again, and must not; a mean over models of other depths.
    """
    cells: dict[str, Cells[tuple[int, int]]] = {}
    averages: dict[tuple[str, int], list[float | None]] = {}
    every = [record for members, _ in curves.values() for record in members]
    for group, (members, points) in curves.items():
        if averaged:
            check_depth(members, " ".join(filter(None, [title(key), group])))
        shown = marked(group, carried_by(members)) if group else ""
        for record in members:
            layer = record.get("layer", int)
            for name, point in points(record):
                line = " ".join(filter(None, (shown, name)))
                averages.setdefault((line, layer), []).append(point and point[0])
                if point is None:
                    continue
                again = cells.setdefault(line, Cells()).enter([(layer, i) for i in range(3)], point, repeats=averaged)
                if again is not None:
                    raise RowsError(
                        f"{record.place}: layer {layer} of {line} again in the same group; tag runs apart or average "
                        "--by"
                    )
    tell_of_undefined((f"{line}, layer {layer}", found) for (line, layer), found in averages.items())
    numbers = sorted({record.values["layer"] for record in every})
    lines = []
    for name, found in cells.items():
        means = found.means()
        values, low, high = ([means.get((layer, i)) for layer in numbers] for i in range(3))
        lines.append(Line(name, values, low, high))
    return Lines(title(key), value_name, numbers, lines, mark, band, key=key, **validity(carried_by(every)))
