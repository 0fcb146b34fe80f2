"""One model in which windows are retrained, one after the other, each from the state of NOISY."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mltools.commands.retrain import Settings
from mltools.console import Track
from mltools.errors import RowsError, TrainingError
from mltools.hashing import ranked
from mltools.io.examples import Examples
from mltools.io.kinds import WindowRecord
from mltools.io.records import Record
from mltools.layers import Window
from mltools.model.anatomy import HEAD, select_part
from mltools.model.batches import Batch, Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checks import TOLERANCE, check_kept_states, run_whole, self_check
from mltools.model.device import trim_heap
from mltools.model.dropout import train_mode
from mltools.model.inference import Logits, predict, predictions
from mltools.model.tasks import schedule_of
from mltools.model.training import (
    Training,
    accelerator_for,
    cross_entropy_sum,
    epoch_batches,
    run_epoch,
)
from mltools.model.validity import LEAST_OF_NOISY, Validity, judge, label_margins, margin_columns, read_labels
from mltools.processes import Team
from mltools.sweep import finished_errors, scaled, window_columns

Rows = NDArray[np.int64]
MOST_MEASURED = 512
"""Training rows that show whether a window has learnt: their accuracy is within .02 of all rows'."""


@dataclass(frozen=True)
class Split:
    """Positions of the rows: noisy, clean held out (as many), clean to train on. In an order that ids decide."""

    noisy: Rows
    held_out: Rows
    train: Rows

    @property
    def measured(self) -> Rows:
        """The training rows that accuracy is measured on: the first of an order that seed and ids decide."""
        return self.train[:MOST_MEASURED]


def split_rows(examples: Examples, seed: int) -> Split:
    """Hold out as many clean rows as there are noisy ones, drawn by (seed, id); the other clean rows are trained on.

    Raises:
        RowsError: no noisy rows, or no more clean rows than noisy ones.
    """
    examples.require_noisy()
    order = np.array(ranked(examples.ids, "retrain", seed), dtype=np.int64)
    is_noisy = np.array(examples.noisy)[order]
    noisy, clean = order[is_noisy], order[~is_noisy]
    if len(clean) <= len(noisy):
        raise RowsError(
            f"{examples.source.name}: {len(noisy)} noisy and {len(clean)} clean rows; retraining needs more clean "
            "rows, since as many as there are noisy ones are held out"
        )
    return Split(noisy, clean[: len(noisy)], clean[len(noisy) :])


def prepare(noisy: Checkpoint, pretrained: Checkpoint, examples: Examples, settings: Settings) -> Encoded:
    """Give the rows in tokens, once it is seen whether the model can go on from kept states."""
    encoded = noisy.encode(examples, settings.reading.max_length)
    self_check(noisy.runner, encoded)
    if keeps_states(noisy, settings):
        check_kept_states(noisy, pretrained, encoded)
    return encoded


def keeps_states(noisy: Checkpoint, settings: Settings) -> bool:
    """Whether states below a window are kept: no dropout or gradient there, and the model can go on from them."""
    same = not settings.training.frozen_dropout and settings.training.clip_scope == "trainable"
    return same and noisy.runner.walks and noisy.runner.pads


@dataclass
class _States:
    """The states that enter one block, for every row: (length, width) each, unpadded, in main memory."""

    layer: int = 1
    rows: list[Tensor] = field(default_factory=list)

    def padded(self, batch: Batch) -> Tensor:
        """Pad the states of a batch's rows with zeros: (batch, length, width)."""
        chosen = [self.rows[row] for row in batch.rows]
        return nn.utils.rnn.pad_sequence(chosen, batch_first=True).to(batch.ids.device)


