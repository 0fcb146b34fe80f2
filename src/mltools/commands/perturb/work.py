"""Give a share of each class a wrong label, drawn uniformly from the other classes (§3). Needs no torch.

Which rows and which labels is a keyed hash of (seed, id): the same for any order of the rows. All other
columns pass through; JSONL keeps its bytes.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import chain, compress
from math import floor
from operator import is_, itemgetter, mod
from typing import Any, cast

import orjson

from mltools.commands.perturb import Settings, check
from mltools.commands.perturb.draw import LABELS, ROWS, Draw, draw_hash, draw_python, draw_rates
from mltools.commands.perturb.transition import read_transition
from mltools.errors import RowsError, UsageError
from mltools.hashing import keyed_hash, keyed_hashes
from mltools.io.atomic import atomic_file
from mltools.io.columns import Columns, IdReader, Label, LabelReader, RowId, most_frequent
from mltools.io.inputs import Rows
from mltools.io.lines import PARQUET, is_lines, open_lines
from mltools.io.rewrite import dump_row, replace_value, write_parquet_rows
from mltools.io.rows import Block, RawRow, Values, json_preview
from mltools.io.source import Source
from mltools.io.stdout import to_stdout, write_json
from mltools.run import Run


@dataclass
class Count:
    """How many rows there were, and how many of each class became noisy."""

    rows: int = 0
    unlabelled: int = 0
    left_out: int = 0
    noisy: int = 0


Blocks = Iterator[bytes | list[Values]]
"""Rows, many at a time: JSON lines with their ends as one text, or rows of another form."""


def perturb(rows: Rows, settings: Settings, count: Count | None = None) -> Iterator[RawRow]:
    """Yield the rows with `original_label` and `noisy` added and, in noisy rows, another `label`.

    Exactly floor(rate x n_c) rows of each class c change, or, with `stream`, each row with probability `rate`
    in constant memory. Unlabelled rows (null, -1) pass through untouched.

    Args:
        rows: in whatever form.
        settings: rate, seed, and how to draw.
        count: filled in on the way.

    Yields:
        `bytes` (a JSON line without its end) for JSONL, `dict` for other forms.

    Raises:
        UsageError: a rate outside 0-1, or options that do not go together.
        RowsError: a bad row, one class only, or rows that were perturbed before.
    """
    rates = Source(settings.transition) if settings.transition is not None else None
    yield from one_by_one(perturb_blocks(rows, settings, count or Count(), rates))


def one_by_one(blocks: Blocks) -> Iterator[RawRow]:
    """Take blocks of rows apart."""
    for block in blocks:
        yield from block.split(b"\n")[:-1] if isinstance(block, bytes) else block


def perturb_blocks(rows: Rows, settings: Settings, count: Count, rates: Source | None = None) -> Blocks:
    """Yield many rows at a time, for speed; `rates` is where --transition's are; else as `perturb`."""
    check(settings)
    parts = _read(rows, settings, count)
    yield from _stream(parts, rows, settings, count) if settings.stream else _exact(parts, rows, settings, count, rates)


@dataclass
class _Part:
    """Some rows, as columns. JSON lines lack their closing brace. Of those that lack an id, all do (`numbered`)."""

    rows: list[RawRow]
    ids: Sequence[RowId]
    labels: Sequence[Label | None]
    numbered: bool

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, classes: set[Label]) -> "_Part":
        chosen = [label in classes for label in self.labels]
        rows, ids, labels = (list(compress(column, chosen)) for column in (self.rows, self.ids, self.labels))
        return _Part(cast(list[RawRow], rows), cast(list[RowId], ids), cast(list[Label | None], labels), self.numbered)


def _read(rows: Rows, settings: Settings, count: Count) -> Iterator[_Part]:
    labels = LabelReader(rows, rows.columns.label_type)
    ids = IdReader(rows, rows.columns, unique=not settings.stream)
    for block in rows.blocks():
        _refuse_perturbed(rows, block)
        found = labels.read_block(block, rows.columns.label)
        row_ids = ids.read_block(count.rows, block)
        count.rows += len(found)
        count.unlabelled += found.count(None)
        yield _part(block, rows.columns, row_ids, found)
    labels.check()
    if not count.rows:
        raise RowsError(f"{rows.name}: no rows")


def _refuse_perturbed(rows: Rows, block: Block) -> None:
    columns = set().union(*block.values)
    for name in (rows.columns.original_label, rows.columns.noisy):
        if name in columns:
            number = next(number for number, row in zip(block.numbers, block.values, strict=True) if name in row)
            raise RowsError(f'{rows.place(number)}: has "{name}" already; perturb rows only once')


