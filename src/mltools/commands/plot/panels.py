"""What a drawing shows, as text or as a picture: `plot` makes panels, `plot_text` and `plot_figure` draw them."""

from dataclasses import dataclass
from typing import Literal

Table = list[list[float | None]]


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What every panel says of the records that it shows, as `mcog` does."""

    valid: bool | None = None
    valid_reason: str | None = None


@dataclass(frozen=True)
class Grid(_Judged):
    """Values in rows and columns, json_preview as shades: the window matrix, a matrix of correlations.

    `low` and `high` are the ends of the colour scale. `unit` says how numbers are written: `share` in percent,
    `signed` with two places and colours that part in the middle, `any` with three digits. None is undefined.
    """

    title: str
    value_name: str
    row_axis: str
    rows: list[str]
    column_axis: str
    columns: list[str]
    cells: Table
    low: float = 0.0
    high: float = 1.0
    unit: Literal["share", "signed", "any"] = "share"


@dataclass(frozen=True)
class Bars(_Judged):
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
class Lines(_Judged):
    """Several lines over the same layers; `mark` is a value to draw a rule at."""

    title: str
    value_name: str
    layers: list[int]
    lines: list[Line]
    mark: float | None = None


@dataclass(frozen=True)
class Marks(_Judged):
    """Layers at which something is: `layers[i][j]` that of row i and series j, a mean; `spread` has its SD.

    `axis` lists the layers to show. Undefined layers are None, and so is the spread of fewer than two numbers.
    """

    title: str
    axis: list[int]
    rows: list[str]
    series: list[str]
    layers: Table
    spread: Table


Panel = Grid | Bars | Lines | Marks


def heading(panel: Panel) -> str:
    """Give the title of a panel, which says so where what is shown is not valid."""
    if panel.valid is not False:
        return panel.title
    return f"{panel.title} [INVALID: {panel.valid_reason or 'no reason given'}]".strip()
