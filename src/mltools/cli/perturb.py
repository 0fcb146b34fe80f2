"""`mltools perturb`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mltools import options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import PerturbConfig, choices, resolve
from mltools.io.atomic import atomic_file
from mltools.io.rewrite import dump_row, write_parquet_rows
from mltools.io.source import Source
from mltools.io.stdout import write_stdout

if TYPE_CHECKING:
    from mltools.tools.perturb import Blocks


@command(
    "perturb",
    "mltools perturb --rate 0.15 --seed 1 questions.jsonl > noisy.jsonl",
    "mltools perturb --top-classes 2 questions.jsonl -o noisy.parquet",
)
def perturb(
    rows: options.Rows = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", help="Share of each class, 0-1. [default: 0.15]")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Change each row with probability R, in constant memory; needs --classes.")
    ] = False,
    classes: Annotated[
        str | None, typer.Option("--classes", metavar="A,B", help="The classes, where rows need not hold all of them.")
    ] = None,
    top_classes: Annotated[
        int | None, typer.Option("--top-classes", metavar="K", help="Keep only rows of the K most frequent classes.")
    ] = None,
    draw: Annotated[
        str | None,
        options.choice(
            "--draw",
            choices(PerturbConfig, "draw"),
            metavar="HOW",
            help="hash (by seed and id), or python (as released). [default: hash]",
        ),
    ] = None,
    split_from: Annotated[
        int | None,
        typer.Option(
            "--split-from",
            metavar="N",
            help="Rows before the released 80/20 split, whose shuffle drew first; with --draw python.",
        ),
    ] = None,
    seed: options.Seed = None,
    preset: options.PresetOpt = "paper",
    label: options.LabelOpt = None,
    label_type: options.LabelTypeOpt = "auto",
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Give a share of each class a wrong label.

    Reads rows and writes them in the same order with `original_label` and `noisy` added (and `id`, the row
    number, where there is none). Exactly floor(R x size) rows of each class get another label, uniform over the
    other classes. Which ones depends on the seed and the ids only, not on the order of rows. Rows without a
    label (null or -1) pass through.
    """
    from mltools.tools.perturb import Count, perturb_blocks

    config = resolve(
        PerturbConfig,
        preset,
        rate=rate,
        seed=seed,
        draw=draw,
        stream=stream,
        classes=options.parse_names(classes),
        top_classes=top_classes,
        split_from=split_from,
    )
    task = job.Job("perturb", config, inputs=(rows,), out=out, force=force, provenance=provenance)
    source = job.rows_source(rows)
    count = Count()
    names = job.columns(None, label, None, label_type)
    changed = perturb_blocks(source, names, config, count)
    with job.no_collector():
        if out is None or str(out) == "-":
            for lines in _lines(changed):
                write_stdout(lines)
        else:
            _to_file(changed, out, source, names.label, task)
    task.used("rows", source)
    task.finish(
        rows=count.rows,
        noisy=count.noisy,
        unlabelled=count.unlabelled or None,
        left_out=count.left_out or None,
        rate=config.rate,
    )


CHUNK_ROWS = 4096


def _lines(blocks: "Blocks") -> Iterator[bytes]:
    """Yield the rows as JSON lines, many at a time."""
    for block in blocks:
        if isinstance(block, bytes):
            yield block
            continue
        for start in range(0, len(block), CHUNK_ROWS):
            yield b"".join([dump_row(row) + b"\n" for row in block[start : start + CHUNK_ROWS]])


def _to_file(blocks: "Blocks", out: Path, source: Source, label: str, task: job.Job) -> None:
    if out.suffix.lower() == ".parquet":
        from mltools.tools.perturb import one_by_one

        made = list(one_by_one(blocks))
        task.used("rows", source)
        write_parquet_rows(out, made, source, label, task.provenance, replace=task.force)
        return
    with atomic_file(out, replace=task.force) as temporary, temporary.open("wb") as stream:
        stream.writelines(_lines(blocks))
