"""Lay panels out as one picture with matplotlib (extra `plot`): PDF, PNG or SVG, the same bytes each time.

Panels stand row by row, or by two of their columns (`facet`), and then share their scales. One legend, and one colour
bar where all scales are one. The legend is measured, and the picture grows by it, so that nothing is cut.
"""

import contextlib
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltools.drawing.axes import beside_axis, broken
from mltools.drawing.fonts import fonts_for, warn_of_lacking
from mltools.drawing.grouped import title, without
from mltools.drawing.panels import Bars, Columns, Grid, Lines, Marks, Panel, Points, heading, invalid_mark
from mltools.errors import NotFoundError, UsageError
from mltools.io.atomic import atomic_file
from mltools.io.provenance import KEY, Provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS = {
    "svg.hashsalt": "mltools",
    "svg.fonttype": "none",  # text stays text: it can be searched, and edited for a paper
    "pdf.fonttype": 42,
    "text.parse_math": False,
}
POINTS = 72  # in an inch
COLUMNS = 3
PANEL_INCHES = (3.4, 2.8)
LEAST_PANEL = 1.6  # inches; a given width holds as many panels side by side as have that much
LEAST_FACET = 1.1  # the same of panels that share their axes' names
LINE = 1.25  # height of a line of text, in font sizes
GLYPH = 0.56  # mean width of a character, in font sizes
LEGEND_COLUMNS = 6


@dataclass(frozen=True)
class FigureStyle:
    """How a picture is made.

    Attributes:
        facet: the columns whose values make rows and columns of panels; one alone makes columns.
        width: of the picture in inches; None: enough for its panels.
        font_size: in points.
        dpi: dots per inch of PNG.
    """

    facet: tuple[str, ...] = ()
    width: float | None = None
    font_size: float = 8.0
    dpi: int = 200


@dataclass(frozen=True)
class Layout:
    """Where panels stand.

    Attributes:
        cells: (row, column) of each panel, from 0.
        size: how many rows and columns there are.
        panel: width and height of a panel in inches.
        titles: of each panel.
        rows: names of the rows; none without facets.
        title: of the whole picture.
    """

    cells: list[tuple[int, int]]
    size: tuple[int, int]
    panel: tuple[float, float]
    titles: list[str]
    rows: list[str]
    title: str = ""


def check_matplotlib() -> None:
    """Refuse to draw without matplotlib.

    Raises:
        NotFoundError: it is not installed.
    """
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise NotFoundError('pictures need matplotlib: pip install "mltools[plot]"; without -o, plot draws text')


def draw_figure(
    panels: Sequence[Panel],
    path: Path,
    provenance: Provenance,
    style: FigureStyle = FigureStyle(),
    *,
    replace: bool = False,
) -> None:
    """Draw the panels into one file, and note in it how it was made."""
    kind = path.suffix.lower()[1:] or "svg"  # only a device's name may have no ending
    with matplotlib_settings(style, panels) as lacking:
        if kind != "svg":  # whose text its reader draws
            warn_of_lacking(lacking)
        figure = make_figure(panels, style)
        with atomic_file(path, replace=replace) as temporary:
            figure.savefig(temporary, format=kind, dpi=style.dpi, metadata=_metadata(kind, provenance))


def draw_svg(panels: Sequence[Panel], style: FigureStyle = FigureStyle()) -> str:
    """Draw the panels as an `<svg>` element for a page, names of its parts made from what is in it."""
    with matplotlib_settings(style, panels):
        page = StringIO()
        make_figure(panels, style).savefig(page, format="svg", metadata={"Date": None})
    return page.getvalue().partition("<svg")[1] + page.getvalue().partition("<svg")[2]


@contextlib.contextmanager
def matplotlib_settings(style: FigureStyle, panels: Sequence[Panel] = ()) -> Iterator[str]:
    """Draw with our settings, and leave the caller's as they are; gives the letters of the panels that no font has."""
    import matplotlib

    sizes = {"font.size": style.font_size, "axes.titlesize": style.font_size, "figure.titlesize": style.font_size}
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # said once, by `warn_of_lacking`
        matplotlib.rcdefaults()
        more, lacking = fonts_for(repr(panels))
        matplotlib.rcParams.update({**SETTINGS, **sizes, "font.family": [*matplotlib.rcParams["font.family"], *more]})
        yield lacking


