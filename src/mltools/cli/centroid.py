"""`mltools centroid`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.cli.states import open_input
from mltools.config import CentroidConfig, choices, resolve
from mltools.io.outputs import PARQUET, Output

if TYPE_CHECKING:
    from mltools.tools.centroid import Layer


@command(
    "centroid",
    "mltools centroid states.safetensors > centroid.jsonl",
    "mltools centroid noisy/ noisy.jsonl --events",
    writes=("centroid", "event"),
)
def centroid(
    states: options.StatesArg = None,
    rows: options.RowsOfStates = None,
    events: Annotated[
        bool, typer.Option("--events", help="Write the layers of crossing and initiation instead of projections.")
    ] = False,
    crossing: Annotated[
        str | None,
        options.choice(
            "--crossing",
            choices(CentroidConfig, "crossing"),
            metavar="WHICH",
            help="Layer below 0.5: first, last or stable. [default: first]",
        ),
    ] = None,
    preset: options.PresetOpt = "paper",
    text: options.Text = None,
    label: options.LabelOpt = None,
    separator: options.Separator = None,
    label_type: options.LabelTypeOpt = "auto",
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = "auto",
    device: options.Device = "auto",
    threads: options.Threads = None,
    blocks: options.Blocks = None,
    tag: options.Tag = None,
    per_row: Annotated[
        Path | None, options.file("--per-row", help="Write every row's projections too, as Parquet.")
    ] = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Show how noisy rows move from their class to the one they were given.

    Reads states (or takes them from CHECKPOINT and ROWS) and projects rows on the line between the centroids of two
    classes: 0 is the class they were given, 1 the one they had. Writes a record for each layer and ordered pair of
    classes, and one for all pairs together. --events writes two layers of each instead: crossing, where the noisy
    rows' mean falls below 0.5, and initiation, from where on the classes stay apart.
    """
    config = resolve(
        CentroidConfig,
        preset,
        crossing=crossing,
    )
    task = job.Job(
        "centroid",
        config,
        inputs=(states, rows),
        out=out,
        others=(Output("--per-row", per_row, PARQUET, plain=False) if per_row is not None else None,),
        force=force,
        tag=tag,
        provenance=provenance,
    )
    source = open_input(
        task,
        states,
        rows,
        job.columns(text, label, separator, label_type),
        max_length=max_length,
        batch_size=batch_size,
        device=device,
        threads=threads,
        blocks=blocks,
    )
    with source as opened:
        from threadpoolctl import threadpool_limits

        from mltools.tools import centroid as tool

        threadpool_limits(threads or 1, "blas")  # the products are too small to share
        projections = tool.Projections() if per_row is not None else None
        found = (
            tool.events(opened, config, _progress, projections)
            if events
            else tool.centroid(opened, _progress, projections)
        )
        with task.records() as writer:
            for record in found:
                writer.write(record)
        if per_row is not None and projections is not None:
            tool.write_per_row(per_row, projections, opened.rows, task.provenance.by("--per-row"), replace=force)
        task.finish(rows=len(opened), noisy=int(opened.rows.noisy.sum()), layers=opened.layers, records=writer.n)


def _progress(layers: "Iterator[Layer]", total: int) -> "Iterator[Layer]":
    return console.track(layers, total, "centroid", "layers")
