"""Parquet in: a file's rows, stored types and metadata.

pyarrow reads, since it answers a damaged file with an error, where polars may end the process; polars then holds the
frame, whose types are those that polars would have read.
"""

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mltools.errors import RowsError
from mltools.io.source import Source

STDERR = 2
BATCH = 4096
"""Rows unpacked at once."""
ROW = 256
"""Bytes that a row takes beside its values."""
LARGE = 1 << 29
DENSEST = 1000
"""A file may unpack to this many times its size; less than `LARGE` bytes are never too many."""
MEMORY = Path("/proc/self/statm")


def parquet_rows(source: Source) -> list[dict[str, Any]]:
    """Read a Parquet file whole: the columns of each row, with categories as text.

    Raises:
        RowsError: as `stored_table` and `table_rows`.
    """
    return table_rows(source, stored_table(source))


def table_rows(source: Source, table: Any) -> list[dict[str, Any]]:
    """Give the columns of each row of an Arrow table, with categories as text.

    Raises:
        RowsError: a value that Python cannot hold, such as a date after the year 9999.
    """
    import polars as pl

    with _reading_parquet(source):
        frame: Any = pl.from_arrow(table)
        rows: list[dict[str, Any]] = frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String)).rows(
            named=True
        )
        return rows


def stored_table(source: Source) -> Any:
    """Read a Parquet file whole, as an Arrow table of the stored types, with the file's metadata.

    Raises:
        RowsError: it is damaged, or unpacks to far more than a file of its size can mean.
    """
    import pyarrow as pa

    with _reading_parquet(source), _open(source) as (file, size):
        most, batches = max(LARGE, DENSEST * size), None
        with contextlib.suppress(MemoryError), _limited_memory(3 * most):
            batches = list(_batches(file, most))
        if batches is None:  # said outside of the except clause: it is the file that is wrong, no memory is short
            what = f"it asks for more memory than {DENSEST} times its size"
            raise RowsError(f"{source.name}: damaged Parquet file ({what})")
        metadata = {key: value for key, value in (file.metadata.metadata or {}).items() if key != b"ARROW:schema"}
        return pa.Table.from_batches(batches, file.schema_arrow).replace_schema_metadata(metadata)


def _batches(file: Any, most: int) -> Iterator[Any]:
    """Yield some rows at a time, checked; MemoryError if all of them take more than `most` bytes."""
    for batch in file.iter_batches(BATCH, use_threads=False):
        batch.validate(full=True)
        most -= ROW * batch.num_rows + sum(map(_unpacked, batch.columns))
        if most < 0:
            raise MemoryError
        yield batch


def _unpacked(column: Any) -> int:
    """Give the bytes of a column's values; texts in a dictionary are stored once, however many rows have them."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type) and column.type.value_type in (pa.string(), pa.large_string()):
        import pyarrow.compute as pc

        return int(pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0)
    return int(column.nbytes)


@contextlib.contextmanager
def _limited_memory(most: int) -> Iterator[None]:
    """Let this process take no more than so many further bytes (Linux): whatever asks for more raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if MEMORY.exists():
        limit = int(MEMORY.read_text().split()[0]) * resource.getpagesize() + most
        if soft == resource.RLIM_INFINITY or limit < soft:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def parquet_metadata(source: Source) -> dict[str, str]:
    """Read the key-value metadata of a Parquet file.

    Raises:
        RowsError: it is damaged.
    """
    with _reading_parquet(source), _open(source) as (file, _):
        return {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}


@contextlib.contextmanager
def _open(source: Source) -> Iterator[tuple[Any, int]]:
    """Give a Parquet file and its size in bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    given = source.parquet()
    with pa.OSFile(os.fsencode(given)) if isinstance(given, str) else pa.BufferReader(given) as raw:
        yield pq.ParquetFile(raw, pre_buffer=False), raw.size()


@contextlib.contextmanager
def _reading_parquet(source: Source) -> Iterator[None]:
    """Turn what is made of a damaged file into one error; where polars panics, it also writes a trace to stderr."""
    import polars as pl
    import pyarrow as pa

    kept = os.dup(STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDERR)
    try:
        yield
    except pl.exceptions.PanicException:
        raise RowsError(f"{source.name}: damaged Parquet file") from None
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError) as error:
        raise RowsError(f"{source.name}: not a readable Parquet file ({first_line(error)})") from None
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)


def class_names(table: Any, column: str) -> list[str] | None:
    """Find the class names that `datasets` keeps in a table's metadata for a column of integers."""
    import pyarrow as pa

    if column not in table.column_names or not pa.types.is_integer(table.schema.field(column).type):
        return None
    try:
        features = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def first_line(error: Exception) -> str:
    """Take the first line of an error's text."""
    return str(error).strip().split("\n")[0]
