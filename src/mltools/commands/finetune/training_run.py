"""One training run of finetune: set up, trained epoch by epoch, measured and written, stopped and gone on with."""

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from safetensors import SafetensorError

from mltools import console
from mltools.commands.finetune import Settings
from mltools.commands.finetune.outcome import best_end, shortfall
from mltools.commands.finetune.state import Progress, SavedState
from mltools.console import Track
from mltools.errors import TimeLeftError, TrainingError
from mltools.io.columns import Label
from mltools.io.examples import Examples
from mltools.io.kinds import EpochRecord
from mltools.io.provenance import Provenance, plain
from mltools.layers import parse_layers
from mltools.model.anatomy import EMBEDDINGS, HEAD
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint, check_unchanged
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checkpoint_saving import save_checkpoint
from mltools.model.checks import self_check
from mltools.model.classes import class_names, target_indices
from mltools.model.device import set_threads, trim_heap
from mltools.model.heads import open_for_training
from mltools.model.tasks import Scores, Task, make_aux_task, make_task, measure
from mltools.model.training import Training, accelerator_for, purpose_seed
from mltools.signals import Stop, Terminated, deferred_stop
from mltools.spec import plain_settings

SAVE_EVERY_SECONDS = 60.0
ENOUGH = 0.99
"""`--raise-lr` reruns a training whose final accuracy on its rows does not exceed this (Appendix D)."""
RAISE_BY = 2
MOST_RAISES = 3
Batch = tuple[Task, NDArray[np.int64]]


def frozen_parts(settings: Settings, n_layers: int) -> str:
    """Give the `--freeze` list that the settings mean: all but the layers of `--train`, where there is one."""
    if settings.train is None:
        return settings.freeze
    others = set(range(1, n_layers + 1)).difference(parse_layers(settings.train, n_layers))
    return ",".join([EMBEDDINGS, HEAD, *map(str, sorted(others))])


