"""`mltools windows`."""

from typing import Annotated

import typer

from mltools import options
from mltools.cli.app import command
from mltools.io.stdout import write_stdout
from mltools.tools.windows import windows as tool


@command(
    "windows",
    "mltools windows 12 --width 3",
    "mltools windows 6 | head -3",
)
def windows(
    layers: options.LayersArg,
    width: Annotated[int | None, typer.Option("--width", metavar="N", help="Only windows of N layers.")] = None,
) -> None:
    """Print windows of consecutive layers as work items.

    Writes one layer list a line: every window of 1..LAYERS, or those of one width. Feed them to --layers of
    swap or retrain with a loop, xargs, GNU parallel or a Slurm array.
    """
    for item in tool(layers, width):
        write_stdout(item.encode() + b"\n")
