"""`mltools plot`."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.errors import UsageError

if TYPE_CHECKING:
    from mltools.tools.plot_text import Depth

KINDS = ("heatmap", "layers")
FORMATS = (".pdf", ".png", ".svg")


@command(
    "plot",
    "mltools plot heatmap swap.jsonl",
    "mltools swap noisy/ clean/ noisy.jsonl | mltools plot layers",
)
def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"What to draw: {', '.join(KINDS)}.")],
    records: options.Records = None,
    by: options.By = None,
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="COL", help="heatmap: the column to show. [default: memorisation_error]"),
    ] = None,
) -> None:
    """Draw records as text.

    heatmap draws the window matrix of swap or retrain: in row w, column l stands the mean error over the windows of
    w layers that hold layer l. layers draws a bar a layer, from window or layer records of any tool. Groups of
    records (tools and tags) become panels.
    """
    from mltools.io.records import read_records, write_stdout
    from mltools.tools import plot as tool
    from mltools.tools.plot_text import TextStyle, draw_text

    kind = options.one_of("KIND", kind, KINDS)
    if value is not None and kind != "heatmap":
        raise UsageError(f"--value is for heatmap, not for {kind}")
    stream = read_records(records or [job.rows_source(None).path])
    names = options.parse_names(by)
    panels = (
        tool.heatmap(stream, names, value or "memorisation_error") if kind == "heatmap" else tool.layers(stream, names)
    )
    encoding = sys.stdout.encoding or "ascii"
    style = TextStyle(_colors(), ascii_only="utf" not in encoding.lower())
    write_stdout(draw_text(panels, style).encode(encoding, "replace"))


def _colors() -> "Depth":
    if not console.use_color(sys.stdout):
        return 0
    return 16_777_216 if os.environ.get("COLORTERM") in ("truecolor", "24bit") else 256
