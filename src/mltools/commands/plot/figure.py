"""Draw panels as one picture with matplotlib (extra `plot`): PDF, PNG or SVG, the same bytes each time.

Colours and line styles can be told apart without colour vision and in grey.
"""

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltools.commands.plot.panels import Bars, Grid, Lines, Marks, Panel, heading
from mltools.commands.plot.text import is_dark, number
from mltools.errors import NotFoundError
from mltools.io.atomic import atomic_file
from mltools.io.provenance import KEY, Provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX"
SETTINGS = {
    "svg.hashsalt": "mltools",
    "pdf.fonttype": 42,
    "font.size": 8,
    "text.parse_math": False,
    "axes.titlesize": 8,
}
DOTS_PER_INCH = 200
COLUMNS = 3
PANEL_INCHES = (3.4, 3.0)
CELL_INCHES = 0.2
TITLE_WIDTH = 36
NUMBERED_COLUMNS = 14  # a grid with more columns than this has no room for a number in each cell


def check_matplotlib() -> None:
    """Refuse to draw without matplotlib.

    Raises:
        NotFoundError: it is not installed.
    """
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise NotFoundError('pictures need matplotlib: pip install "mltools[plot]"; without -o, plot draws text')


def draw_figure(panels: Sequence[Panel], path: Path, provenance: Provenance, *, replace: bool = False) -> None:
    """Draw the panels side by side into one file, row by row, and note in it how it was made."""
    import matplotlib
    from matplotlib.figure import Figure

    across = min(len(panels), COLUMNS)
    down = math.ceil(len(panels) / across)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        width, height = _panel_size(panels)
        figure = Figure(figsize=(width * across, height * down), layout="constrained")
        spots = list(figure.subplots(down, across, squeeze=False).flat)
        styles = {name: index for index, name in enumerate(dict.fromkeys(_series(panels)))}
        for spot, panel in zip(spots, panels, strict=False):
            _draw(spot, panel, styles)
        for spot in spots[len(panels) :]:
            spot.set_axis_off()
        if styles:
            _legend(figure, styles)
        kind = path.suffix.lower()[1:]
        with atomic_file(path, replace=replace) as temporary:
            figure.savefig(temporary, format=kind, dpi=DOTS_PER_INCH, metadata=_metadata(kind, provenance))


def _panel_size(panels: Sequence[Panel]) -> tuple[float, float]:
    """Give the width and height of a panel in inches, enough for all rows and their names."""
    width, height = PANEL_INCHES
    for panel in panels:
        if isinstance(panel, Grid):
            side = (1.6 if panel.unit == "signed" else 1.0) * CELL_INCHES  # a sign and two places need more room
            width = max(width, side * len(panel.columns) + 1.4)
        if isinstance(panel, Marks):
            width = max(width, 1.4 * PANEL_INCHES[0])
        if isinstance(panel, Grid | Marks):
            height = max(height, CELL_INCHES * len(panel.rows) + 1)
    return width, height


def _metadata(kind: str, provenance: Provenance) -> dict[str, Any]:
    """Give the file's metadata: how it was made, and no date."""
    text = provenance.as_json()
    match kind:
        case "png":
            return {KEY: text}
        case "pdf":
            return {"Subject": text, "CreationDate": None}
        case _:
            return {"Description": text, "Date": None}


def _series(panels: Sequence[Panel]) -> Iterator[str]:
    for panel in panels:
        if isinstance(panel, Lines):
            yield from (line.name for line in panel.lines)
        if isinstance(panel, Marks):
            yield from panel.series


