"""How fast this device runs a block of a model's shapes: what --dry-run turns operations into seconds by.

No weight is read: a block in plain torch, with random weights and as many as the model's blocks have, stands for them.
On a CPU the time is that which the program has had of its threads, so that other programs do not count.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

SECONDS = 0.25
"""How long each thing is measured."""
BRIEF = 0.05
"""How long, where only the ratio of two things measured in turn is wanted."""
CPU_TOKENS = 256
ACCELERATOR_TOKENS = 8192
"""Tokens in a batch, as the tools fill them."""
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
    product, operations = _product(width, device)
    return operations / _seconds([product], device)[0]


def products_gain(width: int, device: torch.device, dtype: torch.dtype) -> float:
    """Measure how many times faster products of matrices of this width are in a number type than in float32."""
    runs = [_product(width, device, each)[0] for each in (torch.float32, dtype)]
    full, other = _seconds(runs, device, BRIEF)
    return full / other


def measure_speed(width: int, weights: float, length: float, device: torch.device, *, batch: int = 0) -> Speed:
    """Measure a block.

    Args:
        width: of the model.
        weights: that the matrices of a block hold.
        length: tokens of a row, their mean.
        device: where it would run.
        batch: rows of a training step, which has dropout and an optimiser; 0 if there is none.
    """
    scale = min(1.0, WIDEST / width)
    own, tokens = round(width * scale), max(1, round(length))
    rows = max(1, (CPU_TOKENS if device.type == "cpu" else ACCELERATOR_TOKENS) // tokens)
    block = Block(own, weights * scale**2).to(device)
    states, trained = (torch.randn(n, tokens, own, device=device) for n in (rows, batch or rows))
    product, operations = _product(own, device)
    runs: list[Callable[[], object]] = [
        partial(_forward, block, states),
        partial(_both, block, trained, training=batch > 0),
        product,
    ]
    forward, both, products, *update = _seconds([*runs, _update(block)] if batch else runs, device)
    matrices = sum(p.numel() for p in block.parameters() if p.dim() > 1)
    row = 2 * matrices * tokens + 4 * own * tokens**2
    forward, both = forward / (row * len(states)), both / (row * len(trained))
    backward = max(both - forward, forward) / 2
    return Speed(
        1 / forward, 1 / backward, operations / products, sum(update) / sum(p.numel() for p in block.parameters())
    )


@torch.inference_mode()
def _forward(block: Block, states: Tensor) -> None:
    block.eval()(states)


def _both(block: Block, states: Tensor, *, training: bool) -> None:
    block.zero_grad(set_to_none=True)
    torch.autograd.backward(block.train(training)(states.detach().requires_grad_()).sum())


def _update(block: Block) -> Callable[[], None]:
    """Give a step of the optimiser, after `_both`."""
    parameters = list(block.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=1e-5, fused=parameters[0].device.type in ("cpu", "cuda"))

    def step() -> None:
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()

    return step


def _product(width: int, device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Callable[[], object], int]:
    left = torch.randn(PRODUCT_ROWS, width, device=device, dtype=dtype)
    right = torch.randn(width, 4 * width, device=device, dtype=dtype)
    return partial(torch.matmul, left, right), 2 * left.numel() * right.shape[1]


def _seconds(runs: Sequence[Callable[[], object]], device: torch.device, at_least: float | None = None) -> list[float]:
    """Give the median time that each call takes, after a first one; in turn, so that all see the machine alike."""
    times: list[list[float]] = []
    for run in runs:
        run()
    least = SECONDS if at_least is None else at_least
    while sum(map(sum, times)) < least * len(runs):
        times.append([])
        for run in runs:
            start = _clock(device)
            run()
            times[-1].append(_clock(device) - start)
    return [max(median(each), 1e-9) for each in zip(*times, strict=True)]


def _clock(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    (torch.cuda if device.type == "cuda" else torch.mps).synchronize()
    return time.perf_counter()
