"""Print windows of layers as work items, for loops, xargs, GNU parallel and Slurm arrays."""

from collections.abc import Iterator

from mltools.windows import all_windows


def windows(n_layers: int, width: int | None = None) -> Iterator[str]:
    """Yield every window of 1..n_layers as a layer list (`1`, `1-2`, …), or those of one width.

    Raises:
        UsageError: no layers, or a width outside 1..n_layers.
    """
    for window in all_windows(n_layers, width):
        yield str(window)
