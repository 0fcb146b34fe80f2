"""The mean gradient of a checkpoint's blocks over groups of rows, by one batched backward pass a group.

The gradient of a mean is the mean of the gradients, so nothing is taken row by row. One gradient is in memory at a
time, and of each only two sums a tensor are kept.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mltools.commands.grads import Settings
from mltools.errors import TrainingError
from mltools.io.atomic import scratch_folder
from mltools.io.provenance import Provenance
from mltools.io.tensors import write_tensors
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.device import MallocTrimmer
from mltools.model.training import cross_entropy_sum
from mltools.processes import ALONE, Team

CPU_TOKENS = (96, 512)
"""Fewest and most tokens in an automatic batch on a CPU, where memory is what limits them."""
ACCELERATOR_TOKENS = 8192
STATES_KEPT = 38
"""What the backward pass needs of each token and layer, in hidden states: 22 for BERT, and what the heap loses."""

Progress = Callable[[Iterator[int], int], Iterator[int]]
Sums = Mapping[str, tuple[float, float]]
"""Parameter name to the sum of |g| and the sum of g² over the tensor's elements."""
Rows = tuple[NDArray[np.int64], NDArray[np.int64] | None]
"""Positions of the noisy rows, and of clean ones if they count."""


@dataclass(frozen=True)
class Gradients:
    """What is kept of one checkpoint's mean gradients: the sums of each group, those of clean rows if wanted."""

    noisy: Sums
    clean: Sums | None = None
    difference: Sums | None = None

    def group(self, name: str) -> Sums | None:
        """Give the sums of `noisy`, `clean` or `difference`."""
        sums: Sums | None = getattr(self, name)
        return sums


def mean_gradients(
    checkpoint: Checkpoint,
    encoded: Encoded,
    targets: NDArray[np.int64],
    rows: Rows,
    settings: Settings,
    *,
    save: Path | None = None,
    replace: bool = False,
    provenance: Provenance | None = None,
    progress: Progress | None = None,
    team: Team = ALONE,
) -> Gradients:
    """Take the mean gradients of one checkpoint over noisy and clean rows; no gradient is left in the model."""
    parameters = _block_parameters(checkpoint)
    groups = [group for group in rows if group is not None]
    heap = MallocTrimmer()

    def accumulate(group: NDArray[np.int64]) -> None:
        done = _backward(checkpoint, encoded, targets, group, settings, heap)
        seen = sum(1 for _ in (progress(done, len(group)) if progress else done))
        assert seen == len(group), f"{seen} of {len(group)} rows were used"

    with scratch_folder() as aside:
        turns = _turns(parameters, groups, accumulate, aside / "own", team)
        next(turns)
        found = Gradients(_sums(parameters))
        if len(groups) > 1 or save is not None:
            _set_aside(parameters, aside / "noisy")
        for _ in turns:
            if save is not None:
                _set_aside(parameters, aside / "clean")
            clean_sums = _sums(parameters)
            _subtract_from(parameters, aside / "noisy")
            found = Gradients(found.noisy, clean_sums, _sums(parameters))
        for parameter in parameters.values():
            parameter.grad = None
        if save is not None:
            _save(save, parameters, aside, provenance or Provenance("grads", {}), replace)
    return found


def _turns(
    parameters: Mapping[str, nn.Parameter],
    groups: Sequence[NDArray[np.int64]],
    accumulate: Callable[[NDArray[np.int64]], None],
    own: Path,
    team: Team,
) -> Iterator[None]:
    """Have the mean gradient of each group in `.grad`, one after the other; yields at each.

    A group's gradient is a sum over batches in their order, so it is taken whole in one of the processes. All have it
    then; `own` is a file for what a process has taken until its turn comes.
    """
    if team.n > 1:
        if team.rank < len(groups):
            accumulate(groups[team.rank])
            _set_aside(parameters, own)
        for turn in range(len(groups)):
            owner = turn % team.n
            if owner == team.rank:
                _take_up(parameters, own)
            team.hand_out(map(_gradient, parameters.values()), owner)
            yield
        return
    for turn, group in enumerate(groups):
        if turn:
            for parameter in parameters.values():
                _gradient(parameter).zero_()
        accumulate(group)
        yield


def _block_parameters(checkpoint: Checkpoint) -> dict[str, nn.Parameter]:
    """Give the blocks' parameters by name, and let only those have gradients, from 0.

    They are made before the first pass, since they would fragment memory if they came between its activations.
    """
    found = {}
    for name, parameter in checkpoint.model.named_parameters():
        in_block = isinstance(checkpoint.parts[name], int)
        parameter.requires_grad_(in_block)
        if in_block:
            parameter.grad = torch.zeros_like(parameter)
            found[name] = parameter
    return found


