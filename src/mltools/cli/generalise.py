"""`mltools generalise`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import GeneraliseConfig, resolve
from mltools.errors import UsageError


@command(
    "generalise",
    "mltools generalise model/ noisy.jsonl --runs 8 --tag dataset=trec -o halves.parquet",
    "seq 8 | parallel mltools generalise model/ noisy.jsonl --runs 8 --run {} '>' half-{}.jsonl",
    "mltools generalise --merge half-*.jsonl --per-row rows.parquet > score.jsonl",
    writes=("half", "generalisation", "generalisation-score", "work"),
)
def generalise(
    pretrained: Annotated[
        str | None, typer.Argument(metavar="[PRETRAINED]", help="Pre-trained model: a folder or hub repository.")
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROWS]...", help="Rows; - or none is stdin. With --merge, all are files of records."),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Fold records of half splits into scores of rows and tasks.")
    ] = False,
    run: Annotated[
        list[int] | None, typer.Option("--run", metavar="K", min=1, help="Half split to do; repeatable. Default: all.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="How many half splits there are.")] = 30,
    freeze: Annotated[
        str | None,
        typer.Option("--freeze", metavar="LIST", help="What is not trained, as in finetune. [default: embeddings]"),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", metavar="R", help="Peak learning rate. [default: 3e-5]")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", min=1, help="Epochs. [default: 10]")] = None,
    batch_size: options.TrainBatchSize = None,
    micro_batch: options.MicroBatch = None,
    warmup: options.Warmup = None,
    weight_decay: options.WeightDecay = None,
    clip: options.Clip = None,
    clip_scope: options.ClipScope = None,
    frozen_dropout: options.FrozenDropout = None,
    seed: options.Seed = None,
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
    per_row: Annotated[
        Path | None, typer.Option("--per-row", metavar="FILE", help="With --merge, write a record for each row too.")
    ] = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Measure how well rows are predicted when held out.

    Trains on a random half of ROWS, classifies all of them, and writes a record a row: inside the half or not, the
    probability of its label, and whether it is classified as it. Each half split starts from PRETRAINED and a fresh
    head, and is a work item of its own. ROWS are trained and asked for by `label`, as perturb left it.

    With --merge, reads these records and writes one a task: the generalisation score, the share of rows whose mean
    held-out probability exceeds 1/classes. --per-row has each row's generalisation and training memorisation.
    """
    config = resolve(
        GeneraliseConfig,
        preset,
        freeze=freeze,
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
    settings: object = {} if merge else config
    task = job.Job("generalise", settings, out=out, others=(per_row,), force=force, tag=tag, provenance=provenance)
    if merge:
        _merge(task, [name for name in (pretrained, *(rows or ())) if name is not None], per_row)
        return
    if pretrained is None or len(rows or ()) > 1 or per_row is not None:
        raise UsageError("generalise takes PRETRAINED and one file of rows; --per-row and more files go with --merge")
    splits = list(dict.fromkeys(run or range(1, runs + 1)))
    if max(splits) > runs:
        raise UsageError(f"--run {max(splits)}: there are {runs} half splits (--runs)")
    source = job.rows_source(rows[0] if rows else None)
    task.check_input(source.path)

    from mltools.io.examples import read_examples
    from mltools.io.provenance import folder_digest
    from mltools.model.checkpoint_files import locate
    from mltools.tools.generalise import generalise as tool
    from mltools.tools.generalise import plan

    examples = read_examples(source, job.columns(text, label, separator, label_type))
    task.used("rows", examples)
    if dry_run:
        shape = job.shape_of(pretrained, examples, config.max_length, blocks)
        task.plan(shape, plan(shape, splits, config), device, threads)
        return
    task.inputs["pretrained"] = {"path": pretrained, "sha256": folder_digest(locate(pretrained))}
    with task.records() as writer:
        for record in tool(
            pretrained,
            examples,
            splits,
            config,
            device=job.device_for(device),
            threads=threads,
            blocks=blocks,
            run=task.provenance.run,
            watch=_watch,
        ):
            writer.write(record)
    task.finish(splits=len(splits), rows=len(examples))


def _watch(steps: Iterator[None], total: int, label: str) -> Iterator[None]:
    return console.track(steps, total, label, "steps")


def _merge(task: job.Job, paths: list[str], per_row: Path | None) -> None:
    import dataclasses

    from mltools.io.writer import write_table
    from mltools.tools.generalise_merge import merge

    merged = merge(task.read_records(paths))
    with task.records() as writer:
        for group in merged:
            writer.write({**dataclasses.asdict(group.score()), **group.tags})
    if per_row is not None:
        rows = [{**dataclasses.asdict(record), **group.tags} for group in merged for record in group.records()]
        write_table(per_row, rows, task.provenance.by("--per-row"))
    task.finish(tasks=len(merged), rows=sum(len(group.rows) for group in merged))
