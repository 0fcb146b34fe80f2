"""Draw panels as text: shades or colours, with the number in every cell, so that nothing depends on either."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import combining, east_asian_width

from mltools.drawing.panels import Bars, Columns, Grid, Lines, Marks, Panel, Points, heading

Colors = Literal[0, 256, 16_777_216]
Rgb = tuple[int, int, int]

SEQUENTIAL: tuple[Rgb, ...] = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
DIVERGING: tuple[Rgb, ...] = ((33, 102, 172), (146, 197, 222), (247, 247, 247), (244, 165, 130), (178, 24, 43))
SHADES = (" ░▒▓█", " ':*#")
BLOCKS = (" ▏▎▍▌▋▊▉█", " #")
BELOW = (" ░", " -")
"""The same of what lies below 0."""
BAR_WIDTH = 40
MOST_SHARE = 2.0
"""Lines whose values stay within this (projections may pass 1) are written in percent."""


@dataclass(frozen=True)
class TextStyle:
    """What the reader of the text can show: how many colours (0 is none), and whether only ASCII."""

    colors: Colors = 0
    ascii_only: bool = False


def draw_text(panels: Iterable[Panel], style: TextStyle = TextStyle()) -> str:
    """Draw the panels one below the other, a blank line between."""
    return "\n".join(_draw(panel, style) for panel in panels)


def _draw(panel: Panel, style: TextStyle) -> str:
    match panel:
        case Grid():
            return _grid(panel, style)
        case Bars():
            return _bars(panel, style)
        case Lines():
            return _grid(_as_grid(panel), style)
        case Marks():
            return _marks(panel)
        case Columns():
            return _columns(panel, style)
        case Points():
            return _points(panel)


def _as_grid(panel: Lines) -> Grid:
    """Show lines as rows of shades, a column a layer."""
    values = [value for line in panel.lines for value in line.values if value is not None]
    return Grid(
        title=panel.title,
        value_name=panel.value_name,
        row_axis="",
        rows=[line.name for line in panel.lines],
        column_axis="layer",
        columns=[str(layer) for layer in panel.layers],
        cells=[[*line.values, *[None] * (len(panel.layers) - len(line.values))] for line in panel.lines],
        high=max([*values, 0.0]) or 1.0,
        unit="share" if max(map(abs, values), default=0) <= MOST_SHARE else "any",
        valid=panel.valid,
        valid_reason=panel.valid_reason,
    )


def _grid(grid: Grid, style: TextStyle) -> str:
    side = max(map(places, (*grid.rows, grid.row_axis)))
    numbers = [[number(value, grid) for value in row] for row in grid.cells]
    width = max(places(text) for texts in (*numbers, grid.columns) for text in texts)
    gap = 1 if style.colors else 2  # without colour a shade stands before each number
    lines = [heading(grid), *([f"{'':>{side}} {grid.column_axis}"] if grid.column_axis else [])]
    lines.append(_right(grid.row_axis, side) + "".join(_right(name, width + gap) for name in grid.columns))
    for name, row, texts in zip(grid.rows, grid.cells, numbers, strict=True):
        cells = (_cell(value, f"{text:>{width}}", grid, style) for value, text in zip(row, texts, strict=True))
        lines.append(_right(name, side) + "".join(cells))
    lines.append(_legend(grid, style, side))
    return "\n".join(lines) + "\n"


def places(text: str) -> int:
    """Count the places that a terminal gives a text: Chinese letters have two each, accents of their own none."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _right(text: str, side: int) -> str:
    """Put a text at the right end of so many places."""
    return " " * (side - places(text)) + text


def number(value: float | None, grid: Grid) -> str:
    """Write a cell's number as the grid's unit says; never -0."""
    if value is None:
        return "-"
    if grid.unit == "share":
        return f"{round(100 * value)}"
    return f"{round(value, 2) + 0.0:.2f}" if grid.unit == "signed" else f"{value:.3g}"


def _cell(value: float | None, text: str, grid: Grid, style: TextStyle) -> str:
    if value is None:
        return ("" if style.colors else " ") + f" {text}"
    share = min(max((value - grid.low) / (grid.high - grid.low), 0.0), 1.0)
    if style.colors:
        return _painted(f" {text}", _shade(share, DIVERGING if grid.unit == "signed" else SEQUENTIAL), style.colors)
    ramp = SHADES[style.ascii_only]
    strength = abs(2 * share - 1) if grid.unit == "signed" else share
    shade = ramp[min(int(strength * len(ramp)), len(ramp) - 1)]
    return " " + (shade + text).replace(" ", shade)


def _legend(grid: Grid, style: TextStyle, side: int) -> str:
    values = [grid.low + (grid.high - grid.low) * i / 4 for i in range(5)]
    scale = "".join(_cell(value, number(value, grid), grid, style) for value in values)
    unit = " in %" if grid.unit == "share" else ""
    return f"{'':>{side}} {grid.value_name}{unit}:" + scale


def _shade(share: float, stops: Sequence[Rgb]) -> Rgb:
    position = share * (len(stops) - 1)
    below = min(int(position), len(stops) - 2)
    part = position - below
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(stops[below], stops[below + 1], strict=True))
    return red, green, blue


