"""`mltools grads`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.io.endings import TENSORS
from mltools.options import (
    BatchSize,
    CheckpointOperand,
    DeviceOptions,
    DryRun,
    OutputOptions,
    PartName,
    PresetName,
    ReadingOptions,
    RowsOperand,
    Seed,
    ValidityOptions,
    parse_names,
)
from mltools.spec import CommandSpec, Flag, Writes


def _parse_words(text: str) -> tuple[str, ...]:
    return () if text == "none" else parse_names(text)


@dataclass(frozen=True)
class Settings:
    """Score layers by the gradient that forgets the noisy rows.

    Takes the mean gradient of minus the loss over the noisy rows, less the same over as many clean rows (drawn by
    seed and id), and writes one record a layer: the norm over the block's tensors, divided by that of --frozen if
    given, scaled to sum 1. The record holds every step: both norms, noisy and clean rows alone, the frozen
    checkpoint, and attention, mlp and normalisation tensors side by side.

    CHECKPOINT is measured on all rows first: if it has not memorised the noisy ones, records say so (valid=false), as
    does a warning; with --strict no gradient is taken then, and the status is 1. Runs under torchrun too.
    """

    checkpoint: CheckpointOperand
    rows: RowsOperand = ()
    frozen: Annotated[
        str | None,
        Flag(
            "--frozen",
            metavar="CHECKPOINT",
            steers=False,
            opens="checkpoint",
            help="Divide by the norms of this one, trained without blocks.",
        ),
    ] = None
    objective: Annotated[
        Literal["loss", "logit"],
        Flag("--objective", metavar="NAME", help="loss (minus the cross-entropy), or logit (the label's)."),
    ] = "loss"
    norm: Annotated[Literal["l1", "l2"], Flag("--norm", metavar="NAME", help="l1 or l2.")] = "l1"
    noisy_only: Annotated[bool, Flag("--noisy-only", help="Leave clean rows out: nothing is subtracted.")] = False
    part: PartName = "all"
    leave_out: Annotated[
        tuple[str, ...],
        Flag(
            "--leave-out",
            metavar="WORD[,WORD]",
            parse=_parse_words,
            help="Leave out tensors whose name holds a word; or none.",
        ),
    ] = ()
    save: Annotated[
        Path | None,
        Flag(
            "--save",
            metavar="FILE",
            steers=False,
            writes=Writes(TENSORS),
            help="Write the mean gradients of CHECKPOINT, a safetensors file.",
        ),
    ] = None
    seed: Seed = 1
    validity: ValidityOptions = ValidityOptions()
    preset: PresetName = "paper"
    reading: ReadingOptions = ReadingOptions()
    batch_size: BatchSize = None
    device: DeviceOptions = DeviceOptions()
    dry_run: DryRun = False
    output: OutputOptions = OutputOptions()


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    rank=30,
    examples=(
        "mltools grads noisy/memorised noisy.jsonl --frozen frozen/ > grads.jsonl",
        "mltools grads noisy/memorised noisy.jsonl --objective logit --norm l2 | mltools mcog",
    ),
    shared="items",
    writes=("grad", "work"),
    released={"objective": "logit", "leave_out": ("embed", "final", "wte", "wpe", "ln_f", "pooler", "classifier")},
)
