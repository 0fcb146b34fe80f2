"""Sorting records into groups: by tool and tags, or by columns that a person names. Fast for a million records."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, TypeVar

from mltools.io.records import Record, Records, known_columns

G = TypeVar("G")
Group = tuple[tuple[str, Any], ...]
SCALARS = (str, int, float, bool, type(None))

# Columns that some record kind declares and that yet tell groups apart: one sweep has one value of each.
GROUPING = frozenset({"part", "target"})


@dataclass(slots=True)
class _Layout(Generic[G]):
    """Records with the same columns: which of them tell groups apart, and the groups seen by their values."""

    names: list[str]
    take: Callable[[dict[str, Any]], Any]
    seen: dict[Any, G] = field(default_factory=dict)


class Groups(Generic[G]):
    """Finds the group of each record: its `tool`, and the columns `by` (default: every tag).

    A tag is a column that no kind of record declares; an undefined one counts as absent, and the order of columns
    does not matter. A group is what `make(its columns, its first record)` gives.
    """

    def __init__(self, by: Sequence[str] | None, make: Callable[[Group, Record], G]) -> None:
        """Start without groups."""
        self._by, self._make = by, make
        self._known = known_columns() - GROUPING
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
        if self._by is not None:
            for name in self._by:
                record.get(name, SCALARS)
            return [name for name in self._by if name != "tool"]
        columns = record.values.items()
        return [name for name, value in columns if name not in self._known and isinstance(value, SCALARS)]

    def _enter(self, record: Record, names: Sequence[str]) -> G:
        columns = [("tool", record.get("tool", str)), *((name, record.get(name, SCALARS)) for name in names)]
        group = tuple([column for column in columns if column[1] is not None])
        key = tuple(sorted(group, key=itemgetter(0)))
        if key not in self._groups:
            self._groups[key] = self._make(group, record)
        return self._groups[key]
