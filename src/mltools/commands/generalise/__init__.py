"""`mltools generalise`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.errors import UsageError
from mltools.io.endings import RECORDS
from mltools.options import (
    ColumnOptions,
    DeviceOptions,
    MaxLength,
    OutputOptions,
    PresetName,
    Seed,
    ShareOptions,
    TrainingOptions,
    per_row_flag,
)
from mltools.ranges import SPLITS
from mltools.spec import CommandSpec, Flag, Operand, Writes


@dataclass(frozen=True)
class Settings:
    """Measure how well rows are predicted when held out.

    Trains on a random half of ROWS, classifies all of them, and writes a record a row: inside the half or not, the
    probability of its label, and whether it is classified as it. Each half split starts from PRETRAINED and a fresh
    head, whatever head PRETRAINED has, and is a work item of its own. ROWS are trained and asked for by `label`, as
    perturb left it.

    With --merge, reads these records and writes one a task: the generalisation score, the share of rows whose mean
    held-out probability exceeds 1/classes. --per-row has each row's generalisation and training memorisation.
    """

    pretrained: Annotated[
        str | None, Operand("[PRETRAINED]", "Pre-trained model: a folder or hub repository.", opens="source")
    ] = None
    rows: Annotated[
        tuple[str, ...],
        Operand("[ROWS]...", "Rows; - or none is stdin. With --merge, all are files of records.", opens="source"),
    ] = ()
    merge: Annotated[
        bool, Flag("--merge", steers=False, help="Fold records of half splits into scores of rows and tasks.")
    ] = False
    run: Annotated[
        tuple[int, ...],
        Flag("--run", metavar="K", numbers=SPLITS, steers=False, help="Half split to do; repeatable. Default: all."),
    ] = ()
    runs: Annotated[
        int, Flag("--runs", metavar="N", numbers=SPLITS, steers=False, help="How many half splits there are.")
    ] = 30
    freeze: Annotated[str, Flag("--freeze", metavar="LIST", help="What is not trained, as in finetune.")] = "embeddings"
    training: TrainingOptions = TrainingOptions(learning_rate=3e-5, epochs=10)
    seed: Seed = 1
    precision: Annotated[Literal["fp32", "bf16", "fp16"], Flag(help="Number type of training.")] = "fp32"
    preset: PresetName = "paper"
    columns: ColumnOptions = ColumnOptions()
    max_length: MaxLength = 512
    device: DeviceOptions = DeviceOptions()
    share: ShareOptions = ShareOptions()
    output: OutputOptions = OutputOptions()
    per_row: Annotated[
        Path | None,
        per_row_flag("With --merge, write a record for each row too.", Writes(RECORDS)),
    ] = None


def _check(settings: Settings, given: Collection[str]) -> None:
    if settings.merge:
        return
    if settings.pretrained is None or settings.per_row is not None:
        raise UsageError("generalise takes PRETRAINED and rows; --per-row goes with --merge")
    if max(settings.run, default=0) > settings.runs:
        raise UsageError(f"--run {max(settings.run)}: there are {settings.runs} half splits (--runs)")


SPEC = CommandSpec(
    Settings,
    heading="Rows and models",
    rank=40,
    examples=(
        "mltools generalise model/ noisy.jsonl --runs 8 --tag dataset=trec -o halves.parquet",
        "seq 8 | parallel mltools generalise model/ noisy.jsonl --runs 8 --run {} '>' half-{}.jsonl",
        "mltools generalise --merge half-*.jsonl --per-row rows.parquet > score.jsonl",
    ),
    check=_check,
    writes=("half", "generalisation", "generalisation-score", "work"),
    released={"clip_scope": "all", "frozen_dropout": True},
)
