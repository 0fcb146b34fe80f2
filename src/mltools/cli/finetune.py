"""`mltools finetune`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import FinetuneConfig, choices, resolve
from mltools.errors import UsageError
from mltools.io.atomic import check_output


@command(
    "finetune",
    "mltools finetune model/ noisy.jsonl -o noisy/ --epochs 10 --lr 3e-4 > noisy-epochs.jsonl",
    "mltools finetune model/ noisy.jsonl -o clean/ --epochs 10 --lr 3e-4 --target original_label > clean-epochs.jsonl",
    "mltools finetune model/ noisy.jsonl -o control/ --freeze embeddings,3-6 --aux rte.jsonl --aux-text text,text_pair",
    writes=("epoch", "work"),
)
def finetune(
    pretrained: options.PretrainedArg,
    rows: options.Rows = None,
    out: options.OutFolder = Path(),
    target: Annotated[
        str | None,
        options.choice(
            "--target",
            choices(FinetuneConfig, "target"),
            metavar="COL",
            help="label, or original_label for the clean model. [default: label]",
        ),
    ] = None,
    freeze: Annotated[
        str | None,
        typer.Option(
            "--freeze",
            metavar="LIST",
            help="embeddings, pooler, head, all-layers (and embeddings), none or layers. [default: embeddings]",
        ),
    ] = None,
    aux: Annotated[
        str | None,
        typer.Option("--aux", metavar="ROWS", help="Rows of an auxiliary task that changes all layers, frozen or not."),
    ] = None,
    aux_text: Annotated[
        str | None, typer.Option("--aux-text", metavar="COL[,COL]", help="Their text columns. [default: text]")
    ] = None,
    aux_label: Annotated[
        str | None, typer.Option("--aux-label", metavar="COL", help="Their label column. [default: label]")
    ] = None,
    aux_learning_rate: Annotated[
        float | None, typer.Option("--aux-lr", metavar="R", help="Their peak learning rate. [default: 5e-6]")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", metavar="R", help="Peak learning rate. [default: 1e-5]")
    ] = None,
    raise_rate: Annotated[
        bool | None,
        typer.Option(
            "--raise-lr",
            help="Rerun at twice the rate, at most 3 times, while final training accuracy is not above .99.",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", min=1, help="Epochs. [default: 50]")] = None,
    batch_size: options.TrainBatchSize = None,
    micro_batch: options.MicroBatch = None,
    warmup: options.Warmup = None,
    weight_decay: options.WeightDecay = None,
    clip: options.Clip = None,
    clip_scope: options.ClipScope = None,
    memorised_at: Annotated[
        float | None,
        typer.Option("--memorised-at", metavar="R", help="Save memorised/ once training passes this. [default: 0.993]"),
    ] = None,
    memorised_metric: Annotated[
        str | None,
        options.choice(
            "--memorised-metric",
            choices(FinetuneConfig, "memorised_metric"),
            metavar="NAME",
            help="accuracy (above), macro-f1 (reached). [default: accuracy]",
        ),
    ] = None,
    evaluate: Annotated[
        str | None,
        options.choice(
            "--evaluate",
            choices(FinetuneConfig, "evaluate"),
            metavar="WHEN",
            help="Measure training rows until memorised, always, or last. [default: memorised]",
        ),
    ] = None,
    frozen_dropout: options.FrozenDropout = None,
    validation: Annotated[
        str | None, typer.Option("--validation", metavar="ROWS", help="Rows to measure after each epoch.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a stopped run for DIR was; same bytes.")
    ] = False,
    seed: options.Seed = None,
    preset: options.PresetOpt = "paper",
    text: options.Text = None,
    label: options.LabelOpt = None,
    separator: options.Separator = None,
    label_type: options.LabelTypeOpt = "auto",
    max_length: options.MaxLength = None,
    precision: Annotated[
        str | None,
        options.choice(
            "--precision",
            choices(FinetuneConfig, "precision"),
            metavar="TYPE",
            help="fp32, bf16 or fp16. [default: fp32]",
        ),
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    blocks: options.Blocks = None,
    dry_run: options.DryRun = False,
    tag: options.Tag = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Fine-tune a model on rows and save checkpoints.

    Reads rows with `label` (and `original_label`, `noisy` from perturb), trains, and writes the checkpoint DIR; in it
    memorised/, the checkpoint of the first epoch whose training accuracy passes .993. Writes one record an epoch to
    stdout. With --target original_label the same file and seed give the clean model: same batches, same fresh head.
    With --aux, ROWS change only what --freeze leaves, and the other rows change everything but the embeddings, so
    that memorisation is known to lie in the layers left: the control set-up. Runs under torchrun too.
    """
    if out == Path():
        raise UsageError("-o DIR is missing: where does the checkpoint go?")
    if aux is None and (aux_text or aux_label or aux_learning_rate is not None):
        raise UsageError("--aux-text, --aux-label and --aux-lr tell of auxiliary rows: name them with --aux")
    config = resolve(
        FinetuneConfig,
        preset,
        target=target,
        freeze=freeze,
        learning_rate=learning_rate,
        aux_learning_rate=aux_learning_rate,
        raise_rate=raise_rate,
        epochs=epochs,
        batch_size=batch_size,
        micro_batch=micro_batch,
        warmup=warmup,
        weight_decay=weight_decay,
        clip=clip,
        clip_scope=clip_scope,
        memorised_at=memorised_at,
        memorised_metric=memorised_metric,
        evaluate=evaluate,
        frozen_dropout=frozen_dropout,
        precision=precision,
        seed=seed,
        max_length=max_length,
    )
    task = job.Job("finetune", config, tag=tag, force=force, provenance=provenance)
    if not resume:
        check_output(out, force=force)
    source = job.rows_source(rows)

    from mltools.io.examples import read_examples
    from mltools.io.provenance import folder_digest
    from mltools.model.checkpoint_files import locate
    from mltools.tools.finetune import finetune as tool
    from mltools.tools.finetune import plan

    columns = job.columns(text, label, separator, label_type)
    examples = read_examples(source, columns)
    task.used("rows", examples)
    held_out = read_examples(validation, columns) if validation is not None else None
    if held_out is not None:
        task.used("validation", held_out)
    others = read_examples(aux, job.columns(aux_text, aux_label, separator, label_type)) if aux is not None else None
    if others is not None:
        task.used("aux", others)
    if dry_run:
        shape = job.shape_of(pretrained, examples, config.max_length, blocks)
        task.plan(shape, [plan(shape, examples, config, others, held_out)], device, threads)
        return
    task.inputs["pretrained"] = {"path": pretrained, "sha256": folder_digest(locate(pretrained))}
    with task.records(keep_going=True) as writer:
        records = tool(
            pretrained,
            examples,
            out,
            config,
            aux=others,
            validation=held_out,
            device=job.device_for(device),
            threads=threads,
            blocks=blocks,
            resume=resume,
            force=force,
            provenance=task.provenance,
            watch=_watch,
        )
        last = None
        for record in records:
            writer.write(record)
            last = record
    task.finish(
        checkpoint=str(out),
        rows=len(examples),
        epochs=config.epochs,
        target=config.target,
        noisy_accuracy=last.noisy_accuracy if last else None,
        clean_accuracy=last.clean_accuracy if last else None,
        aux_accuracy=last.aux_accuracy if last else None,
        attempts=last.attempt if last and last.attempt > 1 else None,
    )


def _watch(steps: Iterator[None], total: int, label: str) -> Iterator[None]:
    return console.track(steps, total, label, "steps")
