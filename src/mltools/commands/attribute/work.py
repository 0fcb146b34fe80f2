"""Parts of layers in what NOISY remembers, by integrated gradients over weights: c = ∫ ⟨∂m/∂W, ΔW⟩ da along the path.

The integral is taken by Gauss-Legendre nodes. Each row's parts sum to m(NOISY) - m(NOISY with CLEAN's blocks) but for
the error of the integration, which is measured, and lowered by more nodes for the rows where it is large.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from mltools.commands.attribute import Settings
from mltools.commands.attribute.parts import BlockPath, can_be_by_row, parts_by_row, parts_of_row
from mltools.console import Track, untracked
from mltools.errors import TrainingError
from mltools.io.columns import RowId, table_ids
from mltools.io.kinds import AttributionRecord
from mltools.model.checks import check_batches
from mltools.model.cost import WorkItem
from mltools.model.margins import MarginPair, open_pair, pair_margins
from mltools.run import Run

if TYPE_CHECKING:
    import polars as pl

MOST_NODES = 512
CPU_TOKENS = 512
ACCELERATOR_TOKENS = 8192

Floats = NDArray[np.float64]


@dataclass
class Attribution:
    """What the path gives for each noisy row, in the order of `pair.rows`.

    `parts` is (rows, tensors); `margin` NOISY's margins (rows,); `drop` what is to be explained (rows,); `gap` the
    share of it that the parts miss; `nodes` how many each row was given.
    """

    names: list[str]
    layers: list[int]
    parts: Floats
    margin: Floats
    drop: Floats
    gap: Floats
    nodes: NDArray[np.int64]

    def by_layer(self) -> Floats:
        """Sum the parts of each layer's tensors: (rows, L)."""
        layers = np.array(self.layers)
        return np.stack([self.parts[:, layers == layer].sum(axis=1) for layer in sorted(set(self.layers))], axis=1)


def attribute(pair: MarginPair, settings: Settings, progress: Track = untracked) -> Attribution:
    """Integrate along the path from the donor's blocks to NOISY's; NOISY is afterwards as it was.

    Args:
        pair: the checkpoints and the noisy rows.
        settings: nodes, and the gap from which they are doubled.
        progress: wraps the rows as they are done at each number of nodes.

    Raises:
        TrainingError: a gradient that is not finite.
    """
    noisy, n = pair.noisy, len(pair.rows)
    path = BlockPath(noisy, pair.donor)
    for parameter in noisy.model.parameters():
        parameter.requires_grad_(False)
    noisy.model.eval()
    singles, batch = check_batches(pair.encoded, noisy.runner)
    together = can_be_by_row(noisy, path, batch, singles)
    names = list(path.weights)
    layers = [noisy.stack.layer_of(name) or 0 for name in names]
    size = settings.batch_size if together else 1
    with path.restored():
        margin = _margins(pair)
        path.go(0.0)
        drop = margin - _margins(pair)
        least = float(np.abs(drop).mean())
        found = Attribution(names, layers, np.zeros((n, len(names))), margin, drop, np.zeros(n), np.zeros(n, np.int64))
        left, nodes = np.arange(n), settings.nodes
        while len(left) and nodes <= MOST_NODES:
            parts = _integrate(pair, path, left, nodes, size, progress)
            if not np.isfinite(parts).all():
                where = names[int(np.isfinite(parts).all(axis=0).argmin())]
                raise TrainingError(f"the gradient of {where} is not finite on the way from {pair.donor.name}")
            found.parts[left], found.nodes[left] = parts, nodes
            missed = np.abs(parts.sum(axis=1) - drop[left])
            found.gap[left] = missed / np.maximum(np.maximum(np.abs(drop[left]), least), np.finfo(np.float32).tiny)
            left, nodes = left[found.gap[left] > settings.gap], 2 * nodes
    return found


def _margins(pair: MarginPair) -> Floats:
    """Give the margins of the noisy rows with the blocks as they are now."""
    found = np.zeros(len(pair.encoded))
    with torch.inference_mode():
        for batch in pair.encoded.batches(pair.rows, None, pair.noisy.runner.device):
            found[batch.rows] = pair.margins(batch, pair.noisy.runner.forward(batch)).double().cpu().numpy()
    return found[pair.rows]


