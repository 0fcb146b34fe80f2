"""Draw panels as one picture with matplotlib (extra `plot`): PDF, PNG or SVG, the same bytes each time.

Colours and line styles can be told apart without colour vision and in grey.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltools.errors import NotFoundError, UsageError
from mltools.io.atomic import atomic_file
from mltools.io.provenance import KEY, Provenance
from mltools.tools.plot import Bars, Grid, Lines, Panel
from mltools.tools.plot_text import is_dark

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".pdf", ".png", ".svg")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX"
SETTINGS = {"svg.hashsalt": "mltools", "pdf.fonttype": 42, "font.size": 8, "axes.titlesize": 9}
DOTS_PER_INCH = 200
COLUMNS = 3
PANEL_INCHES = (3.4, 3.0)
TITLE_WIDTH = 44
NUMBERED_COLUMNS = 14  # a grid with more columns than this has no room for a number in each cell


def check_figure(path: Path) -> None:
    """Refuse a picture of an unknown format, or without matplotlib.

    Raises:
        UsageError: the name does not end in .pdf, .png or .svg.
        NotFoundError: matplotlib is not installed.
    """
    from importlib.util import find_spec

    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path}: a picture's name ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if find_spec("matplotlib") is None:
        raise NotFoundError('pictures need matplotlib: pip install "mltools[plot]"; without -o, plot draws text')


def draw_figure(panels: Sequence[Panel], path: Path, provenance: Provenance) -> None:
    """Draw the panels side by side into one file, row by row, and note in it how it was made."""
    import matplotlib
    from matplotlib.figure import Figure

    across = min(len(panels), COLUMNS)
    down = math.ceil(len(panels) / across)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=(PANEL_INCHES[0] * across, PANEL_INCHES[1] * down), layout="constrained")
        spots = figure.subplots(down, across, squeeze=False).flat
        for spot, panel in zip(spots, panels, strict=False):
            _draw(spot, panel)
        for spot in list(spots)[len(panels) :]:
            spot.set_axis_off()
        kind = path.suffix.lower()[1:]
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=DOTS_PER_INCH, metadata=_metadata(kind, provenance))


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


def _draw(axes: "Axes", panel: Panel) -> None:
    axes.set_title("\n".join(textwrap.wrap(panel.title, TITLE_WIDTH)))
    match panel:
        case Grid():
            _grid(axes, panel)
        case Bars():
            _bars(axes, panel)
        case Lines():
            _lines(axes, panel)


def _grid(axes: "Axes", grid: Grid) -> None:
    from matplotlib.ticker import PercentFormatter

    values = [[math.nan if value is None else value for value in row] for row in grid.cells]
    colors = "RdBu_r" if grid.signed else "viridis"
    image = axes.imshow(values, cmap=colors, vmin=grid.low, vmax=grid.high, aspect="auto")
    scale = None if grid.signed else PercentFormatter(1)
    axes.figure.colorbar(image, ax=axes, label=grid.value_name, format=scale)
    axes.set(xlabel=grid.column_axis, ylabel=grid.row_axis)
    crowded = len(grid.columns) > NUMBERED_COLUMNS
    step = 2 if crowded else 1
    slanted = max(map(len, grid.columns)) > 3
    axes.set_xticks(range(0, len(grid.columns), step), grid.columns[::step], rotation=45 if slanted else 0)
    axes.set_yticks(range(0, len(grid.rows), step), grid.rows[::step])
    if not crowded:
        _numbers(axes, grid, image)


def _numbers(axes: "Axes", grid: Grid, image: Any) -> None:
    for y, row in enumerate(grid.cells):
        for x, value in enumerate(row):
            if value is not None:
                ink = "white" if is_dark(*image.cmap(image.norm(value))[:3]) else "black"
                text = f"{value:.2f}" if grid.signed else f"{100 * value:.0f}"
                axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=6)


def _bars(axes: "Axes", bars: Bars) -> None:
    axes.bar(bars.layers, bars.values, color=COLORS[0])
    if bars.centre is not None:
        axes.axvline(bars.centre, color=COLORS[1], linestyle="--", label=f"M-CoG {bars.centre:.2f}")
        axes.margins(y=0.2)
        axes.legend(loc="upper right", frameon=False)
    axes.set(xlabel="layer", ylabel=bars.value_name)
    _layer_ticks(axes, bars.layers)


def _lines(axes: "Axes", panel: Lines) -> None:
    for i, line in enumerate(panel.lines):
        color = COLORS[i % len(COLORS)]
        dash, marker = DASHES[i // len(COLORS) % len(DASHES)], MARKERS[i % len(MARKERS)]
        layers = panel.layers[: len(line.values)]
        values = [math.nan if value is None else value for value in line.values]
        axes.plot(layers, values, dash, color=color, marker=marker, markersize=3, linewidth=1.2, label=line.name)
    axes.set(xlabel="layer", ylabel=panel.value_name)
    beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02)} if len(panel.lines) > 4 else {}
    axes.legend(fontsize=6, **beside)
    _layer_ticks(axes, panel.layers)


def _layer_ticks(axes: "Axes", layers: Sequence[int]) -> None:
    axes.set_xticks(layers if len(layers) <= NUMBERED_COLUMNS else layers[::2])
