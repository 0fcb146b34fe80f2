"""`mltools shapley`."""

from dataclasses import dataclass
from typing import Annotated

from mltools.options import (
    BatchSize,
    DeviceOptions,
    DryRun,
    OutputOptions,
    PairOptions,
    RowsOperand,
    Seed,
    Twins,
    resume_flag,
)
from mltools.ranges import Range, whole
from mltools.spec import CommandSpec, Flag


@dataclass(frozen=True)
class Settings:
    """Share out among layers what swapping all blocks undoes.

    A noisy row's margin is logit(label) - logit(original_label); swapping blocks for CLEAN's lowers it. A layer's
    Shapley value is by how much its own swap does so, the mean over all orders in which layers could be swapped; the
    values sum to what all do together. Writes one record a layer. Up to 10 layers all sets of layers are measured;
    beyond, and with --samples, orders are drawn, each with its reverse, until the 95 % intervals of all layers are
    within --until of the whole. A run that stopped sooner goes on with --resume.
    """

    pair: Twins
    rows: RowsOperand = ()
    samples: Annotated[
        int | None,
        Flag(
            "--samples",
            metavar="N",
            numbers=whole(2, 1_000_000),
            neutral=True,
            default="exact up to 10 layers, else 1000",
            help="Draw at most so many pairs of orders.",
        ),
    ] = None
    until: Annotated[
        float,
        Flag(
            "--until",
            metavar="R",
            numbers=Range(0, 1),
            neutral=True,
            help="Half the interval at which to stop, as a share of the whole.",
        ),
    ] = 0.02
    seed: Seed = 1
    judging: PairOptions = PairOptions()
    batch_size: BatchSize = None
    device: DeviceOptions = DeviceOptions()
    resume: Annotated[
        str | None,
        resume_flag("Leave out layers in RECORDS; where sampled, go on from them."),
    ] = None
    dry_run: DryRun = False
    output: OutputOptions = OutputOptions()


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    rank=37,
    examples=(
        "mltools shapley noisy/ clean/ noisy.jsonl > shapley.jsonl",
        "mltools shapley noisy/ clean/ noisy.jsonl --samples 8 --until .1 | mltools mcog",
    ),
    counted="layers",
    writes=("shapley", "work"),
)
