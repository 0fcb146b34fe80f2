"""Correlate tools, models, tasks or measures over shared keys (Table 2, Figures 8 and 9). Needs no torch.

Long records in, one record a pair of series out. A series is one value of the pivot column (swap, retrain, …) or
one of several values; its points are keys, combinations of the columns `on`. The numbers are `analysis.statistics`'.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, combinations
from math import fsum, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltools import console
from mltools.analysis.carried import Carried
from mltools.analysis.statistics import adjust, agreement, mean_agreement
from mltools.commands.correlate import Settings
from mltools.commands.correlate.series import Key, Series, SeriesReader
from mltools.errors import RowsError, UsageError
from mltools.io.groups import Cells
from mltools.io.kinds import CorrelationRecord
from mltools.io.records import Records
from mltools.run import Run
from mltools.spec import bare

DEFAULTS = bare(Settings)

Floats = NDArray[np.float64]


def correlate(
    records: Iterable[Records], settings: Settings = DEFAULTS
) -> Iterator[tuple[CorrelationRecord, dict[str, Any]]]:
    """Correlate every two series.

    Values are columns of the records (m_cog, score, …) or events (crossing, …: the layer of the record that has
    that `event`). m_cog and score are made of window and layer records as `mcog` does. Scores are compared layer by
    layer: `layer` is one of their keys. Records about one pair of classes count only if a column named is theirs.

    Args:
        records: blocks of records, in any order.
        settings: see `Settings`.

    Yields:
        (record, the columns `per`), for each combination of the columns `per` and each two of its series.

    Raises:
        RowsError: a record without any of the values or without a key; a key twice in a series, unless pooled;
            fewer than two series.
    """
    reader = SeriesReader(settings)
    for block in records:
        for part in block.by_columns():
            reader.read(part)
    reader.weigh_sweeps()
    _warn_of_depths(reader)
    if settings.cluster is not None and settings.cluster not in reader.on:
        raise UsageError(f"--cluster {settings.cluster}: no key column ({', '.join(reader.on)}); name it in --on")
    found = [(key, record) for key, table in reader.tables.items() for record in _pairs(table, settings, reader.on)]
    if not found:
        names = sorted({name for table in reader.tables.values() for name in table})
        raise RowsError(f"nothing to correlate: series {', '.join(names) or 'none'}; two are needed in each table")
    adjusted = adjust([record.p for _, record in found])
    for (key, record), p in zip(found, adjusted, strict=True):
        yield replace(record, p_adjusted=p), dict(zip(settings.per, key, strict=True))


def _warn_of_depths(reader: SeriesReader) -> None:
    """Say where a series holds layers of models of several depths: a deeper model's are higher for that alone."""
    for table in reader.tables.values():
        for name, series in table.items():
            if len(series.depths) > 1:
                depths = " and ".join(map(str, sorted(series.depths)))
                console.warn(
                    f"{name}: layers of models with {depths} layers are in one series, which may agree with another "
                    "for their depth alone; compare within models (--per)"
                )
                return


def _pairs(table: dict[str, Series], settings: Settings, on: Sequence[str]) -> Iterator[CorrelationRecord]:
    """Correlate every two series of a table; or all together, with `mean`."""
    names = sorted(table) if settings.series else [value for value in settings.value if value in table]
    keys, columns = _aligned({name: _numbers(table[name], settings) for name in names})
    clusters = None if settings.cluster is None else _clusters([key[on.index(settings.cluster)] for key in keys])
    for group in [names] if settings.mean and len(names) > 1 else combinations(names, 2):
        carried = _carried_by(table, group, settings)
        numbers, has = np.stack([columns[name][0] for name in group]), np.stack([columns[name][1] for name in group])
        kept = np.isfinite(numbers).all(axis=0)
        n = int(kept.sum())
        yield CorrelationRecord(
            tool="correlate",
            a=",".join(group) if settings.mean else group[0],
            b="each other" if settings.mean else group[1],
            pivot=settings.series,
            value=",".join(settings.value),
            method=settings.method,
            n=n,
            n_dropped=int(has.any(axis=0).sum()) - n,
            p_adjusted=None,
            valid=carried.valid,
            valid_reason=carried.valid_reason,
            **_agreement(numbers[:, kept], clusters if clusters is None else _renumbered(clusters[kept]), settings),
        )