def is_dark(red: float, green: float, blue: float) -> bool:
    """Say whether white is easier to read on an sRGB colour (parts 0-1) than black, by WCAG's contrast."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.179


def _painted(text: str, color: Rgb, colors: Colors) -> str:
    red, green, blue = color
    dark = is_dark(red / 255, green / 255, blue / 255)
    if colors == 256:
        cube = [round(part / 255 * 5) for part in color]
        paper, ink = f"5;{16 + 36 * cube[0] + 6 * cube[1] + cube[2]}", f"5;{231 if dark else 16}"
    else:
        paper, ink = f"2;{red};{green};{blue}", "2;255;255;255" if dark else "2;0;0;0"
    return f"\x1b[48;{paper};38;{ink}m{text}\x1b[0m"


def _bars(bars: Bars, style: TextStyle) -> str:
    top = max(map(abs, bars.values), default=0.0) or 1.0
    centre = "" if bars.centre is None else f", M-CoG {bars.centre:.2f}"
    lines = [heading(bars) + centre, f"layer {bars.value_name:>8}"]
    spread = [""] * len(bars.values) if bars.spread is None else [f" ±{sd:.4f}" for sd in bars.spread]
    for layer, value, sd in zip(bars.layers, bars.values, spread, strict=True):
        blocks = (BLOCKS if value >= 0 else BELOW)[style.ascii_only]
        lines.append(f"{layer:>5} {value:8.4f}{sd} {_bar(abs(value) / top, blocks)}".rstrip())
    return "\n".join(lines) + "\n"


def _columns(panel: Columns, style: TextStyle) -> str:
    side, tip = max(map(places, panel.names)), max(map(len, panel.series))
    lines = [*filter(None, [heading(panel)]), f"{'':>{side}} {panel.value_name} in %, 95 % interval; chance"]
    for name, values, low, high, chance in zip(
        panel.names, panel.values, panel.low, panel.high, panel.chance, strict=True
    ):
        for series, value, a, b in zip(panel.series, values, low, high, strict=True):
            known = value is not None and a is not None and b is not None
            shown = f"{100 * value:5.1f} {f'{100 * a:.0f}-{100 * b:.0f}':>6} {100 * chance:3.0f}" if known else "    -"  # type: ignore[operator]
            bar = _bar((value or 0.0) / 2, BLOCKS[style.ascii_only])
            lines.append(f"{_right(name, side)} {series:<{tip}} {shown} {bar}".rstrip())
            name = ""
    return "\n".join(lines) + "\n"


def _points(panel: Points) -> str:
    """Write the numbers, since places on a plane of letters would tell less."""
    names = panel.categories
    rows = [("", panel.x_name, panel.y_name)]
    rows += [
        (dot.series, names[int(dot.x)] if names else _dot(dot.x, dot.x_sd), _dot(dot.y, dot.y_sd)) for dot in panel.dots
    ]
    widths = [max(places(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join(map(_right, row, widths)) for row in rows]
    return "\n".join([*filter(None, [heading(panel)]), *lines]) + "\n"


def _dot(value: float, spread: float | None) -> str:
    return f"{value:.4g}" + ("" if spread is None else f"±{spread:.2g}")


def _bar(share: float, blocks: str) -> str:
    steps = len(blocks) - 1
    full, rest = divmod(round(share * BAR_WIDTH * steps), steps)
    return blocks[-1] * full + (blocks[rest] if rest else "")


def _marks(marks: Marks) -> str:
    """Show a letter for each series under the nearest layer, and the exact layers beside."""
    letters = list(map(_letters, range(len(marks.series))))
    side = max(map(places, marks.rows))
    rows = [_under_layers(letters, values, marks.axis) for values in marks.layers]
    width = max(4, *(len(cell) + 1 for cells in rows for cell in cells))
    lines = [
        *filter(None, [heading(marks)]),
        f"{'':>{side}} layer",
        f"{'':>{side}}" + "".join(f"{layer:>{width}}" for layer in marks.axis),
    ]
    for name, cells, values, spread in zip(marks.rows, rows, marks.layers, marks.spread, strict=True):
        exact = "  ".join(map(_exact, letters, values, spread))
        lines.append(_right(name, side) + "".join(f"{cell or '.':>{width}}" for cell in cells) + f"  {exact}")
    return "\n".join([*lines, *map("{} {}".format, letters, marks.series)]) + "\n"


def _letters(index: int) -> str:
    """Name a series: A to Z, then AA, AB, …."""
    before, own = divmod(index, 26)
    return (_letters(before - 1) if before else "") + chr(ord("A") + own)


def _under_layers(letters: Sequence[str], values: Sequence[float | None], axis: Sequence[int]) -> list[str]:
    """Give what stands under each layer of the axis: the letters of the series that are nearest to it."""
    cells: dict[int, list[str]] = {layer: [] for layer in axis}
    for letter, value in zip(letters, values, strict=True):
        if value is not None:
            cells[min(max(round(value), axis[0]), axis[-1])].append(letter)
    join = "" if len(letters) <= 26 else ","
    return [join.join(cell) for cell in cells.values()]


def _exact(letter: str, value: float | None, spread: float | None) -> str:
    if value is None:
        return f"{letter} -"
    return f"{letter} {value:.2f}" + ("" if spread is None else f"±{spread:.2f}")
