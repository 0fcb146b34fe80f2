"""The pooled position: the one that a classification head reads, the first token or the last real one."""

from typing import Literal

import torch
from torch import Tensor

from mltools.errors import CheckpointError
from mltools.model.batches import Batch

Pooling = Literal["first", "last", "all"]
"""What a head reads: the first token, the last real one, or all, in which case there is no pooled position."""


def pooled_positions(batch: Batch, pooling: Pooling) -> Tensor:
    """Give each row's pooled position, (batch,)."""
    return torch.zeros_like(batch.last) if pooling == "first" else batch.last


def pool(batch: Batch, states: Tensor, pooling: Pooling, model: str) -> Tensor:
    """Take the state of each row's pooled position: (batch, length, width) to (batch, width).

    Args:
        batch: the rows.
        states: of every position.
        pooling: which position.
        model: what messages call the model.

    Raises:
        CheckpointError: the head reads every position, so there is no pooled one; or states are not one a token.
    """
    if states.shape[:1] != batch.ids.shape[:1] or states.shape[1] < batch.ids.shape[1]:
        raise CheckpointError(f"{model}: its hidden states are not one a token, so none is pooled")
    if pooling == "first":
        return states[:, 0]
    if pooling == "last":
        return states[torch.arange(len(states), device=states.device), batch.last]
    raise CheckpointError("the classification head reads all positions, not one; there is no pooled position")


def put_pooled(batch: Batch, states: Tensor, pooled: Tensor, pooling: Pooling) -> Tensor:
    """Give states (batch, length, width) with others (batch, width) at each row's pooled position."""
    changed = states.clone()
    changed[torch.arange(len(states), device=states.device), pooled_positions(batch, pooling)] = pooled
    return changed
