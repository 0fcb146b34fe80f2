"""Turn the paper's twelve tasks into rows: columns, splits, the Reuters filter, the most frequent classes (§3, App. C).

Rows come from the hub, or from a local copy with the hub's columns or ours. The two ways to draw the splits are ours
(a keyed hash of seed and id) and the released one (its generators and its draw order, released-code §1.1).
"""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mltools import console
from mltools.commands.prepare import Settings
from mltools.commands.prepare.rows import Inputs, Read, Row, parse, reader
from mltools.commands.prepare.tasks import TASKS, TOPICS, PaperTask
from mltools.errors import RowsError, UsageError
from mltools.hashing import ranked
from mltools.io.columns import most_frequent
from mltools.io.rows import json_preview
from mltools.run import Run
from mltools.spec import one_of

TRAIN_SHARE = 0.8
REUTERS_TOPICS = 8
TOLERANCE = 100
"""How far a number of training rows may be from Table 1's, which is rounded to a hundred or a thousand."""


@dataclass
class Prepared:
    """What `prepare` did: how many rows were cut 80/20, if they were, and the digest of each input."""

    split_from: int | None = None
    inputs: Inputs = field(default_factory=dict)


def find_task(name: str) -> PaperTask:
    """Find a task by its name.

    Raises:
        UsageError: no such task; suggests the nearest.
    """
    return TASKS[one_of("TASK", name.lower(), tuple(TASKS))]


