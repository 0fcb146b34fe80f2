"""`mltools decoy`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.errors import UsageError
from mltools.layers import parse_layers
from mltools.options import CheckpointOperand, DeviceOptions, Seed, WritingOptions, out_flag
from mltools.spec import CommandSpec, Flag, Writes


@dataclass(frozen=True)
class Settings:
    """Change layers of a checkpoint by what holds no memory.

    A known answer is a test only where other layers differ too: else the layers that differ give it away. Writes
    CHECKPOINT, CLEAN of a planted pair, with each tensor of the --layers moved as far as --like (NOISY) has moved the
    tensor of that name in the layers where the two differ: at random, or the way that training went from
    --from (PRETRAINED) to CHECKPOINT, which never saw a noisy label (drift). With --kind head what follows the last
    layer is moved at random instead, as far for its size as --like has moved those layers.
    """

    checkpoint: CheckpointOperand
    like: Annotated[
        str,
        Flag("--like", metavar="NOISY", steers=False, opens="checkpoint", help="Checkpoint whose change has the size."),
    ]
    folder: Annotated[
        Path,
        out_flag("Checkpoint folder to write.", Writes(folder=True), metavar="DIR", default=""),
    ]
    layers: Annotated[str | None, Flag("--layers", metavar="LIST", help="Layers to change, e.g. 1-2,4-6.")] = None
    kind: Annotated[
        Literal["random", "drift", "head"], Flag("--kind", metavar="NAME", help="random, drift or head.")
    ] = "random"
    start: Annotated[
        str | None,
        Flag("--from", metavar="PRETRAINED", steers=False, opens="checkpoint", help="Where drift started from."),
    ] = None
    seed: Seed = 1
    device: DeviceOptions = DeviceOptions()
    writing: WritingOptions = WritingOptions()


def _check(settings: Settings, given: Collection[str]) -> None:
    if (settings.kind == "head") is (settings.layers is not None):
        raise UsageError("--layers says what random and drift change; head changes none")
    if (settings.kind == "drift") is (settings.start is None):
        raise UsageError("drift, and it alone, needs --from, the checkpoint that training started from")
    if settings.layers is not None:
        parse_layers(settings.layers)


SPEC = CommandSpec(
    Settings,
    heading="Rows and models",
    rank=35,
    examples=(
        "mltools decoy clean/ --layers 1-2,4-6 --like noisy/ -o decoy/",
        "mltools decoy clean/ --layers 1-2,4-6 --like noisy/ --kind drift --from model/ -o decoy/",
    ),
    check=_check,
)
