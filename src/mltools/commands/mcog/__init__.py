"""`mltools mcog`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from mltools.errors import UsageError
from mltools.options import By, LayerValues, OutputOptions, RecordsOperand, Strict, columns_flag
from mltools.spec import CommandSpec, Flag


@dataclass(frozen=True)
class Settings:
    """Compute the memorisation centre of gravity of layer scores.

    Reads window records (swap, retrain) or layer records (grads, probe, …) and writes one record a group: the sum
    of layer x weight over the sum of weights, layers from 1. A layer's weight is its score; for windows, the mean
    over widths of the mean error of the windows of that width that hold it. Groups are the tools and their tags.
    Where runs of retrain are averaged, each run's errors are first divided by its full window's. What cannot be
    weighed, as a width that lacks windows, gives null and the reason; if all groups do, the exit status is 3. Of
    windows, the mean clean error and the largest error of one layer alone are given too.
    """

    records: RecordsOperand = ()
    by: By = None
    by_layer: Annotated[bool, Flag("--by-layer", help="Write each layer's score instead of the centre of gravity.")] = (
        False
    )
    solved: Annotated[
        bool, Flag("--solved", help="With --by-layer: what each layer alone adds, by the additive solution.")
    ] = False
    value: LayerValues = ()
    over: Annotated[
        tuple[str, ...],
        columns_flag("--over", "Average the centres of groups that differ only in these columns, e.g. tool or model."),
    ] = ()
    strict: Strict = False
    output: OutputOptions = OutputOptions()


def _check(settings: Settings, given: Collection[str]) -> None:
    if settings.solved and not settings.by_layer:
        raise UsageError("--solved needs --by-layer; without it m_cog_solved is the solution's centre")
    if settings.over and settings.by_layer:
        raise UsageError("--over averages centres of gravity, --by-layer writes none; average layers with --by")


SPEC = CommandSpec(
    Settings,
    heading="Summarise",
    rank=10,
    examples=(
        "mltools mcog swap.jsonl",
        "cat swap-*.jsonl | mltools mcog --by dataset,model",
        "mltools mcog --by-layer swap.jsonl",
        "mltools mcog swap.jsonl retrain.jsonl grads.jsonl --over tool",
        "mltools mcog grads.jsonl --value score_l1_noisy,score_l2_noisy",
    ),
    check=_check,
    counted="records",
    writes=("cog", "layer"),
)