def prepare(
    task: PaperTask, settings: Settings, source: Path | None = None, done: Prepared | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split of a task: id, text columns, label.

    Args:
        task: which.
        settings: the split, how it is drawn, how labels are written.
        source: a local copy, a folder or the file of the split; the hub if None.
        done: filled in on the way.

    Raises:
        NotFoundError: no such file, or the hub cannot be reached.
        RowsError: a column missing, or a label that is no class of the task.
        UsageError: a file where more than one split is needed.
    """
    done = done if done is not None else Prepared()
    rows = _Splits(task, settings, reader(task, source, done.inputs), done).rows()
    _check_size(task, settings, rows)
    yield from (row.as_dict() for row in rows)


def _check_size(task: PaperTask, settings: Settings, rows: Sequence[Row]) -> None:
    if settings.split != "train" or settings.top_classes is not None:
        return
    if abs(len(rows) - task.size) > TOLERANCE:
        console.warn(f"{task.name} has {len(rows)} training rows here, about {task.size} in the paper (Table 1)")
    classes = len({row.label for row in rows})
    if classes != task.classes:
        console.warn(f"{task.name} has {classes} classes here, {task.classes} in the paper (Table 1)")


class _Splits:
    """The split that is asked for, made of the official ones; of those only what is needed is read."""

    def __init__(self, task: PaperTask, settings: Settings, read: Read, done: Prepared) -> None:
        self.task, self.settings, self.done = task, settings, done
        self._read = read

    def rows(self) -> list[Row]:
        wanted = self.settings.split
        rows = self._top_classes(self._numbers(self._train if wanted == "train" else self._pool))
        if wanted in ("train", "pool"):
            return rows
        validation, test = halves(rows, self.settings.seed, self.settings.draw)
        return validation if wanted == "validation" else test

    @cached_property
    def _train(self) -> list[Row]:
        return self._both[0] if self._is_joint else parse(self.task, self._read("train"))

    @cached_property
    def _pool(self) -> list[Row]:
        return self._both[1] if self._is_joint else parse(self.task, self._read(str(self.task.pool)))

    @property
    def _is_joint(self) -> bool:
        return self.task.pool is None or self.task.label == TOPICS

    @cached_property
    def _both(self) -> tuple[list[Row], list[Row]]:
        """Training rows and pool of tasks where the pool depends on the training rows."""
        rows = parse(self.task, self._read("train"))
        if self.task.pool is None:
            rows = [row for row in rows if row.label not in self.task.left_out]
            self.done.split_from = len(rows)
            return cut(rows, self.settings.seed, self.settings.draw)
        pool = parse(self.task, self._read(self.task.pool)) if self.settings.split != "train" else []
        return filter_reuters(rows, pool, carry_over=self.settings.carry_over)

    def _numbers(self, rows: list[Row]) -> list[Row]:
        """Number labels as the released code does: by the hub's numbers, else by places among the sorted labels."""
        if self.settings.labels == "names" or self.task.numbered:
            return rows
        names = self.task.names or sorted({str(row.label) for row in self._train})
        return [replace(row, label=_index(names, row)) for row in rows]

    def _top_classes(self, rows: list[Row]) -> list[Row]:
        """Keep rows of the classes most frequent in training (Appendix C); numbers then count from 0 again."""
        k = self.settings.top_classes
        if k is None:
            return rows
        classes = most_frequent(row.label for row in self._numbers(self._train))
        if not 2 <= k <= len(classes):
            raise UsageError(f"--top-classes {k}: {self.task.name} has {len(classes)} classes; at least 2 are needed")
        kept = sorted(classes[:k])
        rows = [row for row in rows if row.label in kept]
        if self.settings.labels == "names":
            return rows
        return [replace(row, label=kept.index(row.label)) for row in rows]


def _index(names: Sequence[str], row: Row) -> int:
    if row.label not in names:
        raise RowsError(f"row {json_preview(row.id)}: label {json_preview(row.label)} does not occur in training")
    return names.index(str(row.label))


def cut(rows: Sequence[Row], seed: int, draw: str) -> tuple[list[Row], list[Row]]:
    """Cut rows into 80 % for training and the rest.

    Args:
        rows: all rows.
        seed: of the draw.
        draw: `hash` chooses by (seed, id) and keeps the order; `python` shuffles as the released code does, first
            of all its draws (`perturb --split-from` takes that into account).
    """
    n = int(TRAIN_SHARE * len(rows))
    if draw == "python":
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        return [rows[i] for i in order[:n]], [rows[i] for i in order[n:]]
    return _divide(rows, ranked([row.id for row in rows], "80/20", seed)[:n])


def halves(pool: Sequence[Row], seed: int, draw: str) -> tuple[list[Row], list[Row]]:
    """Cut the evaluation pool into (validation, test), of which test has the odd row.

    Args:
        pool: the rows.
        seed: of the draw.
        draw: `hash` chooses by (seed, id) and keeps the order; `python` permutes as the released code's library
            does (NumPy's default generator, test first).
    """
    n = -(-len(pool) // 2)
    if draw == "python":
        order = np.random.default_rng(seed).permutation(len(pool)).tolist()
        return [pool[i] for i in order[n:]], [pool[i] for i in order[:n]]
    test, validation = _divide(pool, ranked([row.id for row in pool], "halves", seed)[:n])
    return validation, test


def _divide(rows: Sequence[Row], chosen: Sequence[int]) -> tuple[list[Row], list[Row]]:
    """Take the rows at the chosen positions, and the others, both in their order."""
    marked = set(chosen)
    return [row for i, row in enumerate(rows) if i in marked], [row for i, row in enumerate(rows) if i not in marked]


def filter_reuters(
    train: Sequence[Row], test: Sequence[Row], *, carry_over: bool = False
) -> tuple[list[Row], list[Row]]:
    """Keep rows with one topic, of the eight most frequent of these in training, and no text seen earlier in the split.

    Args:
        train: training rows with their topics.
        test: test rows with theirs.
        carry_over: drop from test the positions dropped from train too, as the released code does by mistake.
    """
    topics = set(most_frequent(row.topics[0] for row in train if len(row.topics) == 1)[:REUTERS_TOPICS])
    dropped_train = _dropped(train, topics)
    dropped_test = _dropped(test, topics) | (dropped_train if carry_over else set())
    return _keep(train, dropped_train), _keep(test, dropped_test)


def _dropped(rows: Sequence[Row], topics: set[str]) -> set[int]:
    seen: set[str] = set()
    dropped = set()
    for index, row in enumerate(rows):
        if len(row.topics) != 1 or row.topics[0] not in topics or row.texts["text"] in seen:
            dropped.add(index)
        seen.add(row.texts["text"])
    return dropped


def _keep(rows: Sequence[Row], dropped: set[int]) -> list[Row]:
    return [replace(row, label=row.topics[0]) for i, row in enumerate(rows) if i not in dropped]


def run(run: Run) -> Iterator[dict[str, Any]]:
    """Prepare the task asked for, or list them all."""
    settings: Settings = run.settings
    if settings.show:
        yield from (dataclasses.asdict(each) for each in TASKS.values())
        return
    task, done = find_task(str(settings.task)), Prepared()
    rows = list(prepare(task, settings, settings.source, done))
    run.inputs.update(done.inputs)
    yield from rows
    run.report(task=task.name, split=settings.split, rows=len(rows), split_from=done.split_from)
