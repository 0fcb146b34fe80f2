"""`mltools swap`."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import SwapConfig, resolve
from mltools.errors import UsageError


@command(
    "swap",
    "mltools swap noisy/ clean/ noisy.jsonl > swap.jsonl",
    "mltools swap noisy/ clean/ noisy.jsonl --layers 1-3 --write mixed/",
    writes=("window", "work"),
)
def swap(
    noisy: options.NoisyArg,
    clean: options.CleanArg,
    rows: options.Rows = None,
    layers: options.Layers = None,
    part: options.Part = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="DIR", help="Write the mixed checkpoint of the one --layers window."),
    ] = None,
    min_noisy_accuracy: options.MinNoisyAccuracy = None,
    donor_is: options.DonorIs = None,
    strict: options.Strict = False,
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
    resume: options.Resume = None,
    dry_run: options.DryRun = False,
    tag: options.Tag = None,
    per_row: options.PerRow = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Swap windows of blocks and measure the memorisation error.

    Takes the blocks of each window from CLEAN and all else from NOISY, and writes one record a window: accuracy on
    noisy and on clean rows against `label`, the error (1 - noisy accuracy), and the share of noisy rows that revert
    to their original label. Rows are those that perturb wrote. No mixed model is written unless asked for.

    NOISY and CLEAN are measured whole too: if NOISY has not memorised the noisy rows, or CLEAN is not its twin, records
    say so (valid=false), as does a warning; with --strict the status is 1 then.
    """
    from mltools.windows import parse_windows

    config = resolve(
        SwapConfig,
        preset,
        part=part,
        min_noisy_accuracy=min_noisy_accuracy,
        donor_is=donor_is,
        batch_size=options.parse_batch_size(batch_size),
        max_length=max_length,
    )
    task = job.Job("swap", config, out=out, others=(per_row, write), force=force, tag=tag, provenance=provenance)
    if write is not None and len(layers or []) != 1:
        raise UsageError("--write makes one checkpoint: give exactly one --layers")
    if offload and (write is not None or config.part != "all"):
        raise UsageError("--offload leaves the blocks on disk; --write and --part need them in memory")
    source = job.rows_source(rows)
    task.check_input(source.path)

    from mltools.io.examples import read_examples
    from mltools.io.records import read_records
    from mltools.model.checkpoint_loading import open_checkpoint
    from mltools.model.device import set_threads
    from mltools.tools.swap import SwapResult, plan, write_mixed, write_per_row
    from mltools.tools.swap import swap as tool
    from mltools.tools.sweep import finished

    examples = read_examples(source, job.columns(text, label, separator, label_type))
    task.used("rows", examples)
    place = job.device_for(device)
    if dry_run:
        shape = job.shape_of(noisy, examples, config.max_length, blocks, offload)
        task.plan(shape, plan(shape, parse_windows(layers or [], shape.n_layers)), device, threads)
        return
    base = open_checkpoint(noisy, device=place, blocks=blocks, offload=offload)
    donor = open_checkpoint(clean, device=place, blocks=blocks, offload=offload)
    task.inputs.update(noisy=base.digest(), clean=donor.digest())
    set_threads(threads, base.width)
    windows = parse_windows(layers or [], base.n_layers)
    earlier = chain.from_iterable(read_records([resume])) if resume is not None else []
    done = finished(earlier, "swap", config.part, task.tags)
    run = task.sweep(replace(config, batch_size=None), examples)
    result = SwapResult.empty()
    with task.records() as writer:
        progress = lambda items, total: console.track(items, total, "swap", "rows")  # noqa: E731
        found = tool(base, donor, examples, windows, config, progress, result, done=done, run=run)
        for record in found:
            writer.write(record)
    if per_row is not None:
        write_per_row(per_row, result, examples, task.provenance.by("--per-row"))
    if write is not None:
        write_mixed(base, donor, windows[0], write, task.provenance.by("--write"), config.part)
    if result.validity is not None and not strict:
        result.validity.tell()
    task.finish(
        windows=writer.n,
        resumed=len(done) or None,
        rows=result.rows,
        layers=result.layers,
        applications=result.applications,
        applications_per_row=result.applications / result.rows if result.rows else None,
    )
    if result.validity is not None and strict:
        result.validity.tell(strict=True)
