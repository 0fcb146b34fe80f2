"""The F1 of probes on held-out rows: the split of the rows, what is predicted, and how it is measured."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mltools import console
from mltools.commands.probe import Settings, TargetName
from mltools.commands.probe.probes import Diverged, Ints, Job, Progress, Split, Target, f1_scores, train_probes
from mltools.errors import RowsError, TrainingError
from mltools.hashing import ranked
from mltools.io.columns import RowId
from mltools.io.examples import NO_NOISY
from mltools.io.rows import json_preview
from mltools.io.states import States

Floats = NDArray[np.float64]
TRAIN_TENTHS, VALIDATION_TENTHS = 7, 1
CHANCE = 0.01
"""How rarely a class may be absent from a split by chance, for a class to be called large enough."""
LINEAR_ITERATIONS = 1000


@dataclass(frozen=True)
class Scores:
    """F1s of the probes of one target on all, noisy and clean test rows: (layers + 1, seeds); NaN where undefined."""

    target: TargetName
    all: Floats
    noisy: Floats
    clean: Floats


def split_rows(ids: Sequence[RowId], settings: Settings) -> list[Split]:
    """Split the rows 70/10/20 into training, validation and test rows, for each seed by a hash of the ids.

    Raises:
        RowsError: fewer than 10 rows.
    """
    n = len(ids)
    if n < 10:
        raise RowsError(f"{n} rows cannot be split 70/10/20; at least 10 are needed")
    train, validation = n * TRAIN_TENTHS // 10, n * (TRAIN_TENTHS + VALIDATION_TENTHS) // 10
    splits = []
    for seed in range(settings.seed, settings.seed + settings.n_seeds):
        order = np.array(ranked(ids, "probe split", seed), dtype=np.int64)
        splits.append(Split(seed, order[:train], order[train:validation], order[validation:]))
    return splits


def run_probes(
    states: States,
    values: NDArray[np.float32],
    splits: Sequence[Split],
    settings: Settings,
    device: torch.device | None = None,
    progress: Progress | None = None,
    *,
    name: str | None = None,
    first_layer: int = 0,
) -> list[Scores]:
    """Train a probe for each layer, seed and target, and measure it on the test rows.

    Args:
        states: whose rows are meant.
        values: what to train on, (layers, n, width), rows as in `states`.
        splits: one a seed.
        settings: targets, probe, schedule.
        device: where to train; CPU by default.
        progress: wraps the epochs.
        name: where the values are from, for messages; `states` by default.
        first_layer: which layer the first of them is.

    Returns:
        One a target.

    Raises:
        RowsError, TrainingError: as `probe`.
    """
    targets = [probe_target(states, name, settings) for name in settings.targets]
    for target in targets:
        _check_splits(states, target, splits, allow_absent=settings.allow_absent)
    sizes = (len(targets), len(values), len(splits))
    jobs = [Job(layer, split, target) for target, layer, split in np.ndindex(sizes)]
    if settings.probe == "linear":
        predicted = _train_linear(values, splits, targets, jobs)
    else:
        tensor = torch.from_numpy(values).to(device or torch.device("cpu"))
        try:
            predicted = train_probes(tensor, splits, targets, jobs, settings, progress)
        except Diverged as error:
            layer, seed = first_layer + error.job.layer, splits[error.job.split].seed
            raise TrainingError(
                f"{name or states.name}: the probe for {settings.targets[error.job.target]} of layer {layer}, "
                f"seed {seed}, diverged (its numbers are not finite any more); lower --lr"
            ) from None
    noisy = np.stack([states.rows.noisy[split.test] for split in splits])
    shaped = predicted.reshape(*sizes, -1)
    return [
        _measure(name, target, shaped[i], splits, noisy)
        for i, (name, target) in enumerate(zip(settings.targets, targets, strict=True))
    ]


def probe_target(states: States, name: TargetName, settings: Settings) -> Target:
    """Give what probes predict of each row, and how much a row of each class weighs.

    Raises:
        RowsError: no noisy or no clean rows, noisy rows whose original label is not known, or one class only.
    """
    rows = states.rows
    if name == "noise":
        if not rows.noisy.any():
            raise RowsError(f"{states.name}: {NO_NOISY}")
        if rows.noisy.all():
            raise RowsError(f"{states.name}: every row is noisy; clean rows are needed too")
        weights = (1 - settings.noisy_weight, settings.noisy_weight)
        return Target(("clean rows", "noisy rows"), rows.noisy.astype(np.int64), weights, positive=1)
    unknown = rows.noisy & (rows.label == rows.original_label)
    if name == "original_label" and unknown.any():
        raise RowsError(
            f"{states.name}: {int(unknown.sum())} noisy rows have no other original_label (first: row id "
            f"{json_preview(rows.ids[int(unknown.argmax())])}), which a probe for it needs"
        )
    classes, labels = np.unique(getattr(rows, name), return_inverse=True)
    if len(classes) < 2:
        raise RowsError(f"{states.name}: one class only ({rows.names[classes[0]]}); a probe for {name} needs two")
    names = tuple(f"{name} {json_preview(rows.names[index])}" for index in classes)
    return Target(names, labels.astype(np.int64), (1.0,) * len(classes))


def _check_splits(states: States, target: Target, splits: Sequence[Split], *, allow_absent: bool) -> None:
    """Raise if a class is absent from a part of a split, and say how many rows would do.

    With `allow_absent`, F1 must still be defined: noisy rows are needed to train on and to test.
    """
    parts: tuple[str, ...] = ("train", "validation", "test")
    if allow_absent:
        parts = () if target.positive is None else ("train", "test")
    needed = math.ceil(math.log(CHANCE) / math.log(1 - VALIDATION_TENTHS / 10))
    for split in splits:
        for part in parts:
            members: Ints = getattr(split, part)
            absent = np.setdiff1d(np.arange(target.n_classes), target.labels[members])
            if len(absent):
                n, count = len(target.labels), int((target.labels == absent[0]).sum())
                raise RowsError(
                    f"{states.name}: {target.names[absent[0]]} ({count} of {n} rows): none among the {len(members)} "
                    f"{part} rows of seed {split.seed}; about {needed} of them are needed, so {needed * n // count} "
                    "rows like these" + ("" if allow_absent else "; or accept it with --allow-absent")
                )


def _train_linear(
    values: NDArray[np.float32], splits: Sequence[Split], targets: Sequence[Target], jobs: Sequence[Job]
) -> Ints:
    """Fit scikit-learn's logistic regression (L2, C = 1, standardised inputs) in place of each job's probe."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    predicted, not_converged = [], 0
    for job in jobs:
        split, target, x = splits[job.split], targets[job.target], values[job.layer]
        labels = target.labels[split.train]
        present = np.unique(labels).tolist()
        if len(present) == 1:
            predicted.append(np.full(len(split.test), present[0]))
            continue
        weights = {index: target.weights[index] for index in present}
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=LINEAR_ITERATIONS, class_weight=weights))
        with warnings.catch_warnings(record=True) as caught, threadpool_limits(torch.get_num_threads(), "blas"):
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(x[split.train], labels)
        not_converged += any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
        predicted.append(model.predict(x[split.test]))
    if not_converged:
        console.warn(f"{not_converged} of {len(jobs)} linear probes stopped after {LINEAR_ITERATIONS} iterations")
    return np.stack(predicted).astype(np.int64)


def _measure(
    name: TargetName, target: Target, predicted: Ints, splits: Sequence[Split], noisy: NDArray[np.bool_]
) -> Scores:
    """Compute F1s from predictions (layers, seeds, test rows)."""
    flat = predicted.reshape(-1, predicted.shape[2])
    truth = np.tile([target.labels[split.test] for split in splits], (len(predicted), 1))
    positive = torch.full((len(flat),), -1 if target.positive is None else target.positive)

    def score(counted: NDArray[np.bool_]) -> Floats:
        mask = torch.from_numpy(np.tile(counted, (len(predicted), 1)))
        tensors = torch.from_numpy(flat), torch.from_numpy(truth)
        f1: Floats = f1_scores(*tensors, target.n_classes, positive, mask).numpy()
        return f1.reshape(predicted.shape[:2])

    clean = score(~noisy) if target.positive is None else np.full(predicted.shape[:2], np.nan)
    return Scores(name, score(np.ones_like(noisy)), score(noisy), clean)