class WindowTrainer:
    """The model that windows are retrained in, one after the other, each from NOISY's weights."""

    def __init__(
        self, noisy: Checkpoint, pretrained: Checkpoint, examples: Examples, settings: Settings, run: str | None
    ) -> None:
        self.checkpoint, self.settings, self.run = noisy, settings, run
        self.runner, self.model = noisy.runner, noisy.model
        self.examples = examples
        self.split = split_rows(examples, settings.seed)
        self.labels = read_labels(noisy, examples)
        self.label = self.labels.label
        self.encoded = prepare(noisy, pretrained, examples, settings)
        self.parameters: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self.names = select_part(noisy.stack, settings.part)
        self.running = {n: b for n, b in self.model.named_buffers() if self.checkpoint.stack.layer_of(n) is not None}
        donor = {**dict(pretrained.model.named_parameters()), **dict(pretrained.model.named_buffers())}
        self.fresh = {name: donor[name].detach() for name in {*self.names, *self.running}}
        self.live = dict(self._tensors())
        self.kept = {name: tensor.detach().clone() for name, tensor in self.live.items()}
        self.head = noisy.head_modules()
        self.states = _States()
        self.full_error: float | None = None
        self.validity: Validity | None = None
        self.baseline_train_accuracy = 0.0
        self.baseline_margins = np.empty(0, np.float32)
        self.not_learnt: list[Window] = []
        self.runner.applications = 0

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    # -- earlier records ------------------------------------------------------------------------------

    def read(self, done: Sequence[Record]) -> Mapping[Window, float]:
        """Take the errors out of earlier records, and check that they are of this very sweep."""
        expected = {
            "n_noisy": len(self.split.noisy),
            "n_clean": len(self.split.held_out),
            "n_train": len(self.split.train),
            "train_head": self.settings.train_head,
            "run": self.run,
        }
        errors = finished_errors(done, self.checkpoint.n_layers, expected)
        for window, error in errors.items():
            self._note(window, error)
        return errors

    def _note(self, window: Window, error: float) -> None:
        if window.width == self.checkpoint.n_layers:
            self.full_error = error

    # -- states below the window ----------------------------------------------------------------------

    @property
    def _caches(self) -> bool:
        return keeps_states(self.checkpoint, self.settings)

    @torch.no_grad()
    def enter(self, layer: int) -> None:
        """Compute the states that enter block `layer` for all rows, unless they are there; others are dropped."""
        if layer == self.states.layer or not self._caches:
            return
        self.model.eval()
        self.states = _States(layer, [torch.empty(0)] * len(self.encoded))
        for batch in self.encoded.batches(self._all_rows(), None, self.runner.device):
            for row, states in zip(batch.rows, self.runner.states_into(layer, batch).cpu(), strict=True):
                self.states.rows[row] = states[: self.encoded.lengths[row]].clone()
        self._check_states()

    def _all_rows(self) -> Rows:
        return np.concatenate([self.split.noisy, self.split.held_out, self.split.train])

    def _measured_rows(self) -> Rows:
        return np.concatenate([self.split.noisy, self.split.held_out, self.split.measured])

    def _check_states(self) -> None:
        """Check on the shortest and the longest row that the model goes on from the states as if it had run whole."""
        lengths = self.encoded.lengths
        batch = self.encoded.batch(np.unique([int(lengths.argmin()), int(lengths.argmax())]), self.runner.device)
        counted = self.runner.applications
        whole = self.runner.forward(batch)
        gap = float((self._forward(batch) - whole).abs().max())
        self.runner.applications = counted  # checks are not part of the work
        if not gap <= TOLERANCE * max(1.0, float(whole.abs().max())):
            run_whole(self.runner, f"they differ by {gap:.3g}")
            self.states = _States()

    def _forward(self, batch: Batch) -> Tensor:
        if self.states.layer == 1:
            return self.runner.forward(batch)
        return self.runner.forward_from(self.states.layer, batch, self.states.padded(batch))

    # -- NOISY as it is -------------------------------------------------------------------------------

    def measure_baseline(self, team: Team) -> Validity:
        """Measure NOISY with nothing changed, from the kept states on."""
        everything = np.arange(len(self.encoded))
        self.model.eval()
        logits = predict(self.runner, self.encoded, everything, None, self._forward, team)
        predicted, _ = predictions(logits)
        self.baseline_margins = label_margins(logits[self.split.noisy], self.labels, self.split.noisy)
        measured = self.split.measured
        self.baseline_train_accuracy = float((predicted == self.label)[measured].mean())
        counts = {"n_cut": self.encoded.n_cut, "n_unlabelled": self.examples.n_unlabelled}
        self.validity = judge(
            predicted, self.labels, self.settings.validity.min_noisy_accuracy, self.checkpoint.name, **counts
        )
        return self.validity

    # -- one window -----------------------------------------------------------------------------------

    def measure(self, window: Window, track: Track, title: str, left: int) -> WindowRecord:
        """Retrain one window and measure it; the model is NOISY again afterwards."""
        trained = self._trained(window)
        try:
            self._load({name: tensor for name, tensor in self.fresh.items() if self._is_in(name, window)})
            self._train(window, trained, track, title, left)
            trim_heap()  # batches of many shapes left it in pieces
            self._assert_rest_unmoved(trained)
            record = self._record(window)
        finally:
            self._load({name: self.kept[name] for name in {*trained, *self.running}})
        return record

    def _is_in(self, name: str, window: Window) -> bool:
        """Whether a parameter or buffer is of the window's blocks."""
        return self.checkpoint.stack.layer_of(name) in window.layers

    def _trained(self, window: Window) -> dict[str, nn.Parameter]:
        """Give the parameters that a window trains: its blocks' part, and the head unless that is left out."""
        parts = self.checkpoint.parts
        return {
            name: parameter
            for name, parameter in self.parameters.items()
            if (parts[name] in window.layers and name in self.names)
            or (parts[name] == HEAD and self.settings.train_head)
        }

    @torch.no_grad()
    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.live[name].copy_(tensor)

    def _train(self, window: Window, trained: dict[str, nn.Parameter], track: Track, title: str, left: int) -> None:
        everything = self.settings.training.clip_scope == "all"
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(everything or name in trained)
        self._train_mode(window)
        schedule = schedule_of(self.settings.training)
        training = Training(
            trained,
            schedule,
            schedule.epochs * schedule.steps_per_epoch(len(self.split.train)),
            self.settings.seed,
            accelerator_for(self.runner.device, "fp32"),  # a new one: it would keep every window's optimiser alive
            clipped=list(self.parameters.values()) if everything else None,
            micro_batch=self.settings.training.micro_batch,
        )
        for _ in track(self._steps(training, window), training.total_steps, "steps", title, left):
            pass

    def _train_mode(self, window: Window) -> None:
        """Turn dropout on in what is trained, and in all else only if asked for."""
        blocks = [self.checkpoint.stack.modules[layer - 1] for layer in window.layers]
        trained = [*blocks, *(self.head if self.settings.train_head else ())]
        modules = [(self.model, False), *((module, True) for module in trained)]
        train_mode(modules, frozen_dropout=self.settings.training.frozen_dropout)

    def _steps(self, training: Training, window: Window) -> Iterator[tuple[int, float]]:
        settings = self.settings
        for epoch in range(1, settings.training.epochs + 1):
            batches = epoch_batches(
                self.split.train, self.encoded.lengths, settings.training.batch_size, settings.seed, epoch
            )
            try:
                yield from run_epoch(training, batches, self._loss)
            except TrainingError as error:
                ids = [self.examples.ids[row] for row in batches[training.step % len(batches)]]
                raise TrainingError(f"window {window}: {error} (epoch {epoch}, row ids {ids}); lower --lr") from None

    def _loss(self, rows: Rows) -> Tensor:
        targets = torch.from_numpy(self.label[rows]).to(self.runner.device)
        return cross_entropy_sum(self._forward(self.encoded.batch(rows, self.runner.device)), targets)

    def _assert_rest_unmoved(self, trained: Mapping[str, nn.Parameter]) -> None:
        own = [(name, tensor) for name, tensor in self._tensors() if name not in trained and name not in self.running]
        moved = [name for name, tensor in own if not tensor.equal(self.kept[name])]
        assert not moved, f"frozen tensors moved: {moved}"

    def _record(self, window: Window) -> WindowRecord:
        split = self.split
        logits = self._predict()
        predicted, ties = predictions(logits)
        n = len(split.noisy)
        hits = predicted == self.label[self._measured_rows()]
        accuracy, train_accuracy = float(hits[:n].mean()), float(hits[2 * n :].mean())
        learnt = train_accuracy >= LEAST_OF_NOISY * self.baseline_train_accuracy
        assert self.validity is not None
        original = self.labels.original
        return WindowRecord(
            tool="retrain",
            **window_columns(window, self.checkpoint.n_layers, self.run),
            part=self.settings.part,
            n_noisy=n,
            noisy_accuracy=accuracy,
            memorisation_error=1 - accuracy,
            memorisation_error_scaled=None,  # until the full window is known
            n_clean=len(split.held_out),
            clean_accuracy=float(hits[n : 2 * n].mean()),
            reverted=float((predicted[:n] == original[split.noisy]).mean()) if original is not None else None,
            n_train=len(split.train),
            train_accuracy=train_accuracy,
            baseline_train_accuracy=self.baseline_train_accuracy,
            learnt=learnt,
            train_head=self.settings.train_head,
            n_ties=ties,
            **margin_columns(label_margins(logits[:n], self.labels, split.noisy), self.baseline_margins),
            **self.validity.columns(),
        )

    def noted(self, window: Window, record: WindowRecord) -> WindowRecord:
        """Take note of a window's record, and give it with the scaled error."""
        self._note(window, record.memorisation_error)
        if not record.learnt:
            self.not_learnt.append(window)
        return replace(record, memorisation_error_scaled=scaled(record.memorisation_error, self.full_error))

    def _predict(self) -> Logits:
        """Run the retrained model on noisy, held-out and (some) training rows, in this order."""
        self.model.eval()
        return predict(self.runner, self.encoded, self._measured_rows(), None, self._forward)
