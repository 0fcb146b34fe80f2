"""The columns of a row that mean something: which they are, and how labels and ids are read."""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, cast

from mltools.errors import RowsError
from mltools.io.delimited import Cells, read_cell
from mltools.io.rows import Block, Values, json_preview, kind_name, missing_column
from mltools.ranges import EXACT

Label = int | str
RowId = int | str
L = TypeVar("L", int, str, int | str)
LabelType = Literal["auto", "str"]
LONG = range(-(1 << 63), 1 << 63)
"""Integers that every table can hold."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a row are meant: --text, --label, --id, --original-label, --noisy; and how they are read."""

    text: tuple[str, ...] = ("text",)
    label: str = "label"
    separator: str | None = None
    label_type: LabelType = "auto"
    id: str = "id"
    original_label: str = "original_label"
    noisy: str = "noisy"

    @property
    def cells(self) -> Cells:
        """What reads the cells of CSV and TSV: text stays text, all that means something else is typed."""
        typed = {self.label, self.id, self.original_label, self.noisy} - {*self.text}
        return lambda column: read_cell if column in typed else None

    def is_named(self, name: Literal["id", "original_label", "noisy"]) -> bool:
        """Whether an option names the column, so that every row must have it."""
        return bool(getattr(self, name) != name)


class Places(Protocol):
    """Names a line or row in messages: alone, or beside another one's."""

    def place(self, number: int) -> str:
        """Name it alone."""

    def line(self, number: int) -> str:
        """Name it beside another one."""


class LabelReader:
    """Turns label values into integers or text, and sees that they are all of one type.

    Integers stay integers, text stays text, whole floats and an all-true/false column become integers.
    `null` and -1 mean unlabelled (None). A mixed column is an error: labels are never guessed. So are texts that look
    alike (blanks around them, letters put together otherwise), and numbers that may have been rounded, such as
    integers beyond 64 bits.
    """

    def __init__(self, source: Places, label_type: LabelType = "auto") -> None:
        """Start with no label seen; `label_type` "str" reads every label as text."""
        self._source = source
        self._as_text = label_type == "str"
        self._kind: type | None = str if self._as_text else None
        self._first: tuple[int, type, object] | None = None
        self._other: list[tuple[int, object]] = []
        self._texts: set[str] = set()
        self._shown: dict[str, tuple[int, str]] = {}

    def read(self, number: int, value: object) -> Label | None:
        """Read the label of line `number`; None where the row is unlabelled."""
        kind = type(value)
        if value is None or (kind in (int, float) and value == -1):
            return None
        if kind not in (int, str, bool, float):
            raise RowsError(f"{self._source.place(number)}: label is {kind_name(value)}, not text or an integer")
        if kind is float and not abs(cast(float, value)) < EXACT:
            place = self._source.place(number)
            raise RowsError(f"{place}: label {value} may be rounded (integers have at most 64 bits); write it as text")
        if self._as_text and kind is not str:
            value, kind = json.dumps(value), str
        if kind is str and value not in self._texts:
            self._meet(number, cast(str, value))
        if kind is float:
            if not cast(float, value).is_integer():
                place = self._source.place(number)
                raise RowsError(f"{place}: label {value} is not whole; regression labels are not supported")
            value, kind = int(cast(float, value)), int
        if self._first is None:
            self._first = (number, kind, value)
            self._kind = kind if kind is not bool else None
        elif kind is not self._first[1]:
            self._other.append((number, value))
        return int(cast(bool, value)) if kind is bool else cast(Label, value)

    def _meet(self, number: int, text: str) -> None:
        """Note a new label; raise if another one looks the same."""
        first, known = self._shown.setdefault(_shown(text), (number, text))
        if known != text:
            of_blanks = known.strip() == text.strip()
            own, other = (json_preview(each) if of_blanks else json.dumps(each) for each in (text, known))
            why = "blanks around it" if of_blanks else "blanks, characters that do not show or how accents are put"
            raise RowsError(
                f"{self._source.place(number)}: label {own} is {self._source.line(first)}'s {other} but for {why}; "
                "write both alike"
            )
        self._texts.add(text)

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
            if self._kind is str and not self._texts.issuperset(values):
                for number, text in zip(block.numbers, values, strict=True):
                    if text not in self._texts:
                        self._meet(number, text)
            return values
        return list(map(self.read, block.numbers, values))

    def check(self) -> None:
        """Raise if the labels read were not all of one type, listing the first lines of another type."""
        if not self._other or self._first is None:
            return
        lines = ", ".join(f"{self._source.line(number)}: {json_preview(value)}" for number, value in self._other[:3])
        more = f" and {len(self._other) - 3} more" if len(self._other) > 3 else ""
        first = f"{self._source.line(self._first[0])}'s {json_preview(self._first[2])}"
        raise RowsError(
            f"{self._source.place(self._other[0][0])}: labels of another type than {first} ({lines}{more}); "
            "--label-type str reads all as text"
        )


