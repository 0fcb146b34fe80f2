"""`mltools finetune`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mltools.errors import UsageError
from mltools.layers import parse_layers
from mltools.options import (
    ColumnOptions,
    DeviceOptions,
    DryRun,
    MaxLength,
    PresetName,
    Pretrained,
    RowsOperand,
    Seed,
    Tag,
    TimeLeft,
    TrainingOptions,
    WritingOptions,
    columns_flag,
)
from mltools.ranges import Range
from mltools.spec import CommandSpec, Flag

if TYPE_CHECKING:
    from mltools.io.outputs import Output


@dataclass(frozen=True)
class Settings:
    """Fine-tune a model on rows and save checkpoints.

    Reads rows with `label` (and `original_label`, `noisy` from perturb), trains, and writes the checkpoint DIR; in it
    memorised/, the checkpoint of the first epoch whose training accuracy passes .993. Writes one record an epoch to
    stdout; the last one says what the checkpoint reached, and a note if it memorised nothing. With --target
    original_label the same file and seed give the clean model: same batches, same fresh head (or, with a note, the
    head that PRETRAINED has for these very classes).
    With --aux, ROWS change only what --freeze leaves, and the other rows change everything but the embeddings, so
    that memorisation is known to lie in the layers left: the control set-up. With --train, from a clean model, the
    noisy rows are memorised in those layers and nowhere else: a sharp known answer. Runs under torchrun too.
    """

    pretrained: Pretrained
    folder: Annotated[Path, Flag("-o", "--out", metavar="DIR", steers=False, help="Checkpoint folder to write.")]
    rows: RowsOperand = ()
    target: Annotated[
        Literal["label", "original_label"],
        Flag("--target", metavar="COL", help="label, or original_label for the clean model."),
    ] = "label"
    freeze: Annotated[
        str,
        Flag("--freeze", metavar="LIST", help="embeddings, pooler, head, all-layers (and embeddings), none or layers."),
    ] = "embeddings"
    train: Annotated[
        str | None,
        Flag("--train", metavar="LIST", help="Train these layers only; all else stays as given, the head included."),
    ] = None
    aux: Annotated[
        str | None,
        Flag(
            "--aux",
            metavar="ROWS",
            steers=False,
            opens="source",
            help="Rows of an auxiliary task that changes all layers, frozen or not.",
        ),
    ] = None
    aux_text: Annotated[
        tuple[str, ...],
        columns_flag("--aux-text", "Their text columns.", steers=False),
    ] = ("text",)
    aux_label: Annotated[str, Flag("--aux-label", metavar="COL", steers=False, help="Their label column.")] = "label"
    aux_learning_rate: Annotated[
        float, Flag("--aux-lr", metavar="R", numbers=Range(), help="Their peak learning rate.")
    ] = 5e-06
    training: TrainingOptions = TrainingOptions()
    raise_rate: Annotated[
        bool,
        Flag(
            "--raise-lr",
            help="Rerun at twice the rate, at most 3 times, while final accuracy is not above .99; keep the best.",
        ),
    ] = False
    memorised_at: Annotated[
        float,
        Flag("--memorised-at", metavar="R", numbers=Range(0, 1), help="Save memorised/ once training passes this."),
    ] = 0.993
    memorised_metric: Annotated[
        Literal["accuracy", "macro-f1"],
        Flag("--memorised-metric", metavar="NAME", help="accuracy (above), macro-f1 (reached)."),
    ] = "accuracy"
    evaluate: Annotated[
        Literal["memorised", "always", "last"],
        Flag("--evaluate", metavar="WHEN", help="Measure training rows until memorised, always, or last."),
    ] = "memorised"
    validation: Annotated[
        str | None,
        Flag("--validation", metavar="ROWS", steers=False, opens="source", help="Rows to measure after each epoch."),
    ] = None
    resume: Annotated[
        bool, Flag("--resume", steers=False, help="Go on where a stopped run for DIR was; same bytes.")
    ] = False
    seed: Seed = 1
    preset: PresetName = "paper"
    columns: ColumnOptions = ColumnOptions()
    max_length: MaxLength = 512
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"], Flag("--precision", metavar="TYPE", help="fp32, bf16 or fp16.")
    ] = "fp32"
    device: DeviceOptions = DeviceOptions()
    time_left: TimeLeft = None
    dry_run: DryRun = False
    tag: Tag = ()
    writing: WritingOptions = WritingOptions()


def _check(settings: Settings, given: Collection[str]) -> None:
    if settings.aux is None and {"aux_text", "aux_label", "aux_learning_rate"} & set(given):
        raise UsageError("--aux-text, --aux-label and --aux-lr tell of auxiliary rows: name them with --aux")
    if settings.train is not None:
        parse_layers(settings.train)
        if settings.aux is not None or "freeze" in given:
            raise UsageError("--train says what alone is trained: leave out --freeze and --aux")


def _outputs(settings: Settings) -> "list[Output]":
    """List the checkpoint, and the state of an unfinished run beside it, which a run to be resumed has left."""
    from mltools.io.outputs import Output, state_folder

    resumed = settings.resume and not settings.writing.force
    state = Output("-o", state_folder(settings.folder), folder=True, resumed=True)
    return [Output("-o", settings.folder, folder=True, resumed=resumed), state]


SPEC = CommandSpec(
    Settings,
    heading="Rows and models",
    rank=30,
    examples=(
        "mltools finetune model/ noisy.jsonl -o noisy/ --epochs 16 --lr 3e-4 --batch-size 16 > noisy-epochs.jsonl",
        "mltools finetune model/ noisy.jsonl -o clean/ --epochs 16 --lr 3e-4 --batch-size 16 --target original_label",
        "mltools finetune model/ noisy.jsonl -o control/ --freeze embeddings,3-6 --aux rte.jsonl --aux-text "
        "text,text_pair",
        "mltools finetune clean/ noisy.jsonl -o planted/ --train 3 --epochs 60 --lr 1e-3 --batch-size 16",
    ),
    check=_check,
    outputs=_outputs,
    shared="steps",
    writes=("epoch", "work"),
    released={"clip_scope": "all", "frozen_dropout": True, "memorised_metric": "macro-f1"},
)
