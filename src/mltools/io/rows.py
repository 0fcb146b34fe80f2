"""The rows of one source, of any form: JSON lines, a JSON array, CSV, TSV or Parquet, packed or not.

JSONL is read line by line by ourselves: nothing is inferred, unknown keys are kept, and every complaint
names `file:line`. `inputs.Rows` makes one table of several sources.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson

from mltools.errors import RowsError
from mltools.io.delimited import SEPARATORS, Cells, separated_rows
from mltools.io.parquet import parquet_rows
from mltools.io.source import Source, split_lines

Values = dict[str, Any]
RawRow = bytes | Values
"""A row as it was read: its JSON line, or the columns of a Parquet row."""


@dataclass(frozen=True)
class Block:
    """Some rows: their numbers from 1 (line or row), their JSON lines (None for other forms), their columns."""

    numbers: Sequence[int]
    lines: Sequence[bytes] | None
    values: list[Values]

    def shifted(self, by: int) -> "Block":
        """Count from another number."""
        return Block([number + by for number in self.numbers], self.lines, self.values)


NOT_ROWS = {
    (0, b"PK\x03\x04"): "a ZIP file or Excel workbook",
    (0, b"\xd0\xcf\x11\xe0"): "an old Excel workbook",
    (257, b"ustar"): "a tar archive",
    (0, b"PAR1"): "Parquet that is packed once more",
    (0, b"ARROW1"): "an Arrow file",
    (0, b"\xff\xff\xff\xff"): "an Arrow stream",
    (0, b"\x80"): "a pickle",
    (0, b"<"): "HTML or XML",
    (0, b"\x89HDF"): "HDF5",
    (0, b"SQLite"): "a database of SQLite",
    (0, b"\xff\xfe"): "text in UTF-16",
    (0, b"\xfe\xff"): "text in UTF-16",
}
"""By what and from which byte on one knows files that people may take for rows."""
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")


def iter_blocks(source: Source, cells: Cells = lambda column: None) -> Iterator[Block]:
    """Yield the rows of a source of any form, some at a time; blank lines are passed over.

    Text is JSON where it starts as JSON does; else its name, or a tab or comma in its first line, tells CSV or TSV.

    Args:
        source: where they are.
        cells: what reads the cells of CSV and TSV.

    Raises:
        RowsError: a line that is not UTF-8, not JSON, not an object, or has a key twice (at any depth); fields more or
            fewer than columns; a file of another form.
    """
    if source.is_parquet:
        rows = parquet_rows(source)
        yield Block(range(1, len(rows) + 1), None, rows)
        return
    first, texts = _peeked(source.texts())
    for (start, known), what in NOT_ROWS.items():
        if first.startswith(known, start):
            raise RowsError(f"{source.name}: {what}, not rows; save it as JSON lines, CSV or Parquet, in UTF-8")
    separator = _separator(source, first)
    if separator is not None:
        for numbers, rows in separated_rows(source, texts, separator, cells):
            yield Block(numbers, None, rows)
    elif first.lstrip().startswith(b"["):
        yield from _array(source, first, map(split_lines, texts))
    else:
        yield from _lines(source, map(split_lines, texts))


def _peeked(texts: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Give the first line that is not blank, and all lines."""
    for text in texts:
        if text and not text.isspace():
            return next(line for line in split_lines(text) if line and not line.isspace()), chain([text], texts)
    return b"", iter(())


def _separator(source: Source, first: bytes) -> str | None:
    """Give what separates the fields of CSV or TSV; None for JSON. Where numbers have commas, CSV has semicolons."""
    if first.lstrip()[:1] in (b"{", b"[", b""):
        return None
    of_name = SEPARATORS.get(source.ending)
    if source.ending in JSON_ENDINGS or (of_name is not None and of_name.encode() in first):
        return of_name
    if of_name == "," and b"\t" in first:
        raise RowsError(f"{source.name}: fields between tabs, not commas; name it .tsv, which has no quotes")
    return next((separator for separator in ("\t", ",", ";") if separator.encode() in first), of_name)


def _array(source: Source, first: bytes, blocks: Iterator[list[bytes]]) -> Iterator[Block]:
    """Read one JSON array of objects."""
    lines = list(chain.from_iterable(blocks))
    text = b"\n".join(lines)
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        with contextlib.suppress(orjson.JSONDecodeError):
            orjson.loads(first)  # a whole list in a line: JSON lines, and wrong ones
            yield from _lines(source, iter([lines]))
        place = source.place(error.lineno)
        raise RowsError(f"{place}: {_json_fault(text, error)} in a JSON array") from None
    block = Block(range(1, len(values) + 1), None, values)
    _refuse_others(source, block)
    if text.count(b":") != sum(map(len, values)):
        refuse_doubled_keys(source.name, text)
    yield block


def _lines(source: Source, blocks: Iterator[list[bytes]]) -> Iterator[Block]:
    start = 1
    for lines in blocks:
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
        block = Block(numbers, lines, values)
        _refuse_others(source, block)
        _refuse_doubled(source, numbers, lines, values)
        yield block


def _refuse_others(source: Source, block: Block) -> None:
    """Raise if what stands in a row's place is no object."""
    if not set(map(type, block.values)) <= {dict}:
        number, value = next(
            pair for pair in zip(block.numbers, block.values, strict=True) if type(pair[1]) is not dict
        )
        raise RowsError(f"{source.place(number)}: {kind_name(value)}, not an object {{...}} with columns")


def iter_rows(source: Source, cells: Cells = lambda column: None) -> Iterator[tuple[int, bytes | None, Values]]:
    """Yield (number from 1, JSON line or None, columns) of each row; else as `iter_blocks`."""
    for block in iter_blocks(source, cells):
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
    hint = ""
    if line.strip() == b"{":
        hint = "; write an object on one line (jq -c . does), or an array of them"
    elif line.lstrip()[:1] not in (b"{", b"["):
        hint = "; CSV and TSV are read from files that are named so"
    return f"not JSON: {error.msg} (column {error.colno}){hint}"


_APART = re.compile(rb'"[ \t\r]+:')
"""A key whose colon does not follow at once; text may hold the same."""


def _refuse_doubled(source: Source, numbers: Sequence[int], lines: Sequence[bytes], values: list[Values]) -> None:
    """Raise if an object has a key twice: the parser keeps the last one and says nothing.

    A line has at least a colon for each of its keys, so where all lines together have no more colons than there are
    keys kept, none is lost. Lines with more, in texts or in objects within, are looked at more closely.
    """
    if b"\n".join(lines).count(b":") == sum(map(len, values)):
        return
    for number, line, row in zip(numbers, lines, values, strict=True):
        if line.count(b":") != len(row) and (line.count(b'":') != _count_keys(row) or _APART.search(line)):
            refuse_doubled_keys(source.place(number), line)


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


def refuse_doubled_keys(place: str, line: bytes) -> None:
    """Parse JSON that may have a key twice in an object, and raise RowsError if it does."""
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
    number = "a number"
    names = {str: "a text", bool: "a true/false value", int: number, float: number, list: "a list", dict: "an object"}
    return "a null" if value is None else names.get(type(value), f"a {type(value).__name__}")


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
