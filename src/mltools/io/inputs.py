"""Rows of one table, from however many files, in whatever form: what every command reads rows through.

A file of JSON lines, a JSON array, CSV, TSV or Parquet, packed or not; a folder that `datasets` saved, or one of files
as the hub has them; a data set of the hub, as `hf://NAME`. A folder or a data set may have `:SPLIT` after its name.
"""

import contextlib
import hashlib
import os
import re
import textwrap
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mltools.errors import MltoolsError, NotFoundError, RowsError, UsageError
from mltools.io.columns import Columns
from mltools.io.parquet import class_names, first_line, stored_table, table_rows
from mltools.io.rows import Block, iter_blocks
from mltools.io.source import Source, rereadable

HUB = "hf://"
HUB_FILES = "hf://datasets/"
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
FORMATS = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
PACKED = (".gz", ".zst", ".bz2", ".xz")
ABOUT = ("dataset_info.json", "dataset_infos.json")
"""What a folder of rows has beside them."""


class Rows:
    """Rows of one table: `blocks` reads them, `place` names one in messages, `digest` is of all that was read."""

    def __init__(
        self, paths: "Sequence[str | Path | Source] | str | Path | Source", columns: Columns = Columns(), part: str = ""
    ) -> None:
        """Find the files; nothing is opened yet.

        Args:
            paths: files, folders, data sets, `-` for stdin, or sources.
            columns: which columns mean what.
            part: a word of the files' paths to tell the data sets of one folder apart, where it is one of some.

        Raises:
            NotFoundError, UsageError: a folder without rows, or with rows of several splits; stdin twice.
        """
        given = [paths] if isinstance(paths, str | Path | Source) else list(paths)
        self.columns = columns
        self._sources = [source for path in given for source in find_sources(path, part)]
        found = [os.path.realpath(source.path) for source in self._sources]
        doubled = next((source for n, source in enumerate(self._sources) if found[n] in found[:n]), None)
        if doubled is not None:
            raise UsageError(f"{doubled.name} is named twice; its rows count once")
        names = [path.name if isinstance(path, Source) else Source(path).name for path in given]
        self.name = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        self.names: list[str] | None = None
        """The class names that came with the labels, in their order; known once a block is read."""
        self._tables: list[Any] = []
        self._starts: list[int] = [0]

    def blocks(self) -> Iterator[Block]:
        """Yield the rows, some at a time; line numbers go on from file to file. Labels that have names are these.

        Raises:
            RowsError, NotFoundError: as `iter_blocks`; a label that its names do not name.
        """
        self._tables, self._starts = [], []
        end = 0
        for source in self._sources:
            self._starts.append(start := end)
            for block in self._named(source) if source.is_parquet else iter_blocks(source, self.columns.cells):
                if block.numbers:
                    end = start + block.numbers[-1]
                    yield block if start == 0 else block.shifted(start)

    def _named(self, source: Source) -> Iterator[Block]:
        """Yield the rows of a table, with names in place of the numbers of classes, which may differ by file."""
        table = source.table() if isinstance(source, DataSet) else stored_table(source)
        self._tables.append(table)
        values = table_rows(source, table)
        label, original = self.columns.label, self.columns.original_label
        of_column = {column: class_names(table, column) for column in table.column_names}
        of_column[original] = of_column.get(original) or of_column.get(label)
        for column, names in of_column.items():
            if column in (self.columns.id, self.columns.noisy) or names is None or not values:
                continue
            if isinstance(values[0].get(column, ""), int | None):
                if column in (label, original):
                    self.names = list(dict.fromkeys([*(self.names or ()), *names]))
                for number, row in enumerate(values, start=1):
                    row[column] = _name(source, number, column, row[column], names)
        yield Block(range(1, len(values) + 1), None, values)

    def table(self) -> Any:
        """Give all rows read as one Arrow table, as they are stored; None where some came as text.

        Raises:
            RowsError: files whose columns are of other types.
        """
        if len(self._tables) != len(self._sources):
            return None
        if len(self._tables) == 1:
            return self._tables[0]
        import pyarrow as pa

        named = (self.columns.label, self.columns.original_label)
        for column in set().union(*(table.column_names for table in self._tables)).difference(named):
            if len({tuple(class_names(table, column) or ()) for table in self._tables}) > 1:
                raise RowsError(f'{self.name}: class names of "{column}" differ; take the files one by one')
        try:
            return pa.concat_tables(self._tables, promote_options="default")
        except pa.ArrowException as error:
            raise RowsError(f"{self.name}: not one table ({first_line(error)}); write JSONL instead") from None

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """The metadata that the first table was stored with."""
        return dict(self._tables[0].schema.metadata or {}) if self._tables else {}

    def place(self, number: int) -> str:
        """Name the line or row `number`."""
        index = bisect_left(self._starts, number) - 1
        return self._sources[index].place(number - self._starts[index])

    def line(self, number: int) -> str:
        """Name it within a message about another line."""
        return f"line {number}" if len(self._sources) == 1 else self.place(number)

    @property
    def digest(self) -> str:
        """SHA-256 of what was read, as stored; of several files, of their digests."""
        digests = [source.digest for source in self._sources]
        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()

    @contextlib.contextmanager
    def rereadable(self) -> "Iterator[Rows]":
        """Give the same rows so that they can be read more than once: a stream is copied to a temporary file."""
        with contextlib.ExitStack() as stack:
            again = Rows([stack.enter_context(rereadable(source)) for source in self._sources], self.columns)
            again.name = self.name
            yield again


