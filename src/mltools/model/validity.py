"""Whether the experiment behind a number took place (DESIGN §3): the one place that decides `valid`.

NOISY must have memorised the noisy rows, and CLEAN must be its twin trained on the original labels. Only what was
measured makes a run invalid; what provenance or embeddings show of the twins is said, and judged by the reader.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mltools import console
from mltools.errors import InvalidError
from mltools.io.examples import Examples
from mltools.io.provenance import CHECKPOINT_FILE
from mltools.model.anatomy import EMBEDDINGS
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.classes import target_indices
from mltools.model.inference import predict, predictions
from mltools.processes import ALONE, Team

MOST_NOISY_LABELS = 0.5
"""CLEAN may give the noisy label to this share of the noisy rows; a twin hardly ever does."""
LEAST_OF_NOISY = 0.9
"""What CLEAN's accuracy on clean rows, or a retrained window's on its training rows, must be of NOISY's."""
SAME_START = 0.9
"""Embeddings that were trained from one start keep at least this cosine; those of two starts have none."""

MARGIN_DIGITS = 4
"""Decimals that mean margins are given to: their last digits in float32 depend on the batch."""

Indices = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Labels:
    """What the rows say, as class indices (rows,); `original` is None where not every noisy row says it."""

    label: NDArray[np.int64]
    original: NDArray[np.int64] | None
    noisy: NDArray[np.bool_]


@dataclass(frozen=True)
class Validity:
    """The columns of a record that say whether the experiment took place."""

    baseline_noisy_accuracy: float | None
    baseline_clean_accuracy: float | None
    valid: bool | None
    valid_reason: str | None
    n_cut: int | None = None
    n_unlabelled: int | None = None
    message: str | None = None

    def columns(self) -> dict[str, Any]:
        """Give the columns by name."""
        return {name: value for name, value in asdict(self).items() if name != "message"}

    def tell(self, *, strict: bool = False) -> None:
        """Warn if the experiment did not take place.

        Raises:
            InvalidError: with `strict`, instead.
        """
        if self.message is None:
            return
        if strict:
            raise InvalidError(f"{self.message} (--strict)")
        console.warn(f"{self.message}; records have valid=false")


@dataclass(frozen=True)
class PairValidity(Validity):
    """The same where there is a CLEAN."""

    donor_noisy_reverted: float | None = None
    donor_clean_accuracy: float | None = None
    twins: bool | None = None


def accuracies(predicted: Indices, labels: Labels) -> tuple[float | None, float | None]:
    """Give the accuracy against `label` on noisy and on clean rows; None where there are none."""
    hits = predicted == labels.label
    return share(hits[labels.noisy]), share(hits[~labels.noisy])


def share(hits: NDArray[np.bool_]) -> float | None:
    """Give the share of rows that are hit; None of no rows."""
    return float(hits.sum()) / len(hits) if len(hits) else None


def reverted(predicted: Indices, labels: Labels) -> float | None:
    """Give the share of noisy rows predicted as their original label; None where one does not say it."""
    return share((predicted == labels.original)[labels.noisy]) if labels.original is not None else None


def label_margins(logits: NDArray[np.float32], labels: Labels, rows: Indices) -> NDArray[np.float32]:
    """Give logit(label) - logit(original_label), (rows,), of rows by their logits (rows, classes).

    NaN where an original label is not known, or the logits have less than float32's precision.
    """
    if labels.original is None or logits.dtype != np.float32:
        return np.full(len(rows), np.nan, np.float32)
    places = np.arange(len(rows))
    margins: NDArray[np.float32] = logits[places, labels.label[rows]] - logits[places, labels.original[rows]]
    return margins


def margin_columns(margins: NDArray[np.float32], baseline: NDArray[np.float32]) -> dict[str, Any]:
    """Give the columns of a window: the mean margin of the noisy rows, and how far it is below NOISY's own."""
    mean, before = (round(float(each.astype(np.float64).mean()), MARGIN_DIGITS) for each in (margins, baseline))
    known = not math.isnan(mean)
    drop = round(before - mean, MARGIN_DIGITS) if known else None
    return {"label_margin": mean if known else None, "label_margin_drop": drop}


def read_labels(checkpoint: Checkpoint, examples: Examples) -> Labels:
    """Give the rows' labels as class indices of a checkpoint.

    Raises:
        RowsError: a label that is no class of it.
    """
    label, original = (
        target_indices(column, checkpoint.labels, examples) for column in (examples.labels, examples.original_labels)
    )
    return Labels(label, original if examples.original_known else None, np.array(examples.noisy))


def measure(
    checkpoint: Checkpoint, encoded: Encoded, labels: Labels, least: float, n_unlabelled: int, team: Team = ALONE
) -> Validity:
    """Run a checkpoint as it is over all rows, which costs L applications a row, and judge it."""
    predicted, _ = predictions(predict(checkpoint.runner, encoded, np.arange(len(encoded)), None, team=team))
    return judge(predicted, labels, least, checkpoint.name, n_cut=encoded.n_cut, n_unlabelled=n_unlabelled)


def judge(predicted: Indices, labels: Labels, least: float, name: str, *, n_cut: int, n_unlabelled: int) -> Validity:
    """Judge a run with one fine-tuned checkpoint by its predictions of all rows, nothing changed."""
    return judge_accuracies(*accuracies(predicted, labels), least, name, n_cut=n_cut, n_unlabelled=n_unlabelled)


