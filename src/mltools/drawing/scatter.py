"""One number against another, a dot a group, with standard deviations where several are averaged (Figures 12, 19).

The axes are two values (columns, or events such as crossing), or one value of two kinds of runs (`pivot`).
"""

from collections.abc import Iterable, Iterator

from mltools import console
from mltools.analysis.carried import Carried
from mltools.analysis.epochs import LastEpochs
from mltools.console import printable
from mltools.drawing.grouped import (
    Asked,
    Numbers,
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
from mltools.drawing.panels import Dot, Panel, Points
from mltools.errors import RowsError, UsageError
from mltools.io.records import Record, Records


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make one panel of records of `mcog`, `centroid --events`, `probe --events`, `finetune`, ….

    Records about one pair of classes do not count; epochs count at the last. With `overlay`, dots of one value of it
    look alike.

    Raises:
        RowsError: a record without the values, without `by` a number that comes twice, or a mean of layers of models
            of other depths.
        UsageError: other than two axes.
    """
    values = ["m_cog" if value == "mcog" else value for value in asked.values]
    by = None if asked.by is None else [*dict.fromkeys([*asked.by, *filter(None, [asked.overlay, asked.pivot])])]
    found: dict[str, dict[str, list[float | None]]] = {}
    series: dict[str, str] = {}
    carried: dict[str, Carried] = {}
    for key, members in grouped(_read(records), by).items():
        name = row_name(without(key, asked.pivot))
        series.setdefault(name, overlaid(key, asked.overlay) if asked.overlay else name)
        carried.setdefault(name, Carried()).join([carried_by(members)])
        axes = found.setdefault(name, {})
        layers: dict[str, list[Record]] = {}
        for record in members:
            for axis, number in _numbers(record, values, asked.pivot):
                if axis in axes and asked.by is None:
                    raise RowsError(f"{record.place}: {axis} again for {name}; tag runs apart or average --by")
                axes.setdefault(axis, []).append(number)
                if record.values.get("event") is not None or "m_cog" in values:
                    layers.setdefault(axis, []).append(record)
        for axis, alike in layers.items():
            check_depth(alike, " of ".join(filter(None, (axis, name))))
    tell_of_undefined(
        (" of ".join(filter(None, (axis, name))), own[axis]) for name, own in found.items() for axis in own
    )
    x, y = _axes(found, values, asked.pivot)
    dots = [_dot(marked(series[name], carried[name]), own.get(x), own.get(y)) for name, own in found.items()]
    kept = [dot for dot in dots if dot is not None]
    if kept and len(kept) < len(dots):
        first = next(name for name, dot in zip(found, dots, strict=True) if dot is None)
        console.warn(
            f"{len(dots) - len(kept)} of {len(dots)} groups lack {x} or {y} and are not drawn (first: {first})"
        )
    if not kept:
        raise RowsError(f"no group has both {x} and {y}")
    said = validity(Carried().join(carried.values()))
    return [Points("", printable(x), printable(y), kept, diagonal=asked.pivot is not None, **said)]


def _read(records: Iterable[Records]) -> Iterator[Records]:
    """Give records that count: no pairs of classes, and of epochs the last."""
    epochs = LastEpochs()
    for part in parts(records):
        yield epochs.take(part.where("assigned_label", lambda label: label is None))
    yield from epochs.last()


def _numbers(record: Record, values: list[str], pivot: str | None) -> Iterator[tuple[str, float | None]]:
    """Give the numbers of a record by axis."""
    event = record.values.get("event")
    for value in values:
        column = "layer" if event == value else value
        if column in record.values and (event is None or event == value):
            number = record.get(column, (int, float, type(None)))
            yield str(record.get(pivot, (str, int, float, bool))) if pivot else value, number


def _axes(found: dict[str, dict[str, list[float | None]]], values: list[str], pivot: str | None) -> tuple[str, str]:
    axes = list(dict.fromkeys(axis for own in found.values() for axis in own)) if pivot else values
    if len(axes) != 2 or (pivot and len(values) != 1):
        need = f"one --value, and two values of {pivot}" if pivot else "two values, e.g. --value crossing,initiation"
        raise UsageError(f"scatter needs {need} (found: {', '.join(axes) or 'none'})")
    return axes[0], axes[1]


def _dot(name: str, x: Numbers | None, y: Numbers | None) -> Dot | None:
    along, up = mean(x), mean(y)
    return None if along is None or up is None else Dot(name, along, up, deviation(x), deviation(y))