def _name(source: Source, number: int, column: str, code: Any, names: Sequence[str]) -> str | None:
    if code is None or code == -1:
        return None
    if not 0 <= code < len(names):
        raise RowsError(f"{source.place(number)}: {column} {code} is none of the {len(names)} classes that are named")
    return str(names[code])


def find_sources(path: "str | Path | Source", part: str = "") -> list[Source]:
    """Find the sources that an argument names: one, or the files of a folder.

    Raises:
        NotFoundError, UsageError: as `find_files`.
    """
    if isinstance(path, Source):
        return [path]
    text = str(path)
    if text.startswith(HUB):
        return [DataSet(text)]
    folder, split = split_name(text)
    if not folder or not Path(folder).is_dir():
        return [Source(text)]
    if any(Path(folder, name).is_file() for name in ("state.json", "dataset_dict.json")):
        return [DataSet(text)]
    return [Source(file) for file in find_files(Path(folder), split, part)]


def split_name(text: str) -> tuple[str, str]:
    """Take `FOLDER:SPLIT` apart; the split is empty where none is named."""
    folder, _, split = text.rpartition(":")
    return (folder, split) if folder and not Path(text).exists() and Path(folder).is_dir() else (text, "")


class DataSet(Source):
    """A data set that the library `datasets` reads: a folder that it saved, or one of the hub."""

    def __init__(self, path: str) -> None:
        """Remember the name; nothing is loaded yet."""
        super().__init__(path)
        if path.startswith(HUB_FILES):
            self.name = path.removeprefix(HUB_FILES).partition("@")[0]

    @property
    def form(self) -> str:
        """A table, as Parquet is."""
        return ".parquet"

    def table(self) -> Any:
        """Load it, as an Arrow table.

        Raises:
            NotFoundError: it is neither here nor to be had from the hub.
            RowsError: a folder that is damaged.
            UsageError: it has several splits, and none is named.
        """
        import datasets

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity_error()
        is_hub = self.path.startswith(HUB)
        try:
            found = self._from_hub(datasets) if is_hub else self._from_folder(datasets)
            table = found.with_format("arrow")[:].replace_schema_metadata(found.features.arrow_schema.metadata)
        except MltoolsError:
            raise
        except Exception as error:  # noqa: BLE001  whichever HTTP library this version of the hub's client has
            reason = textwrap.shorten(f"{type(error).__name__}: {first_line(error)}", 160, placeholder=" …")
            if is_hub:
                what = f"{self.name}: not available from the hub ({reason})"
                raise NotFoundError(f"{what}; give a local copy, to prepare with --from") from None
            raise RowsError(f"{self.path}: not a whole data set of `datasets` ({reason})") from None
        digest = hashlib.sha256()
        for batch in table.to_batches():
            digest.update(batch.serialize())
        self._digest = digest.hexdigest()
        return table

    def _from_folder(self, datasets: Any) -> Any:
        folder, split = split_name(self.path)
        return self._chosen(datasets.load_from_disk(folder), split)

    def _from_hub(self, datasets: Any) -> Any:
        if self.path.startswith(HUB_FILES):
            return datasets.load_dataset("parquet", data_files={"train": self.path}, split="train")
        name, _, split = self.path.removeprefix(HUB).partition(":")
        *repository, configuration = name.split("/") if name.count("/") > 1 else (name, None)
        return self._chosen(datasets.load_dataset("/".join(repository), configuration), split)

    def _chosen(self, found: Any, split: str) -> Any:
        if not isinstance(found, dict):
            if split not in ("", str(found.split)):
                raise UsageError(f"{self.path}: the data set there has no splits; leave :{split} out")
            return found
        chosen = split or (next(iter(found)) if len(found) == 1 else "")
        if chosen not in found:
            what = f"has no split {split}" if split else "has several splits"
            name = self.path.removesuffix(f":{split}")
            raise UsageError(f"{name} {what}: name {' or '.join(f'{name}:{each}' for each in found)}")
        return found[chosen]


