"""Rows out: JSON lines changed in place, columns of Parquet rows replaced, all else kept as it was."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, cast

import orjson

from mltools.errors import RowsError
from mltools.io.atomic import atomic_file
from mltools.io.parquet import first_line, parquet_metadata, stored_frame
from mltools.io.provenance import KEY, Provenance
from mltools.io.rows import RawRow, Values
from mltools.io.source import Source


def replace_value(line: bytes, key: str, value: bytes) -> bytes:
    """Change one value of a JSON object; every other byte stays as it was.

    Args:
        line: a JSON object that has the key once. Its closing brace may be missing.
        key: the key, at the top level.
        value: its new value, as JSON.
    """
    quoted, member = _member(key)
    if BACKSLASH not in line and line.count(quoted) == 1:  # nothing else can look like the key
        found = member.search(line)
        if found:
            return line[: found.start(1)] + value + line[found.end(1) :]
    text = line.decode("utf-8")
    start, end = {name: (start, end) for name, start, end in member_spans(text)}[key]
    return text[:start].encode() + value + text[end:].encode()


BACKSLASH = ord("\\")


@cache
def _member(key: str) -> tuple[bytes, re.Pattern[bytes]]:
    """Give a key as JSON; and what finds it with its value, a string without escapes, number, true, false or null."""
    quoted = orjson.dumps(key)
    return quoted, re.compile(re.escape(quoted) + rb'\s*:\s*("[^"]*"|[^][{},\s]+)')


def member_spans(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (key, start, end) of each top-level value of a JSON object, which must have parsed once."""
    decode: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode
    skip = json.decoder.WHITESPACE.match  # type: ignore[attr-defined]
    position = text.index("{")
    while text[position : position + 1] in ("{", ","):
        key, position = decode(text, skip(text, position + 1).end())
        start = skip(text, skip(text, position).end() + 1).end()  # past the colon
        _, end = decode(text, start)
        yield key, start, end
        position = skip(text, end).end()


def dump_row(values: Values) -> bytes:
    """Write the columns of a row as JSON; NaN becomes null, times become ISO 8601 text.

    Raises:
        RowsError: a value that JSON cannot hold.
    """
    try:
        return orjson.dumps(values, default=_as_text)
    except orjson.JSONEncodeError as error:
        raise RowsError(f"a row cannot be written as JSON ({error}); write Parquet: -o FILE.parquet") from None


def _as_text(value: object) -> str:
    if isinstance(value, Decimal | timedelta):
        return str(value)
    raise TypeError


def write_parquet_rows(
    path: Path, rows: Sequence[RawRow], source: Source, label: str, provenance: Provenance, *, replace: bool = False
) -> None:
    """Write perturbed rows to Parquet.

    From a Parquet source, types, metadata (such as class names) and every column but the changed ones are kept.

    Args:
        path: the file to be.
        rows: as `perturb` yields them.
        source: where they came from.
        label: the label column.
        provenance: goes to the metadata.
        replace: whether a file that is there is replaced.

    Raises:
        RowsError: a column of JSON rows that holds values of types that no one column type can hold.
    """
    import polars as pl

    metadata = parquet_metadata(source) if source.is_parquet else {}
    metadata = {key: value for key, value in metadata.items() if key != "ARROW:schema"}
    try:
        frame = _updated(source, rows, label) if source.is_parquet else _table(rows, source)
    except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
        raise RowsError(f"{source.name}: cannot be made a table ({first_line(error)}); write JSONL instead") from None
    with atomic_file(path, replace=replace) as temporary:
        frame.write_parquet(temporary, metadata={**metadata, KEY: provenance.as_json()})


def _table(rows: Sequence[RawRow], source: Source) -> Any:
    """Make JSON rows a frame; polars would turn values of mixed types into text or nulls, which is refused."""
    import polars as pl

    values = [orjson.loads(cast(bytes, row)) for row in rows]
    frame = pl.DataFrame(values, infer_schema_length=None)
    for name in frame.columns:
        if not _same([row.get(name) for row in values], frame[name].to_list()):
            raise RowsError(f'{source.name}: column "{name}" holds values of several types; write JSONL instead')
    wide = pl.col(pl.Int128)  # what polars makes of integers from 2 ** 63 on, and other readers of Parquet cannot read
    return frame.with_columns(wide.cast(pl.UInt64, strict=True))


def _same(given: object, stored: object) -> bool:
    """Compare a JSON value with a stored one, in which members may be null that the given one lacks."""
    if isinstance(given, dict) and isinstance(stored, dict):
        return all(_same(given.get(key), value) for key, value in stored.items())
    if isinstance(given, list) and isinstance(stored, list):
        return len(given) == len(stored) and all(map(_same, given, stored))
    return given == stored and isinstance(given, bool) == isinstance(stored, bool)


def _updated(source: Source, rows: Sequence[RawRow], label: str) -> Any:
    """Put the changed columns of `rows` into the source's own frame."""
    import polars as pl

    names = ("id", label, "original_label", "noisy")
    new = pl.DataFrame({name: [cast(Values, row)[name] for row in rows] for name in names})
    frame = stored_frame(source)
    if "id" not in frame.columns:
        frame = frame.with_columns(pl.Series("id", range(frame.height)))
    kind = frame.schema[label]
    if kind in (pl.Categorical, pl.Enum) or (kind.is_integer() and new.schema[label].is_integer()):
        new = new.with_columns(pl.col(label, "original_label").cast(kind, strict=True))
    kept = frame.filter(frame["id"].is_in(new["id"].implode()))
    return kept.with_columns(new[label], new["original_label"], new["noisy"])
