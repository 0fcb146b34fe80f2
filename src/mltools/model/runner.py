"""A classifier that runs whole, block by block, and from any block on; no architecture is named (DESIGN §5).

Rows are pooled by the attention mask, so a row's result does not depend on its batch or on what the padding token is.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mltools.errors import CheckpointError
from mltools.model.anatomy import BlockStack, first_tensor, with_states
from mltools.model.batches import Batch
from mltools.model.last_block import forward_at_positions
from mltools.model.pooled import Pooling, pool, pooled_positions
from mltools.model.trial import same_form, untouched

UNUSUAL = (LookupError, RuntimeError, ValueError, TypeError, AttributeError, CheckpointError)
"""What blocks and heads of unusual form raise when they are called by parts."""


@dataclass
class Recording:
    """One ordinary pass: the states before each block and after the last, and how each block was called.

    `states[l]` is (batch, length, width), 0 the embeddings. `calls[l - 1]` is block l's positional and keyword
    arguments, hidden states left out; `templates` is what the blocks returned, with no states in it.
    """

    batch: Batch
    states: list[Tensor]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    templates: list[Any]
    logits: Tensor


class _Reached(Exception):
    """Ends a forward pass at a block, with the states that enter it."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


class Runner:
    """A classifier that can be run whole, block by block, and from the last block on.

    Counts `applications`: one block applied to one row is 1.
    """

    def __init__(
        self, model: nn.Module, stack: BlockStack, pad_attribute: Any, device: torch.device, row: Sequence[int]
    ) -> None:
        """Wrap a model on a device.

        Args:
            model: the classifier.
            stack: its blocks.
            pad_attribute: the configuration whose `pad_token_id` decoder heads read.
            device: where the model is.
            row: tokens of a real row to try things out on, as the tokenizer gives it.
        """
        self.model = model
        self.stack = stack
        self.config = pad_attribute
        self.applications = 0
        self.device = device
        self.row = [*[row[0]] * (4 - len(row)), *row]
        self._template: Any = None
        self._kept: dict[bytes, Recording] | None = None
        self.pools_last_block = False
        self.walks = True
        """Whether blocks can be run one by one; else every pass is the stock one, of the whole model."""
        self.pads = True
        """Whether rows of different lengths can share a pass, padded; else each pass has rows of one length."""
        self.keeps_form = True
        """Whether a row's length never changes the model itself; else it is put back after each pass."""
        self.pooling: Pooling = "all"
        with self.trial():
            try:
                self.pooling = self._find_pooling()
            except UNUSUAL:
                self.stock_logits(self.trial_batch())  # what cannot be run at all says why
            self.pools_last_block = self._can_pool_last_block()

    def run_like(self, other: "Runner") -> None:
        """Run as a model of the same architecture does, for which it was found how that must be."""
        self.pads, self.walks, self.keeps_form = other.pads, other.walks, other.keeps_form
        self.pools_last_block = other.pools_last_block

    @contextlib.contextmanager
    def padding(self, batch: Batch) -> Iterator[None]:
        """Let decoder heads see this batch's padding id while it runs."""
        before = self.config.pad_token_id
        padded = batch.ids[batch.mask == 0]
        if len(padded):
            self.config.pad_token_id = int(padded[0])
        elif bool((batch.ids == before).any()):
            self.config.pad_token_id = -1  # a real token must not be taken for padding
        try:
            yield
        finally:
            self.config.pad_token_id = before

    def forward(self, batch: Batch) -> Tensor:
        """Run the whole model: logits (batch, classes), with gradients where they are on."""
        self._count(len(batch) * len(self.stack))
        return self._logits(batch)

    def _logits(self, batch: Batch) -> Tensor:
        def pooled(part: Batch) -> Tensor:
            with self._pooled_last_block(part):
                return self._whole_logits(part)

        return self.in_parts(batch, pooled)

    def in_parts(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> Tensor:
        """Compute something of a batch's rows (batch, …) at once, or by lengths where padding would change it."""
        if self.pads:
            return compute(batch)
        parts = batch.by_length()
        order = torch.cat([place for place, _ in parts]).argsort()
        return torch.cat([compute(part) for _, part in parts])[order]

    def parts(self, batch: Batch) -> list[Batch]:
        """Cut a batch into those that can be run at once."""
        return [batch] if self.pads else [part for _, part in batch.by_length()]

    def stock_logits(self, batch: Batch) -> Tensor:
        """Run the model's own forward pass as it is, uncounted: what all else is checked against."""
        return self.in_parts(batch, self._whole_logits)

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Try the model out in eval mode: afterwards nothing is changed, and nothing was counted."""
        counted = self.applications
        with untouched(self.model):
            self.model.eval()
            try:
                yield
            finally:
                self.applications = counted

    def _whole_logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self._stock(batch).logits
        return logits

    def _stock(self, batch: Batch, **options: bool) -> Any:
        """Run the model's own forward pass: each as if it were the model's first, where that matters."""
        with self.padding(batch), contextlib.nullcontext() if self.keeps_form else same_form(self.model):
            return self.model(input_ids=batch.ids, attention_mask=batch.mask, **options)

    @contextlib.contextmanager
    def _pooled_last_block(self, batch: Batch) -> Iterator[None]:
        """Let the last block compute the pooled position alone (see `last_block`)."""
        if not self._pools(batch):
            yield
            return
        block = self.stack.modules[-1]
        forward, positions = block.forward, pooled_positions(batch, self.pooling)

        def pooled(*args: Any, **kwargs: Any) -> Any:
            return forward_at_positions(forward, *_split_call(args, kwargs), positions)

        with _forward_replaced(block, pooled):
            yield

    def _pools(self, batch: Batch) -> bool:
        return self.pools_last_block and batch.ids.shape[1] > 1

    @torch.no_grad()
    def states_into(self, layer: int, batch: Batch) -> Tensor:
        """Run the model up to block `layer`: the states that enter it, (batch, length, width)."""
        self._count(len(batch) * (layer - 1))

        def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Reached(_split_call(args, kwargs)[0])

        handle = self.stack.modules[layer - 1].register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self._logits(batch)
        except _Reached as reached:
            return reached.states
        finally:
            handle.remove()
        raise AssertionError(f"block {layer} was never called")

    def forward_from(self, layer: int, batch: Batch, states: Tensor) -> Tensor:
        """Run the model from block `layer` on, on the states that enter it: logits (batch, classes).

        The blocks below hand the states on; so masks and rotary tables are those that the model makes for this batch.
        """
        self._count(len(batch) * (len(self.stack) - layer + 1))
        with self._handing_on(list(self.stack.modules)[: layer - 1], states, self._template):
            return self._logits(batch)

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what `record` gives, so that the same batch costs nothing when it comes again."""
        self._kept = {}
        try:
            yield
        finally:
            self._kept = None

    def record(self, batch: Batch) -> Recording:
        """Run the whole model once and keep all that is needed to replay any block on this batch."""
        if self._kept is None:
            return self._record(batch)
        rows = batch.rows.tobytes()
        if rows not in self._kept:
            self._kept[rows] = self._record(batch)
        return self._kept[rows]

    def _record(self, batch: Batch) -> Recording:
        states: list[Tensor] = []
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        templates: list[Any] = []

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden, rest, named = _split_call(args, kwargs)
            states.append(hidden)
            calls.append((rest, named))

        def after(_: nn.Module, __: Any, output: Any) -> None:
            templates.append(with_states(output, None))
            if len(templates) == len(self.stack):
                states.append(first_tensor(output))

        blocks = dict.fromkeys(self.stack.modules)  # once each, though layers may share one
        handles = [m.register_forward_pre_hook(before, with_kwargs=True) for m in blocks]
        handles += [m.register_forward_hook(after) for m in blocks]
        try:
            logits = self.forward(batch)
        finally:
            for handle in handles:
                handle.remove()
        return Recording(batch, states, calls, templates, logits)

    def apply(self, recording: Recording, layer: int, states: Tensor, block: nn.Module | None = None) -> Tensor:
        """Apply block `layer` (or another model's block in its place) as it was called on this batch.

        Args:
            recording: the pass that tells how the block is called.
            layer: from 1.
            states: (batch, length, width).
            block: another module to run in the block's place.
        """
        rest, named = recording.calls[layer - 1]
        self._count(len(states))
        module = block if block is not None else self.stack.modules[layer - 1]
        if layer == len(self.stack) and self._pools(recording.batch):
            positions = pooled_positions(recording.batch, self.pooling)
            return first_tensor(forward_at_positions(module.forward, states, rest, named, positions))
        return first_tensor(module(states, *rest, **named))

    def tail(self, recording: Recording, states: Tensor) -> Tensor:
        """Run what comes after the last block on states (batch, length, width): logits (batch, classes)."""
        if self.pooling == "all":
            return self._tail(recording.batch, states, recording.templates[-1])
        pooled = self.pool(recording.batch, states).unsqueeze(1)
        ids = recording.batch.ids.gather(1, pooled_positions(recording.batch, self.pooling)[:, None])
        single = Batch(recording.batch.rows, ids, torch.ones_like(ids))
        return self._tail(single, pooled, recording.templates[-1])

    def pool(self, batch: Batch, states: Tensor, pooling: Pooling | None = None) -> Tensor:
        """Take the state of each row's pooled position, as `pooled.pool`: by default the one that the head reads."""
        return pool(batch, states, pooling or self.pooling, type(self.model).__name__)

    def pooled_states(self, batch: Batch, pooling: Pooling | None = None, *, raw_last: bool = False) -> Tensor:
        """Run the model once and keep the states of the pooled position only: (batch, L + 1, width).

        Entry l is what enters block l + 1, so 0 is the embeddings; entry L is what the model returns below its head,
        after the final norm if there is one, as transformers gives it.

        Args:
            batch: the rows.
            pooling: as in `pool`.
            raw_last: make entry L what the last block returns.

        Raises:
            CheckpointError: there is no pooled position, or entry L has another width than the others.
        """
        states: list[Tensor] = []
        if not self.walks:
            return self._stock_states(batch, pooling, raw_last)

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            states.append(self.pool(batch, _split_call(args, kwargs)[0], pooling))

        def leave(_: nn.Module, __: Any, output: Any) -> None:
            states.append(self.pool(batch, _last_states(output), pooling))

        top: Any = self.stack.modules[-1] if raw_last else self.model.base_model
        handles = [m.register_forward_pre_hook(enter, with_kwargs=True) for m in dict.fromkeys(self.stack.modules)]
        handles.append(top.register_forward_hook(leave))
        could_pool = self.pools_last_block
        self.pools_last_block = could_pool and pooling in (None, self.pooling)
        try:
            self.forward(batch)
        finally:
            self.pools_last_block = could_pool
            for handle in handles:
                handle.remove()
        if states[-1].shape != states[0].shape:
            raise CheckpointError(
                f"states below the head have width {states[-1].shape[1]}, those of the blocks {states[0].shape[1]}; "
                "take the last block's own with --raw-last"
            )
        return torch.stack(states, dim=1)

    def _stock_states(self, batch: Batch, pooling: Pooling | None, raw_last: bool) -> Tensor:
        """Take the pooled states out of the hidden states that the stock forward pass gives."""
        self._count(len(batch) * len(self.stack))
        found = self.stock_states(batch)
        if raw_last or found is None:
            raise CheckpointError(f"{type(self.model).__name__} gives no " + ("raw last states" if found else "states"))
        return torch.stack([self.pool(batch, states, pooling) for states in found], dim=1)

    def stock_states(self, batch: Batch) -> Sequence[Tensor] | None:
        """Give the L + 1 hidden states that the stock forward pass gives of these blocks; None if it does not."""
        output = self._stock(batch, output_hidden_states=True)
        side = "encoder" if "encoder" in self.stack.path else "decoder"
        found = getattr(output, "hidden_states", None) or getattr(output, f"{side}_hidden_states", None)
        return found if found is not None and len(found) == len(self.stack) + 1 else None

    def _count(self, applications: int) -> None:
        self.applications += applications

    def trial_batch(self, lengths: Sequence[int] = ()) -> Batch:
        """Give the row to try things out on, once for each of the lengths, which its last token still ends."""
        ids = torch.tensor([self.row] * max(1, len(lengths)), device=self.device)
        mask = torch.ones_like(ids)
        for row, length in enumerate(lengths):
            mask[row, length:] = 0
            ids[row, length - 1] = self.row[-1]
            ids[row, length:] = self.config.pad_token_id or 0
        return Batch(np.arange(len(ids)), ids, mask)

    def _tail(self, batch: Batch, states: Tensor, template: Any) -> Tensor:
        with self._handing_on(list(self.stack.modules), states, template):
            return self._whole_logits(batch)

    @contextlib.contextmanager
    def _handing_on(self, blocks: Sequence[nn.Module], states: Tensor, template: Any) -> Iterator[None]:
        """Let blocks return the given states (and what else the template says) instead of computing."""
        handed_on = with_states(template, states)
        with contextlib.ExitStack() as replaced:
            for block in blocks:
                replaced.enter_context(_forward_replaced(block, lambda *_, **__: handed_on))
            yield

    @torch.inference_mode()
    def _find_pooling(self) -> Pooling:
        """Find the position that the head reads by changing the states at all others.

        One row; if the logits stay the same when the states of all positions but one change, that one is it.
        """
        batch = self.trial_batch()
        recording = self.record(batch)
        states, template = recording.states[-1].clone(), recording.templates[-1]
        self._template = template
        before = self._tail(batch, states, template)
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(states.shape, generator=generator).to(states)
        result: Pooling = "all"
        for position, name in ((0, "first"), (len(self.row) - 1, "last")):
            changed = states + noise
            changed[:, position] = states[:, position]
            if torch.allclose(self._tail(batch, changed, template), before, rtol=1e-4, atol=1e-5):
                result = "first" if name == "first" else "last"
        return result

    @torch.inference_mode()
    def _can_pool_last_block(self) -> bool:
        """Try the last block on the pooled position alone: a padded batch must give what the whole block gives."""
        if self.pooling == "all":
            return False
        batch = self.trial_batch((len(self.row), 2))
        try:
            recording = self.record(batch)
        except UNUSUAL:  # its padded rows may lack a token that the head looks for
            return False
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(recording.states[-2].shape, generator=generator).to(recording.states[-2])
        states, (rest, named) = recording.states[-2] + noise, recording.calls[-1]
        block, positions = self.stack.modules[-1], pooled_positions(batch, self.pooling)
        try:
            whole = self.pool(batch, first_tensor(block(states, *rest, **named)))
            pooled = self.pool(batch, first_tensor(forward_at_positions(block.forward, states, rest, named, positions)))
        except UNUSUAL:
            return False  # not a block of the usual form; it is computed whole
        return torch.allclose(pooled, whole, rtol=1e-4, atol=1e-5)


@contextlib.contextmanager
def _forward_replaced(block: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a block run `forward` for a while. A block that stays on disk has a forward of its own already."""
    own = vars(block).get("forward")
    block.forward = forward
    try:
        yield
    finally:
        if own is None:
            del block.forward
        else:
            block.forward = own


def _split_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """Part a block's arguments into hidden states, other positional and keyword arguments."""
    if args:
        return args[0], args[1:], dict(kwargs)
    named = dict(kwargs)
    return named.pop("hidden_states"), (), named


def _last_states(output: Any) -> Tensor:
    """Take the hidden states out of what a block or a model without head returned."""
    last = getattr(output, "last_hidden_state", None)
    return last if isinstance(last, Tensor) else first_tensor(output)
