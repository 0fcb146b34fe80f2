"""`mltools inspect`."""

from dataclasses import dataclass
from typing import Annotated

from mltools.layers import parse_layers
from mltools.options import Blocks, Force, Out, Tag
from mltools.spec import CommandSpec, Flag, Operand


@dataclass(frozen=True)
class Settings:
    """Say what a checkpoint or file is, what is in it, and how it was made.

    One checkpoint: where its blocks are, weights by layer and part, their norms, whether all are finite, classes,
    which position the head reads. Two: distance and cosine of each layer, and which tensors are equal; as records they
    are layer scores. A .safetensors file, or two: each tensor's type, size, norm, NaNs, and the difference. Another
    file: rows or records, how many, which columns. Prints text, the same in a pipe; --json or -o FILE writes records.
    """

    first: Annotated[
        str,
        Operand("CHECKPOINT|FILE", "A checkpoint; or rows, records, tensors, provenance; - is stdin.", opens="records"),
    ]
    second: Annotated[
        str | None, Operand("[CHECKPOINT2|FILE2]", "Compare with this one, layer by layer.", opens="records")
    ] = None
    as_json: Annotated[bool, Flag("--json", steers=False, help="Write records instead of text.")] = False
    show_command: Annotated[
        bool, Flag("--command", steers=False, help="Print only the command line that made it, and its output option.")
    ] = False
    layers: Annotated[
        tuple[int, ...] | None,
        Flag("--layers", metavar="LIST", parse=parse_layers, steers=False, help="Only these layers, e.g. 2-4."),
    ] = None
    blocks: Blocks = None
    tag: Tag = ()
    out: Out = None
    force: Force = False


SPEC = CommandSpec(
    Settings,
    heading="Utilities",
    rank=20,
    examples=(
        "mltools inspect noisy/",
        "mltools inspect noisy/ clean/ --json | mltools mcog",
        "mltools inspect noisy/model.safetensors clean/model.safetensors --layers 1-2",
        "mltools inspect states.safetensors --command",
    ),
    text=True,
    writes=("checkpoint", "difference", "tensor", "file"),
)
