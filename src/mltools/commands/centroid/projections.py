"""Projections of rows onto the lines between class centroids, one layer at a time, and their statistics (§5)."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mltools.io.states import RowTable, States

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PERCENTILES = (12.5, 25.0, 50.0, 75.0, 87.5)
STATISTICS = ("mean", "p12_5", "p25", "p50", "p75", "p87_5")
GROUPS = ("assigned", "original", "noisy")
MIN_CLEAN = 2
"""Clean rows that a class needs to have a centroid."""
BLOCK_ROWS = 8192


@dataclass(frozen=True)
class Layer:
    """One layer's statistics: of every ordered pair of classes (a, b), and of all pairs together.

    `pairs` has, for each of `GROUPS`, (classes, classes, 6): a, b, `STATISTICS`; `pooled` has (6,). NaN where
    undefined. `n_pooled` counts the values pooled. `distance` is (classes, classes).
    """

    number: int
    distance: Floats
    pairs: dict[str, Floats]
    pooled: dict[str, Floats]
    n_pooled: dict[str, int]


@dataclass
class Projections:
    """Every projection, for --per-row: one entry a layer in each list, arrays over (row, other class)."""

    layers: list[int] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    others: list[Ints] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)


def pair_counts(rows: RowTable) -> tuple[Ints, Ints]:
    """Count the clean rows of each class, (classes,), and the noisy rows of each pair, (classes, classes)."""
    n, noisy = len(rows.names), rows.noisy
    clean = np.bincount(rows.label[~noisy], minlength=n)
    pairs = np.bincount(rows.label[noisy] * n + rows.original_label[noisy], minlength=n * n)
    return clean, pairs.reshape(n, n)


def project_layer(states: States, number: int, projections: Projections | None) -> Layer:
    """Project every row on the lines that concern its label; `projections` takes them all, where there is one."""
    rows = states.rows
    x, n = states.layer(number), len(rows.names)
    means = _clean_means(x, rows)
    distance = np.stack([np.sqrt(((means - mean) ** 2).sum(axis=1)) for mean in means])
    t = _projections(x, rows.label, means, distance)
    clean_rows, noisy_rows = np.flatnonzero(~rows.noisy), np.flatnonzero(rows.noisy)
    row, other = (axis.ravel() for axis in np.meshgrid(clean_rows, np.arange(n), indexing="ij"))
    keep = rows.label[row] != other
    clean, noisy = (row[keep], other[keep]), (noisy_rows, rows.original_label[noisy_rows])
    if projections is not None:
        index = tuple(np.concatenate(both) for both in zip(clean, noisy, strict=True))
        defined = ~np.isnan(t[index])
        projections.layers.append(number)
        projections.rows.append(index[0][defined])
        projections.others.append(index[1][defined])
        projections.values.append(t[index][defined])
    pairs = {
        name: statistics(t[members], rows.label[members[0]] * n + members[1], n * n).reshape(n, n, -1)
        for name, members in (("assigned", clean), ("noisy", noisy))
    }
    values = {name: t[members][~np.isnan(t[members])] for name, members in (("assigned", clean), ("noisy", noisy))}
    pooled = {name: statistics(v, np.zeros(len(v), np.int64), 1)[0] for name, v in values.items()}
    counts = {name: len(v) for name, v in values.items()}
    return Layer(
        number,
        distance,
        {**pairs, "original": _mirrored(pairs["assigned"].swapaxes(0, 1))},
        {**pooled, "original": _mirrored(pooled["assigned"])},
        {**counts, "original": counts["assigned"]},
    )


def _mirrored(assigned: Floats) -> Floats:
    """Turn statistics of t into those of 1 − t: rows of b on the line from a are rows of b on that from b, mirrored."""
    return 1 - np.concatenate((assigned[..., :1], assigned[..., :0:-1]), axis=-1)


def _clean_means(x: NDArray[np.float32], rows: RowTable) -> Floats:
    """Average the clean rows of each class, (classes, width), in float64; NaN where there are too few."""
    n = len(rows.names)
    total = np.zeros((n, x.shape[1]))
    for start in range(0, len(x), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        members = (rows.label[part] == np.arange(n)[:, None]) & ~rows.noisy[part]
        total += members.astype(np.float64) @ x[part].astype(np.float64)
    clean, _ = pair_counts(rows)
    total[clean < MIN_CLEAN] = np.nan
    return total / np.maximum(clean, 1)[:, None]


def _projections(x: NDArray[np.float32], label: Ints, means: Floats, distance: Floats) -> Floats:
    """Project each row on the lines from its label's centroid to every other, (rows, classes); NaN on its own."""
    centred = means - np.nan_to_num(means).mean(axis=0)  # only differences matter; small numbers round less
    result = np.empty((len(x), len(means)))
    for start in range(0, len(x), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        own = label[part]
        along = (x[part].astype(np.float64) - means[own]) @ centred.T
        along -= np.take_along_axis(along, own[:, None], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            result[part] = along / distance[own] ** 2
    result[~np.isfinite(result)] = np.nan
    return result


def statistics(values: Floats, groups: Ints, n_groups: int) -> Floats:
    """Give the mean and `PERCENTILES` (linear, as NumPy's) of each group: (n_groups, 6), NaN where it is empty.

    Args:
        values: (n,); NaN makes its whole group undefined.
        groups: (n,), the group of each value.
        n_groups: number of groups.
    """
    counts = np.bincount(groups, minlength=n_groups)
    ordered = values[np.lexsort((values, groups))]
    starts = np.cumsum(counts) - counts
    result = np.full((n_groups, len(STATISTICS)), np.nan)
    full = np.flatnonzero(counts)
    result[full, 0] = np.bincount(groups, weights=values, minlength=n_groups)[full] / counts[full]
    position = np.outer(counts[full] - 1, PERCENTILES) / 100
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, counts[full, None] - 1)
    below, above = ordered[starts[full, None] + low], ordered[starts[full, None] + high]
    result[full, 1:] = below + (above - below) * (position - low)
    return result
