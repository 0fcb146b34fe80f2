"""`mltools windows`: windows of layers as work items, for loops, xargs, GNU parallel and Slurm arrays."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from mltools.errors import UsageError
from mltools.layers import Plan, check_width, format_layers, parse_layers, planned_windows
from mltools.options import PlanName, ShardOf
from mltools.ranges import whole
from mltools.shards import in_shard
from mltools.spec import CommandSpec, Flag, Operand


@dataclass(frozen=True)
class Settings:
    """Print windows of consecutive layers as work items.

    Writes one layer list a line: every window of 1..LAYERS, those of one width, or with --plan spread
    those of three widths, which determine m_cog_solved. Feed them to --layers of
    swap or retrain with a loop, xargs, GNU parallel or a Slurm array.
    """

    layers: Annotated[int, Operand("LAYERS", "Number of layers of the model.")]
    width: Annotated[int | None, Flag("--width", metavar="N", numbers=whole(1), help="Only windows of N layers.")] = (
        None
    )
    plan: PlanName = "all"
    shard: ShardOf = None


def windows(n_layers: int, width: int | None = None, plan: Plan = "all") -> Iterator[str]:
    """Yield every window of 1..n_layers as a layer list (`1`, `1-2`, …), or those of one width or of a plan.

    Raises:
        UsageError: no layers, or a width outside 1..n_layers.
    """
    check_width(n_layers, width)
    if plan != "all":
        yield from map(str, planned_windows(n_layers, plan))
        return
    for start in range(1, n_layers + 1):
        ends = range(start, n_layers + 1) if width is None else range(start + width - 1, n_layers + 1)[:1]
        yield from (format_layers(range(start, end + 1)) for end in ends)


def run(run: Any) -> Iterator[str]:
    """Print the windows asked for."""
    n_layers, shard = run.settings.layers, run.settings.shard
    found = windows(n_layers, run.settings.width, run.settings.plan)
    if shard is None:
        return found
    chosen = list(found)  # what a window adds to a sweep: one layer of the donor's, and NOISY's above it
    return iter(in_shard(chosen, [1 + n_layers - parse_layers(each)[-1] for each in chosen], shard))


def _check(settings: Settings, given: Collection[str]) -> None:
    if settings.width is not None and "plan" in given:
        raise UsageError("--plan and --width both say which windows: give one of them")


SPEC = CommandSpec(
    Settings,
    heading="Utilities",
    rank=10,
    examples=("mltools windows 12 --width 3", "mltools windows 6 | head -3", "mltools windows 24 --plan spread"),
    text=True,
    check=_check,
)
