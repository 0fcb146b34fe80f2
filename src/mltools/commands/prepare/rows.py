"""Rows of the paper's tasks as the hub or a local copy has them: columns by our names, labels by their names."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from mltools.commands.prepare.tasks import LABEL, TOPICS, PaperTask
from mltools.errors import NotFoundError, RowsError, UsageError
from mltools.io.columns import Label, RowId
from mltools.io.parquet import first_line
from mltools.io.rows import Values, json_preview, missing_column
from mltools.io.source import Source
from mltools.io.tables import find_files, read_file

HUB = "hf://datasets/{hub}@refs%2Fconvert%2Fparquet/{config}/{split}/*.parquet"
WORDS = {"true": 1, "false": 0}
"""Labels of two classes as JSON and CSV may write them."""

Inputs = dict[str, dict[str, str]]
Read = Callable[[str], Iterator[tuple[str, Values]]]
"""The name of an official split to (place, columns) of its rows."""


@dataclass(frozen=True)
class Row:
    """A row of a task: id, text columns by our names, and the label. Reuters' rows have topics, and no label yet."""

    id: RowId
    texts: Mapping[str, str]
    label: Label
    topics: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Give the columns of the row."""
        return {"id": self.id, **self.texts, LABEL: self.label}


class LocalReader:
    """Reads official splits from a local copy: a folder, or the file of the one split that is needed."""

    def __init__(self, source: Path, task: PaperTask, inputs: Inputs) -> None:
        """Remember where; `inputs` gets the digest of each file read."""
        self._source, self._task, self._inputs = source, task, inputs
        self._file_is: str | None = None

    def __call__(self, split: str) -> Iterator[tuple[str, Values]]:
        """Yield the rows of a split.

        Raises:
            NotFoundError, RowsError, UsageError: as `read_file` and `find_files`; one file, and another split is
                needed too.
        """
        for number, path in enumerate(self._files(split)):
            used: list[Source] = []
            yield from read_file(path, used)
            role = f"{split}-{number}" if number else split
            self._inputs[role] = {"path": used[0].name, "sha256": used[0].digest}

    def _files(self, split: str) -> list[Path]:
        if not self._source.exists():
            raise NotFoundError(f"no such file or folder: {self._source}")
        if self._source.is_dir():
            return find_files(self._source, split, self._task.config)
        if self._file_is not in (None, split):
            raise UsageError(f"--from {self._source}: the {self._file_is} split is needed too; give the folder of both")
        self._file_is = split
        return [self._source]


class HubReader:
    """Reads official splits from the hub, through `datasets`, from the hub's own conversion to Parquet."""

    def __init__(self, task: PaperTask, inputs: Inputs) -> None:
        """Remember the task; `inputs` gets a digest of the rows of each split read."""
        self._task, self._inputs = task, inputs

    def __call__(self, split: str) -> Iterator[tuple[str, Values]]:
        """Yield the rows of a split.

        Raises:
            NotFoundError: the hub cannot be reached, or does not have it.
        """
        url = HUB.format(hub=self._task.hub, config=self._task.config, split=split)
        digest = hashlib.sha256()
        for number, values in enumerate(self._load(url, split), start=1):
            digest.update(orjson.dumps(values))
            yield f"{self._task.hub}/{split}:{number}", values
        self._inputs[split] = {"path": url, "sha256": digest.hexdigest()}

    def _load(self, url: str, split: str) -> Any:
        from datasets import disable_progress_bars, load_dataset

        disable_progress_bars()
        try:
            return load_dataset("parquet", data_files={split: url}, split=split)
        except Exception as error:  # noqa: BLE001  whichever HTTP library this version of the hub's client has
            reason = f"{type(error).__name__}: {first_line(error)[:120]}"
            raise NotFoundError(
                f"{self._task.hub}: not available from the hub ({reason}); give a local copy with --from"
            ) from None


def parse(task: PaperTask, rows: Iterator[tuple[str, Values]]) -> list[Row]:
    """Read the columns of rows, under the hub's names or ours; `id` is the row's number, from 0, where there is none.

    Raises:
        RowsError: no rows, a column missing, or a label that is no class of the task.
    """
    parsed = [_parse_row(task, number, place, values) for number, (place, values) in enumerate(rows)]
    if not parsed:
        raise RowsError(f"no rows of {task.name} came in")
    return parsed


def _parse_row(task: PaperTask, number: int, place: str, values: Values) -> Row:
    texts = {}
    for theirs, ours in task.columns.items():
        value = _column(place, values, theirs, ours)
        if not isinstance(value, str):
            raise RowsError(f"{place}: {theirs} is {json_preview(value)}, not text")
        texts[ours] = value
    label = _column(place, values, task.label, LABEL)
    row = Row(values.get("id", number), {name: texts[name] for name in sorted(texts, key=_rank)}, "")
    if task.label != TOPICS:
        return replace(row, label=_label(task, place, label))
    topics = [label] if LABEL in values and isinstance(label, str) else label
    if not isinstance(topics, list | tuple) or not all(isinstance(topic, str) for topic in topics):
        raise RowsError(f"{place}: topics is {json_preview(label)}, not a list of texts (CSV cannot hold one)")
    return replace(row, topics=tuple(topics))


def _rank(column: str) -> int:
    return ("text", "text_pair", "word").index(column)


def _column(place: str, values: Values, theirs: str, ours: str) -> Any:
    name = theirs if theirs in values else ours
    if name not in values:
        raise missing_column(place, theirs, values, "")
    return values[name]


def _label(task: PaperTask, place: str, value: object) -> Label:
    """Read a label: the name or the hub's number of a class, also as CSV and JSON may write it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and (task.names or task.numbered) and value not in task.names:
        value = WORDS.get(value.lower(), int(value) if value.isdigit() else value)
    if task.names and isinstance(value, int) and 0 <= value < len(task.names):
        return task.names[value]
    if task.names and value in task.names:
        return str(value)
    if task.numbered and isinstance(value, int) and 0 <= value < task.classes:
        return int(value)
    if not task.names and not task.numbered and isinstance(value, str):
        return value
    raise RowsError(f"{place}: label {json_preview(value)} is no class of {task.name}")
