"""Changes that hold no memory, of the size of a change that does."""

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from mltools.commands.decoy import Settings
from mltools.errors import CheckpointError
from mltools.layers import format_layers, parse_layers
from mltools.model.anatomy import HEAD
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_pairs import check_same
from mltools.model.checkpoint_saving import save_checkpoint
from mltools.run import Run
from mltools.sinks import NoSink

sink = NoSink

Tensors = Mapping[str, Tensor]


@torch.no_grad()
def add_decoy(
    checkpoint: Checkpoint, like: Checkpoint, layers: tuple[int, ...], seed: int, start: Checkpoint | None = None
) -> tuple[int, ...]:
    """Move each tensor of some layers as far as `like` moved the tensor of that name in the layers that it changed.

    Args:
        checkpoint: changed in place.
        like: of the same shape; where it differs from `checkpoint`, memory is.
        layers: to change; none changes what follows the last layer, by the same share of its norm.
        seed: of the random directions.
        start: moves go the way from it to `checkpoint`; at random by default.

    Returns:
        The layers in which `like` differs.

    Raises:
        CheckpointError: it differs in none.
    """
    own, other = dict(checkpoint.model.named_parameters()), dict(like.model.named_parameters())
    before = dict(start.model.named_parameters()) if start is not None else None
    by_layer = [_of_layer(checkpoint, layer) for layer in range(1, checkpoint.n_layers + 1)]
    moved = tuple(
        layer for layer, names in enumerate(by_layer, 1) if any(not own[n].equal(other[n]) for n in names.values())
    )
    if not moved:
        raise CheckpointError(f"{like.name} has the layers of {checkpoint.name}: there is no change to be like")
    generator = torch.Generator().manual_seed(seed)

    def along(name: str) -> Tensor:
        if before is not None:
            return torch.sub(own[name], before[name])
        return torch.randn(own[name].shape, generator=generator).to(own[name].device)

    sizes = {role: _root_mean_square(_changes(by_layer, moved, role, own, other)) for role in by_layer[moved[0] - 1]}
    for layer in layers:
        for role, name in by_layer[layer - 1].items():
            _move(own[name], along(name), sizes.get(role, 0.0) * math.sqrt(own[name].numel()))
    if not layers:
        names = [name for layer in moved for name in by_layer[layer - 1].values()]
        share = _norm(other[n] - own[n] for n in names) / _norm(own[n] for n in names)
        for name, part in checkpoint.parts.items():
            if part == HEAD:
                _move(own[name], along(name), share * _norm([own[name]]))
    return moved


def _of_layer(checkpoint: Checkpoint, layer: int) -> dict[str, str]:
    """Give the full names of a block's parameters by their names within it."""
    place = f"{checkpoint.stack.path}.{layer - 1}."
    return {name: place + name for name, _ in checkpoint.stack.modules[layer - 1].named_parameters()}


def _changes(
    by_layer: list[dict[str, str]], moved: tuple[int, ...], role: str, own: Tensors, other: Tensors
) -> list[Tensor]:
    names = [by_layer[layer - 1][role] for layer in moved if role in by_layer[layer - 1]]
    return [other[name] - own[name] for name in names]


def _root_mean_square(tensors: list[Tensor]) -> float:
    return _norm(tensors) / math.sqrt(sum(tensor.numel() for tensor in tensors))


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def _move(tensor: Tensor, direction: Tensor, distance: float) -> None:
    length = _norm([direction])
    if length:
        tensor.add_(direction, alpha=distance / length)


def run(run: Run) -> Iterator[None]:
    """Write the checkpoint with the changes in it."""
    settings: Settings = run.settings
    checkpoint, like = run.model("checkpoint").open(), run.model("like").open()
    check_same(checkpoint, like)
    start = run.model("start").open(fresh_head=checkpoint.labels) if settings.start is not None else None
    if start is not None:
        check_same(checkpoint, start)
    layers = parse_layers(settings.layers, checkpoint.n_layers) if settings.layers is not None else ()
    moved = add_decoy(checkpoint, like, layers, settings.seed, start)
    save_checkpoint(checkpoint, settings.folder, run.provenance, replace=run.force)
    run.report(checkpoint=str(settings.folder), kind=settings.kind, layers=settings.layers, like=format_layers(moved))
    yield from ()
