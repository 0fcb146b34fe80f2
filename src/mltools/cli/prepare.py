"""`mltools prepare`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from mltools import options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import PrepareConfig, choices, resolve
from mltools.errors import UsageError
from mltools.io.writer import RecordWriter


def _tasks() -> list[str]:
    from mltools.tools.prepare_tasks import TASKS

    return [*TASKS]


@command(
    "prepare",
    "mltools prepare trec > trec.jsonl",
    "mltools prepare wic --from data/wic/ | mltools perturb > wic-noisy.jsonl",
    "mltools prepare reuters --from data/reuters/ --split validation --top-classes 2 -o validation.parquet",
)
def prepare(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="[TASK]", autocompletion=_tasks, help="One of the paper's twelve tasks; --list names them."
        ),
    ] = None,
    split: Annotated[
        str | None,
        options.choice(
            "--split",
            choices(PrepareConfig, "split"),
            metavar="NAME",
            help="train, validation, test (halves of the evaluation pool), or pool. [default: train]",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR|FILE", help="Local copy: JSONL, Parquet, CSV or TSV with the hub's columns or ours."
        ),
    ] = None,
    top_classes: Annotated[
        int | None,
        typer.Option("--top-classes", metavar="K", help="Keep the K classes most frequent in training."),
    ] = None,
    labels: Annotated[
        str | None,
        options.choice(
            "--labels",
            choices(PrepareConfig, "labels"),
            metavar="HOW",
            help="names, or the released numbers. [default: names]",
        ),
    ] = None,
    draw: Annotated[
        str | None,
        options.choice(
            "--draw",
            choices(PrepareConfig, "draw"),
            metavar="HOW",
            help="hash (by seed and id), or python (as released). [default: hash]",
        ),
    ] = None,
    carry_over: Annotated[
        bool | None,
        typer.Option("--carry-over", help="Reuters: drop test rows at positions dropped in training, as released."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the tasks with where they are and their licences.")
    ] = False,
    seed: options.Seed = None,
    preset: options.PresetOpt = "paper",
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Turn one of the paper's tasks into rows.

    Writes a split as rows: id, text, for pairs text_pair, for WiC word, and label. Takes it from the hub's Parquet
    files, or from a local copy. The evaluation pool is the official validation split, else the test split, or 20 % of
    tasks with one split only; validation and test are its halves, drawn by seed.

    WiC is read with --text word,text,text_pair, pairs with --text text,text_pair, all others need no option. Mind the
    licences: --list states them.
    """
    from mltools.tools.prepare import Prepared, find_task
    from mltools.tools.prepare import prepare as tool
    from mltools.tools.prepare_tasks import TASKS

    if show:
        with RecordWriter(None) as writer:
            for entry in TASKS.values():
                writer.write(dataclasses.asdict(entry))
        return
    if task is None:
        raise UsageError(f"which task? {', '.join(TASKS)}")
    chosen = find_task(task)
    config = resolve(
        PrepareConfig,
        preset,
        split=split,
        seed=seed,
        draw=draw,
        labels=labels,
        top_classes=top_classes,
        carry_over=carry_over,
    )
    run = job.Job("prepare", config, inputs=(source,), out=out, force=force, provenance=provenance)
    done = Prepared()
    rows = list(tool(chosen, config, source, done))
    run.inputs.update(done.inputs)
    with run.records() as writer:
        for row in rows:
            writer.write(row)
    run.finish(task=chosen.name, split=config.split, rows=len(rows), split_from=done.split_from)
