"""Layer lists and windows, and the layer score that a sweep of windows gives (§4.1).

Layers count from 1 to L, both ends of a range included, as in `cut -f`; 0 is the embeddings.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import itemgetter, mul
from typing import Literal

from mltools.errors import UsageError

Span = tuple[int, int]
Plan = Literal["all", "spread"]
"""Which windows make a sweep: every one, or those of a few widths (`spread_widths`)."""
_Take = Callable[[Sequence[float]], Iterable[float]]


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
    """Give the widths whose windows determine what each layer adds to the error, and the offset: 1, L/3 and 2 L/3.

    Two L windows or so. The wide ones steady what single layers say, and see memory that is kept twice, which no narrow
    one undoes; fewer or other widths did worse over 6 to 24 layers (`benchmarks/spread.py`).
    """
    third = max(2, round(n_layers / 3))
    return tuple(sorted({1, min(n_layers, third), max(1, round(2 * n_layers / 3))}))


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


def window_means(errors: Mapping[Span, float], n_layers: int) -> dict[tuple[int, int], float]:
    """Average, for each (width, layer), the error over windows of that width that hold the layer.

    This is the heat map of Figure 3: one row a width, one column a layer.

    Args:
        errors: one value a contiguous window, by (start, end).
        n_layers: the number of layers L.

    Returns:
        (width, layer) to mean, for the widths that occur.

    Raises:
        UsageError: a width that occurs lacks some of its windows, so that layers could not be compared.
    """
    means = {}
    for width in check_whole(errors, n_layers):
        for layer in range(1, n_layers + 1):
            starts = _starts(width, layer, n_layers)
            means[width, layer] = sum(errors[start, start + width - 1] for start in starts) / len(starts)
    return means


def layer_scores(errors: Mapping[Span, float], n_layers: int) -> list[float]:
    """Score each layer 1..L: the mean over widths of its window means (column means of Figure 3).

    Raises:
        UsageError: as `window_means`.
    """
    spans, shares = _layer_shares(n_layers, check_whole(errors, n_layers))
    values = [errors[span] for span in spans]
    return [sum(map(mul, take(values), weights)) for take, weights in shares]


@cache
def _layer_shares(n_layers: int, widths: tuple[int, ...]) -> tuple[list[Span], list[tuple[_Take, list[float]]]]:
    """Give the windows of these widths; and for each layer how to take those that hold it, and the weight of each."""
    spans = [(start, start + width - 1) for width in widths for start in range(1, n_layers - width + 2)]
    firsts = list(accumulate((n_layers - width + 1 for width in widths), initial=0))  # of each width, in `spans`
    shares: list[tuple[_Take, list[float]]] = []
    for layer in range(1, n_layers + 1):
        holding: list[int] = []
        weights: list[float] = []
        for first, width in zip(firsts, widths, strict=False):  # found by place: looking at every span is quadratic
            starts = _starts(width, layer, n_layers)
            holding += range(first + starts[0] - 1, first + starts[-1])
            weights += [1 / len(widths) / len(starts)] * len(starts)
        take = itemgetter(*holding, holding[0])  # one too many, since itemgetter gives no tuple for one alone
        shares.append((take, weights))
    return spans, shares


def _starts(width: int, layer: int, n_layers: int) -> range:
    """Say where the windows of a width that hold a layer start."""
    return range(max(1, layer - width + 1), min(layer, n_layers - width + 1) + 1)


def check_whole(errors: Mapping[Span, float], n_layers: int) -> tuple[int, ...]:
    """List the widths that occur, and see that each has all its windows.

    Raises:
        UsageError: one that lacks some.
    """
    if len(errors) == n_layers * (n_layers + 1) // 2:
        return tuple(range(1, n_layers + 1))
    counts = Counter(end - start + 1 for start, end in errors)
    for width, count in sorted(counts.items()):
        if count < n_layers - width + 1:
            starts = range(1, n_layers - width + 2)
            start = next(start for start in starts if (start, start + width - 1) not in errors)
            missing = f"{start}-{start + width - 1}" if width > 1 else f"{start}"
            raise UsageError(
                f"{n_layers - width + 1 - count} of {n_layers - width + 1} windows of width {width} are missing "
                f"(first: {missing}); run them, or leave width {width} out"
            )
    return tuple(sorted(counts))
