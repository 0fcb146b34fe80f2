"""What records say of themselves that whatever is made of them must say too: whether they are valid, of which widths.

`swap`, `retrain`, … judge their experiment (`valid`); here that is only carried on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from mltools.io.records import Records
from mltools.layers import format_layers

_COLUMNS: dict[str, type] = {"valid": bool, "valid_reason": str, "widths": str}


@dataclass(slots=True)
class Carried:
    """The different (`valid`, `valid_reason`, `widths`, `layers`) of some records; null where they have no such."""

    said: set[tuple[Any, Any, Any, Any]] = field(default_factory=set)

    def read(self, records: Records) -> None:
        """Add what records with the same columns say.

        Raises:
            RowsError: a column of another type.
        """
        if not len(records):
            return
        there = records.values[0]
        names = [name for name in (*_COLUMNS, "layers") if name in there and (name != "layers" or "widths" in there)]
        if not set(names) & set(_COLUMNS):
            self.said.add((None, None, None, None))
            return
        nothing = [None] * len(records)
        columns = [
            map(itemgetter(name), records.values) if name in names else nothing for name in (*_COLUMNS, "layers")
        ]
        try:
            found = set(zip(*columns, strict=False))
        except TypeError:
            found = set()  # a list, which cannot be hashed
        if not found or not all(map(_is_plain, found)):
            _refuse(records)
        self.said |= found

    def join(self, others: Iterable["Carried"]) -> "Carried":
        """Add what others have read."""
        for other in others:
            self.said |= other.said
        return self

    @property
    def valid(self) -> bool | None:
        """False if a record is not valid, True if all are, None if that is not known of some."""
        found = {valid for valid, *_ in self.said}
        return False if False in found else None if None in found or not found else True

    @property
    def valid_reason(self) -> str | None:
        """Say why records are not valid."""
        reasons = {reason for valid, reason, *_ in self.said if valid is False and reason}
        return ",".join(sorted({part for reason in reasons for part in reason.split(",")})) or None

    @property
    def widths(self) -> set[str]:
        """The different widths, those of full sweeps under the one name 1-L; records that know of none left out."""
        return {named_widths(widths, layers) for *_, widths, layers in self.said if widths is not None}


def named_widths(widths: str, layers: object) -> str:
    """Name widths so that full sweeps of models with more and fewer layers have one name."""
    full = isinstance(layers, int) and widths == format_layers(range(1, layers + 1))
    return "1-L" if full else widths


def _is_plain(found: tuple[Any, ...]) -> bool:
    return all(value is None or type(value) is kind for value, kind in zip(found, _COLUMNS.values(), strict=False))


def _refuse(records: Records) -> None:
    """Name the record that says something that cannot be."""
    for record in records:
        for name, kind in {**_COLUMNS, "layers": int}.items():
            if record.values.get(name) is not None:
                record.get(name, kind)
