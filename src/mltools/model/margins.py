"""NOISY, a donor of blocks, and the noisy rows whose margin is explained: what `attribute` and `shapley` begin with.

A row's margin is logit(label) - logit(original_label). Only blocks go from the donor to NOISY, as in `swap`: embeddings
and head stay NOISY's, so that what all layers contribute together is what the full window undoes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mltools.errors import RowsError
from mltools.io.examples import Examples
from mltools.model.batches import Batch, Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_pairs import check_same
from mltools.model.checks import check_mixture, self_check
from mltools.model.inference import predict, predictions
from mltools.model.opened import Model
from mltools.model.validity import (
    MARGIN_DIGITS,
    Indices,
    Labels,
    PairValidity,
    judge,
    judge_pair,
    read_labels,
    with_twins,
)
from mltools.model.window_tree import window_logits
from mltools.options import PairOptions


@dataclass(frozen=True)
class MarginPair:
    """Two checkpoints that fit each other, the rows, and the positions (n_noisy,) of the noisy ones."""

    noisy: Checkpoint
    donor: Checkpoint
    encoded: Encoded
    labels: Labels
    rows: NDArray[np.int64]
    validity: PairValidity

    def margins(self, batch: Batch, logits: Tensor) -> Tensor:
        """Give the margins (batch,) of rows by their logits (batch, classes)."""
        assert self.labels.original is not None
        found = logits.float()
        label, original = (
            torch.from_numpy(each[batch.rows]).to(logits.device)[:, None]
            for each in (self.labels.label, self.labels.original)
        )
        return (found.gather(1, label) - found.gather(1, original))[:, 0]

    def columns(self, contribution: float, margin: float, drop: float) -> dict[str, Any]:
        """Give the columns that records of a layer share."""
        return {
            "layers": self.noisy.n_layers,
            "score": max(contribution, 0.0),
            "contribution": contribution,
            "n_noisy": len(self.rows),
            "label_margin": round(margin, MARGIN_DIGITS),
            "label_margin_drop": round(drop, MARGIN_DIGITS),
            **self.validity.columns(),
        }


def open_pair(noisy: Model, clean: Model, options: PairOptions) -> tuple[Checkpoint, Checkpoint]:
    """Open NOISY and the donor, which needs no head where it is not judged."""
    opened = noisy.open()
    return opened, clean.open(fresh_head=None if options.donor_is == "clean" else opened.labels)


def pair_margins(noisy: Checkpoint, donor: Checkpoint, examples: Examples, options: PairOptions) -> MarginPair:
    """Check two checkpoints and rows, and judge the experiment: 2 L layer applications a row, L of a donor not judged.

    Args:
        noisy: θ_M2.
        donor: θ_O, or whatever else gives the blocks.
        examples: the training rows, with noisy ones among them.
        options: how rows are read, and what the checkpoints must show.

    Raises:
        CheckpointError: the checkpoints do not fit, or windows of this architecture cannot be measured.
        RowsError: no noisy rows, one without an original label, or a label that is no class.
        InvalidError: with `--strict`, an experiment that did not take place.
    """
    check_same(noisy, donor)
    examples.require_noisy()
    labels = read_labels(noisy, examples)
    if labels.original is None:
        raise RowsError(f"{examples.source.name}: margins need the original_label of every noisy row")
    encoded = prepare(noisy, donor, examples, options.reading.max_length)
    counts = {"n_cut": encoded.n_cut, "n_unlabelled": examples.n_unlabelled}
    own, least = _predicted(noisy, encoded), options.validity.min_noisy_accuracy
    if options.donor_is == "clean":
        names = (noisy.name, donor.name)
        found = judge_pair(own, _predicted(donor, encoded), labels, least, names, twin=True, **counts)
        validity = with_twins(found, noisy, donor)
    else:
        validity = PairValidity(**vars(judge(own, labels, least, noisy.name, **counts)))
    validity.tell(strict=options.validity.strict)
    return MarginPair(noisy, donor, encoded, labels, np.flatnonzero(labels.noisy), validity)


def prepare(noisy: Checkpoint, donor: Checkpoint, examples: Examples, max_length: int) -> Encoded:
    """Give the rows in tokens, once it is seen how windows of the donor's blocks can be measured rightly."""
    encoded = noisy.encode(examples, max_length)
    self_check(noisy.runner, encoded)
    check_mixture(noisy, donor, encoded, window_logits)
    return encoded


def _predicted(checkpoint: Checkpoint, encoded: Encoded) -> Indices:
    predicted, _ = predictions(predict(checkpoint.runner, encoded, np.arange(len(encoded)), None))
    return predicted
