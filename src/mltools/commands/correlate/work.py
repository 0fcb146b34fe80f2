"""Correlate tools, models, tasks or measures over shared keys (Table 2, Figures 8 and 9). Needs no torch.

Long records in, one record a pair of series out. A series is one value of the pivot column (swap, retrain, …) or
one of several values; its points are keys, combinations of the columns `on`. The numbers are `tools/statistics.py`'s.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, combinations, groupby
from math import fsum, nan
from operator import eq, is_, itemgetter, ne
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltools.analysis.carried import Carried
from mltools.analysis.centre_of_gravity import centre_and_scores
from mltools.analysis.epochs import LastEpochs
from mltools.analysis.layer_scores import LayerScores, add
from mltools.analysis.statistics import adjust, agreement, mean_agreement
from mltools.commands.correlate import Settings
from mltools.errors import RowsError, UsageError
from mltools.io.groups import SCALARS, Cells, Groups, tags_of
from mltools.io.kinds import CorrelationRecord
from mltools.io.records import Record, Records, are_numbers
from mltools.run import Run
from mltools.spec import bare

DEFAULTS = bare(Settings)

Key = tuple[Any, ...]
Floats = NDArray[np.float64]

PAIR = "assigned_label"  # of records about one pair of classes; beside them stands a record of all pairs together


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
    reader = _Reader(settings)
    for block in records:
        for part in block.by_columns():
            reader.read(part)
    reader.weigh_sweeps()
    if settings.cluster is not None and settings.cluster not in reader.on:
        raise UsageError(f"--cluster {settings.cluster}: no key column ({', '.join(reader.on)}); name it in --on")
    found = [(key, record) for key, table in reader.tables.items() for record in _pairs(table, settings, reader.on)]
    if not found:
        names = sorted({name for table in reader.tables.values() for name in table})
        raise RowsError(f"nothing to correlate: series {', '.join(names) or 'none'}; two are needed in each table")
    adjusted = adjust([record.p for _, record in found])
    for (key, record), p in zip(found, adjusted, strict=True):
        yield replace(record, p_adjusted=p), dict(zip(settings.per, key, strict=True))


@dataclass
class _Series:
    """The numbers of one series: by tool where they are to be scaled (else all under ""), then by key."""

    cells: dict[str, Cells[Key]] = field(default_factory=dict)
    undefined: set[Key] = field(default_factory=set)
    carried: Carried = field(default_factory=Carried)


class _Reader:
    """Enters records into tables: (values of the columns `per`) to name of the series to its numbers."""

    def __init__(self, settings: Settings) -> None:
        self.tables: dict[Key, dict[str, _Series]] = {}
        self._config = settings
        self._on = settings.on
        self.on: tuple[str, ...] = ()
        self._sweeps = Groups(None, LayerScores)
        self._epochs = LastEpochs()
        self._scaled = settings.scale == "minmax"
        self._pivot = settings.series

    def read(self, records: Records) -> None:
        """Enter records with the same columns; those that must be weighed first are kept for `weigh_sweeps`."""
        if PAIR not in (*self._config.per, *(self._on or ()), self._pivot):
            records = records.where(PAIR, partial(is_, None))
        named = (*self._config.per, *(self._on or ()), self._pivot)
        if "epoch" not in named:
            records = self._epochs.take(records)
        events, others = records.parted("event")
        for value in self._config.value:
            self._enter(events.where("event", partial(eq, value)), value, "layer")
        windows, others = others.parted("start")
        layers, others = others.parted("layer")
        self._read_kind(windows, {"m_cog", "score"})
        self._read_kind(layers.where("layer", partial(ne, 0)), {"m_cog"})
        self._read_kind(others, set())

    def _read_kind(self, records: Records, weighed: set[str]) -> None:
        """Enter records of one kind, which must be weighed for some values, and have a column for others."""
        if not len(records):
            return
        direct = [value for value in self._config.value if value in records.values[0] and value not in weighed]
        for value in direct:
            self._enter(records, value, value)
        if weighed & set(self._config.value) and {"start", "score"} & records.values[0].keys():
            add(records, self._sweeps)
        elif not direct:
            records.record(0).get(self._config.value[0], object)  # says that it is missing

    def weigh_sweeps(self) -> None:
        """Enter what records give together: centres of gravity and layer scores of sweeps, the last of epochs."""
        for group in self._sweeps:
            line, source = [group.first.line], group.first.source
            said = {**group.tags, "layers": group.n_layers, "widths": group.widths}
            said |= {"valid": group.carried.valid, "valid_reason": group.carried.valid_reason}
            if "m_cog" in self._config.value:
                centre = centre_and_scores(group)[0] if group.unscorable is None else None
                self._enter(Records(source, line, [{**said, "m_cog": centre}]), "m_cog", "m_cog")
            if "score" in self._config.value and group.kind == "window":
                scores = [{**said, "layer": i, "score": score} for i, score in enumerate(group.scores(), start=1)]
                self._enter(Records(source, line * len(scores), scores), "score", "score")
        for epoch in self._epochs.last():
            self._read_kind(epoch, set())

    def _enter(self, records: Records, value: str, column: str) -> None:
        """Enter the numbers in `column`, which are of `value`, into their series."""
        if not len(records):
            return
        heads, on = self._heads(), self._keys(records)
        for name in (*heads, *on):
            records.record(0).get(name, SCALARS)
        try:
            numbers = list(map(itemgetter(column), records.values))
            self._carry(records, value, heads)
            if None in numbers:
                undefined = records.where(column, lambda number: number is None)
                for head, key in zip(undefined.columns(heads), undefined.columns(on), strict=True):
                    self._series(head, value).undefined.add(key)
                records = records.where(column, lambda number: number is not None)
            self._enter_numbers(records, value, column, heads, on)
        except TypeError:  # a list cannot be hashed
            for record in records:
                for name in (*heads, *on):
                    record.get(name, SCALARS)
            raise

    def _carry(self, records: Records, value: str, heads: Sequence[str]) -> None:
        """Note what records say of themselves, for the series that they belong to."""
        names = list(records.columns(heads))
        found = dict.fromkeys(names)  # in order of appearance, which that of tables follows
        if len(found) == 1 or not {"valid", "widths"} & records.values[0].keys():  # the usual cases, and faster
            for head in found:
                self._series(head, value).carried.read(records)
            return
        start = 0
        for head, run in groupby(names):
            stop = start + len(list(run))
            self._series(head, value).carried.read(records[start:stop])
            start = stop

    def _enter_numbers(
        self, records: Records, value: str, column: str, heads: Sequence[str], on: Sequence[str]
    ) -> None:
        numbers = list(map(itemgetter(column), records.values))
        if not are_numbers(numbers):
            numbers = [record.number(column) for record in records]
        keys = list(records.columns(on))
        start = 0
        found: dict[Key, Cells[Key]] = {}
        for head, run in groupby(records.columns(heads)):
            stop = start + len(list(run))
            if head not in found:
                found[head] = self._series(head, value).cells.setdefault(head[-1] if self._scaled else "", Cells())
            cells = found[head]
            repeated = cells.enter(keys[start:stop], numbers[start:stop], repeats=self._config.pool)
            if repeated is not None:
                key = ", ".join(f"{name}={part}" for name, part in zip(on, keys[start + repeated], strict=True))
                record = records.record(start + repeated)
                raise RowsError(f"{record.place}: {value} again for {key}; {_advice(record, on)}")
            start = stop

    def _heads(self) -> list[str]:
        """Name the columns that say which series a record belongs to."""
        return [*self._config.per, *filter(None, [self._pivot]), *(["tool"] if self._scaled else [])]

    def _series(self, head: Key, value: str) -> _Series:
        n = len(self._config.per)
        names = [str(head[n])] if self._pivot else []
        if not names or len(self._config.value) > 1:
            names.append(value)
        return self.tables.setdefault(head[:n], {}).setdefault(" ".join(names), _Series())

    def _keys(self, records: Records) -> tuple[str, ...]:
        """Name the key columns: those given, else tool and tags that are not pivot nor `per`; `layer` for scores."""
        record = records.record(0)
        if self._on is None:
            others = {"part", "target", self._pivot, *self._config.per, *(() if self._pivot else ("tool",))}
            names = dict.fromkeys(["tool", *tags_of(record)])
            self._on = tuple(name for name in names if name not in others and record.values[name] is not None)
        layer = ("layer",) if "score" in self._config.value and "layer" not in self._on else ()
        if not (self._on or layer):
            raise RowsError(f"{record.place}: no tags to match records on; name the key columns with --on")
        self.on = (*self._on, *layer)
        return self.on


def _advice(record: Record, on: Sequence[str]) -> str:
    """Say what to do about a key that comes twice: places in a model are compared one by one, runs may be averaged."""
    place = next((name for name in ("window", "layer") if record.values.get(name) is not None and name not in on), None)
    if place is not None:
        return f"each {place} has a record: compare them {place} by {place}, --on {','.join([*on, place])}"
    return "name the column that tells the records apart with --on, or average runs of the same with --pool"


def _pairs(table: dict[str, _Series], settings: Settings, on: Sequence[str]) -> Iterator[CorrelationRecord]:
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


def _carried_by(table: dict[str, _Series], group: Sequence[str], settings: Settings) -> Carried:
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


def _numbers(series: _Series, settings: Settings) -> dict[Key, float]:
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
    return {**dict.fromkeys(series.undefined, nan), **merged.means()}


def _minmax(numbers: Sequence[float]) -> list[float]:
    """Scale numbers to 0-1; NaN if all are equal."""
    low, high = min(numbers), max(numbers)
    return [(number - low) / (high - low) if high > low else nan for number in numbers]


def run(run: Run) -> Iterator[tuple[CorrelationRecord, dict[str, Any]]]:
    """Correlate the records given."""
    yield from run.carried(correlate(run.records(), run.settings))
