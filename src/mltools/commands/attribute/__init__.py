"""`mltools attribute`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.options import (
    BatchSize,
    DeviceOptions,
    DryRun,
    OutputOptions,
    PairOptions,
    RowsOperand,
    Twins,
    per_row_flag,
)
from mltools.ranges import Range, whole
from mltools.spec import CommandSpec, Flag


@dataclass(frozen=True)
class Settings:
    """Attribute memory to layers along the path from CLEAN's blocks to NOISY's.

    A noisy row's margin is logit(label) - logit(original_label). As the blocks go in a straight line from CLEAN's
    weights to NOISY's, it rises; each tensor's part in that is an integral of gradients, and the parts sum to the
    whole rise. Writes one record a layer: the mean part over noisy rows, and by what share the sum misses the rise (the
    gap), for rows above --gap after doubling the nodes. Embeddings and head stay NOISY's, as in swap. With --donor-is
    other, CLEAN may be the pre-trained model.
    """

    pair: Twins
    rows: RowsOperand = ()
    nodes: Annotated[
        int, Flag("--nodes", metavar="N", numbers=whole(1, 256), help="Gauss-Legendre nodes on the path.")
    ] = 16
    gap: Annotated[
        float,
        Flag("--gap", metavar="R", numbers=Range(0, above=True), help="Gap from which a row's nodes are doubled."),
    ] = 0.05
    by: Annotated[Literal["layer", "tensor"], Flag("--by", metavar="WHAT", help="A record a layer, or a tensor.")] = (
        "layer"
    )
    judging: PairOptions = PairOptions()
    batch_size: BatchSize = None
    device: DeviceOptions = DeviceOptions()
    dry_run: DryRun = False
    output: OutputOptions = OutputOptions()
    per_row: Annotated[
        Path | None,
        per_row_flag("Write a Parquet row for each noisy row and layer (or tensor) too."),
    ] = None


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    rank=35,
    examples=(
        "mltools attribute noisy/ clean/ noisy.jsonl > attribute.jsonl",
        "mltools attribute noisy/ clean/ noisy.jsonl --by tensor --per-row parts.parquet",
    ),
    counted="records",
    writes=("attribution", "work"),
)
