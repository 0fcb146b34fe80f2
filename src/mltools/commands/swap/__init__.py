"""`mltools swap`: put windows of CLEAN's blocks into NOISY and measure how much memorisation that undoes (§3.1)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mltools.bundles import (
    BatchOptions,
    DeviceOptions,
    DryRun,
    Layers,
    OutputOptions,
    PartName,
    PerRow,
    PresetName,
    Resume,
    RowOptions,
)
from mltools.spec import CommandSpec, Flag, Operand


@dataclass(frozen=True)
class Settings:
    """Swap windows of blocks and measure the memorisation error.

    Takes the blocks of each window from CLEAN and all else from NOISY, and writes one record a window: accuracy on
    noisy and on clean rows against `label`, the error (1 - noisy accuracy), and the share of noisy rows that revert
    to their original label. Rows are those that perturb wrote. No mixed model is written unless asked for.
    """

    noisy: Annotated[str, Operand("NOISY", "Checkpoint trained on the perturbed labels.")]
    clean: Annotated[str, Operand("CLEAN", "Checkpoint of the same seed trained on the original labels.")]
    data: RowOptions = RowOptions()
    layers: Layers = ()
    part: PartName = "all"
    write: Annotated[
        Path | None,
        Flag(
            "--write", metavar="DIR", steers=False, help="Write the mixed checkpoint of the one --layers window."
        ),
    ] = None
    preset: PresetName = "paper"
    batches: BatchOptions = BatchOptions()
    device: DeviceOptions = DeviceOptions()
    offload: Annotated[
        bool,
        Flag(
            "--offload",
            steers=False,
            help="Leave blocks on disk and read each as it runs, for models larger than memory.",
        ),
    ] = False
    resume: Resume = None
    dry_run: DryRun = False
    per_row: PerRow = None
    output: OutputOptions = OutputOptions()


def _work() -> Any:
    from mltools.commands.swap import work

    return work


SPEC = CommandSpec(
    Settings,
    _work,
    heading="Localise",
    examples=(
        "mltools swap noisy/ clean/ noisy.jsonl > swap.jsonl",
        "mltools swap noisy/ clean/ noisy.jsonl --layers 1-3 --write mixed/",
    ),
    writes=("window", "work"),
)
