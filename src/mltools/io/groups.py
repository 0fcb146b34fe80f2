"""Sorting records into groups: by tool and tags, or by columns that a person names. Fast for a million records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

    def __iter__(self) -> Any:
        return iter(self._groups.values())

    def assign(self, records: Records) -> list[G]:
        """Give the group of each of some records that have the same columns (`Records.by_columns`).

        Raises:
            RowsError: no `tool`, a column of `by` missing, or a list where a tag should be.
        """
        columns = tuple(records.values[0])
        layout = self._layouts.get(columns)
        if layout is None:
            names = self._names(records[0])
            layout = self._layouts[columns] = _Layout(names, itemgetter("tool", *names))
        keys = list(map(layout.take, records.values))
        try:
            new = [(index, key) for index, key in enumerate(keys) if key not in layout.seen]
        except TypeError:  # a list cannot be hashed
            for record in records:
                for name in layout.names:
                    record.get(name, SCALARS)
            raise
        for index, key in new:
            if key not in layout.seen:
                layout.seen[key] = self._enter(records[index], layout.names)
        return [layout.seen[key] for key in keys]

    def _names(self, record: Record) -> list[str]:
        record.get("tool", str)
        if self._by is not None:
            for name in self._by:
                record.get(name, SCALARS)
            return [name for name in self._by if name != "tool"]
        columns = record.values.items()
        return [name for name, value in columns if name not in self._known and isinstance(value, SCALARS)]

    def _enter(self, record: Record, names: Sequence[str]) -> G:
        columns = {"tool": record.get("tool", str), **{name: record.values[name] for name in names}}
        group = tuple((name, value) for name, value in columns.items() if value is not None)
        key = tuple(sorted(group, key=itemgetter(0)))
        if key not in self._groups:
            self._groups[key] = self._make(group, record)
        return self._groups[key]
