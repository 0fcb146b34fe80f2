"""The last block computed for the pooled position alone: exact, at about a quarter of the work.

A classification head reads one position of the last block's output. All positions are needed as keys and values,
but only the pooled one as query, in the feed-forward part and in the norms. The block is run twice: on all states
up to its attention product, which is taken down with its arguments; then on the pooled states alone, with that
product answered for the pooled query. No architecture is named: a block fits if it calls PyTorch's
`scaled_dot_product_attention` once, and `Runner` checks on real tokens that the result is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mltools.model.anatomy import first_tensor, with_states

ATTENTION = torch.nn.functional.scaled_dot_product_attention


class _Attention(Exception):
    """Ends a block's run at its attention product and carries the arguments."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        self.arguments: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}


class _CaptureAttention(TorchFunctionMode):
    """Stops at the attention product."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is ATTENTION:
            raise _Attention(args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _ReplayAttention(TorchFunctionMode):
    """Answers the attention product for the pooled queries of the product taken down."""

    def __init__(self, arguments: dict[str, Any], positions: Tensor) -> None:
        super().__init__()
        self._arguments, self._positions = arguments, positions

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not ATTENTION:
            return func(*args, **(kwargs or {}))
        return ATTENTION(**_for_positions(self._arguments, self._positions))


def _for_positions(arguments: dict[str, Any], positions: Tensor) -> dict[str, Any]:
    """Cut the arguments of an attention product down to one query a row."""
    query: Tensor = arguments["query"]  # (batch, heads, length, width of a head)
    rows = torch.arange(len(query), device=query.device)
    mask: Tensor | None = arguments.get("attn_mask")
    if mask is not None and mask.shape[-2] > 1:
        mask = mask.expand(len(query), *mask.shape[1:])[rows, :, positions].unsqueeze(2)
    if arguments.get("is_causal"):
        mask = (torch.arange(query.shape[2], device=query.device) <= positions[:, None])[:, None, None]
    return {**arguments, "query": query[rows, :, positions].unsqueeze(2), "attn_mask": mask, "is_causal": False}


def forward_at_positions(
    forward: Callable[..., Any], states: Tensor, rest: tuple[Any, ...], named: Mapping[str, Any], positions: Tensor
) -> Any:
    """Run a block for one position of each row.

    Args:
        forward: the block's own forward.
        states: all states that enter it, (batch, length, width).
        rest: its other positional arguments, as the model gives them for this batch.
        named: its keyword arguments.
        positions: the position wanted, (batch,).

    Returns:
        What the block returns, with states (batch, length, width) that are 0 but for that position.

    Raises:
        LookupError: the block calls no attention product that can be taken down.
    """
    try:
        with _CaptureAttention():
            forward(states, *rest, **named)
    except _Attention as taken:
        arguments = taken.arguments
    else:
        raise LookupError("no scaled_dot_product_attention in the block")
    length = states.shape[1]
    rows = torch.arange(len(states), device=states.device)
    with _ReplayAttention(arguments, positions):
        output = forward(
            states[rows, positions].unsqueeze(1),
            *(_at_positions(value, length, positions) for value in rest),
            **{key: _at_positions(value, length, positions) for key, value in named.items()},
        )
    pooled = first_tensor(output)
    whole = pooled.new_zeros((len(states), length, pooled.shape[2])).index_put((rows, positions), pooled[:, 0])
    return with_states(output, whole)


def _at_positions(value: Any, length: int, positions: Tensor) -> Any:
    """Cut tables with a row a position (rotary angles, position ids), one or nested, down to the pooled positions."""
    if isinstance(value, tuple | list):
        return type(value)(_at_positions(item, length, positions) for item in value)
    if isinstance(value, Tensor) and value.dim() in (2, 3) and value.shape[1] == length:
        rows = torch.arange(len(positions), device=positions.device)
        return value.expand(len(positions), *value.shape[1:])[rows, positions].unsqueeze(1)
    return value
