"""`mltools prepare`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.errors import UsageError
from mltools.options import Draw, FileOptions, PresetName, Seed
from mltools.ranges import whole
from mltools.spec import CommandSpec, Flag, Operand


def task_names() -> list[str]:
    """Name the tasks."""
    from mltools.commands.prepare.tasks import TASKS

    return [*TASKS]


@dataclass(frozen=True)
class Settings:
    """Turn one of the paper's tasks into rows.

    Writes a split as rows: id, text, for pairs text_pair, for WiC word, and label. Takes it from the hub's Parquet
    files, or from a local copy. The evaluation pool is the official validation split, else the test split, or 20 % of
    tasks with one split only; validation and test are its halves, drawn by seed.

    WiC is read with --text word,text,text_pair, pairs with --text text,text_pair, all others need no option. Mind the
    licences: --list states them.
    """

    task: Annotated[
        str | None, Operand("[TASK]", "One of the paper's twelve tasks; --list names them.", choices=task_names)
    ] = None
    split: Annotated[
        Literal["train", "validation", "test", "pool"],
        Flag("--split", metavar="NAME", help="train, validation, test (halves of the evaluation pool), or pool."),
    ] = "train"
    source: Annotated[
        Path | None,
        Flag(
            "--from",
            metavar="DIR|FILE",
            steers=False,
            opens="source",
            help="Local copy: JSONL, Parquet, CSV or TSV with the hub's columns or ours.",
        ),
    ] = None
    top_classes: Annotated[
        int | None,
        Flag("--top-classes", metavar="K", numbers=whole(2), help="Keep the K classes most frequent in training."),
    ] = None
    labels: Annotated[
        Literal["names", "numbers"], Flag("--labels", metavar="HOW", help="names, or the released numbers.")
    ] = "names"
    draw: Draw = "hash"
    carry_over: Annotated[
        bool, Flag("--carry-over", help="Reuters: drop test rows at positions dropped in training, as released.")
    ] = False
    show: Annotated[
        bool, Flag("--list", steers=False, help="List the tasks with where they are and their licences.")
    ] = False
    seed: Seed = 1
    preset: PresetName = "paper"
    output: FileOptions = FileOptions()


def _check(settings: Settings, given: Collection[str]) -> None:
    if settings.task is None and not settings.show:
        raise UsageError(f"which task? {', '.join(task_names())}")


SPEC = CommandSpec(
    Settings,
    heading="Rows and models",
    rank=10,
    examples=(
        "mltools prepare trec > trec.jsonl",
        "mltools prepare wic --from data/wic/ | mltools perturb > wic-noisy.jsonl",
        "mltools prepare reuters --from data/reuters/ --split validation --top-classes 2 -o validation.parquet",
    ),
    check=_check,
    released={"draw": "python", "labels": "numbers", "carry_over": True},
)
