"""Train probes on hidden states, to see from which layer on noisy rows can be told from clean ones (§3.1, §4.2, §5).

A probe predicts from the states of one layer whether a row is noisy, or which class it has. Its F1 on held-out rows,
layer by layer, is what is reported; the gain over the layer below is the layer's score. All probes see the same
split of the rows, which depends on the probe's seed and the rows' ids only.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mltools.commands.probe import Settings, TargetName
from mltools.commands.probe.probes import Progress, Split
from mltools.commands.probe.scores import TRAIN_TENTHS, Floats, run_probes, split_rows
from mltools.errors import RowsError
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


MARGIN = 0.1
"""By how much F1 for `label` must exceed that for `original_label` on noisy rows (§5)."""
REACHED = 0.9
EVENTS = ("memorisation>>generalisation", "90 % F1")


def probe(
    states: States,
    settings: Settings = DEFAULTS,
    *,
    baseline: States | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Iterator[ProbeRecord]:
    """Train probes on every layer and yield a record a target and layer, from the embeddings (0) up.

    Args:
        states: of all rows.
        settings: targets, probe, schedule.
        baseline: states of the same rows by θ_P, whose layer 1 is what layer 1 is scored against.
        device: where to train; CPU by default.
        progress: wraps the epochs.

    Raises:
        InvalidError: with `--strict`, probes for noise on states of a checkpoint that has not memorised it.
        RowsError: no noisy rows or one class; a class that is absent from a split; other rows in the baseline.
        TrainingError: a probe diverges.
    """
    validity = judge_accuracies(*states.baseline, settings.validity.min_noisy_accuracy, states.name)
    if "noise" in settings.targets:
        validity.tell(strict=settings.validity.strict)
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
            yield from probe(states, settings, baseline=below, device=run.device, progress=track)
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
