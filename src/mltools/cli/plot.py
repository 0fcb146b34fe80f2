"""`mltools plot`."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.errors import UsageError
from mltools.io.outputs import FIGURES
from mltools.io.source import STDIN

if TYPE_CHECKING:
    from mltools.io.records import Records
    from mltools.tools.plot_panels import Panel
    from mltools.tools.plot_text import Colors

KINDS = ("heatmap", "layers", "probe", "centroid", "events", "matrix")


@command(
    "plot",
    "mltools plot heatmap swap.jsonl",
    "mltools plot layers swap.jsonl grads.jsonl --overlay dataset -o layers.pdf",
)
def plot(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", autocompletion=lambda: [*KINDS], help=f"What to draw: {', '.join(KINDS)}.")
    ],
    records: options.Records = None,
    by: options.By = None,
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="COL", help="heatmap: the column to show. [default: memorisation_error]"),
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option("--overlay", metavar="COL", help="layers: groups that differ only in this tag share a panel."),
    ] = None,
    out: Annotated[
        Path | None,
        options.file("-o", "--out", metavar="FIG", help="Picture, .pdf, .png or .svg. [default: text on stdout]"),
    ] = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Draw records: as text on stdout, or as a picture with -o (needs matplotlib).

    heatmap is the window matrix of swap or retrain: in row w, column l stands the mean error over the windows of w
    layers that hold layer l. layers is a bar a layer, from window or layer records of any tool. probe and centroid
    are curves over layers. events marks the layers that centroid --events, probe --events and mcog give, a row a
    group. matrix is a table of correlate. Each group of records (tool and tags) becomes a panel.
    """
    options.one_of("KIND", kind, KINDS)
    figure = None if out is None or str(out) == STDIN else out
    settings = {"kind": kind, "by": by, "value": value, "overlay": overlay}
    task = job.Job(
        "plot", settings, inputs=records or (), out=figure, endings=FIGURES, force=force, provenance=provenance
    )
    if figure is None:
        _write_text(_panels(kind, task.read_records(records), options.parse_names(by), value, overlay))
        task.finish()
        return
    from mltools.tools.plot_figure import check_matplotlib, draw_figure

    check_matplotlib()
    panels = _panels(kind, task.read_records(records), options.parse_names(by), value, overlay)
    draw_figure(panels, figure, task.provenance, replace=force)
    task.finish(panels=len(panels))


def _panels(
    kind: str, records: "Iterable[Records]", by: tuple[str, ...] | None, value: str | None, overlay: str | None
) -> "list[Panel]":
    from mltools.tools import plot as tool

    for option, given, owner in (("--value", value, "heatmap"), ("--overlay", overlay, "layers")):
        if given is not None and kind != owner:
            raise UsageError(f"{option} is for {owner}, not for {kind}")
    if kind == "heatmap":
        return tool.heatmap(records, by, value or "memorisation_error")
    if kind == "layers":
        return tool.layers(records, by, overlay)
    draw = {"probe": tool.probe, "centroid": tool.centroid, "events": tool.events, "matrix": tool.matrix}
    return draw[kind](records, by)


def _write_text(panels: "list[Panel]") -> None:
    from mltools.io.stdout import write_stdout
    from mltools.tools.plot_text import TextStyle, draw_text

    encoding = sys.stdout.encoding or "ascii"
    style = TextStyle(_colors(), ascii_only="utf" not in encoding.lower())
    write_stdout(draw_text(panels, style).encode(encoding, "replace"))


def _colors() -> "Colors":
    if not console.use_color(sys.stdout):
        return 0
    return 16_777_216 if os.environ.get("COLORTERM") in ("truecolor", "24bit") else 256