def _shown(text: str) -> str:
    """Give what is seen of a label: no blanks around it, one blank for several, no characters without width."""
    composed = unicodedata.normalize("NFC", text)
    return " ".join("".join(c for c in composed if unicodedata.category(c) not in ("Cf", "Cc") or c.isspace()).split())


class IdReader:
    """Reads row ids: the id column, else the 0-based row number; each id may occur once."""

    def __init__(self, source: Places, columns: Columns = Columns(), *, unique: bool = True) -> None:
        """Start with no id seen; `unique=False` lets ids repeat, in constant memory."""
        self._source, self._column, self._required = source, columns.id, columns.is_named("id")
        self._unique = unique
        self._unnamed = 0
        self._seen: dict[RowId, int] = {}

    def read(self, index: int, number: int, values: Values) -> RowId:
        """Read the id of row `index` (from 0), which stands in line `number` (from 1).

        Raises:
            RowsError: an id that is neither an integer nor text, or that occurred before.
        """
        if self._column not in values and self._required:
            raise missing_column(self._source.place(number), self._column, values, "id")
        if self._column not in values and not self._seen:
            self._unnamed = index + 1
            return index
        row_id = values.get(self._column, index)
        if type(row_id) is not int and type(row_id) is not str:
            hint = " (integers have at most 64 bits; write it as text)" if type(row_id) is float else ""
            raise RowsError(f"{self._source.place(number)}: id is {kind_name(row_id)}, not an integer or text{hint}")
        if not self._unique:
            return row_id
        if type(row_id) is int and 0 <= row_id < self._unnamed:
            raise RowsError(f"{self._source.place(number)}: id {row_id} is the number of a row without an id")
        first = self._seen.setdefault(row_id, number)
        if first != number:
            other = self._source.line(first)
            place = self._source.place(number)
            raise RowsError(f"{place}: id {json_preview(row_id)} is also {other}'s; ids must differ")
        return row_id

    def read_block(self, index: int, block: Block) -> Sequence[RowId]:
        """Read the ids of a block of rows, the first of which is row `index`; else as `read`."""
        indices = range(index, index + len(block.values))
        if not self._seen and not self._required and not any(self._column in row for row in block.values):
            self._unnamed = indices.stop
            return indices
        ids = [row.get(self._column) for row in block.values]
        if not self._unnamed and set(map(type, ids)) <= {int, str}:
            named = cast(list[RowId], ids)
            if not self._unique or list(map(self._seen.setdefault, named, block.numbers)) == list(block.numbers):
                return named
        return list(map(self.read, indices, block.numbers, block.values))


def most_frequent(labels: Iterable[L]) -> list[L]:
    """Sort labels by how often they occur; of equally frequent ones the lower comes first (Appendix C)."""
    counts = Counter(labels)
    return sorted(counts, key=lambda label: (-counts[label], label))


def table_ids(ids: Sequence[RowId]) -> list[int] | list[str]:
    """Write ids for a column of a table: as they are where all are integers or all are text, else each as JSON.

    So 1 and "1" stay apart, and so do integers that a signed 64-bit column cannot hold.
    """
    kinds = set(map(type, ids))
    if kinds <= {str} or (kinds == {int} and min(cast(list[int], ids)) in LONG and max(cast(list[int], ids)) in LONG):
        return cast(list[str], list(ids))
    return [json.dumps(row_id, ensure_ascii=False) for row_id in ids]
