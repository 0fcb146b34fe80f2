"""Turn records into panels that can be drawn: the paper's figures, without any drawing. Needs neither torch nor matplotlib.

`plot_text` draws panels as text, `plot_figure` as pictures. Layers count from 1 in every panel.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.records import Record
from mltools.tools.mcog import Group, centre_of_gravity, group_records, layer_count, weigh, window_errors
from mltools.windows import window_means

Cells = list[list[float | None]]


@dataclass(frozen=True)
class Grid:
    """Values in rows and columns, shown as shades: the window matrix, a matrix of correlations.

    `low` and `high` are the ends of the colour scale; `diverging` marks a scale with a meaningful middle.
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
    diverging: bool = False


@dataclass(frozen=True)
class Bars:
    """One value a layer."""

    title: str
    value_name: str
    names: list[str]
    values: list[float]


Panel = Grid | Bars


def heatmap(
    records: Iterable[Record], by: Sequence[str] | None = None, value: str = "memorisation_error"
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
    return [_matrix_panel(key, members, by is not None, value) for key, members in group_records(records, by).items()]


def _matrix_panel(key: Group, members: Sequence[Record], averaged: bool, value: str) -> Grid:
    members[0].get("start", int)
    n_layers = layer_count(members)
    try:
        means = window_means(window_errors(members, n_layers, averaged=averaged, column=value), n_layers)
    except UsageError as error:
        raise RowsError(f"{members[0].place}: {error}") from None
    widths = sorted({width for width, _ in means})
    numbers = range(1, n_layers + 1)
    return Grid(
        title=title(key),
        value_name=f"mean {value.replace('_', ' ')}",
        row_axis="width",
        rows=[str(width) for width in widths],
        column_axis="layer",
        columns=[str(layer) for layer in numbers],
        cells=[[means[width, layer] for layer in numbers] for width in widths],
    )


def layers(records: Iterable[Record], by: Sequence[str] | None = None) -> list[Panel]:
    """Make a bar a layer, for each group of window or layer records (Figure 5); scores as in `mcog`."""
    panels: list[Panel] = []
    for key, members in group_records(records, by).items():
        scores, n_layers = weigh(members, averaged=by is not None)
        names = [str(layer) for layer in range(1, n_layers + 1)]
        panels.append(Bars(title(key) + _centre(scores), "score", names, scores))
    return panels


def _centre(scores: Sequence[float]) -> str:
    try:
        return f", M-CoG {centre_of_gravity(scores):.2f}"
    except ValueError:  # all zero, or negative scores: the bars alone say so
        return ""


def title(key: Group) -> str:
    """Name a group: its tool, then its tags."""
    tags: dict[str, Any] = dict(key)
    tool = str(tags.pop("tool", ""))
    return " ".join([tool, *(f"{name}={value}" for name, value in tags.items() if value is not None)]).strip()
