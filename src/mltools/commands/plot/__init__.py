"""`mltools plot`."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mltools.errors import UsageError
from mltools.io.endings import FIGURES
from mltools.options import By, RecordsOperand, Strict, WritingOptions, columns_flag, out_flag, parse_names
from mltools.ranges import Range, whole
from mltools.spec import CommandSpec, Flag, Operand, Writes

KINDS = ("heatmap", "layers", "probe", "centroid", "events", "matrix", "score", "maxima", "scatter")
TAKES = {
    "value": ("heatmap", "layers", "maxima", "scatter"),
    "overlay": ("layers", "probe", "events", "maxima", "scatter"),
    "pivot": ("scatter",),
    "facet": ("heatmap", "layers", "probe", "centroid", "matrix"),
}
"""The kinds that a setting is for."""
OF_PICTURES = ("facet", "width", "font_size", "dpi")
INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}


def _parse_length(text: str) -> float:
    """Read a length in inches.

    Raises:
        UsageError: it is none, or not within what a page holds.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(in|cm|mm|pt)", text.strip())
    inches = float(found[1]) * INCHES[found[2]] if found else 0.0
    if not 1 <= inches <= 100:
        raise UsageError(f'--width "{text}": write a length of 1 to 100 inches, e.g. 3.3in, 8.4cm or 240pt')
    return inches


def _parse_facet(text: str) -> tuple[str, ...]:
    names = parse_names(text)
    if len(set(names)) != len(names) or len(names) > 2:
        raise UsageError(f'--facet "{text}": write ROWS,COLUMNS, two different columns, or one')
    return names


@dataclass(frozen=True)
class Settings:
    """Draw records: as text on stdout, or as a picture with -o (needs matplotlib).

    heatmap is the window matrix of swap or retrain: in row w, column l stands the mean error over the windows of w
    layers that hold layer l. layers is a bar a layer, from window or layer records of any tool. probe and centroid
    are curves over layers. events marks the layers that centroid --events, probe --events and mcog give, a row a
    group. matrix is a table of correlate, score one of score. maxima shows the largest error of one layer, scatter one
    number against another. Each group of records (tool and tags) becomes a panel, a row or a dot.
    """

    kind: Annotated[str, Operand("KIND", f"What to draw: {', '.join(KINDS)}.", choices=KINDS, steers=True)]
    records: RecordsOperand = ()
    by: By = None
    value: Annotated[
        tuple[str, ...],
        columns_flag(
            "--value",
            "heatmap, layers, maxima: the columns to show. scatter: its axes, columns or events.",
            default="error of windows, score of layers",
        ),
    ] = ()
    overlay: Annotated[
        str | None,
        Flag(
            "--overlay",
            metavar="COL",
            help="Groups that differ only in this tag share a panel (layers, probe), row (events) or looks.",
        ),
    ] = None
    pivot: Annotated[
        str | None,
        Flag("--pivot", metavar="COL", help="scatter: the axes are the two values of this column."),
    ] = None
    facet: Annotated[
        tuple[str, ...],
        Flag(
            "--facet",
            metavar="ROWS,COLUMNS",
            parse=_parse_facet,
            help="Panels in rows and columns by two tags, with shared scales.",
        ),
    ] = ()
    out: Annotated[
        Path | None,
        out_flag("Picture, .pdf, .png or .svg.", Writes(FIGURES, plain=False), metavar="FIG", default="text on stdout"),
    ] = None
    width: Annotated[
        float | None,
        Flag(
            "--width",
            metavar="LENGTH",
            parse=_parse_length,
            default="enough for the panels",
            help="Width of the picture, e.g. 3.3in or 84mm.",
        ),
    ] = None
    font_size: Annotated[
        float, Flag("--font-size", metavar="PT", numbers=Range(4, 40), help="Font size of the picture.")
    ] = 8.0
    dpi: Annotated[int, Flag("--dpi", metavar="N", numbers=whole(20, 2400), help="Dots per inch of .png.")] = 200
    strict: Strict = False
    writing: WritingOptions = WritingOptions()


def _check(settings: Settings, given: Collection[str]) -> None:
    for name, kinds in TAKES.items():
        if getattr(settings, name) and settings.kind not in kinds:
            raise UsageError(f"--{name} is for {', '.join(kinds)}, not for {settings.kind}")
    if settings.kind == "heatmap" and len(settings.value) > 1:
        raise UsageError("--value: a heatmap is of one column")
    if settings.out is None:
        for name in OF_PICTURES:
            if name in given:
                raise UsageError(f"--{name.replace('_', '-')} is for pictures; name one with -o")


SPEC = CommandSpec(
    Settings,
    heading="Summarise",
    rank=40,
    examples=(
        "mltools plot heatmap swap.jsonl",
        "mltools plot layers swap.jsonl grads.jsonl --overlay dataset -o layers.pdf",
        "mltools plot layers swap.jsonl --facet model,dataset --width 6.8in --font-size 7 -o facets.svg",
    ),
    check=_check,
)
