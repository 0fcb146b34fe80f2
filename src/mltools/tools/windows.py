"""Print windows of layers as work items, for loops, xargs, GNU parallel and Slurm arrays."""

from collections.abc import Iterator

from mltools.windows import check_width, format_layers


def windows(n_layers: int, width: int | None = None) -> Iterator[str]:
    """Yield every window of 1..n_layers as a layer list (`1`, `1-2`, …), or those of one width, one at a time.

    Raises:
        UsageError: no layers, or a width outside 1..n_layers.
    """
    check_width(n_layers, width)
    for start in range(1, n_layers + 1):
        ends = range(start, n_layers + 1) if width is None else range(start + width - 1, n_layers + 1)[:1]
        yield from (format_layers(range(start, end + 1)) for end in ends)