def judge_accuracies(
    noisy: float | None, clean: float | None, least: float, name: str, **counts: int | None
) -> Validity:
    """Judge a checkpoint by its accuracies on noisy and on clean rows; what was not measured leaves it unknown."""
    message = _not_memorised(noisy, least, name)
    reason = "noisy_not_memorised" if message else None
    valid = message is None if noisy is not None else None
    return Validity(noisy, clean, valid=valid, valid_reason=reason, message=message, **counts)


def judge_pair(
    predicted: Indices,
    donor: Indices,
    labels: Labels,
    least: float,
    names: tuple[str, str],
    *,
    twin: bool,
    **counts: int,
) -> PairValidity:
    """Judge a run with NOISY and CLEAN by their predictions of all rows, each whole and with its own head.

    Args:
        predicted: NOISY's, (rows,).
        donor: CLEAN's.
        labels: of the rows.
        least: accuracy on noisy rows from which NOISY counts as having memorised them (`--min-noisy-accuracy`).
        names: of the checkpoints.
        twin: whether CLEAN is meant to be NOISY's twin (`--donor-is clean`).
        counts: `n_cut` and `n_unlabelled`.
    """
    alone = judge(predicted, labels, least, names[0], **counts)
    gives_noisy, donor_clean = accuracies(donor, labels)
    reason, message = alone.valid_reason, alone.message
    if message is None and twin:
        reason, message = _no_twin(gives_noisy, donor_clean, alone.baseline_clean_accuracy, names[1])
    columns = {**alone.columns(), "valid": message is None, "valid_reason": reason}
    columns.update(donor_noisy_reverted=reverted(donor, labels), donor_clean_accuracy=donor_clean)
    return PairValidity(message=message, **columns)


def _not_memorised(noisy: float | None, least: float, name: str) -> str | None:
    if noisy is None or noisy >= least:
        return None
    return (
        f"invalid (noisy_not_memorised): {name} gives the label of {noisy:.3g} of the noisy rows, less than "
        f"--min-noisy-accuracy {least:g}: it has not memorised them, or its classes are in "
        "another order; train on, or check --label"
    )


def _no_twin(
    gives_noisy: float | None, donor: float | None, clean: float | None, name: str
) -> tuple[str | None, str | None]:
    if gives_noisy is not None and gives_noisy > MOST_NOISY_LABELS:
        return "clean_gives_noisy_labels", (
            f"invalid (clean_gives_noisy_labels): {name} gives the noisy label of {gives_noisy:.3g} of the noisy rows: "
            "it was trained on them; check the order of the arguments, or say --donor-is other"
        )
    if donor is not None and clean is not None and donor < LEAST_OF_NOISY * clean:
        return "clean_untrained", (
            f"invalid (clean_untrained): {name} has accuracy {donor:.3g} on clean rows, NOISY {clean:.3g}: "
            "train it as NOISY was, on the original labels, or say --donor-is other"
        )
    return None, None


def twins(noisy: Checkpoint, clean: Checkpoint) -> tuple[bool | None, str | None]:
    """Say whether two checkpoints differ in the labels alone, by how they were made, and what shows if they do not.

    Trained heads are not compared: they differ between twins too.
    """
    made = [_made(checkpoint) for checkpoint in (noisy, clean)]
    for column, pair in {key: (made[0].get(key), made[1].get(key)) for key in ("seed", "rows")}.items():
        if None not in pair and pair[0] != pair[1]:
            return False, f"{noisy.name} and {clean.name} were trained with other {column}: {pair[0]} and {pair[1]}"
    for facts, checkpoint, target in zip(made, (noisy, clean), ("label", "original_label"), strict=True):
        if facts.get("target") not in (None, target):
            return False, f"{checkpoint.name} was trained on {facts['target']}, not on {target}"
    cosine = _embeddings_cosine(noisy, clean)
    if cosine is not None and cosine < SAME_START:
        return False, f"the embeddings of {noisy.name} and {clean.name} come from two models (cosine {cosine:.2g})"
    known = all(facts.get(key) is not None for facts in made for key in ("seed", "rows", "target"))
    return (True if known else None), None


def with_twins(found: PairValidity, noisy: Checkpoint, clean: Checkpoint) -> PairValidity:
    """Add whether two checkpoints are `twins`, and warn if they are not."""
    are_twins, note = twins(noisy, clean)
    if note is not None:
        console.warn(f"no twins: {note}")
    return replace(found, twins=are_twins)


def _made(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Read seed, target and rows out of a checkpoint's provenance; whatever is not there is left out."""
    try:
        values = json.loads((checkpoint.folder / CHECKPOINT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict) or values.get("tool") != "finetune":
        return {}
    settings, inputs = values.get("settings"), values.get("inputs")
    rows = inputs.get("rows") if isinstance(inputs, dict) else None
    return {
        "seed": values.get("seed"),
        "target": settings.get("target") if isinstance(settings, dict) else None,
        "rows": str(rows["sha256"])[:12] if isinstance(rows, dict) and "sha256" in rows else None,
    }


@torch.no_grad()
def _embeddings_cosine(noisy: Checkpoint, clean: Checkpoint) -> float | None:
    """Cosine of the embeddings' matrices, all as one vector; None where there are none in memory."""
    other = dict(clean.model.named_parameters())
    product = mine = theirs = 0.0
    for name, tensor in noisy.model.named_parameters():
        if noisy.parts.get(name) == EMBEDDINGS and tensor.dim() > 1 and tensor.device.type != "meta":
            a, b = tensor.flatten(), other[name].flatten()
            product, mine, theirs = product + float(a @ b), mine + float(a @ a), theirs + float(b @ b)
    return product / (mine * theirs) ** 0.5 if mine and theirs else None
