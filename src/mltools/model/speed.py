"""How fast this device runs a block of a model's shapes: what --dry-run turns operations into seconds by.

No weight is read: a block in plain torch, with random weights and as many as the model's blocks have, stands for them.
On a CPU the time is that which the program has had of its threads, so that other programs do not count.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

SECONDS = 0.2
"""How long each thing is measured."""
CPU_TOKENS = 256
ACCELERATOR_TOKENS = 8192
"""Tokens in a batch, as the tools fill them or a usual training step has them."""
WIDEST = 1024
"""A wider block is measured at this width, where products of matrices take nearly all time already."""
HEAD = 64
DROPOUT = 0.1
PRODUCT_ROWS = 2048


@dataclass(frozen=True)
class Speed:
    """Operations a second of forward and of backward passes of blocks, and of products outside them.

    `update` is what a step of the optimiser takes for a weight, in seconds.
    """

    forward: float
    backward: float
    products: float
    update: float = 0.0


class Block(nn.Module):
    """Attention and two products of matrices, each with a norm: so many matrix weights, at this width."""

    def __init__(self, width: int, weights: float) -> None:
        """Draw the weights; `weights` is how many the matrices hold."""
        super().__init__()
        inner = max(1, round((weights - 4 * width**2) / (2 * width)))
        self.heads = max(n for n in range(1, max(1, width // HEAD) + 1) if width % n == 0)
        self.into = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, inner), nn.Linear(inner, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, states: Tensor) -> Tensor:
        """Apply it to states (rows, length, width)."""
        rows, length, width = states.shape
        queries, keys, values = (into(states).view(rows, length, self.heads, -1).transpose(1, 2) for into in self.into)
        drop = DROPOUT if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, dropout_p=drop).transpose(1, 2)
        states = self.norms[0](states + self.dropout(self.out(mixed.reshape(rows, length, width))))
        after: Tensor = self.norms[1](states + self.dropout(self.down(nn.functional.gelu(self.up(states)))))
        return after


def measure_products(width: int, device: torch.device) -> float:
    """Measure products of matrices of this width: operations a second."""
    left = torch.randn(PRODUCT_ROWS, width, device=device)
    right = torch.randn(width, 4 * width, device=device)
    return 2 * left.numel() * right.shape[1] / _seconds(lambda: left @ right, device)


def measure_speed(width: int, weights: float, length: float, device: torch.device, *, training: bool) -> Speed:
    """Measure a block.

    Args:
        width: of the model.
        weights: that the matrices of a block hold.
        length: tokens of a row, their mean.
        device: where it would run.
        training: whether with dropout, and with steps of the optimiser.
    """
    scale = min(1.0, WIDEST / width)
    own, tokens = round(width * scale), max(1, round(length))
    rows = max(1, (CPU_TOKENS if device.type == "cpu" else ACCELERATOR_TOKENS) // tokens)
    block = Block(own, weights * scale**2).to(device).train(training)
    states = torch.randn(rows, tokens, own, device=device)
    matrices = sum(p.numel() for p in block.parameters() if p.dim() > 1)
    operations = rows * (2 * matrices * tokens + 4 * own * tokens**2)
    with torch.inference_mode():
        forward = _seconds(lambda: block.eval()(states), device)
    block.train(training)
    both = _seconds(lambda: _pass(block, states.detach().requires_grad_()), device)
    update = _update(block, device) if training else 0.0
    backward = max(both - forward, forward)
    return Speed(operations / forward, 2 * operations / backward, measure_products(own, device), update)


def _pass(block: Block, states: Tensor) -> None:
    block.zero_grad(set_to_none=True)
    torch.autograd.backward(block(states).sum())


def _update(block: Block, device: torch.device) -> float:
    parameters = list(block.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=1e-5, fused=device.type in ("cpu", "cuda"))

    def step() -> None:
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()

    return _seconds(step, device) / sum(p.numel() for p in parameters)


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Give the median time that a call takes, after a first one."""
    run()
    times: list[float] = []
    while sum(times) < SECONDS:
        start = _clock(device)
        run()
        times.append(_clock(device) - start)
    return max(median(times), 1e-9)


def _clock(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    (torch.cuda if device.type == "cuda" else torch.mps).synchronize()
    return time.perf_counter()
