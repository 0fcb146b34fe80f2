"""Labelled rows as columns, which every tool that runs a model reads."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from mltools import console
from mltools.errors import RowsError
from mltools.io.columns import Columns, IdReader, Label, LabelReader, RowId
from mltools.io.inputs import Rows
from mltools.io.rows import Values, json_preview, kind_name, missing_column

NO_NOISY = (
    "no noisy rows; name the column of right labels (--original-label COL) or of what is mislabelled (--noisy COL), or "
    "make noise: mltools perturb"
)


@dataclass(frozen=True)
class Examples:
    """Labelled rows as columns, in input order, unlabelled rows left out."""

    source: Rows
    ids: list[RowId]
    fields: list[tuple[str, ...]]
    labels: list[Label]
    original_labels: list[Label]
    noisy: list[bool]
    names: list[str] | None = None
    n_unlabelled: int = 0
    columns: Columns = field(default_factory=Columns)
    original_known: bool = True
    """Whether every noisy row says its original label; where one does not, `original_labels` repeats its label."""
    n_left_out: int = 0
    """Clean rows that were not drawn (`hashing.draw_clean`)."""

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

    def take(self, places: Sequence[int], n_left_out: int) -> "Examples":
        """Give the rows at these places alone, in the order of the places; `n_left_out` clean rows are not."""
        return replace(
            self,
            ids=[self.ids[place] for place in places],
            fields=[self.fields[place] for place in places],
            labels=[self.labels[place] for place in places],
            original_labels=[self.original_labels[place] for place in places],
            noisy=[self.noisy[place] for place in places],
            n_left_out=self.n_left_out + n_left_out,
        )

    def require_noisy(self) -> None:
        """Raise if no row is noisy, or none is clean."""
        if not any(self.noisy):
            raise RowsError(f"{self.source.name}: {NO_NOISY}")
        if all(self.noisy):
            raise RowsError(f"{self.source.name}: every row is noisy; clean rows are needed too")


def read_examples(path: str | Path | Rows, columns: Columns = Columns()) -> Examples:
    """Read labelled rows.

    `noisy` is the row's own column, else whether `label` differs from `original_label`, else false;
    `original_label` is the row's own column, else its label; `id` the row's own, else its 0-based number. A row is
    noisy where the two labels differ, and nowhere else: where a row has all three columns, they must agree.
    How many rows are left out for want of a label is said once.

    Args:
        path: a file, `-`, or rows.
        columns: which columns hold text and label, of a file.

    Raises:
        RowsError: a bad line, a missing column, a repeated id, labels of mixed types, columns that contradict each
            other, or no labelled row.
        NotFoundError: no such file.
    """
    (examples,) = iter_examples(path if isinstance(path, Rows) else Rows(path, columns))
    return examples


def iter_examples(rows: Rows, size: int | None = None, *, again: bool = False) -> Iterator[Examples]:
    """Yield labelled rows `size` at a time, all at once by default; else as `read_examples`.

    Rows that are read `again` are checked, and nothing is said of them.
    """
    reader = _ExampleReader(rows)
    numbered = (
        (number, row) for block in rows.blocks() for number, row in zip(block.numbers, block.values, strict=True)
    )
    for index, (number, values) in enumerate(numbered):
        reader.add(index, number, values)
        if len(reader.rows) == size:
            yield reader.take()
    reader.check()
    if reader.n_unlabelled and not again:
        console.warn(f"{rows.name}: {reader.n_unlabelled} rows without a label are left out")
    if reader.rows:
        yield reader.take()


class _ExampleReader:
    def __init__(self, source: Rows) -> None:
        self.source, self.columns = source, source.columns
        self.labels = LabelReader(source, self.columns.label_type)
        self.ids = IdReader(source, self.columns)
        self.n_labelled = self.n_unlabelled = 0
        self.original_known = True
        self.rows: list[tuple[RowId, tuple[str, ...], Label, Label, bool]] = []

    def add(self, index: int, number: int, values: Values) -> None:
        place, columns = self.source.place, self.columns
        row_id = self.ids.read(index, number, values)
        if columns.label not in values:
            raise missing_column(place(number), columns.label, values, "label")
        for name in ("original_label", "noisy"):
            if columns.is_named(name) and getattr(columns, name) not in values:
                raise missing_column(place(number), getattr(columns, name), values, name.replace("_", "-"))
        label = self.labels.read(number, values[columns.label])
        if label is None:
            self.n_unlabelled += 1
            return
        original: Label | None = label
        has_original = columns.original_label in values
        if has_original:
            original = self.labels.read(number, values[columns.original_label])
            if original is None:
                raise RowsError(
                    f"{place(number)}: {columns.original_label} is null though label is {json_preview(label)}; leave "
                    "out rows whose right label is unknown"
                )
        noisy = values.get(columns.noisy, label != original)
        if not isinstance(noisy, bool) and noisy not in (0, 1):
            raise RowsError(f'{place(number)}: "{columns.noisy}" is {json_preview(noisy)}, not true or false')
        if has_original and bool(noisy) != (label != original):
            raise RowsError(f"{place(number)}: {contradiction(label, cast(Label, original))}")
        texts = tuple(self._text(number, values, column) for column in self.columns.text)
        if noisy and not has_original:
            self.original_known = False
        self.n_labelled += 1
        self.rows.append((row_id, texts, label, cast(Label, original), bool(noisy)))

    def _text(self, number: int, values: Values, column: str) -> str:
        if column not in values:
            raise missing_column(self.source.place(number), column, values, "text")
        text = values[column]
        if not isinstance(text, str):
            raise RowsError(f'{self.source.place(number)}: "{column}" is {kind_name(text)}, not text')
        return text

    def check(self) -> None:
        """Raise, after the last row, if labels were of several types or no row had one."""
        self.labels.check()
        if not self.n_labelled:
            raise RowsError(f"{self.source.name}: no labelled rows")

    def take(self) -> Examples:
        """Give the rows since the last time."""
        ids, texts, labels, originals, noisy = (list(column) for column in zip(*self.rows, strict=True))
        self.rows.clear()
        return Examples(
            self.source,
            ids,
            texts,
            labels,
            originals,
            noisy,
            self.source.names,
            self.n_unlabelled,
            self.columns,
            self.original_known,
        )


def contradiction(label: Label, original: Label) -> str:
    """Say that a row's `noisy` contradicts its labels, and how to mend it."""
    if label == original:
        return (
            f'"noisy" is true, but label and original_label are both {json_preview(label)}; leave original_label out '
            "where the right label is unknown, or noisy where the label is right"
        )
    return (
        f'"noisy" is false, but label is {json_preview(label)} and original_label {json_preview(original)}; set noisy '
        "to true, or leave original_label out"
    )
