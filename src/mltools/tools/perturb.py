"""Give a share of each class a wrong label, drawn uniformly from the other classes (§3). Needs no torch.

Which rows and which labels is a keyed hash of (seed, id): the same for any order of the rows. All other
columns pass through; JSONL keeps its bytes.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, compress
from math import floor

import numpy as np
import orjson

from mltools.config import PerturbConfig
from mltools.draw import keyed_hash, keyed_hashes
from mltools.errors import RowsError, UsageError
from mltools.io.rewrite import replace_value
from mltools.io.rows import (
    Block,
    Columns,
    IdReader,
    Label,
    LabelReader,
    RawRow,
    RowId,
    Source,
    iter_blocks,
    shown,
)

Draw = Mapping[int, Label]
ROWS, LABELS = "perturb rows", "perturb labels"


@dataclass
class Count:
    """How many rows there were, and how many of each class became noisy."""

    rows: int = 0
    unlabelled: int = 0
    left_out: int = 0
    noisy: int = 0


def perturb(source: Source, columns: Columns, config: PerturbConfig, count: Count | None = None) -> Iterator[RawRow]:
    """Yield the rows with `original_label` and `noisy` added and, in noisy rows, another `label`.

    Exactly floor(rate x n_c) rows of each class c change, or, with `stream`, each row with probability `rate`
    in constant memory. Unlabelled rows (null, -1) pass through untouched.

    Args:
        source: rows of either format.
        columns: names the label column.
        config: rate, seed, and how to draw.
        count: filled in on the way.

    Yields:
        `bytes` (a JSON line without its end) for JSONL, `dict` for Parquet.

    Raises:
        UsageError: a rate outside 0-1, or options that do not go together.
        RowsError: a bad row, one class only, or rows that were perturbed before.
    """
    _check(config)
    count = count if count is not None else Count()
    rows = _read(source, columns, config, count)
    if config.stream:
        yield from _stream(rows, source, columns, config, count)
    else:
        yield from _exact(rows, source, columns, config, count)


def _check(config: PerturbConfig) -> None:
    if not 0 <= config.rate <= 1:
        raise UsageError(f"--rate {config.rate} outside 0-1")
    if config.stream and config.classes is None:
        raise UsageError("--stream cannot look ahead: name all classes with --classes A,B,…")
    if config.stream and (config.draw != "hash" or config.top_classes is not None):
        raise UsageError("--stream cannot count classes or rows: leave --top-classes and --draw python out")
    if config.top_classes is not None and config.top_classes < 2:
        raise UsageError(f"--top-classes {config.top_classes}: at least 2 classes are needed")
    if config.split_from is not None and config.draw != "python":
        raise UsageError("--split-from continues Python's generator: give --draw python or --preset released-code")


@dataclass
class _Table:
    """Rows to be marked, as columns: each has an id, and a JSON line lacks its closing brace."""

    rows: list[RawRow] = field(default_factory=list)
    ids: list[RowId] = field(default_factory=list)
    labels: list[Label | None] = field(default_factory=list)

    def add(self, other: "_Table") -> None:
        self.rows += other.rows
        self.ids += other.ids
        self.labels += other.labels

    def keep(self, classes: set[Label]) -> "_Table":
        chosen = [label in classes for label in self.labels]
        return _Table(*(list(compress(column, chosen)) for column in (self.rows, self.ids, self.labels)))  # type: ignore[arg-type]

    def positions(self, classes: Sequence[Label]) -> dict[Label, list[int]]:
        """Give each class's rows."""
        result: dict[Label | None, list[int]] = {label: [] for label in (*classes, None)}
        for index, label in enumerate(self.labels):
            result[label].append(index)
        return {label: result[label] for label in classes}


def _read(source: Source, columns: Columns, config: PerturbConfig, count: Count) -> Iterator[_Table]:
    """Read the rows, some at a time."""
    labels = LabelReader(source, columns.label_type)
    ids = IdReader(source, unique=not config.stream)
    for block in iter_blocks(source):
        _refuse_perturbed(source, block)
        found = labels.read_block(block, columns.label)
        row_ids = ids.read_block(count.rows, block)
        rows = _open(block, columns.label, found, count.rows)
        count.rows += len(rows)
        count.unlabelled += found.count(None)
        yield _Table(rows, list(row_ids), list(found))
    labels.check()
    if not count.rows:
        raise RowsError(f"{source.name}: no rows")


def _refuse_perturbed(source: Source, block: Block) -> None:
    for name in ("original_label", "noisy"):
        for number, row in zip(block.numbers, block.values, strict=True):
            if name in row:
                raise RowsError(f'{source.place(number)}: has "{name}" already; perturb rows only once')


def _open(block: Block, column: str, labels: Sequence[Label | None], start: int) -> list[RawRow]:
    """Give rows their ids (the first is row `start`), and labels the type that they were read in."""
    rows: list[RawRow] = []
    for index, (line, values, label) in enumerate(zip(block.lines, block.values, labels, strict=True), start):
        if line is None:
            label = values[column] if label is None else label
            rows.append({**values, column: label, "id": values.get("id", index)})
            continue
        if label is not values[column] and label is not None:
            line = replace_value(line, column, orjson.dumps(label))
        line = line.rstrip()[:-1]
        rows.append(line if "id" in values else line + b',"id":%d' % index)
    return rows


