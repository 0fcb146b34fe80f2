"""Rows of the paper's tasks as the hub or a local copy has them: columns by our names, labels by their names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mltools.commands.prepare.tasks import LABEL, TOPICS, PaperTask
from mltools.errors import RowsError, UsageError
from mltools.io.columns import Columns, Label, RowId
from mltools.io.inputs import Rows
from mltools.io.rows import Values, json_preview, missing_column

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


def reader(task: PaperTask, source: Path | None, inputs: Inputs) -> Read:
    """Give what reads official splits, from the hub's own conversion to Parquet or a local copy.

    Args:
        task: which.
        source: a folder, or the file of the one split that is needed; None for the hub.
        inputs: gets the digest of each split read.
    """
    file_is: list[str] = []

    def named(split: str) -> str:
        if source is None:
            return HUB.format(hub=task.hub, config=task.config, split=split)
        if source.is_dir():
            return f"{source}:{split}"
        if file_is not in ([], [split]):
            raise UsageError(f"--from {source}: the {file_is[0]} split is needed too; give the folder of both")
        file_is[:] = [split]
        return str(source)

    def read(split: str) -> Iterator[tuple[str, Values]]:
        rows = Rows(named(split), Columns(tuple(task.columns), task.label), task.config)
        for block in rows.blocks():
            yield from zip(map(rows.place, block.numbers), block.values, strict=True)
        inputs[split] = {"path": rows.name, "sha256": rows.digest}

    return read


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
