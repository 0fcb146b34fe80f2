"""`mltools retrain`."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import RetrainConfig, resolve


@command(
    "retrain",
    "mltools retrain noisy/ model/ noisy.jsonl > retrain.jsonl",
    "mltools retrain noisy/ model/ noisy.jsonl --resume retrain.jsonl >> retrain.jsonl",
    "mltools windows 6 --width 5 | xargs -I{} mltools retrain noisy/ model/ noisy.jsonl --layers {} >> retrain.jsonl",
    writes=("window", "work"),
)
def retrain(
    noisy: options.NoisyArg,
    pretrained: options.PretrainedArg,
    rows: options.Rows = None,
    layers: options.Layers = None,
    part: options.Part = None,
    train_head: Annotated[
        bool | None,
        typer.Option(
            "--train-head/--no-train-head", help="Train final norm, pooler and classifier too. [default: train-head]"
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", metavar="R", help="Peak learning rate. [default: 3e-5]")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", min=1, help="Epochs. [default: 5]")] = None,
    batch_size: options.TrainBatchSize = None,
    micro_batch: options.MicroBatch = None,
    warmup: options.Warmup = None,
    weight_decay: options.WeightDecay = None,
    clip: options.Clip = None,
    clip_scope: options.ClipScope = None,
    frozen_dropout: options.FrozenDropout = None,
    resume: options.Resume = None,
    seed: options.Seed = None,
    min_noisy_accuracy: options.MinNoisyAccuracy = None,
    strict: options.Strict = False,
    preset: options.PresetOpt = "paper",
    text: options.Text = None,
    label: options.LabelOpt = None,
    separator: options.Separator = None,
    label_type: options.LabelTypeOpt = "auto",
    max_length: options.MaxLength = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    blocks: options.Blocks = None,
    dry_run: options.DryRun = False,
    tag: options.Tag = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Reset and retrain windows of blocks, and measure the memorisation error.

    Takes the blocks of each window from PRETRAINED and all else from NOISY, trains window and head on the clean rows
    (less as many as there are noisy ones, held out), and writes a record as the window ends: accuracy on noisy rows,
    held-out clean rows and the rows trained on, the error (1 - noisy accuracy), and the error divided by the full
    window's, which is run first for that. Every window starts from the same weights and seed.

    NOISY is measured as it is first: if it has not memorised the noisy rows, records say so (valid=false), as does a
    warning; with --strict nothing is retrained then, and the status is 1.

    A sweep that was stopped goes on with --resume and the records it wrote to stdout.
    """
    from mltools.windows import parse_windows

    config = resolve(
        RetrainConfig,
        preset,
        part=part,
        min_noisy_accuracy=min_noisy_accuracy,
        train_head=train_head,
        learning_rate=learning_rate,
        epochs=epochs,
        batch_size=batch_size,
        micro_batch=micro_batch,
        warmup=warmup,
        weight_decay=weight_decay,
        clip=clip,
        clip_scope=clip_scope,
        frozen_dropout=frozen_dropout,
        seed=seed,
        max_length=max_length,
    )
    task = job.Job("retrain", config, out=out, force=force, tag=tag, provenance=provenance)
    source = job.rows_source(rows)
    task.check_input(source.path)

    from mltools.io.examples import read_examples
    from mltools.io.records import read_records
    from mltools.model.checkpoint_loading import open_checkpoint
    from mltools.model.device import set_threads
    from mltools.tools.retrain import plan
    from mltools.tools.retrain import retrain as tool
    from mltools.tools.sweep import finished

    examples = read_examples(source, job.columns(text, label, separator, label_type))
    task.used("rows", examples)
    if dry_run:
        shape = job.shape_of(noisy, examples, config.max_length, blocks)
        task.plan(shape, plan(examples, shape, parse_windows(layers or [], shape.n_layers), config), device, threads)
        return
    place = job.device_for(device)
    base = open_checkpoint(noisy, device=place, blocks=blocks)
    windows = parse_windows(layers or [], base.n_layers)
    fresh = open_checkpoint(pretrained, device=place, blocks=blocks, fresh_head=base.labels)
    task.inputs.update(noisy=base.digest(), pretrained=fresh.digest())
    set_threads(threads, base.width)
    earlier = chain.from_iterable(read_records([resume])) if resume is not None else []
    done = finished(earlier, "retrain", config.part, task.tags)
    with task.records() as writer:
        run = task.sweep(config, examples)
        found = tool(base, fresh, examples, windows, config, done=done, run=run, strict=strict, watch=_watch)
        for record in found:
            writer.write(record)
    task.finish(
        windows=writer.n,
        resumed=len(done) or None,
        rows=len(examples),
        layers=base.n_layers,
        applications=base.runner.applications,
    )


def _watch(steps: Iterator[tuple[int, float]], total: int, label: str) -> Iterator[tuple[int, float]]:
    return console.track(steps, total, label, "steps")