def _part(block: Block, columns: Columns, ids: Sequence[RowId], labels: Sequence[Label | None]) -> _Part:
    numbered = isinstance(ids, range)
    column, own = columns.label, columns.id
    members = zip(block.values, ids, labels, strict=True)
    if block.lines is None:
        rows = [{**row, column: row[column] if label is None else label, own: row_id} for row, row_id, label in members]
        return _Part(list(rows), ids, labels, numbered)
    lines = [line.rstrip()[:-1] for line in block.lines]
    if all(map(is_, labels, map(itemgetter(column), block.values))) and (
        numbered or all(own in row for row in block.values)
    ):
        return _Part(list(lines), ids, labels, numbered)
    for index, (row, row_id, label) in enumerate(members):
        if label is not row[column] and label is not None:
            lines[index] = replace_value(lines[index], column, orjson.dumps(label))
        if not numbered and own not in row:
            lines[index] += b',"id":%b' % orjson.dumps(row_id)
    return _Part(list(lines), ids, labels, numbered)


def _exact(parts: Iterable[_Part], rows: Rows, settings: Settings, count: Count, rates: Source | None) -> Blocks:
    parts = list(parts)
    if settings.top_classes is not None:
        kept = _top_classes(chain.from_iterable(part.labels for part in parts), settings.top_classes, rows)
        parts = [part.keep(kept) for part in parts]
        count.left_out = count.rows - sum(map(len, parts))
    labels = list(chain.from_iterable(part.labels for part in parts))
    classes = sorted(cast(set[Label], set(labels) - {None}))
    if settings.classes is not None:
        classes = _named_classes(settings.classes, classes, rows)
    if rates is None and len(classes) < 2:
        raise RowsError(f"{rows.name}: {_few(classes)}; a wrong label needs two classes")
    ids = list(chain.from_iterable(part.ids for part in parts))
    if rates is not None:
        draw = draw_rates(ids, labels, read_transition(rates, classes), settings.seed)
    else:
        draw = (draw_hash if settings.draw == "hash" else draw_python)(ids, labels, classes, settings)
    count.noisy = len(draw)
    mark, chosen, start = _Marker(rows.columns), sorted(draw), 0
    for part in parts:
        stop = start + len(part)
        here = chosen[bisect_left(chosen, start) : bisect_left(chosen, stop)]
        yield mark(part, {index - start: draw[index] for index in here})
        start = stop


def _stream(parts: Iterable[_Part], rows: Rows, settings: Settings, count: Count) -> Blocks:
    mark = _Marker(rows.columns)
    choice = keyed_hash(LABELS, settings.seed)
    classes: list[Label] | None = None
    bound = floor(Decimal(str(settings.rate)) * 2**64)
    for part in parts:
        news: Draw = {}
        ranks = keyed_hashes(part.ids, ROWS, settings.seed).tolist()
        for index, (row_id, label, rank) in enumerate(zip(part.ids, part.labels, ranks, strict=True)):
            if label is None:
                continue
            classes = classes or _named_classes(settings.classes or (), [label], rows)
            if label not in classes:
                raise RowsError(
                    f"{rows.name}: label {json_preview(label)} (id {json_preview(row_id)}) is not among --classes"
                )
            if rank < bound:
                others = [c for c in classes if c != label]
                news[index] = others[choice(row_id) % len(others)]
        count.noisy += len(news)
        yield mark(part, news)


def _few(classes: Sequence[Label]) -> str:
    return f"one class only ({classes[0]})" if classes else "no labelled rows"


def _named_classes(names: Sequence[str], seen: Sequence[Label], rows: Rows) -> list[Label]:
    """Read --classes as the type that the labels have."""
    as_int = bool(seen) and isinstance(seen[0], int)
    try:
        classes = sorted({int(name) if as_int else name for name in names})
    except ValueError:
        raise UsageError(f"--classes: labels of {rows.name} are integers; write integers") from None
    outside = [label for label in seen if label not in classes]
    if outside:
        raise RowsError(f"{rows.name}: label {json_preview(outside[0])} is not among --classes")
    if len(classes) < 2:
        raise UsageError("--classes: name at least two classes")
    return classes


def _top_classes(labels: Iterable[Label | None], k: int, rows: Rows) -> set[Label]:
    """Pick the k most frequent classes."""
    classes = most_frequent(label for label in labels if label is not None)
    if len(classes) < k:
        raise RowsError(f"{rows.name}: {len(classes)} classes, fewer than --top-classes {k}")
    return set(classes[:k])


