"""Checks at load: what this program computes by parts is what the stock forward pass of that very model gives.

All run on two real rows of different length, cut to a few tokens, and leave no trace in the models.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from mltools import console
from mltools.errors import CheckpointError, brief, lacks_memory
from mltools.layers import Window
from mltools.model.batches import Batch, Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.pooled import Pooling
from mltools.model.runner import UNUSUAL, Runner
from mltools.model.trial import form, untouched

TOLERANCE = 1e-3
"""Relative to the largest value, if that is over 1."""
CHECK_TOKENS, MIDDLE = 11, 7
"""No multiples of anything that models cut rows into."""
Walk = Callable[[Checkpoint, Checkpoint, Batch, Sequence[Window]], Iterator[tuple[int, Tensor]]]


def check_batches(encoded: Encoded, runner: Runner) -> tuple[list[Batch], Batch]:
    """Cut the shortest and the longest row to a few tokens, and change the latter: each alone, and all in one batch.

    Rows of one length are made to differ, so that something is padded.
    """
    rows = [int(encoded.lengths.argmin()), int(encoded.lengths.argmax())]
    short, long = (_cut(encoded.ids[row], CHECK_TOKENS) for row in rows)
    if len(short) == len(long) > 1:
        short = _cut(short, len(short) // 2)
    turned = [*long[:1], *long[-2:0:-1], *long[-1:]][: len(long)]
    cut = encoded.with_ids([short, long, turned, _cut(long, MIDDLE)])
    return [cut.batch([i], runner.device) for i in range(len(cut))], cut.batch(range(len(cut)), runner.device)


def _cut(ids: list[int], length: int) -> list[int]:
    """Cut a row in its middle: heads may look for the token that ends it."""
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]


@torch.no_grad()
def check_mixture(noisy: Checkpoint, clean: Checkpoint, encoded: Encoded, walk: Walk) -> None:
    """Check windows 1, 1-L and 2-L against a model that really holds those blocks of `clean`.

    If they differ, something besides the hidden states passes between blocks (a convolution, a bias, a cache), and
    windows are run whole from now on, with a note.

    Args:
        noisy: the model that windows are put into.
        clean: what gives the blocks.
        encoded: the rows.
        walk: computes windows' logits (`window_tree.window_logits`).
    """
    layers = range(1, noisy.n_layers + 1)
    windows = list(dict.fromkeys(Window(tuple(part)) for part in (layers[:1], layers, layers[1:]) if part))
    _, batch = check_batches(encoded, noisy.runner)
    with noisy.runner.trial(), untouched(clean.model, clean.stack.modules):

        def walked() -> Tensor:
            found = dict(walk(noisy, clean, batch, windows))
            return torch.cat([found[index] for index in range(len(windows))])

        _compare(noisy, walked, lambda: torch.cat([mixed_logits(noisy, clean, batch, window) for window in windows]))
    clean.runner.run_like(noisy.runner)


@torch.no_grad()
def check_kept_states(noisy: Checkpoint, pretrained: Checkpoint, encoded: Encoded) -> None:
    """Check that going on from states that enter a block, with another model's blocks from there on, is exact.

    If it is not, no states are kept from now on, with a note.
    """
    _, batch = check_batches(encoded, noisy.runner)
    with noisy.runner.trial(), untouched(pretrained.model, pretrained.stack.modules):
        for layer in sorted({min(2, noisy.n_layers), noisy.n_layers} - {1}):
            window = Window(tuple(range(layer, noisy.n_layers + 1)))

            def going_on(layer: int = layer, window: Window = window) -> Tensor:
                states = noisy.runner.states_into(layer, batch)
                with exchanged(noisy, pretrained, window):
                    return noisy.runner.forward_from(layer, batch, states)

            def mixed(window: Window = window) -> Tensor:
                return mixed_logits(noisy, pretrained, batch, window)

            _compare(noisy, going_on, mixed)


@torch.no_grad()
def check_pooled_states(checkpoint: Checkpoint, encoded: Encoded, position: Pooling, *, raw_last: bool) -> None:
    """Check the states of the pooled position against the hidden states that the stock forward pass gives.

    If they differ, the latter are taken from now on, with a note. A family that gives none is not compared.
    """
    runner = checkpoint.runner
    singles, batch = check_batches(encoded, runner)
    batch = batch if runner.pads else singles[1]
    with runner.trial():
        stock = runner.stock_states(batch)
        compared = checkpoint.n_layers + 1 - raw_last

        def wanted() -> Tensor:
            assert stock is not None
            return torch.stack([runner.pool(batch, states, position) for states in stock[:compared]], dim=1)

        if stock is not None:
            _compare(checkpoint, lambda: runner.pooled_states(batch, position, raw_last=raw_last)[:, :compared], wanted)


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


def _compare(checkpoint: Checkpoint, compute: Callable[[], Tensor], stock: Callable[[], Tensor]) -> None:
    """Compare what is computed by parts with what stock passes give: with the last block pooled, or else whole.

    If they differ both ways, the model is run whole from now on.
    """
    runner = checkpoint.runner
    if not runner.walks:
        return
    wanted, pools = stock(), runner.pools_last_block
    finding = _difference(compute, wanted)
    if finding and pools:
        runner.pools_last_block = False
        finding = _difference(compute, wanted)
    if finding:
        runner.pools_last_block = pools
        run_whole(runner, finding)


def run_whole(runner: Runner, finding: str) -> None:
    """Leave the shortcuts of a model that cannot be run by parts, and say so."""
    runner.walks = False
    console.warn(
        f"{type(runner.model).__name__} cannot be run block by block ({finding}), so each model is run whole: the same "
        "results at more cost"
    )


def _difference(compute: Callable[[], Tensor], wanted: Tensor) -> str:
    """Say how a result differs from what is wanted, or why there is none; empty if it does not."""
    try:
        found = compute().float()
        if found.dim() != wanted.dim() or len(found) != len(wanted):
            return f"shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
        gap = float((found - wanted.float()).abs().max())
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # blocks of unknown code, called in a way that they may not bear
        if lacks_memory(error):
            raise
        return brief(error)
    return "" if gap <= TOLERANCE * max(1.0, float(wanted.abs().max())) else f"they differ by {gap:.3g}"


@torch.inference_mode()
def self_check(runner: Runner, encoded: Encoded) -> None:
    """Check that a row alone, by the stock forward pass, has the logits that it has in a padded batch of ours.

    Shortcuts that change them are left, with a note: the pooled last block, running blocks one by one, padding.

    Raises:
        CheckpointError: it never has; results would depend on the batch.
    """
    _check_form(runner, encoded)
    singles, batch = check_batches(encoded, runner)
    own = runner.pads, runner.walks, runner.pools_last_block
    with runner.trial():
        try:
            alone = torch.cat([runner.stock_logits(single) for single in singles]).float()[:, None]
        except UNUSUAL as error:
            if lacks_memory(error):
                raise
            raise CheckpointError(f"{type(runner.model).__name__} cannot run these rows ({brief(error)})") from error
        findings = []
        for way in product(*((True, False) if each else (False,) for each in own)):
            runner.pads, runner.walks, runner.pools_last_block = way
            findings.append(_difference(lambda: _batched(runner, batch), alone))
            if not findings[-1]:
                break
    if findings[-1]:
        runner.pads, runner.walks, runner.pools_last_block = own
        raise CheckpointError(
            f"self-check failed: a row's logits alone and in a batch: {findings[0]}; results of this model "
            "would depend on the batch (run in float32; report the architecture if it persists)"
        )
    if own[1] and not runner.walks:
        run_whole(runner, findings[0])
    if own[0] and not runner.pads:
        console.warn(
            f"{type(runner.model).__name__}: padding changes a row's result ({findings[0]}), so only rows of one "
            "length share a pass: the same results as alone, at more cost"
        )


def _check_form(runner: Runner, encoded: Encoded) -> None:
    """Check that a short and a long row leave the model in one form; else each pass has the model as it was loaded.

    Some families exchange their attention for another one, for good, when rows are short. A row's result would then
    depend on the rows before it, and on those beside it.
    """
    shortest, longest = int(encoded.lengths.argmin()), int(encoded.lengths.argmax())
    after_short = _form_after(runner, encoded, shortest)
    if after_short == form(runner.model):
        return  # no pass changes it
    after_long = _form_after(runner, encoded, longest)
    changed = sorted(key for key in after_short.keys() & after_long.keys() if after_short[key] != after_long[key])
    if not changed:
        return
    runner.keeps_form = runner.pads = runner.walks = runner.pools_last_block = False
    console.warn(
        f"{type(runner.model).__name__} changes itself by the length of its rows ({changed[0]}), so each pass starts "
        "from the model as loaded, whole, with rows of one length: the same results as alone, at more cost"
    )


def _form_after(runner: Runner, encoded: Encoded, row: int) -> dict[str, Any]:
    """Give the form of the model after its first pass is of this row; as it is, if that cannot be run."""
    with runner.trial():
        with contextlib.suppress(*UNUSUAL):  # `self_check` says why
            runner.stock_logits(encoded.batch([row], runner.device))
        return form(runner.model)


def _batched(runner: Runner, batch: Batch) -> Tensor:
    """Compute a batch's logits at once and, where blocks are run one by one, from the states after the last one."""

    def replayed(part: Batch) -> Tensor:
        recording = runner.record(part)
        return torch.stack([recording.logits, runner.tail(recording, recording.states[-1])], dim=1)

    return runner.in_parts(batch, replayed) if runner.walks else runner.forward(batch)[:, None]
