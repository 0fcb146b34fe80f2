"""Checkpoints in bfloat16, for sweeps whose predictions shall be float32's (swap --precision bf16).

A prediction is float32's where the gap between the two best logits is larger than its error. How large errors become
is seen on a sample of rows, and on those that are run again. On rows that a model is less certain of they are larger:
up to 2.5 times the sample's were seen. So what lies within four times that is for the caller to run again.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mltools.hashing import ranked
from mltools.io.columns import RowId
from mltools.layers import Window
from mltools.model.batches import Batch, Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checks import Walk
from mltools.model.speed import products_gain

FASTER = 1.25
"""How many times faster matrix products must be in bfloat16; what else a block does is not faster."""
SAMPLE = 32
"""Rows that logits are compared on."""
SAFE = 4
"""How many times the sample's largest error a gap must be."""
SAFE_AGAIN = 2
"""How many times the largest error of the rows that were run again it must be."""


def gain(width: int, device: torch.device) -> float:
    """Measure how many times faster matrix products of this width are in bfloat16 than in float32."""
    return products_gain(width, device, torch.bfloat16)


def reduced(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Copy checkpoints with their weights in bfloat16; buffers stay as they are, and what they share stays shared.

    They are run as the originals are found to run by the checks at load.
    """
    parameters = (p for each in checkpoints for part in (each.model, each.stack.modules) for p in part.parameters())
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach().to(torch.bfloat16), requires_grad=False) for p in parameters}
    parts = copy.deepcopy([(each.model, each.stack, each.runner) for each in checkpoints], memo)
    copies = [
        replace(each, model=model, stack=stack, runner=runner)
        for each, (model, stack, runner) in zip(checkpoints, parts, strict=True)
    ]
    for each in copies:
        each.runner.applications = 0
    return copies


@torch.inference_mode()
def largest_error(
    sides: Sequence[Checkpoint], low: Sequence[Checkpoint], encoded: Encoded, ids: Sequence[RowId], walk: Walk
) -> float:
    """Give the largest error of the gap between a row's two best logits, for NOISY, CLEAN and a donor reduced.

    It is that of NOISY, of CLEAN whole and of the windows 1 to l for every l, on rows drawn by a hash of their ids: the
    same whichever windows are asked for. Not a number, or infinite, where bfloat16's logits are.
    """
    noisy = sides[0]
    rows = np.array(ranked(ids, "precision", 0)[:SAMPLE])
    layers = range(1, noisy.n_layers + 1)
    windows = [Window(tuple(layers[:end])) for end in range(len(layers) + 1)]
    errors = []
    for batch in encoded.batches(rows, None, noisy.runner.device):
        own, other = (_logits(each, batch, windows, walk) for each in (sides, low))
        errors += [float(gap_errors(own[index], other[index]).max()) for index in own]
    return float(np.max(errors))  # which is no number where one is none


def gap_errors(logits: Tensor, reduced_logits: Tensor) -> Tensor:
    """Give how far the reduced gap between the best logit and the next is off, (rows,)."""
    winner = reduced_logits.argmax(dim=1, keepdim=True)

    def gap(each: Tensor) -> Tensor:
        return each.gather(1, winner)[:, 0] - each.scatter(1, winner, -torch.inf).amax(dim=1)

    return (gap(logits) - gap(reduced_logits)).abs()


def _logits(sides: Sequence[Checkpoint], batch: Batch, windows: Sequence[Window], walk: Walk) -> dict[int, Tensor]:
    noisy, clean, donor = sides
    return {**dict(walk(noisy, donor, batch, windows)), -1: clean.runner.forward(batch).float()}
