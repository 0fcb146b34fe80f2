"""Sorting records into groups: by tool and tags, or by columns that a person names. Fast for a million records."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

from mltools.errors import RowsError
from mltools.io.records import Record, known_columns

G = TypeVar("G")
Group = tuple[tuple[str, Any], ...]
SCALARS = (str, int, float, bool, type(None))

# Columns that some record kind declares and that yet tell groups apart: one sweep has one value of each.
GROUPING = frozenset({"part", "target", "objective", "norm"})


class Groups(Generic[G]):
    """Finds the group of each record: its `tool`, and the columns `by` (default: every tag).

    A tag is a column that no kind of record declares; an undefined one counts as absent, and the order of columns
    does not matter. `found` holds what `make(group, first record)` gave for each group, in order of appearance.
    """

    def __init__(self, by: Sequence[str] | None, make: Callable[[Group, Record], G]) -> None:
        """Start without groups."""
        self.found: list[G] = []
        self._by, self._make = by, make
        self._known = known_columns() - GROUPING
        self._groups: dict[Group, G] = {}
        # A million records have few layouts (names of columns): for each, how to take out the values that tell
        # groups apart, and the group of each combination of values seen.
        self._layouts: dict[tuple[str, ...], tuple[Callable[[dict[str, Any]], Any], dict[Any, G]]] = {}

    def find(self, record: Record) -> G:
        """Give the group of a record, a new one if it is the first.

        Raises:
            RowsError: no `tool`, a column of `by` missing, or a list where a tag should be.
        """
        layout = self._layouts.get(tuple(record.values))
        if layout is None:
            names = ["tool", *self._columns(record)]
            layout = self._layouts[tuple(record.values)] = (itemgetter(*names), {})
        take, seen = layout
        try:
            return seen[take(record.values)]
        except KeyError:
            return seen.setdefault(take(record.values), self._enter(record))
        except TypeError:  # unhashable
            raise RowsError(
                f"{record.place}: a tag is a list here but not in other records; choose columns with --by"
            ) from None

    def _columns(self, record: Record) -> list[str]:
        if self._by is None:
            values = record.values.items()
            names = [name for name, value in values if name not in self._known and isinstance(value, SCALARS)]
        else:
            names = list(self._by)
        return [name for name in names if name != "tool"]

    def _enter(self, record: Record) -> G:
        columns = {"tool": record.get("tool", str)}
        columns |= {name: record.get(name, SCALARS) for name in self._columns(record)}
        group = tuple((name, value) for name, value in columns.items() if value is not None)
        key = tuple(sorted(group, key=itemgetter(0)))
        if key not in self._groups:
            self._groups[key] = self._make(group, record)
            self.found.append(self._groups[key])
        return self._groups[key]
