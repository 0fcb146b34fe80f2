"""Rows out: JSON lines changed in place, columns of Parquet rows replaced, all else kept as it was."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, cast

import orjson

from mltools.errors import RowsError
from mltools.io.atomic import atomic_file
from mltools.io.columns import Columns
from mltools.io.inputs import Rows
from mltools.io.parquet import class_names, first_line
from mltools.io.provenance import KEY, Provenance
from mltools.io.rows import RawRow, Values


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
    path: Path, rows: Sequence[RawRow], source: Rows, provenance: Provenance, *, replace: bool = False
) -> None:
    """Write perturbed rows to Parquet.

    Of rows that were stored as tables, types, metadata (such as class names) and every column but the changed ones
    are kept.

    Args:
        path: the file to be.
        rows: as `perturb` yields them.
        source: where they came from, read to the end.
        provenance: goes to the metadata.
        replace: whether a file that is there is replaced.

    Raises:
        RowsError: a column of rows from text that holds values of types that no one column type can hold.
    """
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = source.table()
    try:
        table = _updated(stored, source, rows) if stored is not None else _table(rows, source).to_arrow()
    except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, OverflowError) as error:
        raise RowsError(f"{source.name}: cannot be made a table ({first_line(error)}); write JSONL instead") from None
    with atomic_file(path, replace=replace) as temporary:
        pq.write_table(
            table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: provenance.as_json()}), temporary
        )


def _table(rows: Sequence[RawRow], source: Rows) -> Any:
    """Make rows a frame; polars would turn values of mixed types into text or nulls, which is refused."""
    import polars as pl

    values = [orjson.loads(row) if isinstance(row, bytes) else row for row in rows]
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


def _updated(table: Any, source: Rows, rows: Sequence[RawRow]) -> Any:
    """Put the changed columns of `rows` into the table that they were stored as."""
    import pyarrow as pa

    columns = source.columns
    new = {name: [cast(Values, row)[name] for row in rows] for name in cast(Values, rows[0])} if rows else {}
    ids = table[columns.id].to_pylist() if columns.id in table.column_names else range(table.num_rows)
    if len(rows) < table.num_rows:
        place = {row_id: index for index, row_id in enumerate(ids)}
        table = table.take([place[row_id] for row_id in new[columns.id]])
    if columns.id not in table.column_names:
        table = table.append_column(columns.id, pa.array(new[columns.id]))
    index, kind = table.column_names.index(columns.label), table.schema.field(columns.label).type
    names = source.names if class_names(table, columns.label) else None
    code = {name: number for number, name in enumerate(names or ())}
    label, original = (
        _as_stored([code.get(value, value) for value in new[name]], kind)
        for name in (columns.label, columns.original_label)
    )
    field = table.schema.field(index).with_type(label.type)
    table = table.set_column(index, field, label)
    table = table.append_column(field.with_name(columns.original_label).with_type(original.type), original)
    table = table.append_column(columns.noisy, pa.array(new[columns.noisy], pa.bool_()))
    return table.replace_schema_metadata(_with_features(table.schema.metadata, columns, names)) if names else table


def _as_stored(values: list[Any], kind: Any) -> Any:
    """Give labels as a column of the type that they had, where that can hold them: not booleans or whole floats."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    keeps = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return pa.array(values, kind if keeps else None)


def _with_features(metadata: Mapping[bytes, bytes], columns: Columns, names: Sequence[str]) -> dict[bytes, bytes]:
    """Tell `datasets` of the new columns, and the names of the labels."""
    about = json.loads(metadata[b"huggingface"])
    features = about["info"]["features"]
    features[columns.label]["names"] = list(names)
    features[columns.original_label] = features[columns.label]
    features[columns.noisy] = {"dtype": "bool", "_type": "Value"}
    features.setdefault(columns.id, {"dtype": "int64", "_type": "Value"})
    return {**metadata, b"huggingface": json.dumps(about).encode()}
