"""`mltools retrain`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from mltools.errors import UsageError
from mltools.layers import all_windows, full_first
from mltools.options import (
    DeviceOptions,
    Layers,
    Noisy,
    OutputOptions,
    PartName,
    PlanName,
    PresetName,
    Pretrained,
    ReadingOptions,
    Resume,
    RowsOperand,
    Seed,
    ShareOptions,
    TrainingOptions,
    ValidityOptions,
)
from mltools.piped import check_piped
from mltools.spec import CommandSpec, Flag


@dataclass(frozen=True)
class Settings:
    """Reset and retrain windows of blocks, and measure the memorisation error.

    Takes the blocks of each window from PRETRAINED and all else from NOISY, trains window and head on the clean rows
    (less as many as there are noisy ones, held out), and writes a record as the window ends: accuracy on noisy rows,
    held-out clean rows and the rows trained on, the error (1 - noisy accuracy), and the error divided by the full
    window's, which is run first for that. Every window starts from the same weights and seed.

    NOISY is measured as it is first: if it has not memorised the noisy rows, records say so (valid=false), as does a
    warning; with --strict nothing is retrained then, and the status is 1.

    With --plan spread only windows of three widths are retrained, about L/3, 7L/12 and 5L/6: enough for mcog's
    m_cog_solved, at a quarter of the cost for 12 layers. Without the full window no error is divided by its.

    A sweep that was stopped goes on with --resume and the records it wrote to stdout. Runs under torchrun too.
    """

    noisy: Noisy
    pretrained: Pretrained
    rows: RowsOperand = ()
    layers: Layers = ()
    plan: PlanName = "all"
    part: PartName = "all"
    train_head: Annotated[
        bool,
        Flag("--train-head/--no-train-head", default="train-head", help="Train final norm, pooler and classifier too."),
    ] = True
    training: TrainingOptions = TrainingOptions(learning_rate=3e-05, epochs=5)
    resume: Resume = None
    seed: Seed = 1
    validity: ValidityOptions = ValidityOptions()
    preset: PresetName = "paper"
    reading: ReadingOptions = ReadingOptions()
    device: DeviceOptions = DeviceOptions()
    share: ShareOptions = ShareOptions()
    output: OutputOptions = OutputOptions()


def _check(settings: Settings, given: Collection[str]) -> None:
    check_piped(settings)
    if settings.layers and "plan" in given:
        raise UsageError("--plan and --layers both say which windows: give one of them")


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    rank=20,
    examples=(
        "mltools retrain noisy/ model/ noisy.jsonl > retrain.jsonl",
        "mltools retrain noisy/ model/ noisy.jsonl --resume retrain.jsonl >> retrain.jsonl",
        "mltools retrain noisy/ model/ noisy.jsonl --plan spread > spread.jsonl",
        "mltools windows 6 --width 5 | xargs -I{} mltools retrain noisy/ model/ noisy.jsonl --layers {} "
        ">> retrain.jsonl",
    ),
    counted="windows",
    shared="items",
    writes=("window", "work"),
    check=_check,
    sweep=lambda n_layers: full_first(all_windows(n_layers), n_layers),
    released={"clip_scope": "all", "frozen_dropout": True},
)
