"""Turn records into panels that can be drawn: the paper's figures without any drawing. Needs no torch, no matplotlib.

`plot_text` draws panels as text, `plot_figure` as pictures. Layers count from 1 in every panel; 0 is the embeddings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.groups import Group
from mltools.io.records import Records
from mltools.tools.mcog import Measured, centre_of_gravity, measure
from mltools.windows import window_means

Cells = list[list[float | None]]


@dataclass(frozen=True)
class Grid:
    """Values in rows and columns, shown as shades: the window matrix, a matrix of correlations.

    `low` and `high` are the ends of the colour scale; `signed` marks a scale with a meaningful middle, else
    values are shares and shown in percent. A cell of None is undefined.
    """

    title: str
    value_name: str
    row_axis: str
    rows: list[str]
    column_axis: str
    columns: list[str]
    cells: Cells
    low: float = 0.0
    high: float = 1.0
    signed: bool = False


@dataclass(frozen=True)
class Bars:
    """One value a layer, and the centre of gravity where there is one."""

    title: str
    value_name: str
    layers: list[int]
    values: list[float]
    centre: float | None = None


@dataclass(frozen=True)
class Line:
    """A value a layer, None where undefined; `low` and `high` bound a band around it where given."""

    name: str
    values: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


@dataclass(frozen=True)
class Lines:
    """Several lines over the same layers; `mark` is a value to draw a rule at."""

    title: str
    value_name: str
    layers: list[int]
    lines: list[Line]
    mark: float | None = None


Panel = Grid | Bars | Lines


def heatmap(
    records: Iterable[Records], by: Sequence[str] | None = None, value: str = "memorisation_error"
) -> list[Panel]:
    """Make the window matrix of each group of window records (Figure 3).

    Row w, column l: the mean of `value` over the windows of width w that hold layer l.

    Args:
        records: window records, in any order.
        by: as in `mcog`.
        value: the column to show.

    Raises:
        RowsError: other records, or windows that are missing or come twice.
    """
    return [_window_matrix(group, value) for group in measure(records, by, value)]


def _window_matrix(group: Measured, value: str) -> Grid:
    group.first.get("start", int)
    try:
        means = window_means(group.values(), group.n_layers)
    except UsageError as error:
        raise RowsError(f"{group.first.place}: {error}") from None
    widths = sorted({width for width, _ in means})
    numbers = range(1, group.n_layers + 1)
    return Grid(
        title=title(group.key),
        value_name=f"mean {value.replace('_', ' ')}",
        row_axis="width",
        rows=[str(width) for width in widths],
        column_axis="layer",
        columns=[str(layer) for layer in numbers],
        cells=[[means[width, layer] for layer in numbers] for width in widths],
    )


def layers(records: Iterable[Records], by: Sequence[str] | None = None, overlay: str | None = None) -> list[Panel]:
    """Draw the layer scores of each group of window or layer records, scored as in `mcog` (Figure 5).

    Args:
        records: window or layer records of any tool.
        by: as in `mcog`.
        overlay: `tool` or a tag: groups that differ only in it become lines of one panel, instead of a panel
            of bars each.

    Raises:
        RowsError: as in `mcog`.
        UsageError: no group has the tag `overlay`.
    """
    scores = {group.key: group.scores() for group in measure(records, by)}
    if overlay is None:
        return [Bars(title(key), "score", _numbers(values), values, _centre(values)) for key, values in scores.items()]
    lines: dict[Group, list[Line]] = {}
    for key, values in scores.items():
        if overlay not in dict(key):
            raise UsageError(f'--overlay {overlay}: no such tag in "{title(key)}"')
        rest = tuple(item for item in key if item[0] != overlay)
        lines.setdefault(rest, []).append(Line(str(dict(key)[overlay]), list(values)))
    return [
        Lines(title(key), "score", _numbers(max((x.values for x in its), key=len)), its) for key, its in lines.items()
    ]


def _numbers(values: Sequence[object]) -> list[int]:
    return list(range(1, len(values) + 1))


def _centre(scores: Sequence[float]) -> float | None:
    try:
        return centre_of_gravity(scores)
    except ValueError:  # all zero, or negative scores: the bars alone say so
        return None


def title(key: Group) -> str:
    """Name a group: its tool, then its tags."""
    tags: dict[str, Any] = dict(key)
    tool = str(tags.pop("tool", ""))
    return " ".join([tool, *(f"{name}={value}" for name, value in tags.items() if value is not None)]).strip()
