"""Train probes on hidden states, to see from which layer on noisy rows can be told from clean ones (§3.1, §4.2, §5).

A probe predicts from the states of one layer whether a row is noisy, or which class it has. Its F1 on held-out rows,
layer by layer, is what is reported; the gain over the layer below is the layer's score. All probes see the same
split of the rows, which depends on the probe's seed and the rows' ids only.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

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
from mltools.io.kinds import EventRecord, ProbeRecord
from mltools.io.rows import json_preview
from mltools.io.source import Source
from mltools.io.states import States, open_states
from mltools.model.cost import Shape, WorkItem, shape_of_states
from mltools.model.device import set_threads
from mltools.model.validity import judge_accuracies
from mltools.run import Run
from mltools.spec import bare

DEFAULTS = bare(Settings)

Floats = NDArray[np.float64]

TRAIN_TENTHS, VALIDATION_TENTHS = 7, 1
MARGIN = 0.1
"""By how much F1 for `label` must exceed that for `original_label` on noisy rows (§5)."""
REACHED = 0.9
CHANCE = 0.01
"""How rarely a class may be absent from a split by chance, for a class to be called large enough."""
LINEAR_ITERATIONS = 1000
EVENTS = ("memorisation>>generalisation", "90 % F1")


@dataclass(frozen=True)
class Scores:
    """F1s of the probes of one target on all, noisy and clean test rows: (layers + 1, seeds); NaN where undefined."""

    target: TargetName
    all: Floats
    noisy: Floats
    clean: Floats


def probe(
    states: States,
    settings: Settings = DEFAULTS,
    *,
    baseline: States | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
    strict: bool = False,
) -> Iterator[ProbeRecord]:
    """Train probes on every layer and yield a record a target and layer, from the embeddings (0) up.

    Args:
        states: of all rows.
        settings: targets, probe, schedule.
        baseline: states of the same rows by θ_P, whose layer 1 is what layer 1 is scored against.
        device: where to train; CPU by default.
        progress: wraps the epochs.
        strict: train no probe for noise on states of a checkpoint that has not memorised the noisy rows.

    Raises:
        InvalidError: with `strict`, such states.
        RowsError: no noisy rows or one class; a class that is absent from a split; other rows in the baseline.
        TrainingError: a probe diverges.
    """
    validity = judge_accuracies(*states.baseline, settings.validity.min_noisy_accuracy, states.name)
    if "noise" in settings.targets:
        validity.tell(strict=strict)
    splits = split_rows(states.rows.ids, settings)
    below = _baseline_scores(states, baseline, splits, settings, device) if baseline is not None else {}
    for scores in run_probes(states, _all_layers(states), splits, settings, device, progress):
        first = below.get(scores.target, scores.all[0])
        gains = layer_gains(scores.all, first)
        for layer in range(states.layers + 1):
            yield ProbeRecord(
                tool="probe",
                layer=layer,
                layers=states.layers,
                score=gains[layer - 1] if layer else None,
                target=scores.target,
                probe=settings.probe,
                **_summary("f1", scores.all[layer]),
                **_summary("f1_noisy", scores.noisy[layer]),
                **_summary("f1_clean", scores.clean[layer]),
                baseline_f1=float(first.mean()),
                seeds=[split.seed for split in splits],
                n_train=len(splits[0].train),
                n_validation=len(splits[0].validation),
                n_test=len(splits[0].test),
                baseline_noisy_accuracy=validity.baseline_noisy_accuracy,
                baseline_clean_accuracy=validity.baseline_clean_accuracy,
                valid=validity.valid if scores.target == "noise" else None,
                valid_reason=validity.valid_reason if scores.target == "noise" else None,
            )


def plan(shape: Shape, n_rows: int, n_classes: int, settings: Settings = DEFAULTS) -> Iterator[WorkItem]:
    """Count the work of each target: three passes of every probe an epoch over its training rows, one over the others.

    Args:
        shape: of the checkpoint, if the states are taken from one; else of the states, without lengths.
        n_rows: rows that there are states of.
        n_classes: classes of the labels.
        settings: targets, probe, schedule.
    """
    train = n_rows * TRAIN_TENTHS // 10
    passes = settings.epochs * 3 * train + max(0, settings.epochs - settings.select_after) * (n_rows - train)
    for target in settings.targets:
        classes = 2 if target == "noise" else n_classes
        inner = [settings.hidden_width] * settings.hidden_layers if settings.probe == "mlp" else []
        weights = sum(a * b for a, b in pairwise([shape.width, *inner, classes]))
        yield WorkItem(
            f"--target {target}",
            rows=n_rows,
            steps=settings.n_seeds * settings.epochs * math.ceil(train / settings.step_rows),
            applications=len(shape.lengths) * shape.n_layers,
            operations=2.0 * weights * passes * settings.n_seeds * (shape.n_layers + 1),
            states=n_rows * (shape.n_layers + 1),
        )


def _summary(name: str, values: Floats) -> dict[str, Any]:
    """Mean, sample standard deviation and each seed's value, as columns of a record."""
    defined = values[~np.isnan(values)]
    return {
        name: float(defined.mean()) if len(defined) else None,
        f"{name}_sd": float(defined.std(ddof=1)) if len(defined) > 1 else None,
        f"{name}_by_seed": [None if np.isnan(value) else float(value) for value in values],
    }


