"""`mltools states`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.io.endings import TENSORS
from mltools.options import (
    BatchSize,
    CheckpointOperand,
    DeviceOptions,
    DryRun,
    Offload,
    PresetName,
    ReadingOptions,
    RowsStream,
    WritingOptions,
    out_flag,
)
from mltools.spec import CommandSpec, Flag, Writes


@dataclass(frozen=True)
class Settings:
    """Save the hidden states of rows, for probe and centroid.

    Runs the model once over the rows and writes one safetensors file: hidden_states (rows, layers + 1, width) of the
    token that the head reads, layer 0 being the embeddings and the last layer after the final norm; label,
    original_label, noisy and ids beside it. The head is not needed, so the pre-trained model will do. Runs under
    torchrun too.
    """

    checkpoint: CheckpointOperand
    rows: RowsStream = ()
    dtype: Annotated[Literal["float32", "float16"], Flag("--dtype", metavar="TYPE", help="float32 or float16.")] = (
        "float32"
    )
    position: Annotated[
        Literal["auto", "first", "last"],
        Flag("--position", metavar="WHICH", help="Token: auto (as the head), first, last."),
    ] = "auto"
    raw_last: Annotated[bool, Flag("--raw-last", help="Take layer L before the final norm, not after.")] = False
    preset: PresetName = "paper"
    reading: ReadingOptions = ReadingOptions()
    batch_size: BatchSize = None
    device: DeviceOptions = DeviceOptions()
    offload: Offload = False
    dry_run: DryRun = False
    out: Annotated[Path | None, out_flag("States file, .safetensors.", Writes(TENSORS))] = None
    writing: WritingOptions = WritingOptions()


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    rank=40,
    examples=(
        "mltools states noisy/ noisy.jsonl -o states.safetensors",
        "mltools states noisy/ noisy.jsonl | mltools centroid > centroid.jsonl",
    ),
    shared="items",
    writes=("work",),
)
