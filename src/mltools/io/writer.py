"""Records out: JSON lines on stdout, or a file whose form its name tells."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.lines import dump
from mltools.io.partial import Partial
from mltools.io.provenance import Provenance
from mltools.io.stdout import to_stdout, write_json
from mltools.io.tables import write_table

Tags = Mapping[str, str | int | float | bool]


class RecordWriter:
    """Writes records one by one to stdout or to a file; use as a context manager.

    JSONL on stdout: each record is one write, so that parallel appends do not mix, and appears at once.
    A file (JSON lines, Parquet or CSV, by its name) appears whole when the context ends without an error.
    """

    def __init__(
        self, out: Path | None, tags: Tags | None = None, *, keep_going: bool = False, replace: bool = False
    ) -> None:
        """Write to `out`, or to stdout if it is None or `-`; add `tags` to every record; `replace` a file at `out`.

        If stdout's reader goes, the program ends, or is to `keep_going` because it makes other outputs too.
        """
        self._keep_going = keep_going
        self._replace = replace
        self._out = None if to_stdout(out) else out
        self._tags = dict(tags or {})
        self._rows: list[dict[str, Any]] = []
        self.provenance: Provenance | None = None
        self.kinds: Sequence[type[Any]] = ()
        self.partial: Partial | None = None
        self.n = 0

    def __enter__(self) -> "RecordWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and self._out is not None:
            write_table(self._out, self._rows, self.provenance, self.kinds, replace=self._replace)

    def write(self, record: Any) -> None:
        """Write one record, as `as_row` takes it."""
        row = as_row(record)
        clash = next((tag for tag in self._tags if tag in row), None)
        if clash is not None:
            raise UsageError(f'tag "{clash}" is a column of the records already; choose another name')
        row = {**row, **self._tags}
        self.n += 1
        if self._out is None:
            write_json(dump(row), keep_going=self._keep_going)
        else:
            self._rows.append(row)
            if self.partial is not None:
                self.partial.append(dump(row))


def as_row(record: Any) -> dict[str, Any]:
    """Give the columns of a record: a dataclass or a mapping, or a pair of one and the columns of its group.

    Raises:
        RowsError: a column of the group is also one of the record's own, and differs.
    """
    own, group = record if isinstance(record, tuple) else (record, {})
    row = dict(own) if isinstance(own, Mapping) else dataclasses.asdict(own)
    for name, value in group.items():
        if row.get(name, value) != value:  # a foreign column must not take the place of what was found
            raise RowsError(
                f'the records\' column "{name}" ({value!r}) is also one of what is found ({row[name]!r}); '
                "leave it out, or give it another name"
            )
    return {**row, **group}
