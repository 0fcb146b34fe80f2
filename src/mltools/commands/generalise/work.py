"""Train on half of the rows and see what that says of each row inside and outside the half (§6, released-code §1.10).

Each half split is a work item of its own: the rows inside are those that rank lowest by a keyed hash of (seed,
split, id), the model starts afresh, and every row is then classified. `generalise_merge` folds the splits.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mltools.commands.generalise import Settings
from mltools.commands.generalise.merge import merge
from mltools.console import Track, untracked
from mltools.errors import RowsError
from mltools.hashing import ranked
from mltools.io.examples import Examples
from mltools.io.kinds import GeneralisationRecord, GeneralisationScoreRecord, HalfRecord
from mltools.io.tables import write_table
from mltools.model.checks import self_check
from mltools.model.classes import class_names
from mltools.model.cost import Shape, WorkItem, training_layers
from mltools.model.device import set_threads
from mltools.model.heads import open_for_training
from mltools.model.tasks import Task, make_task
from mltools.model.training import accelerator_for, purpose_seed
from mltools.run import Run
from mltools.shards import item_digest
from mltools.spec import bare

DEFAULTS = bare(Settings)


def generalise(
    pretrained: str,
    examples: Examples,
    splits: Sequence[int],
    settings: Settings = DEFAULTS,
    *,
    device: torch.device | None = None,
    run: str | None = None,
    progress: Track = untracked,
    edge: Callable[[], None] = lambda: None,
) -> Iterator[HalfRecord]:
    """Train a model on each half split and classify all rows with it.

    Args:
        pretrained: θ_P, a folder or hub repository.
        examples: rows; their `label`, perturbed or not, is what is trained and asked for.
        splits: numbers of the half splits, from 1.
        settings: schedule and what is frozen.
        device: CPU by default.
        run: digest of settings and inputs, put into the records.
        progress: wraps the steps of a split, to show progress.
        edge: called before each split; it may raise to stop there.

    Yields:
        A record a row, rows in their order, once a split has been trained.

    Raises:
        RowsError: fewer than two rows or classes.
        TrainingError: a loss that is not finite.
    """
    names = class_names(examples)
    for number, split in enumerate(splits, start=1):
        edge()
        seed = purpose_seed(settings.seed, "half split", split)
        accelerator = accelerator_for(device or torch.device("cpu"), settings.precision)
        checkpoint = open_for_training(pretrained, names, seed, device=device, blocks=settings.device.blocks)
        set_threads(settings.device.threads, checkpoint.width)
        inside = train_half(examples, settings.seed, split)
        task = make_task(
            checkpoint,
            examples,
            examples.labels,
            settings.training,
            accelerator,
            freeze=settings.freeze,
            seed=seed,
            max_length=settings.max_length,
            rows=inside,
        )
        self_check(checkpoint.runner, task.encoded)
        steps = _train(task, settings.training.epochs)
        total = task.training.total_steps
        title, left = f"split {split} ({number}/{len(splits)})", len(splits) - number + 1
        for _ in progress(steps, total, "steps", title, left):
            pass
        yield from _records(task, examples, split, run)


def train_half(examples: Examples, seed: int, split: int) -> NDArray[np.int64]:
    """Draw the half of the rows (the smaller half of an odd number) that a split trains on, in the order of the draw.

    Raises:
        RowsError: fewer than two rows.
    """
    if len(examples) < 2:
        raise RowsError(f"{examples.source.name}: one row only; it has no halves")
    return np.array(ranked(examples.ids, f"half split {split}", seed), dtype=np.int64)[: len(examples) // 2]


def _train(task: Task, epochs: int) -> Iterator[None]:
    task.activate()
    for epoch in range(1, epochs + 1):
        for batch in task.batches(epoch):
            task.update(batch)
            yield


def _records(task: Task, examples: Examples, split: int, run: str | None) -> Iterator[HalfRecord]:
    scores, inside = task.scores(), set(task.rows.tolist())
    for row, probability in enumerate(scores.probabilities.tolist()):
        yield HalfRecord(
            tool="generalise",
            split=split,
            id=examples.ids[row],
            noisy=examples.noisy[row],
            inside=row in inside,
            probability=probability,
            correct=bool(scores.hits[row]),
            classes=len(task.checkpoint.labels),
            run=run,
            item_digest=item_digest(run, f"--run {split}"),
        )


def plan(shape: Shape, splits: Sequence[int], settings: Settings = DEFAULTS) -> Iterator[WorkItem]:
    """List the half splits with the cost of each: half of the rows are trained on, then all are classified."""
    rows = len(shape.lengths)
    half = rows // 2
    backward, trained = training_layers(shape, settings.freeze, settings.training.clip_scope)
    for split in splits:
        yield WorkItem(
            f"--run {split}",
            rows=rows,
            steps=settings.training.epochs * math.ceil(half / settings.training.batch_size),
            applications=(settings.training.epochs * half + rows) * shape.n_layers,
            backward=settings.training.epochs * half * backward,
            copies=3 * trained,
            updated=trained,
            batch=settings.training.batch_size,
        )


def items(run: Run) -> Iterator[WorkItem]:
    """List the half splits asked for, with the cost of each."""
    run.shape = run.shape_of("pretrained")
    return plan(run.shape, _splits(run.settings), run.settings)


def run(run: Run) -> Iterator[HalfRecord | tuple[GeneralisationScoreRecord, dict[str, Any]]]:
    """Do the half splits asked for, or fold the records of some."""
    settings: Settings = run.settings
    if settings.merge:
        yield from _merge(run)
        return
    examples, splits = run.rows, run.chosen(_splits(settings), items)
    run.model("pretrained")
    if not splits:
        return
    yield from generalise(
        str(settings.pretrained),
        examples,
        splits,
        settings,
        device=run.device,
        run=run.digest,
        progress=run.track,
        edge=run.edge,
    )
    run.report(splits=len(splits), rows=len(examples))


def _splits(settings: Settings) -> list[int]:
    return list(dict.fromkeys(settings.run or range(1, settings.runs + 1)))


def _merge(run: Run) -> Iterator[tuple[GeneralisationScoreRecord, dict[str, Any]]]:
    settings: Settings = run.settings
    paths = [name for name in (settings.pretrained, *settings.rows) if name is not None]
    merged = merge(run.read_records(paths))
    yield from ((group.score(), group.tags) for group in merged)
    if settings.per_row is not None:
        rows = [{**dataclasses.asdict(record), **group.tags} for group in merged for record in group.records()]
        write_table(settings.per_row, rows, run.made_by("per_row"), [GeneralisationRecord], replace=run.force)
    run.report(tasks=len(merged), rows=sum(len(group.rows) for group in merged))
