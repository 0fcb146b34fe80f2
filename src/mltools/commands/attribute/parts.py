"""Each tensor's part in the slope of a row's margin as the blocks move: ⟨∂m/∂W, ΔW⟩, for many rows at once.

No gradient of a weight is ever made. A module with weights of its own gives, beside its output y, the direction t in
which y moves with them (F.linear(x, ΔW) for a linear layer, a Jacobian product for any other); what is passed on is
y + s·t with s = 0, one s a row and tensor, whose gradient is the part. A model in which that does not give what plain
gradients do (weights used without calling their module, outputs that are not by row) is measured row by row instead.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from mltools.model.batches import Batch
from mltools.model.checkpoint import Checkpoint

Tensors = Mapping[str, Tensor]
Margins = Callable[[Batch, Tensor], Tensor]
"""Margins (batch,) of rows by their logits."""
TOLERANCE = 1e-3


class BlockPath:
    """NOISY's blocks on the straight line from the donor's weights (0) to its own (1), by the weights' full names."""

    def __init__(self, noisy: Checkpoint, donor: Checkpoint) -> None:
        """Start at NOISY's own weights; `restored` puts them back."""
        place = f"{noisy.stack.path}."
        self.weights = {place + name: each for name, each in noisy.stack.modules.named_parameters()}
        other = {place + name: each for name, each in donor.stack.modules.named_parameters()}
        self.start = {name: other[name].detach().to(each.device) for name, each in self.weights.items()}
        self.change = {name: each.detach() - self.start[name] for name, each in self.weights.items()}
        self.moved = {name for name, change in self.change.items() if bool(change.any())}

    @torch.no_grad()
    def go(self, place: float) -> None:
        """Move the blocks to a place on the line."""
        for name, weight in self.weights.items():
            torch.add(self.start[name], self.change[name], alpha=place, out=weight.data)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put the blocks back as they are, at the end."""
        own = {name: weight.detach().clone() for name, weight in self.weights.items()}
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(own[name])


def parts_by_row(noisy: Checkpoint, path: BlockPath, batch: Batch, margins: Margins) -> Tensor:
    """Give each tensor's part, (batch, tensors), where the blocks are now; one pass forward and back.

    Raises:
        ValueError: a module's output is not by row.
    """
    names = list(path.weights)
    if not path.moved:
        return torch.zeros(len(batch), len(names))
    gates = torch.zeros(len(names), len(batch), device=batch.ids.device, requires_grad=True)
    with ExitStack() as hooks:
        busy = [False]
        for module, local in _own_weights(noisy, path).items():
            hook = partial(_open_gate, {each: gates[names.index(name)] for each, name in local.items()}, busy)
            changes = {each: path.change[name] for each, name in local.items()}
            handle = module.register_forward_hook(partial(hook, changes), with_kwargs=True)
            hooks.callback(handle.remove)
        found = margins(batch, noisy.runner.forward(batch))
    (parts,) = torch.autograd.grad(found.sum(), gates)
    return parts.T


def _own_weights(noisy: Checkpoint, path: BlockPath) -> dict[nn.Module, dict[str, str]]:
    """Give the modules of the blocks that have weights of their own that move: name within the module to full name."""
    found = {}
    for place, module in noisy.stack.modules.named_modules():
        prefix = f"{noisy.stack.path}.{place}."
        local = {name: prefix + name for name, _ in module.named_parameters(recurse=False)}
        if local := {name: full for name, full in local.items() if full in path.moved}:
            found[module] = local
    return found


def _open_gate(
    gates: Tensors,
    busy: list[bool],
    changes: Tensors,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Any,
) -> Any:
    if busy[0]:  # called again by the Jacobian product
        return None
    rows = len(next(iter(gates.values())))
    if not isinstance(output, Tensor) or len(output) % rows:
        raise ValueError(f"{type(module).__name__} gives no tensor with a row for each row")
    tokens = len(output) // rows  # more than 1 where a block has laid its rows end to end
    busy[0] = True
    try:
        for name, gate in gates.items():
            way = _direction(module, name, changes[name], args, kwargs)
            output = output + gate.repeat_interleave(tokens).view(-1, *[1] * (output.dim() - 1)) * way
    finally:
        busy[0] = False
    return output


def _direction(module: nn.Module, name: str, change: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Give the direction in which a module's output moves as one of its own weights does."""
    if type(module) is nn.Linear and not kwargs:
        return change if name == "bias" else nn.functional.linear(args[0].detach(), change)
    fixed = [each.detach() if isinstance(each, Tensor) else each for each in args]
    named = {key: each.detach() if isinstance(each, Tensor) else each for key, each in kwargs.items()}

    def output(weight: Tensor) -> Any:
        return functional_call(module, {name: weight}, tuple(fixed), named)

    with torch.no_grad():
        found: Tensor = jvp(output, (module.get_parameter(name).detach(),), (change,))[1]
    return found


def parts_of_row(noisy: Checkpoint, path: BlockPath, batch: Batch, margins: Margins) -> Tensor:
    """Give the same of a batch of one row, (1, tensors), by the plain gradient of every weight."""
    weights = list(path.weights.values())
    for weight in weights:
        weight.requires_grad_(True)
    try:
        found = margins(batch, noisy.runner.forward(batch)).sum()
        gradients = torch.autograd.grad(found, weights, allow_unused=True)
    finally:
        for weight in weights:
            weight.requires_grad_(False)
    changes = path.change.values()
    pairs = zip(gradients, changes, strict=True)
    parts = [(gradient * change).sum() if gradient is not None else change.new_zeros(()) for gradient, change in pairs]
    return torch.stack(parts)[None]


def can_be_by_row(noisy: Checkpoint, path: BlockPath, batch: Batch, singles: list[Batch]) -> bool:
    """Try both ways on a few rows, halfway: whether they agree, so that rows can be taken together."""

    def margins(_: Batch, logits: Tensor) -> Tensor:
        return logits[:, 0] - logits[:, -1]

    with noisy.runner.trial(), path.restored():
        path.go(0.5)
        wanted = torch.cat([parts_of_row(noisy, path, single, margins) for single in singles])
        try:
            found = parts_by_row(noisy, path, batch, margins)
        except (ValueError, RuntimeError, NotImplementedError):
            return False
    return float((found - wanted).abs().max()) <= TOLERANCE * max(1e-3, float(wanted.abs().max()))
