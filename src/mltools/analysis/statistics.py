"""Correlation coefficients with p values and intervals, for `correlate`, and Wilson's interval, for `score`.

Exact where it can be: up to 8 pairs, p is the share of all orders of one series that agree as well. Above that
the usual approximations. Intervals are bootstrap percentiles, above 600 pairs Fisher's z.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from math import atanh, fsum, sqrt, tanh
from typing import Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Method = Literal["spearman", "pearson", "kendall"]

EXACT_UP_TO = 8
BOOTSTRAP_UP_TO = 600
LEAST_CLUSTERS = 3
MOST_COUNTS = 4_000_000
LEVEL = 95.0
Z95 = 1.959963984540054
"""The 97.5th percentile of the normal distribution."""
DIGITS = 12
"""Numbers that agree in so many digits are equal: sums of the same numbers in another order differ in the last ones."""
TOLERANCE = 1e-9
"""The same for coefficients, relative."""


@dataclass(frozen=True)
class Agreement:
    """How two series agree; None where undefined, `reason` says why. See `CorrelationRecord`."""

    correlation: float | None = None
    p: float | None = None
    p_method: str | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    ci_method: str | None = None
    reason: str | None = None


def agreement(
    x: Floats,
    y: Floats,
    method: Method,
    *,
    seed: int = 1,
    resamples: int = 2000,
    clusters: NDArray[np.intp] | None = None,
) -> Agreement:
    """Correlate two series of equal length, finite numbers, in any order of the pairs.

    Args:
        x: (n,).
        y: (n,).
        method: the coefficient; Kendall's is tau-b.
        seed: of the bootstrap.
        resamples: of the bootstrap; 0 gives no interval.
        clusters: (n,), the cluster of each pair, from 0. Whole clusters are drawn then, and there is no p: pairs of
            one cluster are not independent.
    """
    if len(x) < 3:
        return Agreement(reason="n<3")
    x, y = rounded(x), rounded(y)
    for name, series in (("a", x), ("b", y)):
        if np.ptp(series) == 0:
            return Agreement(reason=f"{name} is constant")
    correlation = coefficient(x, y, method)
    if clusters is not None:
        order = np.lexsort((y, x, clusters))
        found = resample_clusters([(x[order], y[order])], clusters[order], method, seed, resamples)
        return Agreement(correlation, None, None, *_percentiles(found, "bootstrap of clusters"))
    p, p_method = _p_value(x, y, method, correlation)
    low, high, ci_method = _interval(x, y, method, correlation, seed, resamples)
    return Agreement(correlation, p, p_method, low, high, ci_method)


def rounded(series: Floats) -> Floats:
    """Round to 12 digits, so that numbers which differ by rounding only are ties."""
    with np.errstate(divide="ignore"):
        exponents = np.where(series == 0, 0, np.floor(np.log10(np.abs(series))))
    scale = 10.0 ** (DIGITS - 1 - exponents)
    result: Floats = np.round(series * scale) / scale
    return result


def coefficient(x: Floats, y: Floats, method: Method) -> float:
    """Give the correlation coefficient of two series, neither constant."""
    if method == "kendall":
        from scipy.stats import kendalltau

        return float(kendalltau(x, y).statistic)
    if method == "spearman":
        x, y = ranks(x), ranks(y)
    x, y = x - fsum(x) / len(x), y - fsum(y) / len(y)  # fsum: the order of the pairs changes no digit
    return min(max(fsum(x * y) / sqrt(fsum(x * x) * fsum(y * y)), -1.0), 1.0)


def ranks(series: Floats) -> Floats:
    """Give ranks from 1, equal numbers their mean rank."""
    _, group, counts = np.unique(series, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = (last - (counts - 1) / 2)[group]
    return means


def _p_value(x: Floats, y: Floats, method: Method, correlation: float) -> tuple[float, str]:
    if len(x) <= EXACT_UP_TO:
        return _permutation_p(x, y, method), "permutation"
    if method == "kendall":
        from scipy.stats import kendalltau

        return float(kendalltau(x, y, method="asymptotic").pvalue), "asymptotic"
    from scipy.special import stdtr

    if abs(correlation) == 1:
        return 0.0, "asymptotic"
    freedom = len(x) - 2
    t = abs(correlation) * sqrt(freedom / (1 - correlation**2))
    return float(2 * stdtr(freedom, -t)), "asymptotic"


@cache
def _orders(n: int) -> NDArray[np.intp]:
    return np.array(list(permutations(range(n))))


def _permutation_p(x: Floats, y: Floats, method: Method) -> float:
    """Give the share of all orders of y whose coefficient is at least as far from 0 as the given one's."""
    orders = _orders(len(x))
    if method == "kendall":
        signs = np.sign(y[:, None] - y)
        sums = np.einsum("ij,pij->p", np.sign(x[:, None] - x), signs[orders[:, :, None], orders[:, None, :]])
    else:
        x, y = (ranks(x), ranks(y)) if method == "spearman" else (x / np.ptp(x), y / np.ptp(y))
        sums = (y - y.mean())[orders] @ (x - x.mean())
    sums = np.abs(sums)  # the first order is the given one
    return float(np.mean(sums >= sums[0] * (1 - TOLERANCE)))


