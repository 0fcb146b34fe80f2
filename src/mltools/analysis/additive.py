"""The additive solution of a sweep of windows: what each layer alone adds to the error (behind `m_cog_solved`).

`layer_scores` averages over the windows that hold a layer, and so gives each layer a share of what its
neighbours do. Here the same errors are explained instead: error(window) ≈ b + Σ c_l over the layers l of the window,
with c ≥ 0 and b ≥ 0, by least squares over the windows given, each counting once.

**What is determined.** Write S_l = c_1 + … + c_l; a window start…end then says b + S_end − S_(start−1), so windows are
the edges of a graph whose nodes are 0…L. Layer l is told from the others only if the nodes l−1 and l are connected,
and the offset from the layers only if no heights h exist that rise by exactly 1 along every edge (else b may fall
while all c move with the heights). Both are decided in whole numbers, without a tolerance, and together they say that
the columns of the problem are independent, so that there is one solution whatever the errors. A full sweep determines
everything from L = 2 on, and so does every single layer beside any wider window. One width alone never does: single
layers cannot tell a constant error from a weight that all layers share.

This is stricter than need be. Where c ≥ 0 or b ≥ 0 binds, dependent columns may still have one best solution: if one
of the single layers has error exactly 0, then b = 0. But this hangs on the last row of one window: of two seeds one
would give a number and the other none, and a mean over those that do would be one over seeds chosen by their errors.
So the windows alone say whether there is a solution.

Plain Python: to import numpy takes as long as to solve many hundreds of sweeps, and the last digit then depends
neither on a linear algebra library nor on what else is solved.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat
from math import frexp, hypot, isfinite, ldexp, sqrt
from operator import itemgetter, mul, sub

from mltools.layers import Span, format_layers

_Rows = list[list[float]]

TINY = 1e-10
"""A weight, or an offset, of at most this share of the largest |error| counts as 0."""
_ROUNDING = TINY / 100  # the same while solving, so that what is rounding decides nothing


@dataclass(frozen=True)
class Additive:
    """What error(window) ≈ offset + Σ weights of its layers gives; all null where the windows do not determine it.

    Attributes:
        weights: c_1…c_L, each 0 or more, in the unit of the errors.
        offset: b, 0 or more: the error that every window has, whatever its layers.
        residual: root mean square, over the windows, of error less fit, in the unit of the errors. (A share of the
            variance would not exist where all errors are equal, and be one of noise where they nearly are.)
        centre: Σ l·c_l / Σ c_l, in [1, L]; null also where all weights are 0.
        reason: why `centre` is null; null where it is not.
    """

    weights: tuple[float, ...] | None
    offset: float | None
    residual: float | None
    centre: float | None
    reason: str | None


def solve_additive(errors: Mapping[Span, float], n_layers: int) -> Additive:
    """Solve error(window) ≈ b + Σ c_l over its layers, c ≥ 0 and b ≥ 0, by least squares.

    The order of the windows does not matter: they are sorted. Errors times a power of two give exactly that multiple,
    other multiples the same to rounding, since the largest |error| is first brought to [1/2, 1) by a power of two
    (exact unless numbers become denormal). Errors may be negative, since a margin may rise; weights may not. Neither
    a weight nor the offset exceeds the largest error, so no number is too large.

    Args:
        errors: one value a contiguous window, by (start, end).
        n_layers: the number of layers L.

    Raises:
        ValueError: no windows, one outside 1..L, or an error that is not finite.
    """
    design = _design(n_layers, tuple(sorted(errors)))
    values = [errors[span] for span in design.spans]
    if not all(map(isfinite, values)):
        raise ValueError("an error is not finite")
    if design.undetermined is not None:
        return Additive(None, None, None, None, design.undetermined)
    largest, exponent = frexp(max(map(abs, values)))
    scaled = list(map(ldexp, values, repeat(-exponent)))
    offset, *weights = (min(value, largest) if value > TINY else 0.0 for value in design.weigh(scaled))
    residual = min(hypot(*map(sub, scaled, design.fit(offset, weights))) / sqrt(len(scaled)), largest)
    centre = _centre(weights)
    return Additive(
        tuple(ldexp(weight, exponent) for weight in weights),
        ldexp(offset, exponent),
        ldexp(residual, exponent),
        centre,
        "all weights are zero" if centre is None else None,
    )


def _centre(weights: Sequence[float]) -> float | None:
    total = sum(weights)
    if not total:
        return None
    centre = sum(layer * weight for layer, weight in enumerate(weights, start=1)) / total
    return min(max(centre, 1.0), float(len(weights)))


class _Design:
    """What depends on the windows alone. Its columns are the offset, which is in all windows, and then the layers."""

    def __init__(self, n_layers: int, spans: tuple[Span, ...]) -> None:
        if not spans:
            raise ValueError("no windows")
        for start, end in spans:
            if not 1 <= start <= end <= n_layers:
                raise ValueError(f"window {start}-{end} outside 1-{n_layers}")
        self.spans = spans
        self.undetermined = _undetermined(n_layers, spans)
        if self.undetermined is not None:
            return
        layers = [[i for i, span in enumerate(spans) if span[0] <= n <= span[1]] for n in range(1, n_layers + 1)]
        self._columns = [list(range(len(spans))), *layers]
        held = [set(column) for column in self._columns]
        self._products = [[float(len(one & other)) for other in held] for one in held]  # AᵀA
        units = [[float(one is other) for other in held] for one in held]
        self._inverse = [_solve(self._products, unit, range(len(held)))[0] for unit in units]
        # one index too many, since itemgetter gives no tuple for one alone
        self._takes = [itemgetter(*column, column[0]) for column in self._columns]
        self._ends = itemgetter(*(end for _, end in spans))
        self._before = itemgetter(*(start - 1 for start, _ in spans))

    def weigh(self, values: Sequence[float]) -> list[float]:
        """Find the x ≥ 0, offset first, that minimises Σ (values − A x)², by principal pivoting.

        The start is the solution without bounds, less the columns that are negative in it. Then, of the columns that
        break a rule (used though its weight is negative; unused though some weight above 0 would help), the last is
        taken out or put in, until there is none. AᵀA is positive definite, so no set of columns comes twice (Murty
        1974): where one does, what is left is rounding.
        """
        sums = [sum(take(values)[:-1]) for take in self._takes]  # Aᵀ values
        free = [sum(map(mul, row, sums)) for row in self._inverse]
        used = [x > _ROUNDING for x in free]
        tried: set[tuple[bool, ...]] = set()
        while True:
            tried.add(tuple(used))
            weights, gains = self._exchange(sums, free, used)
            wrong = [
                k
                for k, (x, gain, use) in enumerate(zip(weights, gains, used, strict=True))
                if (-x if use else gain / len(self._columns[k])) > _ROUNDING
            ]
            if not wrong:
                return weights
            used[wrong[-1]] = not used[wrong[-1]]
            if tuple(used) in tried:
                return weights

    def _exchange(self, sums: list[float], free: list[float], used: Sequence[bool]) -> tuple[list[float], list[float]]:
        """Give the weights x where those used alone may differ from 0, and the gains Aᵀ(values − A x), 0 where used.

        Both x = (AᵀA)⁻¹(sums − gains) and gains = sums − AᵀA x give the one from the other: the smaller set of
        unknowns is solved for.
        """
        inside = [k for k, use in enumerate(used) if use]
        if 2 * len(inside) < len(used):
            return _solve(self._products, sums, inside)
        gains, weights = _solve(self._inverse, free, [k for k, use in enumerate(used) if not use])
        return weights, gains

    def fit(self, offset: float, weights: Iterable[float]) -> Iterable[float]:
        """Give what a solution says of each window: b + S_end − S_(start−1)."""
        sums = list(accumulate(weights, initial=0.0))
        return map(sub, self._ends([offset + value for value in sums]), self._before(sums))


_design = lru_cache(maxsize=16)(_Design)


def _solve(matrix: _Rows, values: Sequence[float], inside: Sequence[int]) -> tuple[list[float], list[float]]:
    """Find y, 0 but inside, whose product with a positive definite matrix is as the values inside.

    Returns:
        y, and the values less the product.
    """
    rows = []  # of the upper triangle, each with its value
    for place, k in enumerate(inside):
        row = matrix[k]
        rows.append([row[other] for other in inside[place:]])
        rows[-1].append(values[k])
    for step, (pivot, *right) in enumerate(rows, start=1):
        for place, row in enumerate(rows[step:]):
            factor = right[place] / pivot
            row[:] = [value - factor * other for value, other in zip(row, right[place:])]  # noqa: B905 (inmost loop)
    found: list[float] = []
    for pivot, *right, value in reversed(rows):
        found.insert(0, (value - sum(map(mul, right, found))) / pivot)
    y = [0.0] * len(values)
    for k, value in zip(inside, found, strict=True):
        y[k] = value
    rest = [value - sum(map(mul, row, y)) for value, row in zip(values, matrix, strict=True)]
    for k in inside:
        rest[k] = 0.0
    return y, rest


def _undetermined(n_layers: int, spans: Sequence[Span]) -> str | None:
    """Say what the windows do not determine, if anything: the rank of the problem, in whole numbers (see above)."""
    edges: dict[int, list[tuple[int, int]]] = {node: [] for node in range(n_layers + 1)}
    for start, end in spans:
        edges[start - 1].append((end, 1))
        edges[end].append((start - 1, -1))
    group: dict[int, int] = {}  # a node's group of connected nodes, named by its lowest
    height: dict[int, int] = {}
    for lowest in edges:
        waiting = [(lowest, 0)]
        while waiting:
            node, rise = waiting.pop()
            if node not in group:
                group[node], height[node] = lowest, rise
                waiting += [(other, rise + step) for other, step in edges[node]]
    free = [layer for layer in range(1, n_layers + 1) if group[layer - 1] != group[layer]]
    if free:
        return f"the windows do not determine layer{'s' * (len(free) > 1)} {format_layers(free)}"
    if all(height[end] == height[start - 1] + 1 for start, end in spans):
        return "the windows do not tell the offset from the layers"
    return None
