"""Rows and records as files, by their names: JSON lines (also packed), Parquet, CSV.

A Parquet file of records has the schema of its kind, whatever values occur, so that files of one kind are one table to
whoever reads them together. In CSV, lists are JSON in a cell, and `record_cells` reads back what was written.
"""

import csv
import dataclasses
import json
import math
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mltools.errors import UsageError
from mltools.io.atomic import atomic_file
from mltools.io.columns import table_ids
from mltools.io.lines import CSV, ENCODER, PARQUET, dump, open_lines
from mltools.io.provenance import KEY, Provenance

WORDS = {"": None, "true": True, "false": False}


def write_table(
    path: Path,
    rows: Sequence[dict[str, Any]],
    provenance: Provenance | None,
    kinds: Sequence[type[Any]] = (),
    *,
    replace: bool = False,
) -> None:
    """Write rows to a file whose form its name tells, atomically; provenance goes into Parquet's metadata.

    Args:
        path: the file to be.
        rows: records, or rows of other columns.
        provenance: how they were made.
        kinds: the kinds of records that they may be of.
        replace: whether a file that is there is replaced.

    Raises:
        UsageError: a tag with values of several types, in Parquet.
    """
    table = records_table(rows, kinds) if path.suffix.lower() == PARQUET else None
    with atomic_file(path, replace=replace) as temporary:
        if table is not None:
            import pyarrow.parquet as pq

            metadata = {KEY: provenance.as_json()} if provenance else {}
            pq.write_table(table.replace_schema_metadata(metadata), temporary)
            return
        with open_lines(temporary, path) as file:
            if path.suffix.lower() == CSV:
                file.write(_csv(rows, kinds))
            else:
                for row in rows:
                    file.write(dump(row))


# -- Parquet ------------------------------------------------------------------------------------------
def records_table(rows: Sequence[dict[str, Any]], kinds: Sequence[type[Any]]) -> Any:
    """Make records an Arrow table of their kind's schema, tags after the fields.

    Raises:
        UsageError: a tag with values of several types.
    """
    import pyarrow as pa

    declared = _declared(rows, kinds)
    tags = dict.fromkeys(name for row in rows for name in row if name not in declared)
    columns = {name: _column([row.get(name) for row in rows], hint) for name, hint in declared.items()}
    columns |= {name: _tag(name, [row.get(name) for row in rows]) for name in tags}
    return pa.table(columns)


def _declared(rows: Sequence[dict[str, Any]], kinds: Sequence[type[Any]]) -> dict[str, Any]:
    """Give the columns that the records' kinds declare, with their types; of no records, those of the first kind."""
    found = {_kind(names, kinds) for names in {tuple(row): None for row in rows}} - {None} or {*kinds[:1]}
    return {name: hint for kind in kinds if kind in found for name, hint in _hints(kind).items()}


def _kind(names: Sequence[str], kinds: Sequence[type[Any]]) -> type[Any] | None:
    """Find the kind of a record with these columns: that of which it has all and most."""
    shared = {kind: len(_hints(kind)) for kind in kinds if _hints(kind).keys() <= {*names}}
    return max(shared, key=lambda kind: shared[kind], default=None)


def _hints(kind: Any) -> dict[str, Any]:
    if kind not in _HINTS:
        hints = get_type_hints(kind)
        _HINTS[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _HINTS[kind]


_HINTS: dict[Any, dict[str, Any]] = {}


def _column(values: list[Any], hint: Any) -> Any:
    import pyarrow as pa

    if {int, str} <= {*get_args(hint)}:  # ids: integers where all are, else text
        return pa.array(table_ids(values)) if values else pa.array([], pa.int64())
    kind = arrow_type(hint)
    if kind == pa.string():
        values = [v if v is None or isinstance(v, str) else ENCODER.encode(v) for v in values]
    return pa.array(values, kind)


def arrow_type(hint: Any) -> Any:
    """Give the Arrow type of a field's type; what has no fixed shape is JSON in a text."""
    import pyarrow as pa

    plain = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    origin, arguments = get_origin(hint), [each for each in get_args(hint) if each is not type(None)]
    if origin in (Union, types.UnionType):
        return arrow_type(arguments[0]) if len(arguments) == 1 else pa.float64()
    if origin is list:
        return pa.list_(arrow_type(arguments[0]))
    if dataclasses.is_dataclass(hint):
        return pa.struct([(name, arrow_type(each)) for name, each in _hints(hint).items()])
    return plain.get(hint, pa.string())


def _tag(name: str, values: list[Any]) -> Any:
    """Make a tag a column of one type, that of its first value; numbers are whole only where all are."""
    import pyarrow as pa

    found: dict[type, Any] = {}
    for value in values:
        if value is not None:
            found.setdefault(type(value), value)
    if found.keys() == {int, float}:
        return pa.array(values, pa.float64())
    if len(found) > 1:
        one, other = (json.dumps(value) for value in list(found.values())[:2])
        raise UsageError(f"{name} has values of several types ({one}, {other}), which no Parquet column can hold")
    if found.keys() <= {bool, int, float, str}:
        return pa.array(values, arrow_type(next(iter(found), str)))
    import polars as pl

    return pl.Series(values).to_arrow()  # not a tag: whatever rows hold


# -- CSV ----------------------------------------------------------------------------------------------
def _csv(rows: Sequence[dict[str, Any]], kinds: Sequence[type[Any]]) -> bytes:
    """Write rows as CSV: null is an empty cell, lists are JSON, text that would be read as another value is quoted."""
    declared = _declared(rows, kinds)
    names = [*declared, *dict.fromkeys(name for row in rows for name in row if name not in declared)]
    texts = _text_columns() if kinds else frozenset(names)
    lines = _Lines()
    writer = csv.writer(lines, lineterminator=_Lines.END)
    writer.writerow(names)
    writer.writerows([_cell(row.get(name), plain=name in texts) for name in names] for row in rows)
    return "".join(lines).encode("utf-8", "surrogatepass")


class _Lines(list[str]):
    """Takes lines of CSV from a writer; that it ends them with CR LF makes it quote cells that hold either."""

    END = "\r\n"

    def write(self, line: str) -> None:
        """Take a line, and end it as text files do here."""
        self.append(line.removesuffix(self.END) + "\n")


def _cell(value: Any, *, plain: bool) -> str:
    if isinstance(value, str):
        return value if plain or read_value(value) == value else json.dumps(value, ensure_ascii=False)
    return "" if value is None else ENCODER.encode(value)


def read_value(text: str) -> Any:
    """Read a cell of a column that no kind declares as text: what is JSON is such, all else text."""
    if text in WORDS:
        return WORDS[text]
    if text[0] not in '[{"-0123456789':
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if not isinstance(value, float) or math.isfinite(value) else text


def record_cells(column: str) -> Callable[[str], Any]:
    """Give what reads the cells of a column of records in CSV."""
    return (lambda text: text or None) if column in _text_columns() else read_value


def _text_columns() -> frozenset[str]:
    """Name the columns that are text in every kind that has them."""
    from mltools.io.kinds import record_kinds  # which rows need not

    hints: dict[str, set[bool]] = {}
    for kind in record_kinds().values():
        for name, hint in _hints(kind).items():
            is_text = {*(get_args(hint) or [hint])} <= {str, type(None)} or get_origin(hint) is Literal
            hints.setdefault(name, set()).add(is_text)
    return frozenset(name for name, texts in hints.items() if texts == {True})