@dataclass
class TrainingRun:
    """A run for the checkpoint `out`, all attempts of `--raise-lr` together; its fields are as in `finetune`."""

    pretrained: str
    examples: Examples
    out: Path
    settings: Settings
    aux: Examples | None
    validation: Examples | None
    device: torch.device | None
    provenance: Provenance
    force: bool = False
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.fingerprint = self._fingerprint()
        self.state = SavedState(self.out, self.fingerprint)

    def _fingerprint(self) -> str:
        """What a state to resume must have been made with: settings and rows."""
        rows = [self.examples.ids, self.examples.fields, self._labels(self.examples), self.examples.noisy]
        others = [[e.ids, e.fields, e.labels] if e is not None else None for e in (self.aux, self.validation)]
        made_with = [plain_settings(self.settings), rows, others, plain(self.provenance.inputs)]
        return hashlib.sha256(json.dumps(made_with, sort_keys=True, default=str).encode()).hexdigest()

    def _labels(self, examples: Examples) -> list[Label]:
        return examples.labels if self.settings.target == "label" else examples.original_labels

    # -- setting up -----------------------------------------------------------------------------------

    def start(self, *, resume: bool, force: bool) -> None:
        """Load model and rows, and take up a saved state if there is one to resume."""
        place = self.device or torch.device("cpu")
        self.accelerator: Accelerator = accelerator_for(place, self.settings.precision, shared=True)
        if self.accelerator.num_processes > 1:
            self.device = self.accelerator.device
        self.state.check(resume=resume, force=force)
        if resume:
            self.progress = self.state.progress()
        self.accelerator.wait_for_everyone()  # every process has looked before the first one writes
        if self.accelerator.is_main_process:
            self.state.claim()
            if not resume:
                self.state.discard()
        self._load()
        if resume:
            self.state.restore(self._trainings)

    def _load(self) -> None:
        """Open the pre-trained model with fresh heads and fresh optimisers."""
        settings = self.settings
        training = replace(settings.training, learning_rate=self._rate)
        place: dict[str, Any] = {"device": self.device, "blocks": settings.device.blocks}
        if settings.train is not None:
            checkpoint = open_checkpoint(self.pretrained, **place)
        else:
            classes = class_names(self.examples)
            checkpoint = open_for_training(self.pretrained, classes, settings.seed, keep_head=True, **place)
        checkpoint.stored = {}  # what was trained; a half-precision θ_P must not round it
        check_unchanged(checkpoint, self.provenance, "pretrained")
        set_threads(settings.device.threads, checkpoint.width)
        self.main = make_task(
            checkpoint,
            self.examples,
            self._labels(self.examples),
            training,
            self.accelerator,
            freeze=frozen_parts(settings, checkpoint.n_layers),
            seed=settings.seed,
            max_length=settings.max_length,
        )
        self.tasks = [self.main]
        if self.aux is not None:
            aux = replace(training, learning_rate=settings.aux_learning_rate)
            other = make_aux_task(
                checkpoint,
                self.aux,
                class_names(self.aux),
                aux,
                self.accelerator,
                seed=settings.seed,
                max_length=settings.max_length,
            )
            self.tasks.append(other)
        self.held_out = self._encode(checkpoint, self.validation) if self.validation is not None else None
        self_check(checkpoint.runner, self.main.encoded)

    @property
    def _rate(self) -> float:
        return self._rate_of(self.progress.attempt)

    def _rate_of(self, attempt: int) -> float:
        """Peak learning rate of an attempt."""
        return self.settings.training.learning_rate * float(RAISE_BY) ** (attempt - 1)

    def _encode(self, checkpoint: Checkpoint, examples: Examples) -> tuple[Encoded, NDArray[np.int64]]:
        targets = target_indices(self._labels(examples), checkpoint.labels, examples)
        return checkpoint.encode(examples, self.settings.max_length), targets

    # -- training -------------------------------------------------------------------------------------

    def train(self, track: Track, edge: Callable[[], None]) -> Iterator[EpochRecord]:
        """Run all epochs that are left, again at a higher rate where that is asked for, and write the checkpoint."""
        yield from (EpochRecord(**record) for record in self.progress.records)
        with deferred_stop() as stop:
            yield from self._attempts(track, edge, stop)
            kept = self._best()
            if not kept["kept"]:
                kept = {**kept, "kept": True}
                self.progress.records.append(kept)
                yield EpochRecord(**kept)
            self._write(EpochRecord(**kept))

    def _attempts(self, track: Track, edge: Callable[[], None], stop: Stop) -> Iterator[EpochRecord]:
        """Train, and anew at twice the rate while that is asked for and the rows are not fitted."""
        while True:
            try:
                yield from self._epochs(track, edge, stop)
            except TrainingError as error:
                if self.progress.attempt == 1:
                    raise
                console.warn(f"attempt {self.progress.attempt} is given up: {error}")
                return
            if not self._goes_on(self.progress.records[-1]):
                return
            self._raise_rate()

    def _epochs(self, track: Track, edge: Callable[[], None], stop: Stop) -> Iterator[EpochRecord]:
        while self.progress.epoch <= self.settings.training.epochs:
            try:
                edge()
            except TimeLeftError as error:
                stop.error = error
            if self._asked(stop):
                self._save_state()
                stop.check()
            self._epoch(track, stop)
            yield self._finish_epoch()

    def _goes_on(self, last: dict[str, Any]) -> bool:
        """Whether another attempt follows the one that ended so: the rate was too low to fit the rows."""
        raises = self.settings.raise_rate and self.progress.attempt <= MOST_RAISES
        return raises and not last["train_accuracy"] > ENOUGH

    def _raise_rate(self) -> None:
        """Start anew at a higher rate; the end of the attempt is kept if it is the best so far."""
        last, best, rate = self.progress.records[-1], self._best(), self._rate
        if last is best and self.accelerator.is_main_process:
            self.state.save_attempt(self.progress, self._trainings)
        self.progress = Progress(self.progress.attempt + 1, records=self.progress.records)
        accuracy = last["train_accuracy"]
        console.warn(f"training accuracy {accuracy:.4f} at --lr {rate:g} is not above {ENOUGH}: now {self._rate:g}")
        self._load()
        self._save_state()
        if self.accelerator.is_main_process:
            self.state.forget_attempts(best["attempt"])

    def _best(self) -> dict[str, Any]:
        return best_end(self.progress.records, self.settings)

    def _epoch(self, track: Track, stop: Stop) -> None:
        batches = self._batches()
        left = batches[self.progress.batch :]
        epoch, epochs = self.progress.epoch, self.settings.training.epochs
        saved = time.monotonic()
        for _ in track(self._steps(left), len(left), "steps", f"epoch {epoch}/{epochs}", epochs - epoch + 1):
            if self._asked(stop) or time.monotonic() - saved > SAVE_EVERY_SECONDS:
                self._save_state()
                stop.check()
                saved = time.monotonic()

    def _batches(self) -> list[Batch]:
        """This epoch's batches of all tasks, in one random order."""
        batches = [(task, batch) for task in self.tasks for batch in task.batches(self.progress.epoch)]
        if len(self.tasks) == 1:
            return batches
        generator = np.random.default_rng(purpose_seed(self.settings.seed, "mix", self.progress.epoch))
        return [batches[i] for i in generator.permutation(len(batches))]

    def _steps(self, batches: Sequence[Batch]) -> Iterator[None]:
        active: Task | None = None
        for task, batch in batches:
            if task is not active:
                task.activate()
                active = task
            try:
                loss = task.update(batch)
            except TrainingError as error:
                raise self._failed(error, task, batch) from None
            self.progress.batch += 1
            if task is self.main:
                self.progress.loss_sum += len(batch) * loss
            else:
                self.progress.aux_loss_sum += len(batch) * loss
            yield

    def _failed(self, error: TrainingError, task: Task, batch: NDArray[np.int64]) -> TrainingError:
        examples = self.examples if task is self.main or self.aux is None else self.aux
        rows = [examples.ids[i] for i in batch]
        option = "--lr" if task is self.main else "--aux-lr"
        return TrainingError(
            f"{error} (epoch {self.progress.epoch}, row ids {rows}); lower {option}, or use --precision fp32"
        )

    def _asked(self, stop: Stop) -> bool:
        """Whether any process was asked to stop: all leave after the same step."""
        if self.accelerator.num_processes == 1:
            return bool(stop)
        flag = torch.tensor(float(bool(stop)), device=self.device)
        if not float(self.accelerator.reduce(flag, "sum")):
            return False
        stop.error = stop.error or Terminated()
        return True

    # -- measuring ------------------------------------------------------------------------------------

    def _finish_epoch(self) -> EpochRecord:
        progress = self.progress
        trim_heap()  # batches of many shapes left it in pieces; measuring and writing come on top
        record = self._measure()
        if record.memorised and progress.memorised_epoch is None:
            progress.memorised_epoch = progress.epoch
            record = replace(record, memorised_epoch=progress.epoch)
            if self.settings.target == "label" and self.accelerator.is_main_process:
                facts = {"memorised_epoch": progress.memorised_epoch}
                self.state.write_memorised(
                    self.main.checkpoint, replace(self.provenance, facts=facts), progress.attempt
                )
        found = dataclasses.asdict(record)
        progress.records.append(found)
        if progress.epoch == self.settings.training.epochs and found is self._best() and not self._goes_on(found):
            found["kept"] = True
        progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.loss_sum = progress.aux_loss_sum = 0.0
        return EpochRecord(**found)

    def _measure(self) -> EpochRecord:
        progress, settings, main = self.progress, self.settings, self.main
        always = progress.epoch == settings.training.epochs or settings.evaluate == "always"
        looking = settings.evaluate == "memorised" and progress.memorised_epoch is None
        train = main.scores() if always or looking else None
        held_out = measure(main.checkpoint, *self.held_out) if self.held_out is not None else None
        guessing = 1 / len(main.checkpoint.labels)
        n_noisy, n_aux = int(main.noisy.sum()), len(self.tasks[1].rows) if self.aux is not None else None
        return EpochRecord(
            tool="finetune",
            epoch=progress.epoch,
            epochs=settings.training.epochs,
            step=main.training.step,
            learning_rate=main.training.rate(main.training.step - 1),
            loss=progress.loss_sum / len(main.rows),
            n_noisy=n_noisy,
            noisy_accuracy=train.accuracy_on(main.noisy) if train else None,
            n_clean=len(main.rows) - n_noisy,
            clean_accuracy=train.accuracy_on(~main.noisy) if train else None,
            train_accuracy=train.accuracy if train else None,
            train_macro_f1=train.macro_f1 if train else None,
            n_validation=len(self.held_out[1]) if self.held_out else None,
            validation_loss=held_out.loss if held_out else None,
            validation_accuracy=held_out.accuracy if held_out else None,
            validation_macro_f1=held_out.macro_f1 if held_out else None,
            validation_accuracy_normalised=(held_out.accuracy - guessing) / (1 - guessing) if held_out else None,
            memorised=progress.memorised_epoch is not None or (train is not None and self._is_memorised(train)),
            n_aux=n_aux,
            aux_loss=progress.aux_loss_sum / n_aux if n_aux else None,
            aux_accuracy=self.tasks[1].scores().accuracy if n_aux and always else None,
            attempt=progress.attempt,
            memorised_epoch=progress.memorised_epoch,
            kept=False,
        )

    def _is_memorised(self, scores: Scores) -> bool:
        if self.settings.memorised_metric == "accuracy":
            return scores.accuracy > self.settings.memorised_at
        return scores.macro_f1 >= self.settings.memorised_at

    # -- files ----------------------------------------------------------------------------------------

    @property
    def _trainings(self) -> list[Training]:
        return [task.training for task in self.tasks]

    def _save_state(self) -> None:
        if self.accelerator.is_main_process:
            self.state.save(self.progress, self._trainings)

    def _facts(self, kept: EpochRecord) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "attempts": self.progress.attempt,
            "attempt": kept.attempt,
            "learning_rate": self._rate_of(kept.attempt),
            "memorised_epoch": kept.memorised_epoch,
            "epochs": self.progress.records,
        }

    def _write(self, kept: EpochRecord) -> None:
        self.say_outcome(kept)
        if not self.accelerator.is_main_process:
            return
        if kept.attempt != self.progress.attempt:
            rate = self._rate_of(kept.attempt)
            console.warn(f"attempt {kept.attempt} (--lr {rate:g}) fits the rows best: it is the one kept")
            self.state.restore(self._trainings, kept.attempt)
        reached = kept.memorised_epoch is not None and self.settings.target == "label"
        memorised = self.state.memorised(kept.attempt) if reached else None
        self._write_checkpoint(kept, memorised)
        self.state.discard()

    def _write_checkpoint(self, kept: EpochRecord, memorised: Path | None) -> None:
        """Write the checkpoint; if that fails, keep the training."""
        provenance = replace(self.provenance, facts=self._facts(kept))
        try:
            save_checkpoint(self.main.checkpoint, self.out, provenance, memorised, replace=self.force)
        except (OSError, SafetensorError) as error:  # the latter is what safetensors makes of a full disk
            with contextlib.suppress(OSError, SafetensorError):  # then the state saved last is the one to go on from
                self._save_state()
            raise self.state.failed(error) from error

    def say_outcome(self, kept: EpochRecord) -> None:
        """Say so if what was to be memorised, or learnt, was not."""
        message = shortfall(kept, self.settings, n_classes=len(class_names(self.examples)))
        if message is not None:
            console.warn(message)