def _format(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def find_files(folder: Path, split: str = "", part: str = "") -> list[Path]:
    """Find the files of a split in a folder: `train.jsonl`, `data/train-00000-of-00001.parquet`, `train/0000.parquet`.

    A file is of a split if the split's name is a word of its path; where it is a word of some paths, `part` (a
    configuration such as `wic`) must be too. Without a split, all files are meant, which must be of one.

    Raises:
        NotFoundError: there is none.
        UsageError: files of several formats, folders or splits, so that it is not clear which are meant.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _format(path) in FORMATS]
    words = {
        path: set(re.split(r"[^a-z0-9]+", str(path.relative_to(folder)).lower()))
        for path in files
        if path.name not in ABOUT
    }
    splits = [name for name, aliases in SPLITS.items() if any(words[path] & set(aliases) for path in words)]
    if not split and len(splits) > 1:
        raise UsageError(f"{folder} has several splits: name {' or '.join(f'{folder}:{name}' for name in splits)}")
    found = [path for path in words if not split or words[path] & set(SPLITS.get(split, (split,)))]
    found = [path for path in found if part and part.lower() in words[path]] or found
    if not found:
        of = f" of the {split} split" if split else ""
        raise NotFoundError(f"{folder}: no file{of} (such as {split or 'train'}.jsonl, .parquet, .csv or .tsv)")
    what = f"the {split} split" if split else "meant"
    if len({(path.parent, _format(path)) for path in found}) > 1:
        named = ", ".join(str(path.relative_to(folder)) for path in found[:4])
        raise UsageError(f"{folder}: several files could be {what} ({named}); name the file itself")
    return _shards(found, folder, what)


def _shards(found: Sequence[Path], folder: Path, what: str) -> list[Path]:
    """See that several files are the numbered shards of one table, and all of them."""
    totals = {match[1] for path in found if (match := re.search(r"-of-0*(\d+)", path.name))}
    numbered = all(re.search(r"\d", path.stem) for path in found)
    if len(found) > 1 and not numbered:
        raise UsageError(f"{folder}: {len(found)} files could be {what}; name the file itself")
    if totals and totals != {str(len(found))}:
        raise NotFoundError(f"{folder}: {len(found)} of {max(totals)} shards of {what}")
    return list(found)
