"""A sweep of windows (swap, retrain): what its records say of their windows, and which are there already."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from mltools.errors import RowsError
from mltools.io.groups import GROUPING, tags_of
from mltools.io.provenance import threads
from mltools.io.records import Record
from mltools.io.writer import Tags
from mltools.layers import Window, parse_layers
from mltools.shards import item_digest

ERROR, SCALED = "memorisation_error", "memorisation_error_scaled"
"""What a window is measured by, and what a record can only say of it once the full window is known."""


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
        errors[window] = record.number(ERROR)
    return errors


def window_columns(window: Window, n_layers: int, run: str | None) -> dict[str, Any]:
    """Give the columns that say which window a record is of, and of which sweep."""
    return {
        "start": window.start,
        "end": window.end,
        "width": window.width,
        "layers": n_layers,
        "window": str(window),
        "run": run,
        "item_digest": item_digest(run, f"--layers {window}"),
        "threads": threads(),
    }


def scaled(error: float, full: float | None) -> float | None:
    """Divide a window's error by the full window's; None if that is unknown or 0."""
    return error / full if full else None


def by_start(windows: Iterable[Window]) -> Iterator[list[Window]]:
    """Yield runs of windows that start at the same layer."""
    return (list(group) for _, group in groupby(windows, lambda window: window.start))
