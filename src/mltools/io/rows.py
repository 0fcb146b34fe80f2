"""Rows in: JSONL or Parquet, plain, `.gz` or `.zst`, a path or `-`. The only reader of rows.

JSONL is read line by line by ourselves: nothing is inferred, unknown keys are kept, and every complaint
names `file:line`. Lines are split at `\n` bytes only, so U+2028 inside a text is text.
"""

import contextlib
import functools
import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import orjson

from mltools.errors import NotFoundError, RowsError, UsageError

Label = int | str
RowId = int | str
Values = dict[str, Any]
RawRow = bytes | Values
"""A row as it was read: its JSON line, or the columns of a Parquet row."""
LabelType = Literal["auto", "str"]

STDIN = "-"
STDERR = 2
BOM = b"\xef\xbb\xbf"
BLOCK = 1 << 16
PARQUET = ".parquet"
MAGIC = {b"PAR1": PARQUET, b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
"""How each form of file but plain JSON lines starts."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a row are meant: the options --text, --label, --separator and --label-type."""

    text: tuple[str, ...] = ("text",)
    label: str = "label"
    separator: str | None = None
    label_type: LabelType = "auto"


class _HashingReader(io.RawIOBase):
    """A raw stream that digests the bytes as they pass, so that an input is read only once."""

    def __init__(self, raw: io.BufferedReader, name: str) -> None:
        self._raw, self._name = raw, name
        self.sha256 = hashlib.sha256()

    def fileno(self) -> int:
        return self._raw.fileno()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._raw.read1(len(buffer))  # what is there: a slow pipe is passed on as it comes
        except OSError as error:
            error.filename = self._name
            raise
        buffer[: len(data)] = data
        self.sha256.update(data)
        return len(data)

    def close(self) -> None:
        if self._raw is not getattr(sys.stdin, "buffer", None):
            self._raw.close()
        super().close()


class Source:
    """An input of rows or records: opens it once, knows its form, names places in it, and digests what is read.

    The form (JSON lines, plain or compressed, or Parquet) shows in the first bytes, else in the name.
    """

    def __init__(self, path: str | Path) -> None:
        """Remember the path; `-` is standard input. Nothing is opened yet."""
        self.path = str(path)
        self.name = "stdin" if self.path == STDIN else self.path
        self._reader: _HashingReader | None = None
        self._stream: io.BufferedReader[Any] | None = None
        self._content: bytes | None = None
        self._digest: str | None = None
        self._stamp: tuple[int, int, int] | None = None

    @property
    def form(self) -> str:
        """One of `.parquet`, `.gz`, `.zst`, or empty for plain JSON lines."""
        if self._content is not None:
            return PARQUET
        start = self._open().peek(4)
        by_name = next((form for form in MAGIC.values() if self.path.endswith(form)), "")
        return next((form for magic, form in MAGIC.items() if start.startswith(magic)), by_name)

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
        """Name the 1-based line (JSONL) or row (Parquet) `number`."""
        return f"{self.name}:{number}"

    def parquet(self) -> str | io.BytesIO:
        """Give what a Parquet reader can read: the path of a file, or the content of a stream."""
        if self._content is None and Path(self.path).is_file():
            self._stamp, self._digest = _stamp(self._open()), None
            self._open().close()
            self._stream = self._reader = None
            return self.path
        if self._content is None:
            with self._open() as stream:
                self._content = stream.read()
        return io.BytesIO(self._content)

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
        mark, rest = BOM, b""
        try:
            with self._open() as stream:
                for piece in _decompressed(stream, self.form):
                    head, newline, tail = piece.rpartition(b"\n")
                    if not newline:
                        rest += piece
                        continue
                    yield _split((rest + head).removeprefix(mark))
                    mark, rest = b"", tail
        except (gzip.BadGzipFile, EOFError, zlib.error, _zstd_error()) as error:
            raise RowsError(f"{self.name}: damaged compressed file ({error})") from None
        finally:
            self._stream = None
        if rest:
            yield _split(rest.removeprefix(mark))


def _stamp(stream: Any) -> tuple[int, int, int]:
    """Give what changes when a file is written or replaced."""
    stat = os.fstat(stream.fileno())
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _split(block: bytes) -> list[bytes]:
    return (block.replace(b"\r\n", b"\n") if b"\r" in block else block).removesuffix(b"\r").split(b"\n")


def _zstd_error() -> type[Exception]:
    if "zstandard" in sys.modules:
        import zstandard

        return zstandard.ZstdError
    return EOFError


def _decompressed(stream: "io.BufferedReader[Any]", form: str) -> Iterator[bytes]:
    if form == ".zst":
        yield from _unpack_zstd(stream)
        return
    plain: Any = gzip.GzipFile(fileobj=stream) if form == ".gz" else stream
    while piece := plain.read1(BLOCK):
        yield piece


def _unpack_zstd(stream: "io.BufferedReader[Any]") -> Iterator[bytes]:
    """Decompress frame by frame; the library's own stream reader takes a file that is cut short for its end."""
    import zstandard

    frame, whole = zstandard.ZstdDecompressor().decompressobj(), True
    while packed := stream.read1(BLOCK):
        while packed:
            yield frame.decompress(packed)
            whole = frame.eof
            packed = frame.unused_data
            if whole:
                frame = zstandard.ZstdDecompressor().decompressobj()
    if not whole:
        raise EOFError("it ends in the middle")


@dataclass(frozen=True)
class Block:
    """Some rows: their numbers from 1 (line or row), their JSON lines (None for Parquet), their columns."""

    numbers: Sequence[int]
    lines: Sequence[bytes] | None
    values: list[Values]


def iter_blocks(source: Source) -> Iterator[Block]:
    """Yield the rows of a source of either format, some at a time; blank lines are passed over.

    Raises:
        RowsError: a line that is not UTF-8, not JSON, or not an object.
    """
    if source.is_parquet:
        rows = read_parquet(source).rows(named=True)
        yield Block(range(1, len(rows) + 1), None, rows)
        return
    start = 1
    for lines in source.blocks():
        numbers: Sequence[int] = range(start, start + len(lines))
        start += len(lines)
        try:
            values = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            numbers = [number for number, line in zip(numbers, lines, strict=True) if line and not line.isspace()]
            lines = [line for line in lines if line and not line.isspace()]
            values = [_parse(source, number, line) for number, line in zip(numbers, lines, strict=True)]
        if not set(map(type, values)) <= {dict}:
            number, value = next(pair for pair in zip(numbers, values, strict=True) if type(pair[1]) is not dict)
            raise RowsError(f"{source.place(number)}: a {_kind(value)}, not an object {{...}} with columns")
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


def _kind(value: object) -> str:
    names = {str: "text", bool: "true/false value", int: "number", float: "number", list: "list", dict: "object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def shown(value: object) -> str:
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


class LabelReader:
    """Turns label values into integers or text, and sees that they are all of one type.

    Integers stay integers, text stays text, whole floats and an all-true/false column become integers.
    `null` and -1 mean unlabelled (None). A mixed column is an error: labels are never guessed.
    """

    def __init__(self, source: Source, label_type: LabelType = "auto") -> None:
        """Start with no label seen; `label_type` "str" reads every label as text."""
        self._source = source
        self._as_text = label_type == "str"
        self._kind: type | None = str if self._as_text else None
        self._first: tuple[int, type, object] | None = None
        self._other: list[tuple[int, object]] = []

    def read(self, number: int, value: object) -> Label | None:
        """Read the label of line `number`; None where the row is unlabelled."""
        kind = type(value)
        if value is None or (kind is int and value == -1):
            return None
        if self._as_text:
            return value if kind is str else json.dumps(value)  # type: ignore[return-value]
        if kind is float:
            if not cast(float, value).is_integer():
                place = self._source.place(number)
                raise RowsError(f"{place}: label {value} is not whole; regression labels are not supported")
            value, kind = int(cast(float, value)), int
        if kind not in (int, str, bool):
            raise RowsError(f"{self._source.place(number)}: label is a {_kind(value)}, not text or an integer")
        if self._first is None:
            self._first = (number, kind, value)
            self._kind = kind if kind is not bool else None
        elif kind is not self._first[1]:
            self._other.append((number, value))
        return int(cast(bool, value)) if kind is bool else cast(Label, value)

    def read_block(self, block: Block, column: str) -> Sequence[Label | None]:
        """Read the labels of a block of rows.

        Raises:
            RowsError: as `read`, or a row lacks the column.
        """
        try:
            values = [row[column] for row in block.values]
        except KeyError:
            number, row = next((n, r) for n, r in zip(block.numbers, block.values, strict=True) if column not in r)
            raise missing_column(self._source.place(number), column, row, "label") from None
        if set(map(type, values)) == {self._kind} and -1 not in values:
            return values
        return list(map(self.read, block.numbers, values))

    def check(self) -> None:
        """Raise if the labels read were not all of one type, listing the first lines of another type."""
        if not self._other or self._first is None:
            return
        lines = ", ".join(f"line {number}: {shown(value)}" for number, value in self._other[:3])
        more = f" and {len(self._other) - 3} more" if len(self._other) > 3 else ""
        raise RowsError(
            f"{self._source.place(self._other[0][0])}: labels of another type than line {self._first[0]}'s "
            f"{shown(self._first[2])} ({lines}{more}); --label-type str reads all as text"
        )


@dataclass(frozen=True)
class Examples:
    """Labelled rows as columns, in input order, unlabelled rows left out."""

    source: Source
    ids: list[RowId]
    fields: list[tuple[str, ...]]
    labels: list[Label]
    original_labels: list[Label]
    noisy: list[bool]
    names: list[str] | None = None
    n_unlabelled: int = 0
    columns: Columns = field(default_factory=Columns)

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self, separator: str) -> list[str]:
        """Join each row's text columns in the given order with ` separator ` between (one segment, §D)."""
        return [f" {separator} ".join(parts) for parts in self.fields]

    def digest(self) -> str:
        """SHA-256 of what was read, whatever the order of the rows and the form of the file."""
        columns = (self.ids, self.fields, self.labels, self.original_labels, self.noisy)
        rows = sorted(json.dumps(row, ensure_ascii=False) for row in zip(*columns, strict=True))
        return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogatepass")).hexdigest()

    def vocabulary(self) -> list[Label]:
        """All labels that occur, before or after perturbation, sorted."""
        return sorted({*self.labels, *self.original_labels})

    def require_noisy(self) -> None:
        """Raise if no row is noisy, or none is clean."""
        if not any(self.noisy):
            raise RowsError(f'{self.source.name}: no noisy rows ("noisy" is never true); make some: mltools perturb')
        if all(self.noisy):
            raise RowsError(f"{self.source.name}: every row is noisy; clean rows are needed too")


def read_examples(path: str | Path | Source, columns: Columns = Columns()) -> Examples:
    """Read labelled rows.

    `noisy` is the row's own column, else whether `label` differs from `original_label`, else false;
    `original_label` is the row's own column, else its label; `id` the row's own, else its 0-based number.

    Args:
        path: a file, `-`, or a source.
        columns: which columns hold text and label.

    Raises:
        RowsError: a bad line, a missing column, a repeated id, mixed label types, or no labelled row.
        NotFoundError: no such file.
    """
    source = path if isinstance(path, Source) else Source(path)
    (examples,) = iter_examples(source, columns)
    return examples


def iter_examples(source: Source, columns: Columns = Columns(), size: int | None = None) -> Iterator[Examples]:
    """Yield labelled rows `size` at a time, all at once by default; else as `read_examples`."""
    reader = _ExampleReader(source, columns)
    for index, (number, _, values) in enumerate(iter_rows(source)):
        reader.add(index, number, values)
        if len(reader.rows) == size:
            yield reader.take()
    reader.check()
    if reader.rows:
        yield reader.take()


@contextlib.contextmanager
def rereadable(source: Source) -> Iterator[Source]:
    """Give a source that can be read more than once: the file itself, or a temporary copy of a stream."""
    if source.path != STDIN and not Path(source.path).is_fifo():
        yield source
        return
    with tempfile.NamedTemporaryFile(prefix="mltools-") as copy:
        with source._open_raw() if source.path != STDIN else contextlib.nullcontext(sys.stdin.buffer) as raw:
            shutil.copyfileobj(raw, copy)
        copy.flush()
        again = Source(copy.name)
        again.name = source.name
        yield again


class _ExampleReader:
    def __init__(self, source: Source, columns: Columns) -> None:
        self.source, self.columns = source, columns
        self.labels = LabelReader(source, columns.label_type)
        self.ids = IdReader(source)
        self.n_labelled = self.n_unlabelled = 0
        self.rows: list[tuple[RowId, tuple[str, ...], Label, Label, bool]] = []

    def add(self, index: int, number: int, values: Values) -> None:
        place = self.source.place
        row_id = self.ids.read(index, number, values)
        if self.columns.label not in values:
            raise missing_column(place(number), self.columns.label, values, "label")
        label = self.labels.read(number, values[self.columns.label])
        if label is None:
            self.n_unlabelled += 1
            return
        original: Label | None = label
        if "original_label" in values:
            original = self.labels.read(number, values["original_label"])
            if original is None:
                raise RowsError(f"{place(number)}: original_label is null though label is {shown(label)}")
        noisy = values.get("noisy", label != original)
        if not isinstance(noisy, bool) and noisy not in (0, 1):
            raise RowsError(f'{place(number)}: "noisy" is {shown(noisy)}, not true or false')
        texts = tuple(self._text(number, values, column) for column in self.columns.text)
        self.n_labelled += 1
        self.rows.append((row_id, texts, label, cast(Label, original), bool(noisy)))

    def _text(self, number: int, values: Values, column: str) -> str:
        if column not in values:
            raise missing_column(self.source.place(number), column, values, "text")
        text = values[column]
        if not isinstance(text, str):
            raise RowsError(f'{self.source.place(number)}: "{column}" is a {_kind(text)}, not text')
        return text

    @functools.cached_property
    def names(self) -> list[str] | None:
        return class_names(self.source, self.columns.label)

    def check(self) -> None:
        """Raise, after the last row, if labels were of several types or no row had one."""
        self.labels.check()
        if not self.n_labelled:
            raise RowsError(f"{self.source.name}: no labelled rows")

    def take(self) -> Examples:
        """Give the rows since the last time."""
        ids, texts, labels, originals, noisy = (list(column) for column in zip(*self.rows, strict=True))
        self.rows.clear()
        return Examples(self.source, ids, texts, labels, originals, noisy, self.names, self.n_unlabelled, self.columns)


class IdReader:
    """Reads row ids: the `id` column, else the 0-based row number; each id may occur once."""

    def __init__(self, source: Source, *, unique: bool = True) -> None:
        """Start with no id seen; `unique=False` lets ids repeat, in constant memory."""
        self._source = source
        self._unique = unique
        self._unnamed = 0
        self._seen: dict[RowId, int] = {}

    def read(self, index: int, number: int, values: Values) -> RowId:
        """Read the id of row `index` (from 0), which stands in line `number` (from 1).

        Raises:
            RowsError: an id that is neither an integer nor text, or that occurred before.
        """
        if "id" not in values and not self._seen:
            self._unnamed = index + 1
            return index
        row_id = values.get("id", index)
        if type(row_id) is not int and type(row_id) is not str:
            raise RowsError(f"{self._source.place(number)}: id is a {_kind(row_id)}, not an integer or text")
        if not self._unique:
            return row_id
        if type(row_id) is int and 0 <= row_id < self._unnamed:
            raise RowsError(f"{self._source.place(number)}: id {row_id} is the number of a row without an id")
        first = self._seen.setdefault(row_id, number)
        if first != number:
            raise RowsError(f"{self._source.place(number)}: id {shown(row_id)} is also line {first}'s; ids must differ")
        return row_id

    def read_block(self, index: int, block: Block) -> Sequence[RowId]:
        """Read the ids of a block of rows, the first of which is row `index`; else as `read`."""
        indices = range(index, index + len(block.values))
        if not self._seen and not any("id" in row for row in block.values):
            self._unnamed = indices.stop
            return indices
        return list(map(self.read, indices, block.numbers, block.values))


def select(examples: Examples, keep: Sequence[int]) -> Examples:
    """Take the rows at the given positions, in that order."""

    def pick(column: list[Any]) -> list[Any]:
        return [column[i] for i in keep]

    return Examples(
        examples.source,
        pick(examples.ids),
        pick(examples.fields),
        pick(examples.labels),
        pick(examples.original_labels),
        pick(examples.noisy),
        examples.names,
        examples.n_unlabelled,
        examples.columns,
    )
