"""Checks at load: what this program computes by parts is what the stock forward pass of that very model gives.

All run on two real rows of different length, cut to a few tokens, and leave no trace in the models.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from mltools.errors import CheckpointError, lacks_memory
from mltools.layers import Window
from mltools.model.batches import Batch, Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.runner import Pooling, Runner
from mltools.model.trial import untouched

TOLERANCE = 1e-3
"""Relative to the largest value, if that is over 1."""
CHECK_TOKENS = 12
Walk = Callable[[Checkpoint, Checkpoint, Batch, Sequence[Window]], Iterator[tuple[int, Tensor]]]


def check_batches(encoded: Encoded, runner: Runner) -> tuple[list[Batch], Batch]:
    """Cut the shortest and the longest row to a few tokens: each alone, and both padded into one batch.

    Rows of one length are made to differ, so that something is padded.
    """
    rows = [int(encoded.lengths.argmin()), int(encoded.lengths.argmax())]
    short, long = (encoded.ids[row][:CHECK_TOKENS] for row in rows)
    if len(short) == len(long) > 1:
        short = short[: len(short) // 2]
    cut = encoded.with_ids([short, long])
    return [cut.batch([i], runner.device) for i in range(2)], cut.batch([0, 1], runner.device)


@torch.no_grad()
def check_mixture(noisy: Checkpoint, clean: Checkpoint, encoded: Encoded, walk: Walk) -> None:
    """Check windows 1, 1-L and 2-L against a model that really holds those blocks of `clean`.

    Args:
        noisy: the model that windows are put into.
        clean: what gives the blocks.
        encoded: the rows.
        walk: computes windows' logits (`window_tree.window_logits`).

    Raises:
        CheckpointError: they differ, so windows of this architecture cannot be measured by walking its blocks.
    """
    layers = range(1, noisy.n_layers + 1)
    windows = list(dict.fromkeys(Window(tuple(part)) for part in (layers[:1], layers, layers[1:]) if part))
    _, batch = check_batches(encoded, noisy.runner)
    with noisy.runner.trial(), untouched(clean.model, clean.stack.modules):

        def walked() -> Tensor:
            found = dict(walk(noisy, clean, batch, windows))
            return torch.cat([found[index] for index in range(len(windows))])

        _compare(noisy, walked, torch.cat([mixed_logits(noisy, clean, batch, window) for window in windows]), _MIXED)


@torch.no_grad()
def check_kept_states(noisy: Checkpoint, pretrained: Checkpoint, encoded: Encoded) -> None:
    """Check that going on from states that enter a block, with another model's blocks from there on, is exact.

    Raises:
        CheckpointError: it is not, so states below a window cannot be kept in this architecture.
    """
    _, batch = check_batches(encoded, noisy.runner)
    with noisy.runner.trial(), untouched(pretrained.model, pretrained.stack.modules):
        for layer in sorted({min(2, noisy.n_layers), noisy.n_layers} - {1}):
            window = Window(tuple(range(layer, noisy.n_layers + 1)))

            def going_on(layer: int = layer, window: Window = window) -> Tensor:
                states = noisy.runner.states_into(layer, batch)
                with exchanged(noisy, pretrained, window):
                    return noisy.runner.forward_from(layer, batch, states)

            _compare(noisy, going_on, mixed_logits(noisy, pretrained, batch, window), _KEPT)


@torch.no_grad()
def check_pooled_states(checkpoint: Checkpoint, encoded: Encoded, position: Pooling, *, raw_last: bool) -> None:
    """Check the states of the pooled position against the hidden states that the stock forward pass gives.

    Raises:
        CheckpointError: they differ.
    """
    runner = checkpoint.runner
    _, batch = check_batches(encoded, runner)
    with runner.trial(), runner.padding(batch):
        output = checkpoint.model(input_ids=batch.ids, attention_mask=batch.mask, output_hidden_states=True)
        stock = output.hidden_states
        if stock is None or len(stock) != checkpoint.n_layers + 1:
            return  # the family gives none to compare with
        compared = len(stock) - raw_last
        wanted = torch.stack([runner.pool(batch, states, position) for states in stock[:compared]], dim=1)
        _compare(
            checkpoint,
            lambda: runner.pooled_states(batch, position, raw_last=raw_last)[:, :compared],
            wanted,
            "the states that enter its blocks are not the hidden states that the model gives",
        )


_MIXED = (
    "a model that really holds CLEAN's blocks gives other logits than walking its blocks: something besides the hidden "
    "states passes between blocks (a convolution, a bias, a cache, a mode), so its windows cannot be measured"
)
_KEPT = (
    "going on from kept states gives other logits than the whole model: something besides the hidden states passes "
    "between blocks (a convolution, a bias, a cache, a mode); use --frozen-dropout, which keeps no states"
)


def mixed_logits(noisy: Checkpoint, donor: Checkpoint, batch: Batch, window: Window) -> Tensor:
    """Run the stock forward pass of a model that holds the window's blocks of `donor` in its own module list.

    Each such model is a fresh one: what a pass changes in it, or in the blocks lent to it, the next does not see.
    """
    with exchanged(noisy, donor, window), untouched(noisy.model):
        return noisy.runner.stock_logits(batch).float()


@contextlib.contextmanager
def exchanged(noisy: Checkpoint, donor: Checkpoint, window: Window) -> Iterator[None]:
    """Put the window's blocks of `donor` into the model's own list for a while."""
    own: Mapping[int, nn.Module] = {layer - 1: noisy.stack.modules[layer - 1] for layer in window.layers}
    try:
        for place in own:
            noisy.stack.modules[place] = donor.stack.modules[place]
        yield
    finally:
        for place, module in own.items():
            noisy.stack.modules[place] = module


def _compare(checkpoint: Checkpoint, compute: Callable[[], Tensor], wanted: Tensor, fault: str) -> None:
    """Compare with the last block pooled, where it can be, and else whole.

    Raises:
        CheckpointError: they differ in both ways; or it cannot be computed.
    """
    finding = _difference(compute, wanted)
    if finding and checkpoint.runner.pools_last_block:
        checkpoint.runner.pools_last_block = False
        finding = _difference(compute, wanted)
    if finding:
        raise CheckpointError(f"{checkpoint.name} ({type(checkpoint.model).__name__}): {fault} ({finding})")


def _difference(compute: Callable[[], Tensor], wanted: Tensor) -> str:
    """Say how a result differs from what is wanted, or why there is none; empty if it does not."""
    try:
        found = compute().float()
        if found.shape != wanted.shape:
            return f"shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
        gap = float((found - wanted.float()).abs().max())
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # blocks of unknown code, called in a way that they may not bear
        if lacks_memory(error):
            raise
        return (" ".join(str(error).split()) or type(error).__name__)[:120]
    return "" if gap <= TOLERANCE * max(1.0, float(wanted.abs().max())) else f"they differ by {gap:.3g}"


@torch.inference_mode()
def self_check(runner: Runner, encoded: Encoded) -> None:
    """Check that a row alone, by the stock forward pass, has the logits that it has in a padded batch of ours.

    Raises:
        CheckpointError: it does not; results would depend on the batch.
    """
    singles, batch = check_batches(encoded, runner)
    with runner.trial():
        alone = torch.cat([runner.stock_logits(single) for single in singles]).float()
        finding = _batch_fault(runner, batch, alone)
        if finding and runner.pools_last_block:
            runner.pools_last_block = False
            finding = _batch_fault(runner, batch, alone)
    if finding:
        raise CheckpointError(
            f"self-check failed: a row's logits alone and {finding}; results of this model "
            "would depend on the batch (run in float32; report the architecture if it persists)"
        )


def _batch_fault(runner: Runner, batch: Batch, alone: Tensor) -> str:
    batched: list[Tensor] = []
    handle = runner.model.register_forward_hook(lambda _, __, output: batched.append(output.logits))
    try:
        recording = runner.record(batch)
    finally:
        handle.remove()
    for name, other in (("batched", batched[0]), ("replayed", runner.tail(recording, recording.states[-1]))):
        gap = float((other.float() - alone).abs().max())
        if not gap <= TOLERANCE * max(1.0, float(alone.abs().max())):
            return f"{name} differ by {gap:.3g}"
    return ""