def _backward(
    checkpoint: Checkpoint,
    encoded: Encoded,
    targets: NDArray[np.int64],
    rows: NDArray[np.int64],
    settings: Settings,
    heap: MallocTrimmer,
) -> Iterator[int]:
    """Accumulate the gradient of the mean objective over the rows in the parameters' `.grad`; yields each row done."""
    device = checkpoint.runner.device
    for batch in encoded.batches(rows, settings.batch_size, device, _batch_tokens(checkpoint)):
        total = _objective(checkpoint.runner.forward(batch), torch.from_numpy(targets[batch.rows]).to(device), settings)
        if not bool(torch.isfinite(total)):
            raise TrainingError(f"{checkpoint.name}: the objective is not finite in a batch of {len(batch)} rows")
        (total / len(rows)).backward()  # type: ignore[no-untyped-call]
        del total
        heap.check()
        yield from (int(row) for row in batch.rows)


def _batch_tokens(checkpoint: Checkpoint) -> int:
    """Choose the tokens of a batch: on a CPU, so many that model, gradient and activations fit two models' memory."""
    if checkpoint.runner.device.type != "cpu":
        return ACCELERATOR_TOKENS
    room: int = sum(p.numel() for p in checkpoint.model.parameters() if not p.requires_grad)
    fewest, most = CPU_TOKENS
    tokens: int = room // (STATES_KEPT * checkpoint.width * checkpoint.n_layers)
    return max(fewest, min(most, tokens))


def _objective(logits: Tensor, targets: Tensor, settings: Settings) -> Tensor:
    """Sum over rows what forgetting lowers: minus the cross-entropy, or the label's logit."""
    if settings.objective == "loss":
        return -cross_entropy_sum(logits, targets)
    return logits.float().gather(1, targets[:, None]).sum()


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _sums(parameters: Mapping[str, nn.Parameter]) -> Sums:
    return tensor_sums({name: _gradient(parameter) for name, parameter in parameters.items()})


def tensor_sums(tensors: Mapping[str, Tensor]) -> Sums:
    """Sum |g| and g² over each tensor: along its last dimension in float32, over the rest in float64.

    Raises:
        TrainingError: a gradient that is not finite.
    """
    sums = {}
    most = max(tensors.values(), key=torch.numel, default=torch.empty(0))
    room = torch.empty(most.numel(), dtype=most.dtype, device=most.device if most.is_cuda else "cpu")
    for name, tensor in tensors.items():
        tensor = tensor if tensor.is_cuda else tensor.cpu()  # not every device has float64
        absolute = torch.abs(tensor, out=room[: tensor.numel()].view(tensor.shape))  # new memory costs more than abs
        rows = absolute.sum(dim=-1), torch.linalg.vector_norm(tensor, dim=-1)
        l1, l2 = float(rows[0].double().sum()), float(rows[1].double().square().sum())
        if not math.isfinite(l1 + l2):
            raise TrainingError(f"the gradient of {name} is not finite, or too large to square")
        sums[name] = (l1, l2)
    return sums


def _set_aside(parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    """Write the gradients to a temporary file, tensor by tensor, so that only one of them takes memory."""
    with path.open("wb") as file:
        for parameter in parameters.values():
            file.write(np.ascontiguousarray(_gradient(parameter).float().cpu().numpy()).data)  # its errors say why


def _read_back(parameters: Mapping[str, nn.Parameter], path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield what was set aside, by name."""
    with path.open("rb") as file:
        for name, parameter in parameters.items():
            yield name, torch.from_numpy(np.fromfile(file, np.float32, parameter.numel())).view(parameter.shape)


@torch.no_grad()
def _take_up(parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    """Turn each gradient into the one set aside."""
    for name, kept in _read_back(parameters, path):
        _gradient(parameters[name]).copy_(kept)


@torch.no_grad()
def _subtract_from(parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    """Turn each gradient g into (the one set aside) - g, in place."""
    for name, kept in _read_back(parameters, path):
        gradient = _gradient(parameters[name])
        gradient.neg_().add_(kept.to(gradient.device))


def _save(
    path: Path, parameters: Mapping[str, nn.Parameter], aside: Path, provenance: Provenance, replace: bool
) -> None:
    tensors = {
        f"{group}/{name}": tensor
        for group in ("noisy", "clean")
        if (aside / group).exists()
        for name, tensor in _read_back(parameters, aside / group)
    }
    write_tensors(path, tensors, provenance, replace=replace)
