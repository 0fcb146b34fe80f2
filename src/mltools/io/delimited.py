"""CSV and TSV in: the first line names the columns, every line has as many fields, and every complaint its line."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from mltools import console
from mltools.errors import RowsError
from mltools.io.source import Source

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
BLOCK_ROWS = 4096
LONGEST_FIELD = 1 << 30
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
QUOTED = re.compile(r'"(?:[^"]|"")*"')
"""A cell as those write it who quote: marks around it, and each one inside doubled."""
WHOLE = re.compile(r"-?[0-9]{1,15}\.0+")
WORDS = {"": None, "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

Cells = Callable[[str], Callable[[str], Any] | None]
"""Gives what reads the cells of a column; None where they stay text."""


def read_cell(text: str) -> Any:
    """Read a cell of a column of labels or ids as JSON would hold it: an integer, true or false, null, else text."""
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if WHOLE.fullmatch(text) else text


def separated_rows(
    source: Source, texts: Iterable[bytes], separator: str, cells: Cells
) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
    """Yield (line numbers, columns) of rows, some at a time. CSV has quotes; TSV has none, and says so once.

    Raises:
        RowsError: a line that is not UTF-8, or has more or fewer fields than the first; a column named twice.
    """
    csv.field_size_limit(LONGEST_FIELD)
    name = "TSV" if separator == "\t" else "CSV"
    raw = chain.from_iterable(text.split(b"\n") for text in texts)  # a quoted cell keeps the ends of its lines
    lines = (_decode(source, number, line) for number, line in enumerate(raw, start=1))
    quoting: Any = csv.QUOTE_MINIMAL if name == "CSV" else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    try:
        header = _header(source, name, next(filter(None, reader), []))
        typed = [(column, read) for column in header if (read := cells(column)) is not None]
        numbers: list[int] = []
        rows: list[dict[str, Any]] = []
        told = name == "CSV" or _tell_of_quotes(source, reader.line_num, header)
        for fields in filter(None, reader):
            if len(fields) != len(header):
                raise RowsError(
                    f"{source.place(reader.line_num)}: {len(fields)} fields, but the first line of the {name} names "
                    f"{len(header)} columns; {_HINTS[separator]}"
                )
            told = told or _tell_of_quotes(source, reader.line_num, fields)
            row = dict(zip(header, fields, strict=True))
            for column, read in typed:
                row[column] = read(row[column])
            numbers.append(reader.line_num)
            rows.append(row)
            if len(rows) == BLOCK_ROWS:
                yield numbers, rows
                numbers, rows = [], []
    except csv.Error as error:
        fault = "a CR alone ends a line; end lines with LF" if "new-line" in str(error) else error
        raise RowsError(f"{source.place(reader.line_num)}: not {name} ({fault})") from None
    yield numbers, rows


_HINTS = {
    ",": "quote fields that hold commas",
    ";": "quote fields that hold semicolons",
    "\t": "TSV has no quotes: use CSV where fields hold tabs or ends of lines",
}


def _tell_of_quotes(source: Source, number: int, fields: list[str]) -> bool:
    """Say that a cell of TSV seems to be quoted, and whether that was said."""
    quoted = any(map(QUOTED.fullmatch, fields))
    if quoted:
        place = source.place(number)
        console.warn(
            f"{place}: a cell in double quotes, which TSV reads as text like all else; where they only quote, write CSV"
        )
    return quoted


def _header(source: Source, name: str, header: list[str]) -> list[str]:
    doubled = next((column for column in header if header.count(column) > 1), None)
    if doubled is not None:
        raise RowsError(f'{source.place(1)}: the {name} has two columns "{doubled}"; keep one')
    return header


def _decode(source: Source, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8") + "\n"
    except UnicodeDecodeError:
        raise RowsError(f"{source.place(number)}: not UTF-8; convert it first") from None
