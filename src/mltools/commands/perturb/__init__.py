"""`mltools perturb`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from mltools.errors import UsageError
from mltools.options import COUNTS, Draw, FileOptions, LabelOptions, PresetName, RowsStream, Seed, parse_names
from mltools.ranges import Range, whole
from mltools.spec import CommandSpec, Flag


@dataclass(frozen=True)
class Settings:
    """Give a share of each class a wrong label.

    Reads rows and writes them in the same order with `original_label` and `noisy` added (and `id`, the row
    number, where there is none). Exactly floor(R x size) rows of each class get another label, uniform over the
    other classes, or as --transition says. Which ones depends on the seed and the ids only, not on the order of
    rows. Rows without a label (null or -1) pass through.
    """

    rows: RowsStream = ()
    rate: Annotated[float, Flag("--rate", metavar="R", numbers=Range(0, 1), help="Share of each class, 0-1.")] = 0.15
    transition: Annotated[
        str | None,
        Flag(
            "--transition",
            metavar="FILE",
            steers=False,
            opens="source",
            help='Rates class by class in place of --rate: JSON {"from": {"to": rate}}, or a CSV matrix.',
        ),
    ] = None
    stream: Annotated[
        bool, Flag("--stream", help="Change each row with probability R, in constant memory; needs --classes.")
    ] = False
    classes: Annotated[
        tuple[str, ...] | None,
        Flag("--classes", metavar="A,B", parse=parse_names, help="The classes, where rows need not hold all of them."),
    ] = None
    top_classes: Annotated[
        int | None,
        Flag("--top-classes", metavar="K", numbers=whole(2), help="Keep only rows of the K most frequent classes."),
    ] = None
    draw: Draw = "hash"
    split_from: Annotated[
        int | None,
        Flag(
            "--split-from",
            metavar="N",
            numbers=COUNTS,
            help="Rows before the released 80/20 split, whose shuffle drew first; with --draw python.",
        ),
    ] = None
    seed: Seed = 1
    preset: PresetName = "paper"
    labels: LabelOptions = LabelOptions()
    output: FileOptions = FileOptions()


def check(settings: Settings, given: Collection[str] = ()) -> None:
    """See that settings go together.

    Raises:
        UsageError: they do not.
    """
    if settings.stream and settings.classes is None:
        raise UsageError("--stream cannot look ahead: name all classes with --classes A,B,…")
    if settings.stream and (settings.draw != "hash" or settings.top_classes is not None):
        raise UsageError("--stream cannot count classes or rows: leave --top-classes and --draw python out")
    if settings.transition is not None and ("rate" in given or settings.stream or settings.draw != "hash"):
        raise UsageError("--transition has its own rates and counts: leave --rate, --stream and --draw python out")
    if settings.split_from is not None and settings.draw != "python":
        raise UsageError("--split-from continues Python's generator: give --draw python or --preset released-code")


SPEC = CommandSpec(
    Settings,
    heading="Rows and models",
    rank=20,
    examples=(
        "mltools perturb --rate 0.15 --seed 1 questions.jsonl > noisy.jsonl",
        "mltools perturb --top-classes 2 questions.jsonl -o noisy.parquet",
    ),
    released={"draw": "python"},
    check=check,
)
