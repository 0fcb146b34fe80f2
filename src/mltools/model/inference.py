"""Predictions of all rows, and the check at the start that a row's result does not depend on its batch."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mltools.errors import CheckpointError
from mltools.model.batches import Batch, Encoded
from mltools.model.runner import Runner

Logits = NDArray[np.float32]
TIE = 1e-5
"""Two logits nearer than this are a tie: rounding could swap them."""
CHECK_TOLERANCE = 1e-3


@torch.inference_mode()
def predict(
    runner: Runner,
    encoded: Encoded,
    rows: NDArray[np.int64],
    batch_size: int | None,
    forward: Callable[[Batch], Tensor] | None = None,
) -> Logits:
    """Run the model in eval mode: logits (rows, classes), float32, in the order of `rows`.

    Args:
        runner: the model.
        encoded: all rows.
        rows: positions of those wanted.
        batch_size: rows in a batch; None fills batches by tokens.
        forward: gives a batch's logits; the whole model by default.
    """
    forward = forward or runner.forward
    was_training = runner.model.training
    runner.model.eval()
    place = {int(row): i for i, row in enumerate(rows)}
    result: Logits | None = None
    for batch in encoded.batches(rows, batch_size, runner.device):
        logits = forward(batch).float().cpu().numpy()
        if result is None:
            result = np.empty((len(rows), logits.shape[1]), dtype=np.float32)
        result[[place[int(row)] for row in batch.rows]] = logits
    runner.model.train(was_training)
    assert result is not None, "predict needs at least one row"
    return result


@torch.inference_mode()
def self_check(runner: Runner, encoded: Encoded) -> None:
    """Check on the shortest and the longest row that a row alone and in a padded batch gives the same logits.

    Three passes: the recorded one of the batch, which must also give its logits when its end is replayed, and two.

    Raises:
        CheckpointError: it does not; results would depend on the batch.
    """
    rows = np.unique([int(encoded.lengths.argmin()), int(encoded.lengths.argmax())])
    was_training = runner.model.training
    runner.model.eval()
    alone = torch.cat([runner.forward(encoded.batch(rows[i : i + 1], runner.device)) for i in range(len(rows))]).float()
    batched: list[Tensor] = []
    handle = runner.model.register_forward_hook(lambda _, __, output: batched.append(output.logits))
    try:
        recording = runner.record(encoded.batch(rows, runner.device))
    finally:
        handle.remove()
    replayed = runner.tail(recording, recording.states[-1])
    runner.model.train(was_training)
    scale = max(1.0, float(alone.abs().max()))
    for name, other in (("batched", batched[0]), ("replayed", replayed)):
        gap = float((other.float() - alone).abs().max())
        if not gap <= CHECK_TOLERANCE * scale:
            raise CheckpointError(
                f"self-check failed: a row's logits alone and {name} differ by {gap:.3g}; results of this model "
                "would depend on the batch (run in float32; report the architecture if it persists)"
            )


def predictions(logits: Logits) -> tuple[NDArray[np.int64], int]:
    """Take the arg max of each row of logits, and count the rows whose two best logits tie."""
    top = np.partition(logits, -2, axis=1) if logits.shape[1] > 1 else logits
    ties = int((top[:, -1] - top[:, -2] < TIE).sum()) if logits.shape[1] > 1 else 0
    return logits.argmax(axis=1).astype(np.int64), ties
