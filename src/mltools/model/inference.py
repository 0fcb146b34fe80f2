"""Predictions of all rows."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mltools.model.batches import Batch, Encoded
from mltools.model.runner import Runner
from mltools.processes import ALONE, Team

Logits = NDArray[np.float32]
TIE = 1e-5
"""Two logits nearer than this are a tie: rounding could swap them."""


@torch.inference_mode()
def predict(
    runner: Runner,
    encoded: Encoded,
    rows: NDArray[np.int64],
    batch_size: int | None,
    forward: Callable[[Batch], Tensor] | None = None,
    team: Team = ALONE,
) -> Logits:
    """Run the model in eval mode: logits (rows, classes), float32, in the order of `rows`.

    Args:
        runner: the model.
        encoded: all rows.
        rows: positions of those wanted.
        batch_size: rows in a batch; None fills batches by tokens.
        forward: gives a batch's logits; the whole model by default.
        team: the processes that share the batches.
    """
    run = forward or runner.forward
    was_training = runner.model.training
    runner.model.eval()
    place = {int(row): i for i, row in enumerate(rows)}
    result: Logits | None = None
    batches = encoded.batches(rows, batch_size, runner.device)
    for batch, logits in team.dealt(batches, lambda batch: run(batch).float().cpu().numpy()):
        if result is None:
            result = np.empty((len(rows), logits.shape[1]), dtype=np.float32)
        result[[place[int(row)] for row in batch.rows]] = logits
    runner.model.train(was_training)
    assert result is not None, "predict needs at least one row"
    return result


def predictions(logits: Logits) -> tuple[NDArray[np.int64], int]:
    """Take the arg max of each row of logits, and count the rows whose two best logits tie."""
    top = np.partition(logits, -2, axis=1) if logits.shape[1] > 1 else logits
    ties = int((top[:, -1] - top[:, -2] < TIE).sum()) if logits.shape[1] > 1 else 0
    return logits.argmax(axis=1).astype(np.int64), ties
