"""Where rows and records come from: a path or `-`; JSON lines, plain or compressed, or Parquet.

Lines are split at `\n` bytes only, so U+2028 inside a text is text.
"""

import contextlib
import hashlib
import io
import os
import select
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from mltools.errors import NotFoundError, RowsError, UsageError
from mltools.io.unpack import BLOCK, unpacked
from mltools.io.unpack import MAGIC as PACKED

STDIN = "-"
BOM = b"\xef\xbb\xbf"
LONGEST = 1 << 28
"""No row is as long as this line: it is another format, or a small compressed file that unpacks without end."""
PARQUET = ".parquet"
MAGIC = {b"PAR1": PARQUET, **PACKED}
"""How each form of file but plain JSON lines starts."""


class _HashingReader(io.RawIOBase):
    """A raw stream that digests the bytes as they pass, so that an input is read only once."""

    def __init__(self, raw: io.BufferedReader, name: str) -> None:
        self._raw, self._name = raw, name
        self._owned = raw is not getattr(sys.stdin, "buffer", None)  # asked now: at the very end there is no sys
        self.sha256 = hashlib.sha256()

    def fileno(self) -> int:
        return self._raw.fileno()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while (n := self._raw.readinto1(buffer)) is None:  # what is there: a slow pipe is passed on as it comes
                select.select([self._raw], [], [])  # nothing yet, where another program made the pipe so
        except OSError as error:
            error.filename = self._name
            raise
        self.sha256.update(memoryview(buffer)[:n])
        return n

    def close(self) -> None:
        if self._owned:
            self._raw.close()
        super().close()


class Source:
    """An input of rows or records: opens it once, knows its form, names places in it, and digests what is read.

    The form (JSON lines, plain or compressed, or Parquet) shows in the first bytes, else in the name.
    """

    def __init__(self, path: str | Path) -> None:
        """Remember the path; `-` is standard input. Nothing is opened yet.

        Raises:
            UsageError: a name that is not UTF-8, which neither records nor provenance could say.
        """
        self.path = str(path)
        if any("\ud800" <= character <= "\udfff" for character in self.path):
            raise UsageError(f"{self.path}: the name of the file is not UTF-8; rename it")
        self.name = "stdin" if self.path == STDIN else self.path
        self._reader: _HashingReader | None = None
        self._stream: io.BufferedReader[Any] | None = None
        self._content: bytes | None = None
        self._digest: str | None = None
        self._stamp: tuple[int, int, int] | None = None

    @cached_property  # looked for once: a pipe cannot be opened again
    def form(self) -> str:
        """One of `.parquet`, `.gz`, `.zst`, `.bz2`, `.xz`, or empty for plain JSON lines."""
        if self._content is not None:
            return PARQUET
        start = self._open().peek(6)
        by_name = next((form for form in MAGIC.values() if self.path.endswith(form)), "")
        return next((form for magic, form in MAGIC.items() if start.startswith(magic)), by_name)

    @property
    def ending(self) -> str:
        """The ending of its name, without that of what packed it: `.csv` of rows.csv.gz."""
        path = Path(self.path)
        return (Path(path.stem) if path.suffix in MAGIC.values() else path).suffix.lower()

    @property
    def is_parquet(self) -> bool:
        """Whether it is Parquet."""
        return self.form == PARQUET

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes as stored, in hex. For a stream: of what was read so far.

        Raises:
            RowsError: a Parquet file that has changed since it was opened.
        """
        if self._reader is not None:
            return self._reader.sha256.hexdigest()
        if self._digest is None:
            with self._open_raw() as raw:
                self._digest = hashlib.file_digest(cast(Any, raw), "sha256").hexdigest()
                if self._stamp not in (None, _stamp(raw)):
                    raise RowsError(f"{self.name}: the rows changed while they were read")
        return self._digest

    def place(self, number: int) -> str:
        """Name the 1-based line (of text) or row (of Parquet, of an array) `number`."""
        return f"{self.name}:{number}"

    def line(self, number: int) -> str:
        """Name it beside another one."""
        return f"line {number}"

    def parquet(self) -> str | bytes:
        """Give what a Parquet reader can read: the path of a file, or the content of a stream."""
        if self._content is None and Path(self.path).is_file():
            self._stamp, self._digest = _stamp(self._open()), None
            self._open().close()
            self._stream = self._reader = None
            return self.path
        if self._content is None:
            with self._open() as stream:
                self._content = stream.read()
        return self._content

    def _open(self) -> "io.BufferedReader[Any]":
        if self._stream is None:
            self._reader = _HashingReader(self._open_raw(), self.name)
            self._stream = io.BufferedReader(self._reader, BLOCK)
        return self._stream

    def _open_raw(self) -> io.BufferedReader:
        if self.path == STDIN:
            if sys.stdin is None:
                raise NotFoundError("stdin is closed")
            return cast(io.BufferedReader, sys.stdin.buffer)
        path = Path(self.path)
        if not self.path:
            raise NotFoundError('no such file: ""')
        if path.is_dir():
            raise UsageError(f"{self.name} is a folder; name a file of rows")
        try:
            return path.open("rb")
        except FileNotFoundError:
            raise NotFoundError(f"no such file: {self.name}") from None

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield the lines, decompressed, without their ends and a byte-order mark, some at a time as they come."""
        return map(split_lines, self.texts())

    def texts(self) -> Iterator[bytes]:
        """Yield the same as it stands there: some whole lines at a time, but for the end of the last of them."""
        mark: bytes = BOM
        rest: list[bytes] = []  # of a line that has not ended; joined once, since lines may be very long
        length = 0
        try:
            with self._open() as stream:
                for piece in unpacked(stream, self.form, self.name):
                    head, newline, tail = piece.rpartition(b"\n")
                    if newline:
                        yield b"".join((*rest, head)).removeprefix(mark)
                        mark, rest, length = b"", [tail], len(tail)
                    else:
                        rest.append(piece)
                        length += len(piece)
                        if length > LONGEST:
                            raise RowsError(
                                f"{self.name}: a line longer than {LONGEST >> 20} MiB; write one JSON object a line"
                            )
        finally:
            self._stream = None
        if last := b"".join(rest):
            yield last.removeprefix(mark)


def _stamp(stream: Any) -> tuple[int, int, int]:
    """Give what changes when a file is written or replaced."""
    stat = os.fstat(stream.fileno())
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def split_lines(block: bytes) -> list[bytes]:
    """Split a text at the ends of its lines, LF or CR LF."""
    return (block.replace(b"\r\n", b"\n") if b"\r" in block else block).removesuffix(b"\r").split(b"\n")


@contextlib.contextmanager
def rereadable(source: Source) -> Iterator[Source]:
    """Give a source that can be read more than once: the file itself, or a temporary copy of a stream."""
    if source.path != STDIN and not Path(source.path).is_fifo():
        yield source
        return
    with tempfile.NamedTemporaryFile(prefix="mltools-") as copy:
        with source._open() as stream:
            shutil.copyfileobj(stream, copy)
        copy.flush()
        again = Source(copy.name)
        again.name = source.name
        yield again
