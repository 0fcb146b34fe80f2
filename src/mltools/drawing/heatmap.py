"""The window matrix of each group of window records (Figures 3 and 16).

Row w, column l: the mean of the value over the windows of width w that hold layer l. Shares are in percent, on a scale
from 0 to 1; margins and the like in their own unit. All panels have one scale.
"""

from collections.abc import Iterable
from dataclasses import fields, replace

from mltools.analysis.layer_scores import LayerScores, window_means
from mltools.drawing.grouped import Asked, read_groups, title, validity
from mltools.drawing.panels import Grid, Panel
from mltools.errors import RowsError, UsageError
from mltools.io.kinds import WindowRecord
from mltools.io.records import Records
from mltools.sweep import ERROR, SCALED

SHARES = {SCALED, *(field.name for field in fields(WindowRecord) if field.metadata.get("high") == 1)}


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make a grid a group.

    Raises:
        RowsError: other records, or windows that are missing or come twice.
    """
    asked = replace(asked, values=asked.values or (ERROR,))
    grids = [_grid(group, asked.values[0]) for group in read_groups(records, asked)]
    shown = [number for grid in grids for row in grid.cells for number in row if number is not None]
    is_share = asked.values[0] in SHARES
    low, high = min(0.0, *shown), max(float(is_share), *shown)
    return [
        replace(grid, low=low, high=high if high > low else low + 1, unit="share" if is_share else "any")
        for grid in grids
    ]


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
