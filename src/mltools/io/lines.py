"""JSON lines out: one line, and the files that hold them, plain or packed."""

import contextlib
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
PARQUET, CSV = ".parquet", ".csv"


def dump(row: Mapping[str, Any]) -> bytes:
    """Write a row as one JSON line; a NaN or infinity in it is a bug and raises ValueError."""
    return ENCODER.encode(row).encode() + b"\n"


def is_lines(path: Path) -> bool:
    """Whether a file of this name is JSON lines, which can be written as they come."""
    return path.suffix.lower() not in (PARQUET, CSV)


@contextlib.contextmanager
def open_lines(path: Path, name: Path) -> Iterator[IO[bytes]]:
    """Open a file to write bytes to, packed as `name` says; the same bytes give the same file."""
    with path.open("wb") as file:
        if name.suffix.lower() == ".gz":
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                yield cast(IO[bytes], packed)
        elif name.suffix.lower() == ".zst":
            import zstandard

            with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
                yield cast(IO[bytes], packed)
        else:
            yield file
