"""The tree of windows: windows that agree up to a layer share the states up to it (swap, shapley).

Every window of L layers costs L(L+1)(L+2)/6 + L layer applications a row instead of L·L(L+1)/2, all 2^L sets of layers
2^(L+1) - 2 instead of L·2^L.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mltools.errors import CheckpointError
from mltools.layers import Window
from mltools.model.batches import Batch
from mltools.model.checkpoint import Checkpoint
from mltools.model.checks import exchanged
from mltools.model.pooled import put_pooled
from mltools.model.runner import Recording
from mltools.model.trial import untouched


def window_logits(
    noisy: Checkpoint, clean: Checkpoint, batch: Batch, windows: Sequence[Window]
) -> Iterator[tuple[int, Tensor]]:
    """Yield (index of the window, logits (batch, classes) in float32) for each window, in the order of the walk.

    A model that cannot be run block by block is run whole for each window.
    """
    if noisy.runner.pads or not noisy.runner.walks:
        yield from _window_logits(noisy, clean, batch, windows)
        return
    parts = batch.by_length()
    order = torch.cat([place for place, _ in parts]).argsort()
    found = [dict(_window_logits(noisy, clean, part, windows)) for _, part in parts]
    yield from ((index, torch.cat([logits[index] for logits in found])[order]) for index in found[0])


def _window_logits(
    noisy: Checkpoint, clean: Checkpoint, batch: Batch, windows: Sequence[Window]
) -> Iterator[tuple[int, Tensor]]:
    with torch.inference_mode():
        if not noisy.runner.walks:
            for index, window in enumerate(windows):
                with exchanged(noisy, clean, window), untouched(noisy.model):  # modes go by the rows of a pass
                    logits = noisy.runner.forward(batch).float()
                yield index, logits
            return
        recording = noisy.runner.record(batch)
        walk = _WindowTree(noisy, clean, recording)
        members = [(index, frozenset(window.layers)) for index, window in enumerate(windows)]
        for index, states in walk.visit(1, recording.states[0], members, unmodified=True):
            yield index, noisy.runner.tail(recording, states).float()


def patched_logits(
    noisy: Checkpoint, clean: Checkpoint, batch: Batch, windows: Sequence[Window], *, pooled: bool
) -> Iterator[tuple[int, Tensor]]:
    """Yield the same where the states after the window, layers 1 to l, are CLEAN's at some positions only.

    These are the pooled position (`pooled`) or all others; NOISY's blocks go on from there. An empty window is NOISY.
    """
    runner = noisy.runner
    if not (runner.walks and runner.pads):
        raise CheckpointError(f"{noisy.name} cannot be run block by block, so only --positions all can be had")
    with torch.inference_mode():
        recording = runner.record(batch)
        states = recording.states[0]
        yield from (
            (i, runner.tail(recording, recording.states[-1]).float()) for i, w in enumerate(windows) if not w.layers
        )
        for layer in range(1, noisy.n_layers + 1):
            states = runner.apply(recording, layer, states, clean.stack.modules[layer - 1])
            for index in (index for index, window in enumerate(windows) if window.layers and window.end == layer):
                inside, outside = (states, recording.states[layer]) if pooled else (recording.states[layer], states)
                if layer < noisy.n_layers:  # else the last block may have computed the pooled position alone
                    inside = put_pooled(batch, outside, runner.pool(batch, inside), runner.pooling)
                for above in range(layer + 1, noisy.n_layers + 1):
                    inside = runner.apply(recording, above, inside)
                yield index, runner.tail(recording, inside).float()


@dataclass
class _WindowTree:
    """Walks the tree of windows for one batch, depth first, holding one state a layer at most."""

    noisy: Checkpoint
    clean: Checkpoint
    recording: Recording

    def visit(
        self, layer: int, states: Tensor, members: list[tuple[int, frozenset[int]]], *, unmodified: bool
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (index of the window, states after the last block) of each member.

        Args:
            layer: the next block to apply.
            states: what goes into it, the same for all members.
            members: windows that agree below `layer`, as (index, layers).
            unmodified: whether all blocks so far were NOISY's, so that the recorded states serve.
        """
        if layer > self.noisy.n_layers:
            yield from ((index, states) for index, _ in members)
            return
        swapped = [member for member in members if layer in member[1]]
        kept = [member for member in members if layer not in member[1]]
        if kept:
            after = self.recording.states[layer] if unmodified else self._apply(layer, states, self.noisy)
            yield from self.visit(layer + 1, after, kept, unmodified=unmodified)
        if swapped:
            after = self._apply(layer, states, self.clean)
            yield from self.visit(layer + 1, after, swapped, unmodified=False)

    def _apply(self, layer: int, states: Tensor, source: Checkpoint) -> Tensor:
        return self.noisy.runner.apply(self.recording, layer, states, source.stack.modules[layer - 1])
