"""Rows in, of either format: the only reader of rows.

JSONL is read line by line by ourselves: nothing is inferred, unknown keys are kept, and every complaint
names `file:line`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mltools.errors import RowsError
from mltools.io.parquet import parquet_rows
from mltools.io.source import Source

Values = dict[str, Any]
RawRow = bytes | Values
"""A row as it was read: its JSON line, or the columns of a Parquet row."""


@dataclass(frozen=True)
class Block:
    """Some rows: their numbers from 1 (line or row), their JSON lines (None for Parquet), their columns."""

    numbers: Sequence[int]
    lines: Sequence[bytes] | None
    values: list[Values]


def iter_blocks(source: Source) -> Iterator[Block]:
    """Yield the rows of a source of either format, some at a time; blank lines are passed over.

    Raises:
        RowsError: a line that is not UTF-8, not JSON, not an object, or has a key twice (at any depth).
    """
    if source.is_parquet:
        rows = parquet_rows(source)
        yield Block(range(1, len(rows) + 1), None, rows)
        return
    start = 1
    for lines in source.blocks():
        numbers: Sequence[int] = range(start, start + len(lines))
        start += len(lines)
        if not any(lines):
            continue
        try:
            values = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            numbers = [number for number, line in zip(numbers, lines, strict=True) if line and not line.isspace()]
            lines = [line for line in lines if line and not line.isspace()]
            values = [_parse(source, number, line) for number, line in zip(numbers, lines, strict=True)]
        if not set(map(type, values)) <= {dict}:
            number, value = next(pair for pair in zip(numbers, values, strict=True) if type(pair[1]) is not dict)
            raise RowsError(f"{source.place(number)}: a {kind_name(value)}, not an object {{...}} with columns")
        _refuse_doubled_keys(source, numbers, lines, values)
        yield Block(numbers, lines, values)


def iter_rows(source: Source) -> Iterator[tuple[int, bytes | None, Values]]:
    """Yield (number from 1, JSON line or None, columns) of each row; else as `iter_blocks`."""
    for block in iter_blocks(source):
        lines: Sequence[bytes | None] = block.lines or [None] * len(block.values)
        yield from zip(block.numbers, lines, block.values, strict=True)


def _parse(source: Source, number: int, line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RowsError(f"{source.place(number)}: {_json_fault(line, error)}") from None


def _json_fault(line: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as fault:
        return f"not UTF-8 (byte {fault.start + 1} of the line is 0x{line[fault.start]:02x}); convert it first"
    return f"not JSON: {error.msg} (column {error.colno})"


_APART = re.compile(rb'"[ \t\r]+:')
"""A key whose colon does not follow at once; text may hold the same."""


def _refuse_doubled_keys(source: Source, numbers: Sequence[int], lines: Sequence[bytes], values: list[Values]) -> None:
    """Raise if an object has a key twice: the parser keeps the last one and says nothing.

    A line has at least a colon for each of its keys, so where all lines together have no more colons than there are
    keys kept, none is lost. Lines with more, in texts or in objects within, are looked at more closely.
    """
    if b"\n".join(lines).count(b":") == sum(map(len, values)):
        return
    for number, line, row in zip(numbers, lines, values, strict=True):
        if line.count(b":") != len(row) and (line.count(b'":') != _count_keys(row) or _APART.search(line)):
            _parse_again(source.place(number), line)


def _count_keys(row: Values) -> int:
    """Count the keys of an object and of all objects in it."""
    n, left = len(row), [value for value in row.values() if type(value) in (dict, list)]
    while left:
        value = left.pop()
        if type(value) is dict:
            n += len(value)
            value = value.values()
        left += [inner for inner in value if type(inner) in (dict, list)]
    return n


def _parse_again(place: str, line: bytes) -> None:
    """Parse a line that may have a key twice, and raise if it does."""
    doubled: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            doubled.append(Counter(name for name, _ in pairs).most_common(1)[0][0])

    try:
        json.loads(line, object_pairs_hook=members)
    except RecursionError:
        raise RowsError(f"{place}: nested too deeply to see whether a key stands twice") from None
    if doubled:
        raise RowsError(f"{place}: the key {json_preview(doubled[0])} stands twice in one object; keep one")


def kind_name(value: object) -> str:
    """Name what kind of JSON value it is, for a message."""
    names = {str: "text", bool: "true/false value", int: "number", float: "number", list: "list", dict: "object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def json_preview(value: object) -> str:
    """Write a value as JSON, cut short, for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def missing_column(place: str, column: str, values: Values, option: str) -> RowsError:
    """Build the error for a column that a row lacks: what is there, and how to name it."""
    from difflib import get_close_matches

    close = get_close_matches(column, values, n=1, cutoff=0.4)
    example = close[0] if close else "COLUMN"
    found = ", ".join(values) or "no columns"
    hint = f"; name it with --{option} {example}" if option else ""
    return RowsError(f'{place}: no "{column}" (found: {found}){hint}')
