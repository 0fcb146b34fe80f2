"""A layer's score (§4.1), and the groups of window or layer records that layers are scored by.

A layer's score is the mean over widths of the mean over the windows of that width that hold it. `score_records` reads
the groups.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import fsum
from operator import itemgetter, mul
from typing import Any

from mltools.analysis.carried import Carried
from mltools.errors import RowsError, UsageError
from mltools.io.groups import Cells, Group
from mltools.io.records import Record
from mltools.layers import Span, format_layers, format_span

_Take = Callable[[Sequence[float]], Iterable[float]]


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


@dataclass(slots=True, eq=False)
class LayerScores:
    """What the records of one group say: the value of each window, or of each layer (a window of one layer).

    Attributes:
        key: the columns that the group's records share.
        first: its first record.
        kind: window or layer.
        n_layers: L.
        cells: the values.
        carried: what the records say of themselves.
        clean: `clean_accuracy` of each window record that has such a column.
        runs: the runs that were averaged; none where there was one.
        unscaled: why runs could not be scaled before they were averaged; None where they could, or need not be.
        was_scaled: whether they were.
    """

    key: Group
    first: Record
    kind: str = ""
    n_layers: int = 0
    cells: Cells[Span] = field(default_factory=Cells)
    carried: Carried = field(default_factory=Carried)
    clean: list[Any] = field(default_factory=list)
    runs: Sequence["LayerScores"] = ()
    unscaled: str | None = None
    was_scaled: bool = False

    @property
    def tags(self) -> dict[str, Any]:
        """The columns that the group's records share."""
        return dict(self.key)

    @property
    def lacking(self) -> str | None:
        """Why there is no value for each window or layer; None where there is."""
        if self.unscaled or not self.cells.again:
            return self.unscaled
        counts = {span: len(self.cells.runs(span)) for span in self.cells.first}
        few, many = min(counts, key=lambda span: counts[span]), max(counts, key=lambda span: counts[span])
        if counts[few] == counts[many]:
            return None
        return (
            f"{self.kind} {format_span(few)} has {counts[few]} records in its group, "
            f"{self.kind} {format_span(many)} has {counts[many]}; the runs averaged must be complete"
        )

    def values(self) -> dict[Span, float]:
        """Give the value of each window or layer by (start, end), the mean over the runs.

        Raises:
            RowsError: runs that lack windows or layers which others have, or that could not be scaled.
        """
        lacking = self.lacking
        if lacking is not None:
            raise RowsError(f"{self.first.place}: {lacking}")
        return self.cells.means()

    def scores(self) -> list[float]:
        """Give the score of each layer 1..L.

        Raises:
            RowsError: `unscorable` says why, or a layer without a record.
        """
        unscorable = self.unscorable
        if unscorable is not None:
            raise RowsError(f"{self.first.place}: {unscorable}")
        try:
            return layer_scores(self.values(), self.n_layers)
        except UsageError:
            missing = next(layer for layer in range(1, self.n_layers + 1) if (layer, layer) not in self.cells.first)
            raise RowsError(
                f"{self.first.place}: layer {missing} of {self.n_layers} has no record in its group"
            ) from None

    @property
    def unscorable(self) -> str | None:
        """Why the windows of a sweep that is not whole, or runs of it, give no layer scores; None where they do."""
        if self.unscaled is not None:
            return self.unscaled
        if self.kind == "window":
            if self.lacking is not None:
                return self.lacking
            try:
                check_whole(self.cells.first, self.n_layers)
            except UsageError as error:
                return str(error)
        elif len(self.carried.widths) > 1:
            return f"scores made of windows of different widths ({', '.join(sorted(self.carried.widths))})"
        return None

    @property
    def clean_error(self) -> float | None:
        """1 less the mean clean accuracy over the windows; null where one does not know it."""
        if not self.clean or not all(type(number) in (int, float) for number in self.clean):
            return None
        return 1 - fsum(self.clean) / len(self.clean)

    @property
    def max_single_layer(self) -> float | None:
        """The largest value of a window of one layer; null where some layer has none, and for layer records."""
        if self.kind != "window" or self.lacking is not None:
            return None
        values = self.cells.means()
        alone = [values.get((layer, layer)) for layer in range(1, self.n_layers + 1)]
        return None if None in alone else max(number for number in alone if number is not None)

    @property
    def widths(self) -> str | None:
        """The widths of the windows as a layer list, for layers those that their scores were made of."""
        if self.kind == "window":
            return format_layers(sorted({end - start + 1 for start, end in self.cells.first}))
        widths = self.carried.widths
        if len(widths) != 1:
            return None
        (only,) = widths
        return format_layers(range(1, self.n_layers + 1)) if only == "1-L" else only
