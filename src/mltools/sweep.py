"""Going on with a sweep of windows that was stopped: which of its records are there already (swap, retrain)."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from mltools.errors import RowsError, UsageError
from mltools.io.groups import GROUPING, tags_of
from mltools.io.records import Record
from mltools.io.writer import Tags
from mltools.layers import Window, parse_layers


def finished(records: Iterable[Record], tool: str, part: str, tags: Tags) -> list[Record]:
    """Pick the records of an earlier, unfinished sweep: those of the tool with this part and exactly these tags."""

    def belongs(record: Record) -> bool:
        values = record.values
        own = {key: values[key] for key in tags_of(record) if key not in GROUPING and values[key] is not None}
        return values.get("tool") == tool and values.get("part") == part and own == dict(tags)

    return [record for record in records if belongs(record)]


def finished_errors(done: Sequence[Record], n_layers: int, expected: Mapping[str, object]) -> dict[Window, float]:
    """Give the memorisation errors of an earlier sweep's windows.

    Args:
        done: its records.
        n_layers: layers of the model.
        expected: columns that records of this very sweep have; None in them is not looked at.

    Raises:
        RowsError: a record of another sweep.
    """
    errors: dict[Window, float] = {}
    for record in done:
        for key, value in {"layers": n_layers, **expected}.items():
            found = record.values.get(key)
            if found != value and value is not None:
                raise RowsError(
                    f'{record.place}: "{key}" is {found}, this sweep has {value}: made with other settings or '
                    "inputs; resume with the same ones, or tell sweeps apart with --tag"
                )
        window = Window(parse_layers(record.get("window", str), n_layers))
        errors[window] = record.number("memorisation_error")
    return errors


def scaled(error: float, full: float | None) -> float | None:
    """Divide a window's error by the full window's; None if that is unknown or 0."""
    return error / full if full else None


# -- windows that come bit by bit ---------------------------------------------------------------------
PIPED = ("-",)
"""What --layers is where windows come from stdin, a line each."""


def check_piped(settings: Any) -> None:
    """See that --layers - goes together with the other settings.

    Raises:
        UsageError: other windows beside it, rows from stdin too, or a list of all windows asked for.
    """
    if "-" not in settings.layers:
        return
    if settings.layers != PIPED:
        raise UsageError("--layers - takes the windows from stdin: name no others beside it")
    if not settings.rows or "-" in settings.rows:
        raise UsageError("--layers - and the rows cannot both come from stdin: name a file of rows")
    if settings.share.shard is not None or settings.share.dry_run:
        raise UsageError("--layers - takes windows as they come, there is no list of them: no --shard, no --dry-run")


def piped_windows(n_layers: int) -> Iterator[list[Window]]:
    """Yield each window that comes on stdin, alone, when its line is there.

    Raises:
        UsageError: a line that is no layer list.
    """
    for line in sys.stdin:
        if text := line.strip():
            yield [Window(parse_layers(text, n_layers))]


def by_start(windows: Iterable[Window]) -> Iterator[list[Window]]:
    """Yield runs of windows that start at the same layer."""
    return (list(group) for _, group in groupby(windows, lambda window: window.start))
