"""Draw one panel on matplotlib's axes. Colours and line styles can be told apart without colour vision and in grey."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mltools.drawing.panels import Bars, Columns, Grid, Lines, Marks, Panel, Points
from mltools.drawing.text import is_dark, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX"
POINTS = 72
SMALL = 1.5
"""Panels narrower than this, in inches, have thinner lines."""
ON_END = 24
"""Letters of a line of a name that stands on end."""
SD = "± SD"
UNDEFINED = "#BBBBBB"
"""What shows through where a signed grid has no number: white is 0."""
Size = tuple[float, float]
"""Width and height of a panel in inches."""


def draw_panel(axes: "Axes", panel: Panel, styles: Mapping[str, int], size: Size, *, own_bar: bool) -> Any:
    """Draw a panel; gives the image of a grid, which a colour bar is of.

    Args:
        axes: where.
        panel: what.
        styles: a number for each series of the picture, which decides how it looks.
        size: of the panel, which decides how many ticks and numbers there is room for.
        own_bar: whether a grid gets a colour bar of its own.
    """
    match panel:
        case Grid():
            return _grid(axes, panel, size, own_bar)
        case Bars():
            return _bars(axes, panel, size)
        case Lines():
            return _lines(axes, panel, styles, size)
        case Marks():
            return _marks(axes, panel, styles, size)
        case Columns():
            return _columns(axes, panel, styles, size)
        case Points():
            return _points(axes, panel, styles, size)


def share_scales(every: Sequence["Axes"], panels: Sequence[Panel]) -> None:
    """Give axes of the same measure the same ends, and one name; all have the same layers below."""
    measures = list(map(_measure, panels))
    for measure in dict.fromkeys(measures):
        same = [axes for axes, own in zip(every, measures, strict=True) if own == measure]
        _put_ends(same, "ylim")
        name = max((axes.get_ylabel() for axes in same), key=len)  # with what error bars are, where one has any
        for axes in same:
            axes.set_ylabel(name)
    _put_ends(every, "xlim")


def _measure(panel: Panel) -> tuple[object, ...]:
    """Say what the axis upwards measures: scores of one tool are no scores of another, widths of windows are widths."""
    if isinstance(panel, Bars | Lines):
        return panel.value_name, dict(panel.key).get("tool")
    return (type(panel),)


def _put_ends(same: Sequence["Axes"], name: str) -> None:
    ends = [getattr(axes, f"get_{name}")() for axes in same]
    low, high = min(map(min, ends)), max(map(max, ends))
    falls = ends[0][0] > ends[0][1]
    for axes in same:
        getattr(axes, f"set_{name}")(*((high, low) if falls else (low, high)))


def label_outer(every: Sequence["Axes"]) -> None:
    """Leave out the names and numbers that a neighbour shows; the lowest of each column keeps its own."""
    last = {axes.get_subplotspec().colspan.start: axes for axes in every}  # type: ignore[union-attr]
    ends = [axes.get_ylim() for axes in every]
    first = {axes.get_subplotspec().rowspan.start: axes for axes in reversed(every)}  # type: ignore[union-attr]
    alike = {row: axes.get_ylim() for row, axes in first.items()}
    for axes, own in zip(every, ends, strict=True):
        names = axes.get_xlabel(), axes.get_ylabel()
        axes.label_outer()
        if last[axes.get_subplotspec().colspan.start] is axes:  # type: ignore[union-attr]
            axes.set_xlabel(names[0])
            axes.tick_params(axis="x", labelbottom=True)
        if own != alike[axes.get_subplotspec().rowspan.start]:  # type: ignore[union-attr]
            axes.set_ylabel(names[1])
            axes.tick_params(axis="y", labelleft=True)


# -- kinds --------------------------------------------------------------------------------------------
def _grid(axes: "Axes", grid: Grid, size: Size, own_bar: bool) -> Any:
    import numpy as np
    from matplotlib.ticker import PercentFormatter

    values = [_filled(row) for row in grid.cells]
    colors = "RdBu_r" if grid.unit == "signed" else "viridis"
    ends = [[i - 0.5 for i in range(n + 1)] for n in (len(grid.columns), len(grid.rows))]
    look: dict[str, Any] = {"cmap": colors, "vmin": grid.low, "vmax": grid.high}
    image = axes.pcolormesh(
        *ends, values, edgecolors="face", linewidth=0.7, **look
    )  # not imshow, whose pixels viewers of SVG blur
    axes.invert_yaxis()
    if grid.unit == "signed":
        axes.set_facecolor(UNDEFINED)
    if own_bar:
        scale = PercentFormatter(1) if grid.unit == "share" else None
        letters = max(8, int((size[1] - 0.8) * POINTS / (0.56 * _font(axes))))
        axes.figure.colorbar(image, ax=axes, label="\n".join(textwrap.wrap(grid.value_name, letters)), format=scale)
    axes.set(xlabel=grid.column_axis, ylabel=grid.row_axis)
    room = size[0] - (1.3 if own_bar else 0.8), size[1] - 0.8
    if max(map(len, grid.columns)) > 3:
        axes.tick_params(axis="x", labelrotation=90)
    every, down = _step(axes, len(grid.columns), room[0], 2), _step(axes, len(grid.rows), room[1], 2)
    letters = beside_axis(size[0], _font(axes))
    axes.set_xticks(range(0, len(grid.columns), every), [broken(name, letters) for name in grid.columns[::every]])
    axes.set_yticks(range(0, len(grid.rows), down), [broken(name, letters) for name in grid.rows[::down]])
    texts = [[number(value, grid) if value is not None else "" for value in row] for row in grid.cells]
    small = 0.75 * _font(axes)
    across = max(len(text) for row in texts for text in row) * 0.65 * small
    if across * len(grid.columns) <= room[0] * POINTS and 1.3 * small * len(grid.rows) <= room[1] * POINTS:
        for y, row in enumerate(grid.cells):
            for x, value in enumerate(row):
                if value is not None:
                    ink = "white" if is_dark(*image.to_rgba(np.array([value]))[0][:3]) else "black"
                    axes.text(x, y, texts[y][x], ha="center", va="center", color=ink, fontsize=small)
    return image


def _bars(axes: "Axes", bars: Bars, size: Size) -> None:
    axes.bar(bars.layers, bars.values, color=COLORS[0], yerr=bars.spread, error_kw={"linewidth": 0.8})
    if bars.centre is not None:
        axes.axvline(bars.centre, color=COLORS[1], linestyle="--", linewidth=1)
        known = axes.get_title()
        axes.set_title(f"{known}\nM-CoG {bars.centre:.2f}" if known else f"M-CoG {bars.centre:.2f}")
    axes.set_ylabel(_with(bars.value_name, SD if bars.spread else ""))
    _layer_ticks(axes, bars.layers, size)


def _lines(axes: "Axes", panel: Lines, styles: Mapping[str, int], size: Size) -> None:
    small = size[0] < SMALL
    for line in panel.lines:
        i = styles[line.name]
        layers = panel.layers[: len(line.values)]
        if line.low is not None and line.high is not None:
            low, high = _filled(line.low), _filled(line.high)
            axes.fill_between(layers, low, high, color=_color(i), alpha=0.15, linewidth=0)
        look: dict[str, Any] = {
            "markersize": 1.5 if small else 3,
            "linewidth": 0.8 if small else 1.2,
            "linestyle": DASHES[i % len(DASHES)],
        }
        axes.plot(layers, _filled(line.values), label=line.name, **_look(i), **look)
    axes.set_ylabel(_with(panel.value_name, panel.band))
    if panel.mark is not None:
        axes.axhline(panel.mark, color="grey", linewidth=0.6)
    _layer_ticks(axes, panel.layers, size)


def _marks(axes: "Axes", marks: Marks, styles: Mapping[str, int], size: Size) -> None:
    places = range(len(marks.rows))
    for i, name in enumerate(marks.series):
        values, spread = _filled(row[i] for row in marks.layers), _filled(row[i] for row in marks.spread)
        beside = [place + 0.6 * ((i + 0.5) / len(marks.series) - 0.5) for place in places]  # so that none hides another
        axes.errorbar(values, beside, xerr=spread, fmt="none", ecolor=_color(styles[name]), elinewidth=0.8)
        axes.plot(values, beside, label=name, markersize=4, linestyle="none", clip_on=False, **_look(styles[name]))
    axes.set_yticks(places, [broken(name, beside_axis(size[0], _font(axes))) for name in marks.rows])
    has_spread = any(sd is not None for row in marks.spread for sd in row)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set_ylim(len(marks.rows) - 0.5, -0.5)
    low, high = axes.get_xlim()
    if high - low > (marks.axis[-1] - marks.axis[0]) / 2:
        axes.set_xlim(marks.axis[0] - 0.5, marks.axis[-1] + 0.5)
        _layer_ticks(axes, marks.axis, (size[0] - 0.6, size[1]))
    else:  # centres of gravity lie close together: only where they are is shown
        axes.set_xlabel("layer")
    axes.set_xlabel(_with(axes.get_xlabel(), SD if has_spread else ""))


def _columns(axes: "Axes", panel: Columns, styles: Mapping[str, int], size: Size) -> None:
    from matplotlib.ticker import PercentFormatter

    wide = 0.8 / len(panel.series)
    for j, name in enumerate(panel.series):
        values, low, high = (_filled(row[j] for row in table) for table in (panel.values, panel.low, panel.high))
        below = [[max(value - a, 0.0) for value, a in zip(values, low, strict=True)]]
        above = [[max(b - value, 0.0) for value, b in zip(values, high, strict=True)]]
        places = [i + (j - (len(panel.series) - 1) / 2) * wide for i in range(len(panel.names))]
        color = _color(styles[name])
        axes.bar(places, values, wide, label=name, color=color, yerr=below + above, error_kw={"linewidth": 0.8})
    for i, chance in enumerate(panel.chance):
        axes.plot([i - 0.45, i + 0.45], [chance] * 2, color="black", linestyle="--", linewidth=1)
    axes.set(ylabel=_with(panel.value_name, "95 % intervals, chance dashed"), ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _name_ticks(axes, panel.names, size)


def _points(axes: "Axes", panel: Points, styles: Mapping[str, int], size: Size) -> None:
    if panel.diagonal:
        axes.axline((panel.dots[0].x,) * 2, slope=1, color="grey", linewidth=0.6)
    places = [dot.x for dot in panel.dots]
    if panel.categories is not None:  # dots over one name stand side by side, so that none hides another
        for _, own in groupby(sorted(range(len(places)), key=lambda i: places[i]), key=lambda i: panel.dots[i].x):
            its = list(own)
            for rank, i in enumerate(its):
                places[i] += 0.5 * ((rank + 0.5) / len(its) - 0.5)
        axes.set(xlim=(-0.5, len(panel.categories) - 0.5))
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        _name_ticks(axes, panel.categories, size)
    seen: set[str] = set()
    for dot, x in zip(panel.dots, places, strict=True):
        label = None if dot.series in seen or not dot.series else dot.series
        seen.add(dot.series)
        i = styles.get(dot.series, 0)
        axes.errorbar([x], [dot.y], xerr=dot.x_sd, yerr=dot.y_sd, fmt="none", ecolor=_color(i), elinewidth=0.8)
        axes.plot([x], [dot.y], label=label, markersize=4, linestyle="none", clip_on=False, **_look(i))
    x_name, y_name = (
        _with(name, SD if any(sd is not None for sd in spread) else "")
        for name, spread in ((panel.x_name, [d.x_sd for d in panel.dots]), (panel.y_name, [d.y_sd for d in panel.dots]))
    )
    axes.set(ylabel=y_name, **({} if panel.categories else {"xlabel": x_name}))
    if panel.categories is not None:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _with(name: str, bars: str) -> str:
    """Name an axis, with what the bars or bands around values are."""
    return f"{name} ({bars})" if bars else name


# -- looks and ticks ----------------------------------------------------------------------------------
def _color(i: int) -> str:
    return COLORS[i % len(COLORS)]


def _look(i: int) -> dict[str, Any]:
    """Give the colour and marker of a series; after all colours they come again, hollow and with another marker."""
    marker = MARKERS[(i + i // len(COLORS)) % len(MARKERS)]
    return {"color": _color(i), "marker": marker, "markerfacecolor": _color(i) if i < len(COLORS) else "none"}


def _filled(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _font(axes: "Axes") -> float:
    return float(axes.xaxis.label.get_fontsize())


def _step(axes: "Axes", n: int, inches: float, letters: int) -> int:
    """Say how many ticks apart names of so many letters stand, so that they do not touch."""
    return max(1, math.ceil(n * (letters + 0.8) * 0.6 * _font(axes) / (max(inches, 0.3) * POINTS)))


def _layer_ticks(axes: "Axes", layers: Sequence[int], size: Size) -> None:
    axes.set_xlabel("layer (0: embeddings)" if 0 in layers else "layer")
    axes.set_xticks(layers[:: _step(axes, len(layers), size[0] - 0.7, 2)])


def beside_axis(inches: float, font: float) -> int:
    """Say how many letters a line of a name beside the axis has: those of a third of the panel's width."""
    return max(8, int(0.35 * inches * POINTS / (0.6 * font)))


def broken(name: str, letters: int) -> str:
    """Break a name into lines of so many letters."""
    return "\n".join(textwrap.wrap(name, letters))


def _name_ticks(axes: "Axes", names: Sequence[str], size: Size) -> None:
    """Write names below the axis, in lines; on end where they are too long for that."""
    letters = int((size[0] - 0.7) * POINTS / len(names) / (0.6 * _font(axes)))
    fits = all(len(word) <= letters for name in names for word in name.split())
    lines = max(1, int((size[0] - 0.7) * POINTS / len(names) / (1.3 * _font(axes))))
    on_end = [max(ON_END, math.ceil(1.2 * len(name) / lines)) for name in names]
    shown = [broken(name, letters if fits else most) for name, most in zip(names, on_end, strict=True)]
    axes.set_xticks(range(len(names)), shown, rotation=0 if fits else 90)