class _Marker:
    """Writes rows with their new columns."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        # what ends a JSON line: columns of the noisy and of the others, to be filled with the label
        named = (orjson.dumps(columns.original_label), orjson.dumps(columns.noisy))
        self._ends = {noisy: b",%b:%%b,%b:%b}\n" % (*named, orjson.dumps(noisy)) for noisy in (True, False)}

    def __call__(self, part: _Part, news: Draw) -> bytes | list[Values]:
        """Mark the rows; `news` holds the new labels of the noisy ones, by position."""
        if part.rows and isinstance(part.rows[0], dict):
            return [self._values(part, index, news.get(index)) for index in range(len(part))]
        ends = {label: self._end(label, part.numbered, noisy=False) for label in set(part.labels)}
        pieces = cast(list[bytes], [b""]) * (2 * len(part))
        pieces[::2] = cast(list[bytes], part.rows)
        pieces[1::2] = map(ends.__getitem__, part.labels)
        for index, new in news.items():
            pieces[2 * index] = replace_value(pieces[2 * index], self._columns.label, orjson.dumps(new))
            pieces[2 * index + 1] = self._end(part.labels[index], part.numbered, noisy=True)
        if part.numbered:
            pieces[1::2] = map(mod, pieces[1::2], part.ids)
        return b"".join(pieces)

    def _values(self, part: _Part, index: int, new: Label | None) -> Values:
        row, label, columns = cast(Values, part.rows[index]), part.labels[index], self._columns
        noisy = None if label is None else new is not None
        changed = {columns.label: row[columns.label] if new is None else new}
        return {**row, **changed, columns.original_label: label, columns.noisy: noisy}

    @cache  # noqa: B019  one marker a run
    def _end(self, label: Label | None, numbered: bool, *, noisy: bool) -> bytes:
        """Give what ends a JSON line; where rows are numbered, `%d` stands in it for the number."""
        end = b"}\n" if label is None else self._ends[noisy] % orjson.dumps(label)
        return b',"id":%d' + end.replace(b"%", b"%%") if numbered else end


def run(run: Run) -> Blocks:
    """Perturb the rows given."""
    count, rows = Count(), run.input("rows")
    rates = run.source("transition") if run.settings.transition is not None else None
    yield from perturb_blocks(rows, run.settings, count, rates)
    run.used("rows", rows)
    if rates is not None:
        run.used("transition", rates)
    run.report(
        rows=count.rows,
        noisy=count.noisy,
        unlabelled=count.unlabelled or None,
        left_out=count.left_out or None,
        rate=run.settings.rate if rates is None else None,
    )


CHUNK_ROWS = 4096


class RowSink:
    """Takes blocks of rows: to stdout as they come, or to a file of JSON lines, Parquet or CSV that appears whole."""

    def __init__(self, run: Run) -> None:
        """Write where the run's -o says."""
        self._run, self._out = run, run.get("out")
        self._stack = contextlib.ExitStack()
        self._kept: list[Any] = []
        self.n = 0

    def __enter__(self) -> "RowSink":
        self._write: Callable[[bytes], object] = write_json
        self._keeps = not to_stdout(self._out) and not is_lines(self._out)
        if not to_stdout(self._out) and not self._keeps:
            path = self._stack.enter_context(atomic_file(self._out, replace=self._run.force))
            self._write = self._stack.enter_context(open_lines(path, self._out)).write
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._keeps:
            run, path = self._run, self._out
            if path.suffix.lower() == PARQUET:
                write_parquet_rows(path, self._kept, run.input("rows"), run.provenance, replace=run.force)
            else:
                from mltools.io.tables import write_table

                values = [orjson.loads(row if isinstance(row, bytes) else dump_row(row)) for row in self._kept]
                write_table(path, values, None, replace=run.force)
        self._stack.__exit__(kind, error, trace)

    def write(self, block: bytes | list[Values]) -> None:
        """Write some rows."""
        if self._keeps:
            self._kept += one_by_one(iter([block]))
            return
        for lines in [block] if isinstance(block, bytes) else _lines(block):
            self._write(lines)


def _lines(rows: list[Values]) -> Iterator[bytes]:
    """Yield rows as JSON lines, many at a time."""
    for start in range(0, len(rows), CHUNK_ROWS):
        yield b"".join([dump_row(row) + b"\n" for row in rows[start : start + CHUNK_ROWS]])


sink = RowSink


def in_python(blocks: Iterable[bytes | list[Values]]) -> list[Values]:
    """Give the rows of a Python call, as columns."""
    found = one_by_one(iter(blocks))
    return [orjson.loads(row) if isinstance(row, bytes) else row for row in found]
