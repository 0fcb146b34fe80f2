"""What `mltools merge` does: the parts are of one sweep, all of it is there, each item stands once."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from mltools import commands
from mltools.errors import RowsError
from mltools.io.groups import SCALARS, tags_of
from mltools.io.parquet import parquet_metadata
from mltools.io.provenance import KEY
from mltools.io.records import Record
from mltools.io.source import STDIN
from mltools.io.stdout import write_stdout
from mltools.shards import item_digest, item_line
from mltools.spec import CommandSpec, Operand, flatten
from mltools.sweep import ERROR, SCALED, scaled


@dataclass(frozen=True)
class Item:
    """An item of work: its digest, and the command line that does it."""

    digest: str
    command: str


def run(run: Any) -> Iterator[dict[str, Any]]:
    """Check the records, and give those of the whole sweep."""
    parts = [record for block in run.records() for record in block]
    if not parts:
        raise RowsError("no records: name files of one sweep's records")
    check_one_sweep(parts)
    found = by_item(parts)
    count = max(map(len, found.values()))  # rows, where an item has a record a row
    given = run.settings.items
    listed = [each for block in run.read_records([given]) for each in block] if given is not None else None
    line = line_of(parts, run.settings.made_by)
    expected = items_listed(listed) if listed is not None else items_of(parts[0], line)
    check_strangers(found, expected)
    missing = [item for item in expected if len(found.get(item.digest, ())) < count]
    if missing:
        tell_missing(missing, to_stdout=run.get("out") not in (None, Path(STDIN)))
        unknown = "" if line or listed is not None else "; --made-by says of what"
        raise RowsError(f"{len(missing)} of {len(expected)} items are missing (their commands are printed{unknown})")
    kept = [record for item in expected for record in found[item.digest].values()]
    run.report(items=len(expected), duplicates=len(parts) - len(kept) or None)
    yield from with_scaled(kept)


def check_one_sweep(records: Sequence[Record]) -> None:
    """See that records are of one tool, run and set of tags.

    Raises:
        RowsError: a record that is not, or has no digest of its item.
    """
    first: dict[str, Any] = {}
    for record in records:
        if "item_digest" not in record.values:  # without it, nothing says of what sweep it is
            raise RowsError(f'{record.place}: no "item_digest": not of a sweep in parts, or of version 0.1')
        record.get("item_digest", str)
        own = {name: record.values.get(name) for name in ("tool", "run", *tags_of(record))}
        first = first or own
        for name in {**first, **own}:
            if own.get(name) != first.get(name):
                raise RowsError(
                    f'{record.place}: "{name}" is {json.dumps(own.get(name))}, in {records[0].place} '
                    f"{json.dumps(first.get(name))}: of another sweep"
                )


def by_item(records: Iterable[Record]) -> dict[str, dict[Any, Record]]:
    """Give the records of each item, by the id of the row that they are of; of equal ones the one with a scaled error.

    Raises:
        RowsError: two of one item that differ.
    """
    found: dict[str, dict[Any, Record]] = {}
    for record in records:
        row = record.get("id", SCALARS) if "id" in record.values else None
        own = found.setdefault(record.values["item_digest"], {})
        other = own.setdefault(row, record)
        mine, theirs = ({**each.values, SCALED: None, "threads": None} for each in (record, other))
        name = next((key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)), None)
        if name is not None:
            raise RowsError(f'{record.place}: the same item as {other.place}, and yet "{name}" differs')
        if other.values.get(SCALED) is None and record.values.get(SCALED) is not None:
            own[row] = record
    return found


def items_listed(listed: Sequence[Record]) -> list[Item]:
    """Give the items that --dry-run listed.

    Raises:
        RowsError: no list of items, or one without digests.
    """
    if not listed:
        raise RowsError("--items: no items in it; write it with --dry-run")
    return [Item(each.get("item_digest", str), each.get("command", str)) for each in listed]


def line_of(records: Sequence[Record], made_by: Path | None) -> str | None:
    """Give the command line that made the records, without what chose items; None if no provenance says it.

    Raises:
        RowsError: a file that is no provenance of their tool.
    """
    tool = records[0].values.get("tool")
    if made_by is not None:
        if (line := _line(made_by.read_text(encoding="utf-8", errors="replace"), tool)) is None:
            raise RowsError(f"{made_by}: not what --provenance of {tool} writes, with its command line")
        return line
    sources = {record.source.path: record.source for record in records}.values()
    texts = (parquet_metadata(source).get(KEY, "") for source in sources if source.is_parquet and source.path != STDIN)
    return next((line for text in texts if (line := _line(text, tool)) is not None), None)


def _line(provenance: str, tool: Any) -> str | None:
    try:
        values = json.loads(provenance)
        words = values["command"] if values["tool"] == tool else None
    except (ValueError, KeyError, TypeError):
        return None
    return item_line(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def items_of(record: Record, line: str | None) -> list[Item]:
    """Give the items of the whole sweep that a record is of: every window; done by `line`, where that is known.

    Raises:
        RowsError: the record's tool does not sweep windows.
    """
    tool = record.get("tool", str)
    spec: CommandSpec | None = None
    if any(each.name == tool for each in iter_modules(commands.__path__)):
        spec = import_module(f"{commands.__name__}.{tool}").SPEC
    if spec is None or spec.sweep is None:
        raise RowsError(f"{record.place}: {tool} does not sweep windows; name its items with --items (from --dry-run)")
    operands = [each.mark.metavar.strip("[].") for each in flatten(spec.settings) if isinstance(each.mark, Operand)]
    windows = [f"--layers {window}" for window in spec.sweep(record.get("layers", int))]
    words = line or " ".join(["mltools", tool, *operands])
    return [Item(str(item_digest(record.values["run"], options)), f"{words} {options}") for options in windows]


def check_strangers(found: Mapping[str, Mapping[Any, Record]], expected: Sequence[Item]) -> None:
    """See that no record is of an item that the sweep does not have.

    Raises:
        RowsError: one is.
    """
    known = {item.digest for item in expected}
    for digest, records in found.items():
        if digest not in known:
            record = next(iter(records.values()))
            what = record.values.get("window", digest)
            raise RowsError(f"{record.place}: {what} is no item of the sweep; list its items with --items")


def tell_missing(missing: Sequence[Item], *, to_stdout: bool) -> None:
    """Print the commands of the items that are missing."""
    lines = "".join(f"{item.command}\n" for item in missing)
    if to_stdout:
        write_stdout(lines.encode())
    else:
        sys.stderr.write(lines)


def with_scaled(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Fill in the scaled errors, which parts without the full window could not know.

    Raises:
        RowsError: an error is no number.
    """
    whole = next((each for each in records if each.values.get("width") == each.values.get("layers", 0)), None)
    full = whole.number(ERROR) if whole is not None else None
    for each in records:
        yield {**each.values, SCALED: scaled(each.number(ERROR), full)} if SCALED in each.values else each.values
