"""The series that records make: which table and which series each number is of, and its key."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import eq, is_, itemgetter, ne
from typing import Any

from mltools.analysis.carried import Carried
from mltools.analysis.centre_of_gravity import centre_and_scores
from mltools.analysis.epochs import LastEpochs
from mltools.analysis.layer_scores import LayerScores
from mltools.analysis.score_records import add
from mltools.commands.correlate import Settings
from mltools.errors import RowsError
from mltools.io.groups import SCALARS, Cells, Groups, tags_of
from mltools.io.records import Record, Records, are_numbers

Key = tuple[Any, ...]
LAYERS = ("layer", "m_cog", "m_cog_solved")
"""Columns whose numbers are layers."""
PAIR = "assigned_label"  # of records about one pair of classes; beside them stands a record of all pairs together


@dataclass
class Series:
    """The numbers of one series: by tool where they are to be scaled (else all under ""), then by key.

    `depths` are the numbers of layers of the models whose layers (or centres of gravity) the numbers are.
    """

    cells: dict[str, Cells[Key]] = field(default_factory=dict)
    undefined: set[Key] = field(default_factory=set)
    carried: Carried = field(default_factory=Carried)
    depths: set[int] = field(default_factory=set)


class SeriesReader:
    """Enters records into tables: (values of the columns `per`) to name of the series to its numbers."""

    def __init__(self, settings: Settings) -> None:
        self.tables: dict[Key, dict[str, Series]] = {}
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
            if column in LAYERS and "layers" in records.values[0]:
                for head, depth in set(zip(records.columns(heads), records.columns(("layers",)), strict=True)):
                    self._series(head, value).depths.add(*depth)
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

    def _series(self, head: Key, value: str) -> Series:
        n = len(self._config.per)
        names = [str(head[n])] if self._pivot else []
        if not names or len(self._config.value) > 1:
            names.append(value)
        return self.tables.setdefault(head[:n], {}).setdefault(" ".join(names), Series())

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
