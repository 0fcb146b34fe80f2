"""Train on half of the rows and see what that says of each row inside and outside the half (§6, released-code §1.10).

Each half split is a work item of its own: the rows inside are those that rank lowest by a keyed hash of (seed,
split, id), the model starts afresh, and every row is then classified. `generalise_merge` folds the splits.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from accelerate.utils import set_seed
from numpy.typing import NDArray

from mltools.config import GeneraliseConfig
from mltools.draw import ranked
from mltools.errors import RowsError
from mltools.io.examples import Examples
from mltools.io.kinds import HalfRecord
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checks import self_check
from mltools.model.classes import class_names
from mltools.model.cost import Shape, WorkItem, training_layers
from mltools.model.device import set_threads
from mltools.model.tasks import Task, make_task
from mltools.model.training import accelerator_for, purpose_seed

Watch = Callable[[Iterator[None], int, str], Iterator[None]]


def generalise(
    pretrained: str,
    examples: Examples,
    splits: Sequence[int],
    config: GeneraliseConfig = GeneraliseConfig(),
    *,
    device: torch.device | None = None,
    threads: int | None = None,
    blocks: str | None = None,
    run: str | None = None,
    watch: Watch | None = None,
) -> Iterator[HalfRecord]:
    """Train a model on each half split and classify all rows with it.

    Args:
        pretrained: θ_P, a folder or hub repository.
        examples: rows; their `label`, perturbed or not, is what is trained and asked for.
        splits: numbers of the half splits, from 1.
        config: schedule and what is frozen.
        device: CPU by default.
        threads: CPU threads; see `set_threads`.
        blocks: module path of the block list, where the model does not decide.
        run: digest of settings and inputs, put into the records.
        watch: wraps the steps of a split, to show progress.

    Yields:
        A record a row, rows in their order, once a split has been trained.

    Raises:
        RowsError: fewer than two rows or classes.
        TrainingError: a loss that is not finite.
    """
    names = class_names(examples)
    for number, split in enumerate(splits, start=1):
        own = dataclasses.replace(config, seed=purpose_seed(config.seed, "half split", split))
        set_seed(purpose_seed(own.seed, "head") % 2**32)
        accelerator = accelerator_for(device or torch.device("cpu"), config.precision)
        place = accelerator.device if accelerator.num_processes > 1 else device
        checkpoint = open_checkpoint(pretrained, device=place, fresh_head=names, blocks=blocks)
        set_threads(threads, checkpoint.width)
        inside = half(examples, config.seed, split)
        task = make_task(checkpoint, examples, examples.labels, own, accelerator, rows=inside)
        self_check(checkpoint.runner, task.encoded)
        steps = _train(task, config.epochs)
        total = task.training.total_steps
        for _ in watch(steps, total, f"split {split} ({number}/{len(splits)})") if watch is not None else steps:
            pass
        yield from _records(task, examples, split, run)


def half(examples: Examples, seed: int, split: int) -> NDArray[np.int64]:
    """Draw the half of the rows (the smaller half of an odd number) that a split trains on, in the order of the draw.

    Raises:
        RowsError: fewer than two rows.
    """
    if len(examples) < 2:
        raise RowsError(f"{examples.source.name}: one row only; it has no halves")
    return np.array(ranked(examples.ids, f"half split {split}", seed), dtype=np.int64)[: len(examples) // 2]


def _train(task: Task, epochs: int) -> Iterator[None]:
    task.focus()
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
        )


def plan(shape: Shape, splits: Sequence[int], config: GeneraliseConfig = GeneraliseConfig()) -> Iterator[WorkItem]:
    """List the half splits with the cost of each: half of the rows are trained on, then all are classified."""
    rows = len(shape.lengths)
    half = rows // 2
    backward, trained = training_layers(shape, config)
    for split in splits:
        yield WorkItem(
            f"--run {split}",
            rows=rows,
            steps=config.epochs * math.ceil(half / config.batch_size),
            applications=(config.epochs * half + rows) * shape.n_layers,
            backward=config.epochs * half * backward,
            copies=3 * trained,
        )