def _legend(figure: "Figure", styles: Mapping[str, int]) -> None:
    """Put one legend of all panels below them, where it hides nothing."""
    found = {
        name: handle for axes in figure.axes for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    handles = [found[name] for name in styles if name in found]
    figure.legend(
        handles, [name for name in styles if name in found], loc="outside lower center", ncols=4, frameon=False
    )


def _draw(axes: "Axes", panel: Panel, styles: Mapping[str, int]) -> None:
    axes.set_title("\n".join(textwrap.wrap(heading(panel), TITLE_WIDTH)))
    match panel:
        case Grid():
            _grid(axes, panel)
        case Bars():
            _bars(axes, panel)
        case Lines():
            _lines(axes, panel, styles)
        case Marks():
            _marks(axes, panel, styles)


def _grid(axes: "Axes", grid: Grid) -> None:
    from matplotlib.ticker import PercentFormatter

    values = [_filled(row) for row in grid.cells]
    colors = "RdBu_r" if grid.unit == "signed" else "viridis"
    image = axes.imshow(values, cmap=colors, vmin=grid.low, vmax=grid.high, aspect="auto")
    scale = PercentFormatter(1) if grid.unit == "share" else None
    axes.figure.colorbar(image, ax=axes, label=grid.value_name, format=scale)
    axes.set(xlabel=grid.column_axis, ylabel=grid.row_axis)
    crowded = len(grid.columns) > NUMBERED_COLUMNS
    step = 2 if crowded else 1
    axes.set_xticks(range(0, len(grid.columns), step), grid.columns[::step])
    if max(map(len, grid.columns)) > 3:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_yticks(range(0, len(grid.rows), step), grid.rows[::step])
    if not crowded:
        _numbers(axes, grid, image)


def _numbers(axes: "Axes", grid: Grid, image: Any) -> None:
    for y, row in enumerate(grid.cells):
        for x, value in enumerate(row):
            if value is not None:
                ink = "white" if is_dark(*image.cmap(image.norm(value))[:3]) else "black"
                axes.text(x, y, number(value, grid), ha="center", va="center", color=ink, fontsize=6)


def _bars(axes: "Axes", bars: Bars) -> None:
    axes.bar(bars.layers, bars.values, color=COLORS[0])
    if bars.centre is not None:
        axes.axvline(bars.centre, color=COLORS[1], linestyle="--", label=f"M-CoG {bars.centre:.2f}")
        axes.margins(y=0.2)
        axes.legend(loc="upper right", frameon=False)
    axes.set_ylabel(bars.value_name)
    _layer_ticks(axes, bars.layers)


def _lines(axes: "Axes", panel: Lines, styles: Mapping[str, int]) -> None:
    for line in panel.lines:
        i = styles[line.name]
        color = COLORS[i % len(COLORS)]
        dash, marker = DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)]
        fill = color if i < len(COLORS) else "none"
        layers = panel.layers[: len(line.values)]
        if line.low is not None and line.high is not None:
            axes.fill_between(layers, _filled(line.low), _filled(line.high), color=color, alpha=0.15, linewidth=0)
        style: dict[str, Any] = {
            "color": color,
            "marker": marker,
            "markersize": 3,
            "markerfacecolor": fill,
            "linewidth": 1.2,
        }
        axes.plot(layers, _filled(line.values), dash, label=line.name, **style)
    axes.set_ylabel(panel.value_name)
    if panel.mark is not None:
        axes.axhline(panel.mark, color="grey", linewidth=0.6)
    _layer_ticks(axes, panel.layers)


def _marks(axes: "Axes", marks: Marks, styles: Mapping[str, int]) -> None:
    places = range(len(marks.rows))
    for i, name in enumerate(marks.series):
        values, spread = _filled(row[i] for row in marks.layers), _filled(row[i] for row in marks.spread)
        color, marker = COLORS[styles[name] % len(COLORS)], MARKERS[styles[name] % len(MARKERS)]
        beside = [place + 0.5 * ((i + 0.5) / len(marks.series) - 0.5) for place in places]  # so that none hides another
        axes.errorbar(values, beside, xerr=spread, fmt=marker, color=color, markersize=4, linewidth=0.8, label=name)
    axes.set_yticks(places, marks.rows)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set(xlim=(marks.axis[0] - 0.5, marks.axis[-1] + 0.5), ylim=(len(marks.rows) - 0.5, -0.5))
    _layer_ticks(axes, marks.axis)


def _filled(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _layer_ticks(axes: "Axes", layers: Sequence[int]) -> None:
    axes.set_xlabel("layer (0: embeddings)" if 0 in layers else "layer")
    axes.set_xticks(layers if len(layers) <= NUMBERED_COLUMNS else layers[::2])