def _exact(
    blocks: Iterable[_Table], source: Source, columns: Columns, config: PerturbConfig, count: Count
) -> Iterator[RawRow]:
    table = _Table()
    for block in blocks:
        table.add(block)
    if config.top_classes is not None:
        table = table.keep(_top_classes(table.labels, config.top_classes, source))
        count.left_out = count.rows - len(table.rows)
    classes = sorted({label for label in table.labels if label is not None})
    if config.classes is not None:
        classes = _named_classes(config.classes, classes, source)
    if len(classes) < 2:
        raise RowsError(f"{source.name}: {_few(classes)}; a wrong label needs two classes")
    draw = (_draw_hash if config.draw == "hash" else _draw_python)(table, classes, config)
    count.noisy = len(draw)
    mark = _Marker(columns.label)
    for index, (row, label) in enumerate(zip(table.rows, table.labels, strict=True)):
        yield mark(row, label, draw.get(index))


def _stream(
    blocks: Iterable[_Table], source: Source, columns: Columns, config: PerturbConfig, count: Count
) -> Iterator[RawRow]:
    mark = _Marker(columns.label)
    rank, choice = keyed_hash(ROWS, config.seed), keyed_hash(LABELS, config.seed)
    classes: list[Label] | None = None
    bound = floor(Decimal(str(config.rate)) * 2**64)
    for row, row_id, label in chain.from_iterable(zip(b.rows, b.ids, b.labels, strict=True) for b in blocks):
        new = None
        if label is not None:
            classes = classes or _named_classes(config.classes or (), [label], source)
            if label not in classes:
                raise RowsError(f"{source.name}: label {shown(label)} (id {shown(row_id)}) is not among --classes")
            if rank(row_id) < bound:
                others = [c for c in classes if c != label]
                new = others[choice(row_id) % len(others)]
        count.noisy += new is not None
        yield mark(row, label, new)


def _few(classes: Sequence[Label]) -> str:
    return f"one class only ({classes[0]})" if classes else "no labelled rows"


def _named_classes(names: Sequence[str], seen: Sequence[Label], source: Source) -> list[Label]:
    """Read --classes as the type that the labels have."""
    as_int = bool(seen) and isinstance(seen[0], int)
    try:
        classes = sorted({int(name) if as_int else name for name in names})
    except ValueError:
        raise UsageError(f"--classes: labels of {source.name} are integers; write integers") from None
    outside = [label for label in seen if label not in classes]
    if outside:
        raise RowsError(f"{source.name}: label {shown(outside[0])} is not among --classes")
    if len(classes) < 2:
        raise UsageError("--classes: name at least two classes")
    return classes


def _top_classes(labels: Iterable[Label | None], k: int, source: Source) -> set[Label]:
    """Pick the k most frequent classes (Appendix C); of equally frequent ones the lower label."""
    counts = Counter(label for label in labels if label is not None)
    if len(counts) < k:
        raise RowsError(f"{source.name}: {len(counts)} classes, fewer than --top-classes {k}")
    return set(sorted(counts, key=lambda label: (-counts[label], label))[:k])


def _draw_hash(table: _Table, classes: Sequence[Label], config: PerturbConfig) -> Draw:
    """Change, in each class, the rows whose hash ranks lowest; another hash picks the label."""
    ranks = keyed_hashes(table.ids, ROWS, config.seed)
    draw: dict[int, Label] = {}
    for label, members in table.positions(classes).items():
        positions = np.array(members, dtype=np.int64)
        n = floor(Decimal(str(config.rate)) * len(positions))
        chosen = positions[ranks[positions].argsort(kind="stable")[:n]].tolist()
        choices = keyed_hashes([table.ids[index] for index in chosen], LABELS, config.seed).tolist()
        others = [c for c in classes if c != label]
        draw.update((index, others[choice % len(others)]) for index, choice in zip(chosen, choices, strict=True))
    return draw


def _draw_python(table: _Table, classes: Sequence[Label], config: PerturbConfig) -> Draw:
    """Draw as the released code does: Python's generator, class by class, then labels in row order."""
    generator = random.Random(config.seed)
    if config.split_from is not None:
        generator.shuffle(list(range(config.split_from)))
    chosen: set[int] = set()
    for positions in table.positions(classes).values():
        generator.shuffle(positions)
        chosen.update(positions[: int(config.rate * len(positions))])
    return {index: generator.choice([c for c in classes if c != table.labels[index]]) for index in sorted(chosen)}


class _Marker:
    """Closes rows with their new columns."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._clean: dict[Label | None, bytes] = {None: b"}"}

    def __call__(self, row: RawRow, label: Label | None, new: Label | None) -> RawRow:
        if isinstance(row, dict):
            noisy = None if label is None else new is not None
            current = row[self._column] if new is None else new
            return {**row, self._column: current, "original_label": label, "noisy": noisy}
        if new is not None:
            row = replace_value(row, self._column, orjson.dumps(new))
            return b'%b,"original_label":%b,"noisy":true}' % (row, orjson.dumps(label))
        if label not in self._clean:
            self._clean[label] = b',"original_label":%b,"noisy":false}' % orjson.dumps(label)
        return row + self._clean[label]
