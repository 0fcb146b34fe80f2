"""`mltools swap`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.errors import UsageError
from mltools.layers import all_windows
from mltools.options import (
    COUNTS,
    BatchSize,
    DeviceOptions,
    DonorIs,
    Layers,
    Offload,
    OutputOptions,
    PartName,
    PerRow,
    PresetName,
    ReadingOptions,
    Resume,
    RowsOperand,
    ShareOptions,
    Twins,
    ValidityOptions,
)
from mltools.piped import PIPED, check_piped
from mltools.spec import CommandSpec, Flag, Writes


def parse_clean_rows(text: str) -> int | None:
    """Read `--clean-rows`: a number, or None for `all`.

    Raises:
        UsageError: neither.
    """
    if text == "all":
        return None
    if not text.isdecimal() or not COUNTS.holds(int(text)):
        raise UsageError(f'--clean-rows "{text}": write a number from 1, or all')
    return int(text)


@dataclass(frozen=True)
class Settings:
    """Swap windows of blocks and measure the memorisation error.

    Takes the blocks of each window from CLEAN and all else from NOISY, and writes one record a window: accuracy on
    noisy and on clean rows against `label`, the error (1 - noisy accuracy), and the share of noisy rows that revert
    to their original label. Rows are those that perturb wrote. No mixed model is written unless asked for. With
    --positions, only the states of these tokens come from CLEAN's layers 1 to l, for every l: where is the memory read?

    NOISY and CLEAN are measured whole too: if NOISY has not memorised the noisy rows, or CLEAN is not its twin, records
    say so (valid=false), as does a warning; with --strict the status is 1 then. Runs under torchrun too.
    """

    pair: Twins
    rows: RowsOperand = ()
    layers: Layers = ()
    part: PartName = "all"
    positions: Annotated[
        Literal["all", "pooled", "others"],
        Flag(
            "--positions",
            metavar="WHAT",
            help="Whose states CLEAN gives after layers 1 to l: all, the pooled token's, or the others'.",
        ),
    ] = "all"
    clean_rows: Annotated[
        int | None,
        Flag(
            "--clean-rows",
            metavar="N|all",
            parse=parse_clean_rows,
            default="all",
            help="Clean rows to measure, drawn by a hash of their ids; noisy ones always all.",
        ),
    ] = None
    write: Annotated[
        Path | None,
        Flag(
            "--write",
            metavar="DIR",
            steers=False,
            writes=Writes(folder=True),
            help="Write the mixed checkpoint of the one --layers window.",
        ),
    ] = None
    validity: ValidityOptions = ValidityOptions()
    donor_is: DonorIs = "clean"
    preset: PresetName = "paper"
    reading: ReadingOptions = ReadingOptions()
    batch_size: BatchSize = None
    precision: Annotated[
        Literal["fp32", "bf16"],
        Flag(
            "--precision",
            metavar="TYPE",
            help="fp32; or bf16 where that is faster, rows near a tie again in fp32.",
        ),
    ] = "fp32"
    device: DeviceOptions = DeviceOptions()
    offload: Offload = False
    resume: Resume = None
    share: ShareOptions = ShareOptions()
    output: OutputOptions = OutputOptions()
    per_row: PerRow = None


def _check(settings: Settings, given: Collection[str]) -> None:
    check_piped(settings)
    if settings.per_row is not None and (settings.layers == PIPED or settings.share.time_left is not None):
        raise UsageError("--per-row is of windows measured together: no --layers - and no --time-left")
    if settings.write is not None and len(settings.layers) != 1:
        raise UsageError("--write makes one checkpoint: give exactly one --layers")
    if settings.positions != "all" and (settings.write is not None or settings.resume is not None):
        raise UsageError("--positions exchanges states, not blocks: leave out --write and --resume")
    if settings.offload and (settings.write is not None or settings.part != "all" or settings.precision != "fp32"):
        raise UsageError("--offload leaves the blocks on disk; --write, --part and --precision need them in memory")


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    rank=10,
    examples=(
        "mltools swap noisy/ clean/ noisy.jsonl > swap.jsonl",
        "mltools swap noisy/ clean/ noisy.jsonl --layers 1-3 --write mixed/",
        "mltools swap noisy/ clean/ noisy.jsonl --positions others > others.jsonl",
    ),
    check=_check,
    counted="windows",
    shared="items",
    writes=("window", "work"),
    sweep=all_windows,
)
