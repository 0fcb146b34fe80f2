"""Give a share of each class a wrong label, drawn uniformly from the other classes (§3). Needs no torch.

Which rows and which labels is a keyed hash of (seed, id): the same for any order of the rows. All other
columns pass through; JSONL keeps its bytes.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor
from typing import Any

import orjson

from mltools.config import PerturbConfig
from mltools.draw import keyed_hash
from mltools.errors import RowsError, UsageError
from mltools.io.rows import (
    Columns,
    IdReader,
    Label,
    LabelReader,
    RowId,
    Source,
    edit_object,
    iter_rows,
    missing_column,
    shown,
)

Row = tuple[bytes | None, Mapping[str, Any], RowId, Label | None]
Draw = Mapping[int, Label]


@dataclass
class Count:
    """How many rows there were, and how many of each class became noisy."""

    rows: int = 0
    unlabelled: int = 0
    left_out: int = 0
    noisy: int = 0


def perturb(source: Source, columns: Columns, config: PerturbConfig, count: Count | None = None) -> Iterator[Any]:
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
        UsageError: a rate outside 0-1, or `stream` without `classes`.
        RowsError: a bad row, one class only, or rows that were perturbed before.
    """
    _check(config)
    count = count if count is not None else Count()
    rows = _read(source, columns, count)
    yield from (
        _stream(rows, source, columns, config, count)
        if config.stream
        else _exact(list(rows), source, columns, config, count)
    )


def _check(config: PerturbConfig) -> None:
    if not 0 <= config.rate <= 1:
        raise UsageError(f"--rate {config.rate} outside 0-1")
    if config.stream and config.classes is None:
        raise UsageError("--stream cannot look ahead: name all classes with --classes A,B,…")
    if config.stream and (config.draw != "hash" or config.top_classes is not None):
        raise UsageError("--stream cannot count classes or rows: leave --top-classes and --draw python out")
    if config.top_classes is not None and config.top_classes < 2:
        raise UsageError(f"--top-classes {config.top_classes}: at least 2 classes are needed")


def _read(source: Source, columns: Columns, count: Count) -> Iterator[Row]:
    labels, ids = LabelReader(source, columns.label_type), IdReader(source)
    for index, (number, line, values) in enumerate(iter_rows(source)):
        if columns.label not in values:
            raise missing_column(source.place(number), columns.label, values, "label")
        for name in ("original_label", "noisy"):
            if name in values:
                raise RowsError(f'{source.place(number)}: has "{name}" already; perturb rows only once')
        label = labels.read(number, values[columns.label])
        count.rows += 1
        count.unlabelled += label is None
        yield line, values, ids.read(index, number, values), label
    labels.check()
    if not count.rows:
        raise RowsError(f"{source.name}: no rows")


def _exact(rows: list[Row], source: Source, columns: Columns, config: PerturbConfig, count: Count) -> Iterator[Any]:
    if config.top_classes is not None:
        kept = _top_classes([label for *_, label in rows], config.top_classes, source)
        count.left_out = sum(label not in kept for *_, label in rows)
        rows = [row for row in rows if row[3] in kept]
    classes = sorted({label for *_, label in rows if label is not None})
    if config.classes is not None:
        classes = _named_classes(config.classes, classes, source)
    if len(classes) < 2:
        raise RowsError(f"{source.name}: {_few(classes)}; a wrong label needs two classes")
    draw = (_draw_hash if config.draw == "hash" else _draw_python)(rows, classes, config)
    count.noisy = len(draw)
    mark = _Marker(columns.label)
    for index, row in enumerate(rows):
        yield mark(row, draw.get(index))


def _stream(
    rows: Iterable[Row], source: Source, columns: Columns, config: PerturbConfig, count: Count
) -> Iterator[Any]:
    mark, digest = _Marker(columns.label), _keyed_hash(config.seed)
    classes: list[Label] | None = None
    bound = floor(Decimal(str(config.rate)) * 2**64)
    for row in rows:
        _, _, row_id, label = row
        new = None
        if label is not None:
            classes = classes or _named_classes(config.classes or (), [label], source)
            if label not in classes:
                raise RowsError(f"{source.name}: label {shown(label)} (id {shown(row_id)}) is not among --classes")
            rank, choice = digest(row_id)
            if rank < bound:
                new = _other(classes, label, choice)
        count.noisy += new is not None
        yield mark(row, new)


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


def _keyed_hash(seed: int) -> Callable[[RowId], tuple[int, int]]:
    """Build the function id -> (rank, choice): two independent 64-bit numbers from a hash keyed by the seed."""
    digest = keyed_hash("perturb", seed)
    return lambda row_id: divmod(digest(row_id), 2**64)


def _other(classes: Sequence[Label], label: Label, choice: int) -> Label:
    others = [c for c in classes if c != label]
    return others[choice % len(others)]


def _draw_hash(rows: Sequence[Row], classes: Sequence[Label], config: PerturbConfig) -> Draw:
    """Change, in each class, the rows whose hash ranks lowest; the other half of the hash picks the label."""
    digest = _keyed_hash(config.seed)
    by_class: dict[Label, list[tuple[int, int, int]]] = {label: [] for label in classes}
    for index, (_, _, row_id, label) in enumerate(rows):
        if label is not None:
            by_class[label].append((*digest(row_id), index))
    draw: dict[int, Label] = {}
    for label, members in by_class.items():
        members.sort()
        for _, choice, index in members[: floor(Decimal(str(config.rate)) * len(members))]:
            draw[index] = _other(classes, label, choice)
    return draw


def _draw_python(rows: Sequence[Row], classes: Sequence[Label], config: PerturbConfig) -> Draw:
    """Draw as the released code does: Python's generator, class by class, then labels in row order."""
    generator = random.Random(config.seed)
    chosen: set[int] = set()
    for label in classes:
        positions = [index for index, row in enumerate(rows) if row[3] == label]
        generator.shuffle(positions)
        chosen.update(positions[: int(config.rate * len(positions))])
    return {index: generator.choice([c for c in classes if c != rows[index][3]]) for index in sorted(chosen)}


class _Marker:
    """Writes a row with its new columns; JSONL as bytes, Parquet rows as dicts."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._clean: dict[tuple[Label, bool], bytes] = {}

    def __call__(self, row: Row, new: Label | None) -> Any:
        line, values, row_id, label = row
        if line is None:
            return self._mark_dict(values, row_id, label, new)
        if label is None:
            return line if "id" in values else edit_object(line, {}, [("id", orjson.dumps(row_id))])
        same_type = type(values[self._column]) is type(label)
        if new is None and same_type and "id" in values and line.endswith(b"}"):
            return line[:-1] + self._suffix(label)
        replace = {} if new is None and same_type else {self._column: orjson.dumps(label if new is None else new)}
        added = [] if "id" in values else [("id", orjson.dumps(row_id))]
        added += [("original_label", orjson.dumps(label)), ("noisy", orjson.dumps(new is not None))]
        return edit_object(line, replace, added)

    def _suffix(self, label: Label) -> bytes:
        key = (label, isinstance(label, int))
        if key not in self._clean:
            self._clean[key] = b',"original_label":%s,"noisy":false}' % orjson.dumps(label)
        return self._clean[key]

    def _mark_dict(self, values: Mapping[str, Any], row_id: RowId, label: Label | None, new: Label | None) -> Any:
        row = dict(values)
        row.setdefault("id", row_id)
        noisy = None if label is None else new is not None
        if new is not None:
            row[self._column] = new
        return {**row, "original_label": label, "noisy": noisy}
