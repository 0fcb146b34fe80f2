"""What a drawing shows, as text or as a picture: each picture's module makes panels, `text` and `figure` draw them."""

from dataclasses import dataclass
from typing import Literal

from mltools.io.groups import Group

Table = list[list[float | None]]


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What every panel says of the records that it shows: whether they are valid, and which columns they share."""

    key: Group = ()
    valid: bool | None = None
    valid_reason: str | None = None


@dataclass(frozen=True)
class Grid(_Judged):
    """Values in rows and columns, shown as shades: the window matrix, a matrix of correlations.

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
    """One value a layer, the centre of gravity where there is one, and standard deviations where runs are averaged."""

    title: str
    value_name: str
    layers: list[int]
    values: list[float]
    centre: float | None = None
    spread: list[float] | None = None


@dataclass(frozen=True)
class Line:
    """A value a layer, None where undefined; `low` and `high` bound a band around it where given."""

    name: str
    values: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


@dataclass(frozen=True)
class Lines(_Judged):
    """Several lines over the same layers; `mark` is a value to draw a rule at, `band` what the bands are."""

    title: str
    value_name: str
    layers: list[int]
    lines: list[Line]
    mark: float | None = None
    band: str = ""


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


@dataclass(frozen=True)
class Columns(_Judged):
    """Shares by name and series, `values[i][j]` that of name i and series j, with intervals; `chance` by name."""

    title: str
    value_name: str
    names: list[str]
    series: list[str]
    values: Table
    low: Table
    high: Table
    chance: list[float]


@dataclass(frozen=True)
class Dot:
    """A point, and the standard deviations of what it is the mean of."""

    series: str
    x: float
    y: float
    x_sd: float | None = None
    y_sd: float | None = None


@dataclass(frozen=True)
class Points(_Judged):
    """Dots over numbers, or over names where there are `categories` (x is then an index).

    `diagonal` asks for the line on which both numbers are equal.
    """

    title: str
    x_name: str
    y_name: str
    dots: list[Dot]
    categories: list[str] | None = None
    diagonal: bool = False


Panel = Grid | Bars | Lines | Marks | Columns | Points


def invalid_mark(panel: Panel) -> str:
    """Say that what a panel shows is not valid; nothing where that is not so."""
    return f"[INVALID: {panel.valid_reason or 'no reason given'}]" if panel.valid is False else ""


def heading(panel: Panel) -> str:
    """Give the title of a panel, which says so where what is shown is not valid."""
    return f"{panel.title} {invalid_mark(panel)}".strip()