def make_figure(panels: Sequence[Panel], style: FigureStyle = FigureStyle()) -> "Figure":
    """Lay the panels out and draw them, within the settings of `matplotlib_settings`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from mltools.drawing.axes import draw_panel, label_outer, share_scales

    layout = _facets(panels, style) if style.facet else _side_by_side(panels, style)
    (down, across), (width, height) = layout.size, layout.panel
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    FigureCanvasAgg(figure)
    spots = figure.subplots(down, across, squeeze=False)
    styles = {name: index for index, name in enumerate(dict.fromkeys(_series(panels)))}
    one_bar = len({_scale(panel) for panel in panels}) == 1
    images: list[Any] = []
    for panel, cell, name in zip(panels, layout.cells, layout.titles, strict=True):
        spots[cell].set_title(name)
        images += filter(None, [draw_panel(spots[cell], panel, styles, (width, height), own_bar=not one_bar)])
    drawn = [spots[cell] for cell in layout.cells]
    for cell in {(i, j) for i in range(down) for j in range(across)} - set(layout.cells):
        spots[cell].set_axis_off()
    if isinstance(panels[0], Grid) and one_bar:
        _color_bar(figure, panels[0], images[0], _wrapped(panels[0].value_name, height * down - 0.8, style))
    if style.facet:
        share_scales(drawn, panels)
    _name_axes(figure, drawn, layout, style)
    if style.facet:
        label_outer(drawn)
    _row_names(spots, layout, style)
    if layout.title:
        figure.suptitle(_wrapped(layout.title, width * across, style))
    if styles:
        _legend(figure, styles, style)
    return figure


def _wrapped(text: str, inches: float, style: FigureStyle) -> str:
    """Break a text into lines that fit into a width."""
    return "\n".join(textwrap.wrap(text, _fits(inches, style)))


def _fits(inches: float, style: FigureStyle) -> int:
    """Say how many characters fit into a width."""
    return max(6, int(inches * POINTS / (GLYPH * style.font_size)))


def _scale(panel: Panel) -> tuple[object, ...] | None:
    return (panel.value_name, panel.low, panel.high, panel.unit) if isinstance(panel, Grid) else None


def _color_bar(figure: "Figure", panel: Grid, image: Any, label: str) -> None:
    from matplotlib.ticker import PercentFormatter

    scale = PercentFormatter(1) if panel.unit == "share" else None
    figure.colorbar(image, ax=figure.axes, label=label, format=scale, fraction=0.08, aspect=30)


# -- where panels stand -------------------------------------------------------------------------------
def _side_by_side(panels: Sequence[Panel], style: FigureStyle) -> Layout:
    return _in_rows(panels, list(map(heading, panels)), style, LEAST_PANEL)


def _in_rows(
    panels: Sequence[Panel], titles: Sequence[str], style: FigureStyle, least: float, title: str = ""
) -> Layout:
    """Put panels one after another, as many in a row as the width holds."""
    most = COLUMNS if style.width is None else max(1, int(style.width / least))
    across = min(len(panels), most)
    cells = [divmod(i, across) for i in range(len(panels))]
    return _layout(panels, cells, (math.ceil(len(panels) / across), across), titles, style, title=title)


def _layout(
    panels: Sequence[Panel],
    cells: list[tuple[int, int]],
    size: tuple[int, int],
    titles: Sequence[str],
    style: FigureStyle,
    rows: Sequence[str] = (),
    title: str = "",
) -> Layout:
    """Find how large panels are, with room for their titles."""
    width, height = _shrunk(_panel_size(panels, style), panels, style, size[1])
    wrapped = [_wrapped(each, width - (0.3 if style.facet else 0.7), style) for each in titles]
    lines = max(each.count("\n") for each in wrapped) + any(isinstance(panel, Bars) for panel in panels)
    return Layout(cells, size, (width, height + lines * LINE * style.font_size / POINTS), wrapped, list(rows), title)


def _facets(panels: Sequence[Panel], style: FigureStyle) -> Layout:
    """Put each panel where its columns say; by one column alone, one after another.

    Raises:
        UsageError: a panel without such a column, or two in one place.
    """
    keys = [dict(panel.key) for panel in panels]
    for name in style.facet:
        if any(name not in key for key in keys):
            raise UsageError(f"--facet {name}: a panel has no such tag ({', '.join(keys[0]) or 'none'})")
    places = [tuple(key[name] for name in style.facet) for key in keys]
    if len(set(places)) < len(places):
        twice = next(i for i, place in enumerate(places) if place in places[:i])
        raise UsageError(f"--facet {','.join(style.facet)}: several panels in one place ({panels[twice].title})")
    common = set(panels[0].key).intersection(*(panel.key for panel in panels))
    shared = title(tuple(item for item in panels[0].key if item in common and item[0] not in style.facet))
    rest = [title(tuple(item for item in without(panel.key, *style.facet) if item not in common)) for panel in panels]
    own = [" ".join(filter(None, [name, invalid_mark(panel)])) for name, panel in zip(rest, panels, strict=True)]
    if len(style.facet) == 1:
        named = [f"{_named(style.facet[0], value)} {name}".strip() for (value,), name in zip(places, own, strict=True)]
        return _in_rows(panels, named, style, LEAST_FACET, shared)
    rows, columns = (list(dict.fromkeys(place[i] for place in places)) for i in (0, 1))
    cells = [(rows.index(row), columns.index(column)) for row, column in places]
    for j, column in enumerate(columns):  # the first panel of a column says which it is
        first = min((cell, i) for i, cell in enumerate(cells) if cell[1] == j)[1]
        own[first] = f"{_named(style.facet[1], column)} {own[first]}".strip()
    names = [_named(style.facet[0], row) for row in rows]
    return _layout(panels, cells, (len(rows), len(columns)), own, style, names, shared)


def _named(name: str | None, value: object) -> str:
    """Name a facet: text alone, and what it is with a number."""
    return value if isinstance(value, str) else f"{name}={value}"


def _panel_size(panels: Sequence[Panel], style: FigureStyle) -> tuple[float, float]:
    """Give the width and height of a panel in inches, enough for all rows and their names."""
    width, height = PANEL_INCHES
    line = 1.8 * style.font_size / POINTS
    for panel in panels:
        if isinstance(panel, Grid):
            side = (1.6 if panel.unit == "signed" else 1.0) * line  # a sign and two places need more room
            width = max(width, side * len(panel.columns) + 1.4)
        if isinstance(panel, Marks | Columns):
            width = max(width, 1.4 * PANEL_INCHES[0])
        if isinstance(panel, Grid | Marks):
            lines = max(_lines(name, style.width or width, style) for name in panel.rows)
            height = max(height, line * len(panel.rows) * (1 + lines) / 2 + 0.9)
        if isinstance(panel, Points) and panel.categories:
            height = max(height, 2 + GLYPH * style.font_size / POINTS * max(map(len, panel.categories)))
    return width, height


def _lines(name: str, width: float, style: FigureStyle) -> int:
    """Count the lines of a name beside the axis of a panel of so many inches."""
    return broken(name, beside_axis(width, style.font_size)).count("\n") + 1


def _shrunk(size: tuple[float, float], panels: Sequence[Panel], style: FigureStyle, across: int) -> tuple[float, float]:
    """Fit the panels of a row into the width asked for; rows of names keep their height."""
    if style.width is None:
        return size
    own = style.width / across
    if any(isinstance(panel, Marks | Points) for panel in panels):
        return own, size[1]
    below = max((len(name) for panel in panels if isinstance(panel, Grid) for name in panel.columns), default=0)
    names = min(below, beside_axis(own, style.font_size)) * GLYPH * style.font_size / POINTS if below > 3 else 0
    return own, min(size[1] + names, max(0.9 * own, 8 * LINE * style.font_size / POINTS) + names)


# -- names --------------------------------------------------------------------------------------------
def _name_axes(figure: "Figure", drawn: Sequence[Any], layout: Layout, style: FigureStyle) -> None:
    """Name the axes of each panel in lines that fit; those of facets once for all, where they are the same."""
    down, (width, height) = layout.size[0], layout.panel
    if not style.facet:
        figure.draw_without_rendering()  # so that the height is known that names of ticks leave
        height = min(axes.get_window_extent().height for axes in drawn) / figure.dpi + 0.7
    names = {axes.get_ylabel() for axes in drawn}
    once = bool(style.facet) and len(names) == 1
    if once:
        figure.supylabel(_wrapped(names.pop(), height * down, style), fontsize=style.font_size)
    for axes in drawn:
        axes.set_xlabel(_wrapped(axes.get_xlabel(), width - (0.2 if style.facet else 0.7), style))
        axes.set_ylabel("" if once else _wrapped(axes.get_ylabel(), height - 0.7, style))


def _row_names(spots: Any, layout: Layout, style: FigureStyle) -> None:
    """Write the names of rows along the right side."""
    for i, name in enumerate(layout.rows):
        text = _wrapped(name, layout.panel[1] - 0.2, style)
        spot = spots[i, -1]
        spot.text(1.03, 0.5, text, rotation=270, ha="left", va="center", transform=spot.transAxes)


def _series(panels: Sequence[Panel]) -> Iterator[str]:
    for panel in panels:
        if isinstance(panel, Lines):
            yield from (line.name for line in panel.lines)
        if isinstance(panel, Marks | Columns):
            yield from panel.series
        if isinstance(panel, Points):
            yield from (dot.series for dot in panel.dots if dot.series)


def _legend(figure: "Figure", styles: Mapping[str, int], style: FigureStyle) -> None:
    """Put one legend of all panels below them, as wide as fits, and let the picture grow by its height."""
    found = {
        name: handle for axes in figure.axes for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    names = [name for name in styles if name in found]
    handles = [found[name] for name in names]
    width, height = figure.get_size_inches()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    wrapped = [_wrapped(name, width - 0.6, style) for name in names]
    for columns in range(min(LEGEND_COLUMNS, len(names)), 0, -1):
        legend = figure.legend(
            handles,
            wrapped,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            columnspacing=1.2,
            handlelength=1.8,
        )
        box = legend.get_window_extent(renderer)
        if box.width <= (width - 0.1) * figure.dpi or columns == 1:
            break
        legend.remove()
    figure.set_size_inches(width, height + box.height / figure.dpi)


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
