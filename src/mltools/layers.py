"""Layer lists and windows of layers.

Layers count from 1 to L, both ends of a range included, as in `cut -f`; 0 is the embeddings.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from mltools.errors import UsageError

Span = tuple[int, int]
Plan = Literal["all", "spread"]
"""Which windows make a sweep: every one, or those of a few widths (`spread_widths`)."""


@dataclass(frozen=True, order=True)
class Window:
    """A set of layers, ascending and from 1. Contiguous in sweeps; any set where a person names it."""

    layers: tuple[int, ...]

    @property
    def start(self) -> int:
        """The lowest layer."""
        return self.layers[0]

    @property
    def end(self) -> int:
        """The highest layer."""
        return self.layers[-1]

    @property
    def width(self) -> int:
        """How many layers it holds."""
        return len(self.layers)

    @property
    def contiguous(self) -> bool:
        """Whether no layer between the ends is left out."""
        return self.width == self.end - self.start + 1

    def __str__(self) -> str:
        return format_layers(self.layers)


def parse_layers(text: str, n_layers: int | None = None) -> tuple[int, ...]:
    """Read a layer list such as `3`, `2-4` or `1,4,7-8`.

    Args:
        text: the list; spaces are ignored.
        n_layers: the number of layers L, where known; layers must then lie in 1..L.

    Returns:
        The layers, ascending, each once.

    Raises:
        UsageError: not a layer list, a falling range, or a layer outside 1..L.
    """
    layers: set[int] = set()
    for item in text.replace(" ", "").split(","):
        first, dash, last = item.partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise UsageError(f'"{text}" is no layer list; write 3, 2-4 or 1,4,7-8 (layers count from 1)')
        low, high = int(first), int(last or first)
        if low > high:
            raise UsageError(f'layer range "{item}" falls; write {high}-{low}')
        if low < 1 or (n_layers is not None and high > n_layers):
            top = n_layers if n_layers is not None else "L"
            raise UsageError(f'layers "{item}" outside 1-{top} (layers count from 1; 0 is the embeddings)')
        layers.update(range(low, high + 1))
    return tuple(sorted(layers))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def format_layers(layers: Sequence[int]) -> str:
    """Write layers as the shortest layer list: (1, 4, 7, 8) as `1,4,7-8`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def format_span(span: Span) -> str:
    """Write the layers from a first to a last one as a layer list."""
    return format_layers(range(span[0], span[1] + 1))


def all_windows(n_layers: int, width: int | None = None) -> list[Window]:
    """List every window of consecutive layers by start, then end: L(L+1)/2, or L-width+1 of one width."""
    check_width(n_layers, width)
    return [
        Window(tuple(range(start, end + 1)))
        for start in range(1, n_layers + 1)
        for end in range(start, n_layers + 1)
        if width is None or end - start + 1 == width
    ]


def spread_widths(n_layers: int) -> tuple[int, ...]:
    """Give the widths whose windows determine what each layer adds to the error, and the offset: L/3, 7L/12 and 5L/6.

    1.5 L windows or so. The second has no divisor in common with the first, and both together at most L + 1 layers:
    that determines everything. The third sees memory that only wide windows undo. Single layers, which often undo
    nothing at all, fewer widths and others did worse or cost more over 6 to 24 layers (`benchmarks/spread.py`).
    """
    third = max(1, round(n_layers / 3))
    most = max(third + 1, round(7 * n_layers / 12))
    middle = next(width for width in range(most, third, -1) if math.gcd(width, third) == 1)
    return tuple(sorted({min(width, n_layers) for width in (third, middle, round(5 * n_layers / 6))}))


def planned_windows(n_layers: int, plan: Plan = "all") -> list[Window]:
    """List the windows of a sweep by start, then end: every one, or those of a plan of fewer.

    Raises:
        UsageError: no layers.
    """
    if plan == "all":
        return all_windows(n_layers)
    check_width(n_layers, None)
    return sorted(window for width in spread_widths(n_layers) for window in all_windows(n_layers, width))


def full_first(windows: Iterable[Window], n_layers: int) -> list[Window]:
    """Sort windows by start and end, with the full window first."""
    return sorted(windows, key=lambda window: (window.start, window.width < n_layers, window.end, window.layers))


def check_width(n_layers: int, width: int | None) -> None:
    """Check a number of layers and the width of windows of them.

    Raises:
        UsageError: no layers, or a width outside 1..n_layers.
    """
    if n_layers < 1:
        raise UsageError(f"{n_layers} layers: at least 1 is needed")
    if width is not None and not 1 <= width <= n_layers:
        raise UsageError(f"width {width} outside 1-{n_layers}")


def parse_windows(lists: Iterable[str], n_layers: int, plan: Plan = "all") -> list[Window]:
    """Turn `--layers` options into windows; none given means every window of the plan."""
    windows = [Window(parse_layers(text, n_layers)) for text in lists]
    return list(dict.fromkeys(windows)) or planned_windows(n_layers, plan)
