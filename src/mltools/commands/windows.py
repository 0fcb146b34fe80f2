"""`mltools windows`: windows of layers as work items, for loops, xargs, GNU parallel and Slurm arrays."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from mltools.layers import check_width, format_layers, parse_layers
from mltools.options import ShardOf
from mltools.ranges import whole
from mltools.shards import in_shard
from mltools.spec import CommandSpec, Flag, Operand


@dataclass(frozen=True)
class Settings:
    """Print windows of consecutive layers as work items.

    Writes one layer list a line: every window of 1..LAYERS, or those of one width. Feed them to --layers of
    swap or retrain with a loop, xargs, GNU parallel or a Slurm array.
    """

    layers: Annotated[int, Operand("LAYERS", "Number of layers of the model.")]
    width: Annotated[int | None, Flag("--width", metavar="N", numbers=whole(1), help="Only windows of N layers.")] = (
        None
    )
    shard: ShardOf = None


def windows(n_layers: int, width: int | None = None) -> Iterator[str]:
    """Yield every window of 1..n_layers as a layer list (`1`, `1-2`, …), or those of one width, one at a time.

    Raises:
        UsageError: no layers, or a width outside 1..n_layers.
    """
    check_width(n_layers, width)
    for start in range(1, n_layers + 1):
        ends = range(start, n_layers + 1) if width is None else range(start + width - 1, n_layers + 1)[:1]
        yield from (format_layers(range(start, end + 1)) for end in ends)


def run(run: Any) -> Iterator[str]:
    """Print the windows asked for."""
    n_layers, shard = run.settings.layers, run.settings.shard
    found = windows(n_layers, run.settings.width)
    if shard is None:
        return found
    chosen = list(found)  # what a window adds to a sweep: one layer of the donor's, and NOISY's above it
    return iter(in_shard(chosen, [1 + n_layers - parse_layers(each)[-1] for each in chosen], shard))


def sink(run: Any) -> Any:
    """Take the lines for stdout."""
    from mltools.sinks import TextSink

    return TextSink(run)


SPEC = CommandSpec(
    Settings,
    heading="Utilities",
    rank=10,
    examples=("mltools windows 12 --width 3", "mltools windows 6 | head -3"),
    says=False,
)