def _carried_by(table: dict[str, Series], group: Sequence[str], settings: Settings) -> Carried:
    """Give what the records of some series say of themselves.

    Raises:
        RowsError: windows of different widths, which are not to be compared.
    """
    carried = Carried().join(table[name].carried for name in group)
    if len(carried.widths) > 1 and not settings.allow_mixed:
        found = " and ".join(sorted(carried.widths))
        raise RowsError(
            f"{' and '.join(group)}: numbers of windows of widths {found} would be compared, which may differ for that "
            "alone; weigh the same widths, or say --allow-mixed"
        )
    return carried


def _agreement(numbers: Floats, clusters: NDArray[np.intp] | None, settings: Settings) -> dict[str, Any]:
    """Give the columns that say how series agree, (series, keys)."""
    options: dict[str, Any] = {"seed": settings.seed, "resamples": settings.resamples, "clusters": clusters}
    n_clusters = None if clusters is None else len(np.unique(clusters))
    if settings.mean:
        n_pairs = len(numbers) * (len(numbers) - 1) // 2
        found = asdict(mean_agreement(list(numbers), settings.method, **options))
        return {**found, "n_clusters": n_clusters, "n_pairs": n_pairs}
    differences = (numbers[0] - numbers[1]).tolist()
    return {
        **asdict(agreement(numbers[0], numbers[1], settings.method, **options)),
        "n_clusters": n_clusters,
        "mean_difference": fsum(differences) / len(differences) if differences else None,
        "mean_absolute_difference": fsum(map(abs, differences)) / len(differences) if differences else None,
    }


def _clusters(names: Sequence[Any]) -> NDArray[np.intp]:
    """Number the clusters of keys, whatever the order of the keys."""
    return np.unique(list(map(json.dumps, names)), return_inverse=True)[1]


def _renumbered(clusters: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.unique(clusters, return_inverse=True)[1]


def _aligned(series: dict[str, dict[Key, float]]) -> tuple[list[Key], dict[str, tuple[Floats, NDArray[np.bool_]]]]:
    """Give all keys, and each series' numbers over them, NaN where it has none, and which keys it has."""
    keys = list(dict.fromkeys(chain.from_iterable(series.values())))
    places: dict[Key, int] = {}
    columns = {}
    for name, numbers in series.items():
        filled, has = np.full(len(keys), np.nan), np.zeros(len(keys), bool)
        if list(numbers) == keys:  # the usual case, and much faster
            at: NDArray[np.int64] = np.arange(len(keys))
        else:
            places = places or {key: place for place, key in enumerate(keys)}
            at = np.fromiter(map(places.__getitem__, numbers), np.int64, len(numbers))
        filled[at] = np.fromiter(numbers.values(), np.float64, len(numbers))
        has[at] = True
        columns[name] = filled, has
    return keys, columns


def _numbers(series: Series, settings: Settings) -> dict[Key, float]:
    """Give a series' number of each key, scaled and averaged as said; NaN where undefined."""
    if not (series.undefined or settings.scale == "minmax"):
        return series.cells[""].means()
    merged: Cells[Key] = Cells()
    for cells in series.cells.values():
        means = cells.means()
        numbers = _minmax(list(means.values())) if settings.scale == "minmax" else list(means.values())
        merged.enter(list(means), numbers, repeats=True)
    if merged.again and not settings.pool:
        raise RowsError("several tools have a value for the same key; add tool to --on, or average them with --pool")
    both = series.undefined & merged.first.keys()
    if both:
        shown = ", ".join(map(str, next(iter(sorted(both, key=str)))))
        what = f"{len(both)} keys have undefined numbers and others (first: {shown})"
        if not settings.pool:
            raise RowsError(f"{what}; name the column that tells the records apart with --on, or average with --pool")
        console.warn(f"{what}; the means are of the others")
    return {**dict.fromkeys(series.undefined, nan), **merged.means()}


def _minmax(numbers: Sequence[float]) -> list[float]:
    """Scale numbers to 0-1; NaN if all are equal."""
    low, high = min(numbers), max(numbers)
    return [(number - low) / (high - low) if high > low else nan for number in numbers]


def run(run: Run) -> Iterator[tuple[CorrelationRecord, dict[str, Any]]]:
    """Correlate the records given."""
    yield from run.carried(correlate(run.records(), run.settings))