def _integrate(
    pair: MarginPair,
    path: BlockPath,
    chosen: NDArray[np.int64],
    nodes: int,
    batch_size: int | None,
    progress: Track,
) -> Floats:
    """Integrate over some of the noisy rows with so many nodes: (rows, tensors)."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    device = pair.noisy.runner.device
    tokens = CPU_TOKENS if device.type == "cpu" else ACCELERATOR_TOKENS
    measure = parts_of_row if batch_size == 1 else parts_by_row
    rows = pair.rows[chosen]
    total = np.zeros((len(pair.encoded), len(path.weights)))

    def walk() -> Iterator[int]:
        for place, weight in zip((places + 1) / 2, weights / 2, strict=True):
            path.go(float(place))
            for batch in pair.encoded.batches(rows, batch_size, device, tokens):
                parts = measure(pair.noisy, path, batch, pair.margins)
                total[batch.rows] += float(weight) * parts.detach().double().cpu().numpy()
                yield from (int(row) for row in batch.rows)

    for _ in progress(walk(), nodes * len(rows)):
        pass
    return total[rows]


def records(pair: MarginPair, found: Attribution, settings: Settings) -> Iterator[AttributionRecord]:
    """Give a record a layer, or a tensor, from the means over noisy rows."""
    drop = float(found.drop.mean())
    gap = abs(float(found.parts.sum(axis=1).mean()) - drop) / abs(drop) if drop else 0.0
    for layer, tensor, parts in _columns(pair, found, settings):
        yield AttributionRecord(
            tool="attribute",
            layer=layer,
            tensor=tensor,
            gap=gap,
            gap_max=float(found.gap.max()),
            nodes=settings.nodes,
            nodes_max=int(found.nodes.max()),
            n_refined=int((found.nodes > settings.nodes).sum()),
            **pair.columns(float(parts.mean()), float(found.margin.mean()), drop),
        )


def _columns(pair: MarginPair, found: Attribution, settings: Settings) -> Iterator[tuple[int, str | None, Floats]]:
    """Give layer, tensor and parts (rows,) of what is written, in order."""
    if settings.by == "layer":
        for layer, parts in enumerate(found.by_layer().T, start=1):
            yield layer, None, parts
        return
    place = f"{pair.noisy.stack.path}."
    for name, layer, parts in zip(found.names, found.layers, found.parts.T, strict=True):
        yield layer, name.removeprefix(place).partition(".")[2], parts


def per_row(pair: MarginPair, ids: Sequence[RowId], found: Attribution, settings: Settings) -> "pl.DataFrame":
    """Give a row for each noisy row and layer, or tensor; `ids` are those of all rows."""
    import polars as pl

    own = np.array(table_ids(ids), dtype=object)[pair.rows].tolist()
    of_row = {
        "label_margin": found.margin,
        "label_margin_drop": found.drop,
        "gap": found.gap,
        "nodes": found.nodes,
    }
    frames = [
        pl.DataFrame({"id": own, "layer": layer, "tensor": tensor, "contribution": parts, **of_row}).with_columns(
            pl.col("tensor").cast(pl.String)
        )
        for layer, tensor, parts in _columns(pair, found, settings)
    ]
    return pl.concat(frames)


def items(run: Run) -> list[WorkItem]:
    """Count the work, which is one item: all rows by both checkpoints, and the path, no row refined."""
    settings: Settings = run.settings
    n_layers, noisy = run.shape.n_layers, sum(run.rows.noisy)
    models = 2 if settings.judging.donor_is == "clean" else 1
    path = settings.nodes * noisy * n_layers
    whole = (models * len(run.rows) + 2 * noisy) * n_layers
    return [WorkItem(rows=len(run.rows), applications=whole + 2 * path, backward=path, models=4)]


def run(run: Run) -> Iterator[AttributionRecord]:
    """Attribute the noisy rows' margins to layers."""
    settings: Settings = run.settings
    noisy, donor = open_pair(run.model("noisy"), run.model("clean"), settings.judging)
    pair = pair_margins(noisy, donor, run.rows, settings.judging)
    found = attribute(pair, settings, run.track)
    yield from records(pair, found, settings)
    if settings.per_row is not None:
        run.write_frame("per_row", per_row(pair, run.rows.ids, found, settings))
    run.report(rows=len(pair.rows), layers=noisy.n_layers, applications=noisy.runner.applications)
