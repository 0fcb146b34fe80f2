"""`mltools states`, and the states that probe and centroid read."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import StatesConfig, choices, resolve
from mltools.errors import UsageError
from mltools.io.columns import Columns
from mltools.io.outputs import TENSORS
from mltools.io.source import Source, rereadable

if TYPE_CHECKING:
    from mltools.io.states import States


@command(
    "states",
    "mltools states noisy/ noisy.jsonl -o states.safetensors",
    "mltools states noisy/ noisy.jsonl | mltools centroid > centroid.jsonl",
    writes=("work",),
)
def states(
    checkpoint: options.CheckpointArg,
    rows: options.Rows = None,
    dtype: Annotated[
        str | None,
        options.choice(
            "--dtype", choices(StatesConfig, "dtype"), metavar="TYPE", help="float32 or float16. [default: float32]"
        ),
    ] = None,
    position: Annotated[
        str | None,
        options.choice(
            "--position",
            choices(StatesConfig, "position"),
            metavar="WHICH",
            help="Token: auto (as the head), first, last. [default: auto]",
        ),
    ] = None,
    raw_last: Annotated[
        bool | None, typer.Option("--raw-last", help="Take layer L before the final norm, not after.")
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
    offload: options.Offload = False,
    dry_run: options.DryRun = False,
    out: Annotated[
        Path | None, options.file("-o", "--out", help="States file, .safetensors. [default: stdout]")
    ] = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Save the hidden states of rows, for probe and centroid.

    Runs the model once over the rows and writes one safetensors file: hidden_states (rows, layers + 1, width) of the
    token that the head reads, layer 0 being the embeddings and the last layer after the final norm; label,
    original_label, noisy and ids beside it. The head is not needed, so the pre-trained model will do.
    """
    config = resolve(
        StatesConfig,
        preset,
        dtype=dtype,
        position=position,
        raw_last=raw_last,
        batch_size=options.parse_batch_size(batch_size),
        max_length=max_length,
    )
    task = job.Job(
        "states", config, inputs=(checkpoint, rows), out=out, endings=TENSORS, force=force, provenance=provenance
    )
    source = job.rows_source(rows)

    columns = job.columns(text, label, separator, label_type)
    if dry_run:
        from mltools.io.examples import read_examples
        from mltools.tools.states import plan

        shape = job.shape_of(checkpoint, read_examples(source, columns), config.max_length, blocks, offload)
        task.plan(shape, [plan(shape)], device, threads)
        return

    from mltools.io.states import states_output

    with states_output(out, replace=force) as path:
        found = write_states(
            checkpoint,
            source,
            columns,
            path,
            config,
            task,
            device=device,
            threads=threads,
            blocks=blocks,
            offload=offload,
        )
    task.finish(**found)


def write_states(
    checkpoint: str,
    source: Source,
    columns: Columns,
    path: Path,
    config: StatesConfig,
    task: job.Job,
    *,
    device: str,
    threads: int | None,
    blocks: str | None,
    offload: bool = False,
) -> dict[str, object]:
    """Write the states file of a checkpoint and rows to `path`, and give the facts for the summary."""
    from mltools.model.device import set_threads
    from mltools.tools.states import open_for_states, read_table
    from mltools.tools.states import states as tool

    with rereadable(source) as again:
        table = read_table(again, columns)
        task.used("rows", again)
        opened = open_for_states(checkpoint, table, job.device_for(device), blocks, offload)
        task.inputs["checkpoint"] = opened.digest()
        set_threads(threads, opened.width)
        tool(opened, again, columns, table, path, config, task.provenance, _progress)
    return {"rows": len(table), "layers": opened.n_layers, "width": opened.width, "dtype": config.dtype}


def _progress(rows: Iterator[int], total: int) -> Iterator[int]:
    return console.track(rows, total, "states", "rows")


@contextlib.contextmanager
def open_input(
    task: job.Job,
    first: str | None,
    rows: str | None,
    columns: Columns,
    *,
    max_length: int | None,
    batch_size: str,
    device: str,
    threads: int | None,
    blocks: str | None,
) -> Iterator["States"]:
    """Open the states that a command is given: STATES (a file, or stdin), or CHECKPOINT ROWS to take them from.

    Raises:
        UsageError: options that only rows need, without rows.
    """
    from mltools.io.states import open_states

    if rows is None and not (first is not None and Path(first).is_dir()):
        if (columns, max_length, batch_size, blocks) != (Columns(), None, "auto", None):
            raise UsageError("STATES hold no rows: --text, --label, --max-length and the like need CHECKPOINT ROWS")
        source = job.rows_source(first)
        with open_states(source) as opened:
            task.used("states", opened.source)
            yield opened
        return
    assert first is not None
    source = job.rows_source(rows)
    config = resolve(StatesConfig, "paper", batch_size=options.parse_batch_size(batch_size), max_length=max_length)
    with tempfile.TemporaryDirectory(prefix="mltools-") as folder:
        path = Path(folder, "states.safetensors")
        write_states(first, source, columns, path, config, task, device=device, threads=threads, blocks=blocks)
        written = Source(path)
        written.name = source.name
        with open_states(written) as opened:
            yield opened
