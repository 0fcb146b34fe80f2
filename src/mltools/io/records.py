"""Records read back, JSON lines, Parquet or CSV, a block at a time."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, groupby, repeat
from operator import is_, is_not, itemgetter
from pathlib import Path
from typing import Any, TypeVar, cast

from mltools.errors import RowsError
from mltools.io.rows import iter_blocks, json_preview
from mltools.io.source import Source
from mltools.io.tables import record_cells

R = TypeVar("R")

KINDS: Mapping[object, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    (int, float): "a number",
    (int, str): "a whole number or text",
}
"""How errors call what a column has to be."""


LARGEST = 1e100
"""Numbers of records may have this size: sums of their squares are finite."""


def are_numbers(values: Sequence[object]) -> bool:
    """Whether all are numbers that `Record.number` gives; for many at once."""
    if not set(map(type, values)) <= {int, float}:
        return False
    numbers = cast(Sequence[float], values)
    return not numbers or (-LARGEST <= min(numbers) <= max(numbers) <= LARGEST and not math.isnan(math.fsum(numbers)))


@dataclass(slots=True)
class Record:
    """A record read back: where it stood, and its columns."""

    source: Source
    line: int
    values: dict[str, Any]

    @property
    def place(self) -> str:
        """Name the line or row."""
        return self.source.place(self.line)

    def get(self, key: str, kind: type[R] | tuple[type, ...]) -> Any:
        """Give a column's value.

        Raises:
            RowsError: the column is missing or of another type.
        """
        if key not in self.values:
            found = ", ".join(self.values) or "no columns"
            raise RowsError(f'{self.place}: no "{key}" (found: {found})')
        value = self.values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise RowsError(
                f'{self.place}: "{key}" is {json.dumps(value, default=str)[:40]}, not {KINDS.get(kind, "one value")}'
            )
        return value

    def number(self, key: str) -> float:
        """Give a finite number.

        Raises:
            RowsError: the column is missing, null, not a number, or larger than what squares and sums can bear.
        """
        value = self.get(key, (int, float))
        if not abs(value) <= LARGEST:
            raise RowsError(f'{self.place}: "{key}" is {json_preview(value)}, not a number of at most {LARGEST:g}')
        return float(value)


@dataclass(frozen=True)
class Records:
    """Some records of one source, in their order. A million records are handled in such blocks, for speed."""

    source: Source
    lines: Sequence[int]
    values: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.values)

    def record(self, index: int) -> Record:
        """Give one record."""
        return Record(self.source, self.lines[index], self.values[index])

    def __getitem__(self, part: slice) -> "Records":
        return Records(self.source, self.lines[part], self.values[part])

    def __iter__(self) -> Iterator[Record]:
        return map(Record, repeat(self.source), self.lines, self.values)

    def where(self, column: str, keep: Callable[[Any], bool]) -> "Records":
        """Take the records whose value in a column is to be kept; all of them, where they lack the column.

        The records have the same columns (`by_columns`).
        """
        if not self.values or column not in self.values[0]:
            return self
        kept = list(map(keep, map(itemgetter(column), self.values)))
        if all(kept):
            return self
        return Records(self.source, list(compress(self.lines, kept)), list(compress(self.values, kept)))

    def parted(self, column: str) -> tuple["Records", "Records"]:
        """Give the records that have a value in a column, and those that have none; as `where`, of the same columns."""
        if not self.values or column not in self.values[0]:
            return self[:0], self
        return self.where(column, partial(is_not, None)), self.where(column, partial(is_, None))

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield of each record the values in some columns, all of which it has."""
        if not names:
            return repeat((), len(self))
        return zip(*(map(itemgetter(name), self.values) for name in names), strict=True)

    def by_columns(self) -> Iterator["Records"]:
        """Split where the names of the columns change."""
        start = 0
        for _, run in groupby(self.values, tuple):
            stop = start + len(list(run))
            yield self[start:stop]
            start = stop


def read_records(
    paths: Iterable[str | Path | Source], on_source: Callable[[Source], None] | None = None
) -> Iterator[Records]:
    """Yield the records of all paths in turn, a block at a time (`-` for stdin; none given means stdin).

    Raises:
        RowsError: a line that is no JSON object.
    """
    for path in list(paths) or ["-"]:
        source = path if isinstance(path, Source) else Source(path)
        for block in iter_blocks(source, record_cells):
            yield Records(source, block.numbers, block.values)
        if on_source is not None:
            on_source(source)
