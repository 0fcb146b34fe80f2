"""Rows of other people's files: CSV and TSV beside JSONL and Parquet, one file or the files of a split in a folder."""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mltools.errors import NotFoundError, RowsError, UsageError
from mltools.io.rows import Values, iter_rows
from mltools.io.source import Source

FORMATS = (".jsonl", ".json", ".parquet", ".csv", ".tsv")
PACKED = (".gz", ".zst")
ALIASES = {"validation": ("validation", "valid", "val", "dev")}
LONGEST_FIELD = 1 << 30


def read_file(path: Path, used: list[Source]) -> Iterator[tuple[str, Values]]:
    """Yield (place, columns) of each row of a file, by its ending; all columns of CSV and TSV are text.

    CSV has quotes, TSV has none (a tab cannot stand in a field). The first line names the columns.

    Args:
        path: the file; `.gz` and `.zst` are read too.
        used: gets the source, for its digest.

    Raises:
        RowsError: a line that is not UTF-8, or that has more or fewer fields than the first.
        NotFoundError: no such file.
    """
    source = Source(path)
    used.append(source)
    form = _format(path)
    if form in (".csv", ".tsv"):
        yield from _read_separated(source, form)
    else:
        yield from ((source.place(number), values) for number, _, values in iter_rows(source))


def _format(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def _read_separated(source: Source, form: str) -> Iterator[tuple[str, Values]]:
    csv.field_size_limit(LONGEST_FIELD)
    lines = (_decode(source, number, line) for number, line in enumerate(_lines(source), start=1))
    reader = csv.reader(lines, strict=True) if form == ".csv" else (line.rstrip("\n").split("\t") for line in lines)
    header: list[str] | None = None
    try:
        for index, fields in enumerate(reader):
            if not any(fields):
                continue
            if header is None:
                header = fields
                continue
            number = reader.line_num if isinstance(reader, _CsvReader) else index + 1
            if len(fields) != len(header):
                raise RowsError(
                    f"{source.place(number)}: {len(fields)} fields, but the first line names {len(header)} columns"
                )
            yield source.place(number), dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise RowsError(f"{source.name}: not CSV ({error})") from None


_CsvReader = type(csv.reader([]))


def _lines(source: Source) -> Iterator[bytes]:
    for block in source.blocks():
        yield from block


def _decode(source: Source, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8") + "\n"
    except UnicodeDecodeError:
        raise RowsError(f"{source.place(number)}: not UTF-8; convert it first") from None


def find_files(folder: Path, split: str, part: str | None = None) -> list[Path]:
    """Find the files of a split in a folder: `train.jsonl`, `data/train-00000-of-00001.parquet`, `train/0000.parquet`.

    A file is of a split if the split's name is a word of its path; where it is a word of some paths, `part` (a
    configuration such as `wic`) must be too.

    Raises:
        NotFoundError: there is none.
        UsageError: files of several formats or folders, so that it is not clear which are meant.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _format(path) in FORMATS]
    words = {path: set(re.split(r"[^a-z0-9]+", str(path.relative_to(folder)).lower())) for path in files}
    found = [path for path in files if words[path] & set(ALIASES.get(split, (split,)))]
    if part is not None:
        found = [path for path in found if part.lower() in words[path]] or found
    if not found:
        raise NotFoundError(f"{folder}: no file of the {split} split (a {split}.jsonl, .parquet, .csv or .tsv)")
    if len({(path.parent, _format(path)) for path in found}) > 1:
        named = ", ".join(str(path.relative_to(folder)) for path in found[:4])
        raise UsageError(f"{folder}: several files could be the {split} split ({named}); name the file itself")
    return _shards(found, folder, split)


def _shards(found: Sequence[Path], folder: Path, split: str) -> list[Path]:
    """See that several files are the numbered shards of one table, and all of them."""
    totals = {match[1] for path in found if (match := re.search(r"-of-0*(\d+)", path.name))}
    numbered = all(re.search(r"\d", path.stem) for path in found)
    if len(found) > 1 and not numbered:
        raise UsageError(f"{folder}: {len(found)} files could be the {split} split; name the file itself")
    if totals and totals != {str(len(found))}:
        raise NotFoundError(f"{folder}: {len(found)} of {max(totals)} shards of the {split} split")
    return list(found)
