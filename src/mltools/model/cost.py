"""What work would cost, without doing it: --dry-run.

Work is counted in layer applications (one block on one row is 1), as the tools count them. From there:

- operations of one forward application to a row of t tokens: 2·W·t + 4·d·t², where W is the number of matrix weights
  of a block (the mean over blocks) and d the width. Rows differ in length: the means of t and t² are used.
- a backward pass through a frozen block costs one forward application, through a trained one two.
- seconds: operations over the rate of a block of these shapes, forward and backward, and what the optimiser takes, both
  measured on the same device and threads (`model.speed`). Starting takes some seconds more.
- bytes: the weights of the models in memory at once (4 a weight), gradients and moments, and the states that are kept
  (4·d a token). The activations of a batch come on top.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from mltools.io.examples import Examples
from mltools.io.kinds import WorkRecord
from mltools.model.anatomy import EMBEDDINGS, parse_freeze
from mltools.model.checkpoint import CheckpointMeta
from mltools.model.speed import Speed, measure_products, measure_speed

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """What decides the cost of a model on rows.

    `weights` are those of the model that are in memory at once, `lengths` the number of tokens of each row.
    """

    n_layers: int
    width: int
    block_weights: float
    block_matrix_weights: float
    weights: int
    lengths: NDArray[np.int64]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return int(self.lengths.sum())

    @property
    def operations(self) -> float:
        """Floating-point operations of one forward application, mean over rows."""
        if not len(self.lengths):
            return 0.0
        tokens = self.lengths.astype(np.float64)
        return float(2 * self.block_matrix_weights * tokens.mean() + 4 * self.width * (tokens**2).mean())


@dataclass(frozen=True)
class WorkItem:
    """Work that one call can do alone, counted.

    `options` make the command do just this item. `backward` is backward work, in forward applications; `operations`
    are those outside the blocks. Each step is on `batch` rows and changes the weights of `updated` blocks. `shared` are
    the applications that are done already where the items before this one in the list are of the same run. In memory
    at once are `models` models, `copies` further copies of a block's weights (a gradient, two moments), and `states`
    states of one token.
    """

    options: str = ""
    rows: int = 0
    steps: int = 0
    applications: int = 0
    backward: int = 0
    operations: float = 0.0
    models: int = 1
    copies: int = 0
    states: int = 0
    updated: int = 0
    batch: int = 0
    shared: int = 0


def read_shape(checkpoint: CheckpointMeta, examples: Examples, max_length: int, offload: bool = False) -> Shape:
    """Read the shapes of a checkpoint and count the tokens of rows; with `offload` one block is in memory at a time."""
    own = [parameter for module in checkpoint.stack.modules for parameter in module.parameters()]
    on_disk = sum(p.numel() for p in own) * (checkpoint.n_layers - 1) // checkpoint.n_layers if offload else 0
    return Shape(
        n_layers=checkpoint.n_layers,
        width=checkpoint.width,
        block_weights=sum(p.numel() for p in own) / checkpoint.n_layers,
        block_matrix_weights=sum(p.numel() for p in own if p.dim() > 1) / checkpoint.n_layers,
        weights=sum(p.numel() for p in checkpoint.model.parameters()) - on_disk,
        lengths=checkpoint.encode(examples, max_length).lengths,
    )


def training_layers(shape: Shape, freeze: str, clip_scope: str) -> tuple[int, int]:
    """Give the backward work of one row, in applications, and the number of layers that are trained.

    Below the lowest layer that is trained there is no backward pass, through frozen layers above it half of one.
    """
    frozen = parse_freeze(freeze, shape.n_layers)
    trained = set(range(1, shape.n_layers + 1)) - frozen
    lowest = 1 if EMBEDDINGS not in frozen else min(trained, default=shape.n_layers + 1)
    reached = shape.n_layers - lowest + 1
    return (len(trained) + reached if clip_scope == "trainable" else 2 * shape.n_layers), len(trained)


def shape_of_states(n_layers: int, width: int) -> Shape:
    """Give the shape of states that are there already: no model is run."""
    return Shape(n_layers, width, 0.0, 0.0, 0, np.empty(0, np.int64))


def speed_for(shape: Shape, items: Iterable[WorkItem], device: torch.device) -> Speed:
    """Measure how fast this device does such work."""
    if not len(shape.lengths):
        products = measure_products(shape.width, device)
        return Speed(products, products, products)
    batch = max((item.batch for item in items), default=0)
    return measure_speed(shape.width, shape.block_matrix_weights, float(shape.lengths.mean()), device, batch=batch)


def in_one_run(items: Sequence[WorkItem]) -> list[WorkItem]:
    """Give the items with what each costs in one run of all: the first as it is, the others without what is shared."""
    return [replace(item, applications=item.applications - item.shared * bool(n)) for n, item in enumerate(items)]


def estimate(tool: str, shape: Shape, items: Iterable[WorkItem], speed: Speed) -> Iterator[WorkRecord]:
    """Turn counted work into operations, seconds and bytes, at the speed of a device."""
    for item in items:
        operations = (item.applications + item.backward) * shape.operations + item.operations
        passes = item.applications / speed.forward + item.backward / speed.backward
        updates = item.steps * item.updated * shape.block_weights
        numbers = item.models * shape.weights + item.copies * shape.block_weights + item.states * shape.width
        yield WorkRecord(
            tool=tool,
            item=item.options,
            layers=shape.n_layers,
            rows=item.rows,
            tokens_per_row=shape.tokens / len(shape.lengths) if len(shape.lengths) else None,
            steps=item.steps,
            applications=item.applications,
            operations=operations,
            seconds=passes * shape.operations + item.operations / speed.products + updates * speed.update,
            bytes=int(FLOAT_BYTES * numbers),
        )
