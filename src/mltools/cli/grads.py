"""`mltools grads`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import GradsConfig, choices, resolve


@command(
    "grads",
    "mltools grads noisy/memorised noisy.jsonl --frozen frozen/ > grads.jsonl",
    "mltools grads noisy/memorised noisy.jsonl --objective logit --norm l2 | mltools mcog",
    writes=("grad", "work"),
)
def grads(
    checkpoint: options.CheckpointArg,
    rows: options.Rows = None,
    frozen: Annotated[
        str | None,
        typer.Option("--frozen", metavar="CHECKPOINT", help="Divide by the norms of this one, trained without blocks."),
    ] = None,
    objective: Annotated[
        str | None,
        options.choice(
            "--objective",
            choices(GradsConfig, "objective"),
            metavar="NAME",
            help="loss (minus the cross-entropy), or logit (the label's). [default: loss]",
        ),
    ] = None,
    norm: Annotated[
        str | None,
        options.choice("--norm", choices(GradsConfig, "norm"), metavar="NAME", help="l1 or l2. [default: l1]"),
    ] = None,
    noisy_only: Annotated[
        bool | None, typer.Option("--noisy-only", help="Leave clean rows out: nothing is subtracted.")
    ] = None,
    part: options.Part = None,
    leave_out: Annotated[
        str | None,
        typer.Option("--leave-out", metavar="WORD[,WORD]", help="Leave out tensors whose name holds a word; or none."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write the mean gradients of CHECKPOINT, a safetensors file."),
    ] = None,
    min_noisy_accuracy: options.MinNoisyAccuracy = None,
    strict: options.Strict = False,
    seed: options.Seed = None,
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
    dry_run: options.DryRun = False,
    tag: options.Tag = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Score layers by the gradient that forgets the noisy rows.

    Takes the mean gradient of minus the loss over the noisy rows, less the same over as many clean rows (drawn by
    seed and id), and writes one record a layer: the norm over the block's tensors, divided by that of --frozen if
    given, scaled to sum 1. The record holds every step: both norms, noisy and clean rows alone, the frozen
    checkpoint, and attention, mlp and normalisation tensors side by side.

    CHECKPOINT is measured on all rows first: if it has not memorised the noisy ones, records say so (valid=false), as
    does a warning; with --strict no gradient is taken then, and the status is 1.
    """
    config = resolve(
        GradsConfig,
        preset,
        objective=objective,
        norm=norm,
        part=part,
        min_noisy_accuracy=min_noisy_accuracy,
        noisy_only=noisy_only,
        leave_out=() if leave_out == "none" else options.parse_names(leave_out),
        seed=seed,
        batch_size=options.parse_batch_size(batch_size),
        max_length=max_length,
    )
    task = job.Job("grads", config, out=out, others=(save,), force=force, tag=tag, provenance=provenance)
    source = job.rows_source(rows)
    task.check_input(source.path)

    from mltools.io.examples import read_examples
    from mltools.io.provenance import folder_digest
    from mltools.model.checkpoint_files import locate
    from mltools.tools.grads import grads as tool
    from mltools.tools.grads import plan

    examples = read_examples(source, job.columns(text, label, separator, label_type))
    task.used("rows", examples)
    if dry_run:
        shape = job.shape_of(checkpoint, examples, config.max_length, blocks)
        task.plan(shape, [plan(shape, examples, config, models=2 if frozen else 1)], device, threads)
        return
    for role, name in (("checkpoint", checkpoint), ("frozen", frozen)):
        if name is not None:
            task.inputs[role] = {"path": name, "sha256": folder_digest(locate(name))}
    with task.records() as writer:
        record = None
        for record in tool(
            checkpoint,
            examples,
            config,
            frozen=frozen,
            save=save,
            provenance=task.provenance.by("--save"),
            device=job.device_for(device),
            threads=threads,
            blocks=blocks,
            progress=_progress,
            strict=strict,
        ):
            writer.write(record)
    assert record is not None
    task.finish(
        layers=record.layers, noisy=record.n_noisy, clean=record.n_clean, objective=config.objective, norm=config.norm
    )


def _progress(rows: Iterator[int], total: int) -> Iterator[int]:
    return console.track(rows, total, "grads", "rows")
