"""The window matrix of each group of window records (Figures 3 and 16).

Row w, column l: the mean of the value over the windows of width w that hold layer l.
"""

from collections.abc import Iterable
from dataclasses import replace

from mltools.analysis.layer_scores import LayerScores, window_means
from mltools.analysis.score_records import ERROR
from mltools.drawing.grouped import Asked, read_groups, title, validity
from mltools.drawing.panels import Grid, Panel
from mltools.errors import RowsError, UsageError
from mltools.io.records import Records


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make a grid a group.

    Raises:
        RowsError: other records, or windows that are missing or come twice.
    """
    asked = replace(asked, values=asked.values or (ERROR,))
    return [_grid(group, asked.values[0]) for group in read_groups(records, asked)]


def _grid(group: LayerScores, value: str) -> Grid:
    group.first.get("start", int)
    try:
        means = window_means(group.values(), group.n_layers)
    except UsageError as error:
        raise RowsError(f"{group.first.place}: {error}") from None
    widths = sorted({width for width, _ in means})
    numbers = range(1, group.n_layers + 1)
    return Grid(
        title(group.key),
        f"mean {value.replace('_', ' ')}{' scaled' * group.was_scaled}",
        row_axis="width",
        rows=[str(width) for width in widths],
        column_axis="layer",
        columns=[str(layer) for layer in numbers],
        cells=[[means[width, layer] for layer in numbers] for width in widths],
        key=group.key,
        **validity(group.carried),
    )
