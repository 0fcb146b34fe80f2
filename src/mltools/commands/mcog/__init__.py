"""`mltools mcog`."""

from dataclasses import dataclass
from typing import Annotated

from mltools.options import By, OutputOptions, RecordsOperand, Strict
from mltools.spec import CommandSpec, Flag


@dataclass(frozen=True)
class Settings:
    """Compute the memorisation centre of gravity of layer scores.

    Reads window records (swap, retrain) or layer records (grads, probe, …) and writes one record a group: the sum
    of layer x weight over the sum of weights, layers from 1. A layer's weight is its score; for windows, the mean
    over widths of the mean error of the windows of that width that hold it. Groups are the tools and their tags.
    Where runs of retrain are averaged, each run's errors are first divided by its full window's. What cannot be
    weighed, as a width that lacks windows, gives null and the reason; if all groups do, the exit status is 3.
    """

    records: RecordsOperand = ()
    by: By = None
    by_layer: Annotated[bool, Flag("--by-layer", help="Write each layer's score instead of the centre of gravity.")] = (
        False
    )
    strict: Strict = False
    output: OutputOptions = OutputOptions()


SPEC = CommandSpec(
    Settings,
    heading="Summarise",
    rank=10,
    examples=(
        "mltools mcog swap.jsonl",
        "cat swap-*.jsonl | mltools mcog --by dataset,model",
        "mltools mcog --by-layer swap.jsonl",
    ),
    counted="records",
    writes=("cog", "layer"),
)
