"""Parquet in: a file's rows, stored types and metadata."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from mltools.errors import RowsError
from mltools.io.source import Source

STDERR = 2


def read_parquet(source: Source) -> Any:
    """Read a Parquet file whole, as a polars data frame with categories as text."""
    import polars as pl

    frame = stored_frame(source)
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def stored_frame(source: Source) -> Any:
    """Read a Parquet file whole, as a polars data frame of the stored types."""
    import polars as pl

    with _reading_parquet(source):
        return pl.read_parquet(source.parquet())


def parquet_metadata(source: Source) -> dict[str, str]:
    """Read the key-value metadata of a Parquet file."""
    import polars as pl

    with _reading_parquet(source):
        return dict(pl.read_parquet_metadata(source.parquet()))


@contextlib.contextmanager
def _reading_parquet(source: Source) -> Iterator[None]:
    """Turn what polars makes of a damaged file into one error; when it panics, it also writes a trace to stderr."""
    import polars as pl

    kept = os.dup(STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDERR)
    try:
        yield
    except pl.exceptions.PanicException:
        raise RowsError(f"{source.name}: damaged Parquet file") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise RowsError(f"{source.name}: not a readable Parquet file ({first_line(error)})") from None
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)


def class_names(source: Source, column: str) -> list[str] | None:
    """Find the class names that `datasets` keeps in a Parquet file for an integer label column."""
    if not source.is_parquet:
        return None
    try:
        features = json.loads(parquet_metadata(source).get("huggingface", "{}"))["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def first_line(error: Exception) -> str:
    """Take the first line of an error's text."""
    return str(error).strip().split("\n")[0]