def layer_gains(f1: Floats, first: Floats) -> list[float]:
    """Score layers 1..L: the gain in mean F1 over the layer below, falls counting as 0 (released code §1.8).

    Args:
        f1: (layers + 1, seeds), from the embeddings up.
        first: what layer 1 is compared with, one value a seed: the F1 of θ_P's layer 1, or of the embeddings.
    """
    means = f1.mean(axis=1)
    below = np.concatenate(([first.mean()], means[1:-1]))
    return [float(gain) for gain in np.maximum(means[1:] - below, 0)]


def events(
    states: States,
    settings: Settings = DEFAULTS,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Iterator[EventRecord]:
    """Train probes for `label` and `original_label` and yield the two events of Figure 12b.

    Args:
        states: as in `probe`.
        settings: as in `probe`; its targets do not matter.
        device: as in `probe`.
        progress: as in `probe`.

    Raises:
        RowsError: as `probe`.
    """
    splits = split_rows(states.rows.ids, settings)
    settings = replace(settings, targets=("label", "original_label"))
    label, original = run_probes(states, _all_layers(states), splits, settings, device, progress)
    guess = 1 / len(np.unique(states.rows.label))
    found = (
        memorisation_over_generalisation(_means(label.noisy), _means(original.noisy)),
        ninety_percent(_means(original.clean), guess),
    )
    reasons = (
        f"F1 on noisy rows for their labels never exceeds that for their original labels by {MARGIN}",
        f"F1 on clean rows never exceeds guessing ({guess:.3g})",
    )
    for event, layer, reason in zip(EVENTS, found, reasons, strict=True):
        yield EventRecord("probe", event, layer, states.layers, None, None, reason if layer is None else None)


def _means(values: Floats) -> Floats:
    """Average over the seeds that have a value, (layers + 1,); NaN if none has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a mean of nothing is meant to be NaN
        return np.nanmean(values, axis=1)  # type: ignore[no-any-return]


def memorisation_over_generalisation(label: Sequence[float] | Floats, original: Sequence[float] | Floats) -> int | None:
    """Find the first layer, from 0, where F1 on noisy rows for `label` exceeds that for `original_label` by 0.1."""
    return _first(np.asarray(label) > np.asarray(original) + MARGIN)


def ninety_percent(clean: Sequence[float] | Floats, guess: float) -> int | None:
    """Find the first layer, from 0, where F1 on clean rows is over 90 % of the way from guessing to the best layer.

    Args:
        clean: F1 for `original_label` on clean rows, of layers 0..L.
        guess: r, the F1 of guessing: 1 / classes, which is what the labels in random order score on average.
    """
    gain = np.asarray(clean) - guess
    best = gain.max()
    return _first(gain / best > REACHED) if best > 0 else None


def _first(holds: NDArray[np.bool_]) -> int | None:
    found = np.flatnonzero(holds)
    return int(found[0]) if len(found) else None


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
    settings: Settings = DEFAULTS,
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
    targets = [_target(states, name, settings) for name in settings.targets]
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


def _all_layers(states: States) -> NDArray[np.float32]:
    return np.stack([states.layer(layer) for layer in range(states.layers + 1)])


def _baseline_scores(
    states: States, baseline: States, splits: Sequence[Split], settings: Settings, device: torch.device | None
) -> dict[TargetName, Floats]:
    """F1 of each target's probes on the baseline's layer 1, (seeds,)."""
    place = {row_id: position for position, row_id in enumerate(baseline.rows.ids)}
    order = [place.get(row_id) for row_id in states.rows.ids]
    if None in order or len(place) != len(order):
        found = json_preview(states.rows.ids[order.index(None)]) if None in order else f"{len(place)} rows"
        raise RowsError(
            f"{baseline.name}: not the rows of {states.name} ({found}); take both states from the same rows"
        )
    values = baseline.layer(1)[np.array(order, dtype=np.int64)]
    all_scores = run_probes(states, values[None], splits, settings, device, name=baseline.name, first_layer=1)
    return {scores.target: scores.all[0] for scores in all_scores}


def _target(states: States, name: TargetName, settings: Settings) -> Target:
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


def items(run: Run) -> Iterator[WorkItem]:
    """List the targets, with the cost of each."""
    settings: Settings = run.settings
    if run.get("rows") and run.get("states") is not None:
        run.shape = run.shape_of("states")
        yield from plan(run.shape, len(run.rows), len(run.rows.vocabulary()), settings)
        return
    with run.states() as states:
        run.shape = shape_of_states(states.layers, states.width)
        yield from plan(run.shape, len(states), len(states.rows.names), settings)


def run(run: Run) -> Iterator[ProbeRecord | EventRecord]:
    """Train the probes."""
    settings: Settings = run.settings

    def track(epochs: Iterator[int], total: int) -> Iterator[int]:
        return run.track(epochs, total, "epochs")

    with run.states() as states, _baseline(run) as below:
        set_threads(settings.device.threads, settings.hidden_width)
        if settings.events:
            yield from events(states, settings, device=run.device, progress=track)
        else:
            yield from probe(
                states, settings, baseline=below, device=run.device, progress=track, strict=settings.validity.strict
            )
        targets = ("label", "original_label") if settings.events else settings.targets
        run.report(
            rows=len(states),
            layers=states.layers,
            width=None,
            dtype=None,
            targets=",".join(targets),
            probes=len(targets) * settings.n_seeds * (states.layers + 1),
        )


@contextlib.contextmanager
def _baseline(run: Run) -> Iterator[States | None]:
    path = run.get("baseline")
    if path is None:
        yield None
        return
    with open_states(Source(path)) as opened:
        run.used("baseline", opened.source)
        yield opened