def _interval(
    x: Floats, y: Floats, method: Method, correlation: float, seed: int, resamples: int
) -> tuple[float | None, float | None, str | None]:
    if len(x) > BOOTSTRAP_UP_TO:
        return *_fisher(correlation, len(x), method), "fisher"
    if not resamples:
        return None, None, None
    order = np.lexsort((y, x))  # so that the order of the pairs does not decide which are drawn
    x, y = x[order], y[order]
    rng = np.random.default_rng([seed, crc32(b"correlate bootstrap")])
    counts = rng.multinomial(len(x), np.full(len(x), 1 / len(x)), size=resamples).astype(np.float64)
    return _percentiles(resampled(x, y, counts, method), "bootstrap")


def _percentiles(found: Floats, method: str) -> tuple[float | None, float | None, str | None]:
    """Give the ends of the interval that resamples span, and how it was made; nothing where none has a coefficient."""
    found = found[np.isfinite(found)]
    if not len(found):
        return None, None, None
    low, high = np.percentile(found, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high), method


def resample_clusters(
    pairs: Sequence[tuple[Floats, Floats]], clusters: NDArray[np.intp], method: Method, seed: int, resamples: int
) -> Floats:
    """Correlate bootstrap resamples of whole clusters: (resamples,), means over the pairs; none below 3 clusters.

    Args:
        pairs: of series, (n,) each, all over the same keys.
        clusters: the cluster of each key, (n,), from 0.
        method: the coefficient.
        seed: of the resamples.
        resamples: how many.
    """
    n = int(clusters.max()) + 1
    if n < LEAST_CLUSTERS or not resamples:
        return np.empty(0)
    rng = np.random.default_rng([seed, crc32(b"correlate bootstrap")])
    step = max(1, MOST_COUNTS // len(clusters))  # resamples at once, so that many keys take little memory
    means = []
    for start in range(0, resamples, step):
        drawn = rng.multinomial(n, np.full(n, 1 / n), size=min(step, resamples - start))
        counts = drawn[:, clusters].astype(np.float64)
        means.append(np.mean([resampled(x, y, counts, method) for x, y in pairs], axis=0))
    return np.concatenate(means)


def mean_agreement(
    series: Sequence[Floats],
    method: Method,
    *,
    seed: int = 1,
    resamples: int = 2000,
    clusters: NDArray[np.intp] | None = None,
) -> Agreement:
    """Average the correlations of every two of several series over the same keys (§4.1); there is no p.

    The interval draws keys, or whole clusters, for all series together.

    Args:
        series: two or more, (n,) each.
        method: as in `agreement`.
        seed: as in `agreement`.
        resamples: as in `agreement`.
        clusters: as in `agreement`.
    """
    found = [agreement(x, y, method, resamples=0) for x, y in combinations(series, 2)]
    reason = next((one.reason for one in found if one.reason), None)
    if reason is not None:
        return Agreement(reason="n<3" if reason == "n<3" else "a series is constant")
    order = np.lexsort((*series, *([] if clusters is None else [clusters])))
    pairs = list(combinations([rounded(each[order]) for each in series], 2))
    drawn = np.arange(len(order)) if clusters is None else clusters[order]
    made = "bootstrap" if clusters is None else "bootstrap of clusters"
    interval = _percentiles(resample_clusters(pairs, drawn, method, seed, resamples), made)
    return Agreement(fsum(one.correlation or 0.0 for one in found) / len(found), None, None, *interval)


def _fisher(correlation: float, n: int, method: Method) -> tuple[float, float]:
    """Give the interval by Fisher's z, with the variance for the method (Bonett and Wright 2000)."""
    if abs(correlation) == 1:
        return correlation, correlation
    variance = {
        "pearson": 1 / (n - 3),
        "spearman": (1 + correlation**2 / 2) / (n - 3),
        "kendall": 0.437 / (n - 4),
    }[method]
    z, half = atanh(correlation), Z95 * sqrt(variance)
    return tanh(z - half), tanh(z + half)


def resampled(x: Floats, y: Floats, counts: Floats, method: Method) -> Floats:
    """Correlate resamples without making them: (resamples,), NaN where a series is constant in the resample.

    Args:
        x: (n,).
        y: (n,).
        counts: how often each pair occurs in each resample, (resamples, n).
        method: as in `agreement`.
    """
    if method == "kendall":
        # a pair of pairs counts as often as the two occur together
        a, b = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
        both, first, second = (((counts @ signs) * counts).sum(axis=1) for signs in (a * b, a * a, b * b))
    else:
        u, v = (_weighted_ranks(series, counts) if method == "spearman" else series[None, :] for series in (x, y))
        totals = counts.sum(axis=1, keepdims=True)
        u, v = (series - (counts * series).sum(axis=1, keepdims=True) / totals for series in (u, v))
        both, first, second = ((counts * product).sum(axis=1) for product in (u * v, u * u, v * v))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.clip(both / np.sqrt(first * second), -1, 1)
    return np.where(_vary(x, counts) & _vary(y, counts), found, np.nan)


def _vary(series: Floats, counts: Floats) -> NDArray[np.bool_]:
    """Say of each resample whether it has two different numbers, (resamples,)."""
    low = np.where(counts > 0, series, np.inf).min(axis=1)
    high = np.where(counts > 0, series, -np.inf).max(axis=1)
    varies: NDArray[np.bool_] = high > low
    return varies


def _weighted_ranks(series: Floats, counts: Floats) -> Floats:
    """Give each pair's mean rank within each resample, (resamples, n)."""
    _, group, sizes = np.unique(series, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes) - 1  # of each group of equal numbers, in sorted order
    up_to = np.cumsum(counts[:, np.argsort(series, kind="stable")], axis=1)[:, last]
    totals = np.diff(up_to, axis=1, prepend=0)
    result: Floats = (up_to - (totals - 1) / 2)[:, group]
    return result


def adjust(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p values for the number of tests, by Benjamini and Hochberg; undefined ones are no tests."""
    tests = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    least = 1.0
    for rank in range(len(tests), 0, -1):
        p, index = tests[rank - 1]
        least = min(least, p * len(tests) / rank)
        adjusted[index] = least
    return adjusted


def wilson(share: float, n: float) -> tuple[float, float]:
    """Give Wilson's 95 % interval of a share of n trials; trials may count in part."""
    centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def wilson_of_drawn(share: float, n: int, total: int) -> tuple[float, float]:
    """Give the same of n drawn of `total` without replacement, which says more: of all, the interval is the share."""
    return wilson(share, n * (total - 1) / (total - n)) if n < total else (share, share)
