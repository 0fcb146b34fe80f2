"""Sorting records into groups: by tool and tags, or by columns that a person names. Fast for a million records."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, islice
from math import fsum
from operator import itemgetter
from typing import Any, Generic, TypeVar

from mltools.io.kinds import declared_columns
from mltools.io.records import Record, Records

G = TypeVar("G")
K = TypeVar("K")
Group = tuple[tuple[str, Any], ...]
SCALARS = (str, int, float, bool, type(None))

# Columns that some record kind declares and that yet tell groups apart: one sweep has one value of each.
GROUPING = frozenset({"part", "target"})

# What some version's records say about how far they can be trusted; no tag, even in records of a kind that lacks it.
CARRIED = frozenset(
    {
        *("valid", "valid_reason", "twins", "baseline_noisy_accuracy", "baseline_clean_accuracy"),
        *("donor_noisy_reverted", "donor_clean_accuracy", "n_cut", "n_unlabelled"),
        *("label_margin", "label_margin_drop", "n_layers", "widths"),
    }
)


def tags_of(record: Record) -> list[str]:
    """Name the columns of a record that its kind does not declare, and those that tell sweeps apart; no lists."""
    declared = _no_tags(tuple(record.values))
    return [name for name, value in record.values.items() if name not in declared and isinstance(value, SCALARS)]


@lru_cache(maxsize=256)
def _no_tags(columns: tuple[str, ...]) -> frozenset[str]:
    return (declared_columns(columns) | CARRIED) - GROUPING


@dataclass(slots=True)
class Cells(Generic[K]):
    """Numbers by key: the first of each, and those that came again."""

    first: dict[K, float] = field(default_factory=dict)
    again: dict[K, list[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.first) + sum(map(len, self.again.values()))

    def enter(self, keys: Sequence[K], numbers: Sequence[float], *, repeats: bool) -> int | None:
        """Enter numbers. If keys must not repeat, stop at the first that does and give its index."""
        before = len(self.first)
        deque(map(self.first.setdefault, keys, numbers), maxlen=0)
        added = len(self.first) - before
        if added == len(keys):
            return None
        new = set(islice(reversed(self.first), added))
        for index, (key, number) in enumerate(zip(keys, numbers, strict=True)):
            if key in new:
                new.remove(key)
            elif repeats:
                self.again.setdefault(key, []).append(number)
            else:
                return index
        return None

    def runs(self, key: K) -> list[float]:
        """Give all numbers of a key."""
        return [self.first[key], *self.again.get(key, ())]

    def means(self) -> dict[K, float]:
        """Give the mean of each key's numbers; it does not depend on their order."""
        if not self.again:
            return self.first
        return {**self.first, **{key: fsum(self.runs(key)) / len(self.runs(key)) for key in self.again}}


@dataclass(slots=True)
class _Layout(Generic[G]):
    """Records with the same columns: which of them tell groups apart, and the groups seen by their values."""

    names: list[str]
    take: Callable[[dict[str, Any]], Any]
    seen: dict[Any, G] = field(default_factory=dict)


class Groups(Generic[G]):
    """Finds the group of each record: its `tool`, and the columns `by` (default: every tag).

    A tag is a column that the kind of record does not declare; an undefined one counts as absent, and the order of
    columns does not matter. A group is what `make(its columns, its first record)` gives.
    """

    def __init__(
        self,
        by: Sequence[str] | None,
        make: Callable[[Group, Record], G],
        *,
        runs: bool = False,
        numbers: Collection[str] = (),
    ) -> None:
        """Start without groups; with `runs`, groups that differ in other tags or the digest `run` are kept apart.

        The columns `numbers` are no tags, whatever the kind declares: they are what is measured.
        """
        self._by, self._make, self._runs, self._numbers = by, make, runs, numbers
        self._groups: dict[Group, G] = {}
        self._layouts: dict[tuple[str, ...], _Layout[G]] = {}

    def __iter__(self) -> Iterator[G]:
        return iter(self._groups.values())

    def runs(self, records: Records) -> Iterator[tuple[G, slice]]:
        """Yield each run of records of one group; the records have the same columns (`Records.by_columns`).

        Raises:
            RowsError: no `tool`, a column of `by` missing, or a list where a tag should be.
        """
        columns = tuple(records.values[0])
        layout = self._layouts.get(columns)
        if layout is None:
            names = self._names(records.record(0))
            layout = self._layouts[columns] = _Layout(names, itemgetter("tool", *names))
        start = 0
        for key, run in groupby(map(layout.take, records.values)):
            stop = start + len(list(run))
            try:
                group = layout.seen[key]
            except (KeyError, TypeError):  # new, or a list, which cannot be hashed
                group = layout.seen[key] = self._enter(records.record(start), layout.names)
            yield group, slice(start, stop)
            start = stop

    def _names(self, record: Record) -> list[str]:
        record.get("tool", str)
        for name in self._by or ():
            record.get(name, SCALARS)
        tags = tags_of(record) if self._by is None or self._runs else []
        tags = [name for name in tags if name not in self._numbers]
        digest = ["run"] if self._runs and "run" in record.values else []
        return [name for name in dict.fromkeys([*(self._by or ()), *tags, *digest]) if name != "tool"]

    def _enter(self, record: Record, names: Sequence[str]) -> G:
        columns = [("tool", record.get("tool", str)), *((name, record.get(name, SCALARS)) for name in names)]
        group = tuple([column for column in columns if column[1] is not None])
        key = tuple(sorted(group, key=itemgetter(0)))
        if key not in self._groups:
            self._groups[key] = self._make(group, record)
        return self._groups[key]
