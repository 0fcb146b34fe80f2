"""Fine-tune a pre-trained model on rows and write checkpoints (§3, released-code §1.4).

`target` "label" gives θ_M2, and θ_M1 in `memorised/`; "original_label" gives θ_O with the same batches and the
same fresh head. With auxiliary rows it is the control set-up of §3.2: they change every layer, the rows only the
layers that `freeze` leaves. A run can be stopped or killed at any moment and resumed to the same bytes.
"""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from numpy.typing import NDArray

from mltools import console
from mltools.config import FinetuneConfig
from mltools.errors import TrainingError, UsageError
from mltools.io.columns import Label
from mltools.io.examples import Examples
from mltools.io.kinds import EpochRecord
from mltools.io.provenance import Provenance, plain
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint, check_unchanged
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checkpoint_saving import save_checkpoint
from mltools.model.checks import self_check
from mltools.model.classes import class_names, target_indices
from mltools.model.cost import Shape, WorkItem, training_layers
from mltools.model.device import set_threads
from mltools.model.tasks import Scores, Task, make_aux_task, make_task, measure
from mltools.model.training import accelerator_for, purpose_seed
from mltools.signals import Stop, Terminated, deferred_stop
from mltools.tools.finetune_state import MEMORISED, Progress, SavedState, finished_facts

SAVE_EVERY_SECONDS = 60.0
ENOUGH = 0.99
"""`--raise-lr` reruns a training whose final accuracy on its rows does not exceed this (Appendix D)."""
RAISE_BY = 2
MOST_RAISES = 3
Watch = Callable[[Iterator[None], int, str], Iterator[None]]
Batch = tuple[Task, NDArray[np.int64]]


def finetune(
    pretrained: str,
    examples: Examples,
    out: Path,
    config: FinetuneConfig = FinetuneConfig(),
    *,
    aux: Examples | None = None,
    validation: Examples | None = None,
    device: torch.device | None = None,
    threads: int | None = None,
    blocks: str | None = None,
    resume: bool = False,
    force: bool = False,
    provenance: Provenance | None = None,
    watch: Watch | None = None,
) -> Iterator[EpochRecord]:
    """Train, and write the final checkpoint to `out` with `memorised/` in it, if it was reached.

    Args:
        pretrained: θ_P, a folder or hub repository.
        examples: training rows.
        out: the checkpoint folder to write.
        config: target, schedule, what is frozen.
        aux: rows of an auxiliary task, trained towards their `label` through a second head that is not saved.
        validation: rows to measure after each epoch.
        device: CPU by default; under torchrun, the process's own.
        threads: CPU threads; see `set_threads`.
        blocks: module path of the block list, where the model does not decide.
        resume: go on with a run that was stopped; a finished one is only reported again.
        force: throw away an unfinished run that is in the way.
        provenance: written into the checkpoints.
        watch: wraps the batches of an epoch, to show progress.

    Yields:
        One record an epoch, also those of the epochs before a resumed stop, and of attempts that were too slow.

    Raises:
        TrainingError: a loss that is not finite, or a state to resume that is of another run.
        UsageError: an unfinished run is in the way, or one that is going on, or a checkpoint of another run.
        CheckpointError: the pre-trained model cannot be used, or changed during the run.
        KeyboardInterrupt, Terminated: after saving what resuming needs.
    """
    provenance = provenance or Provenance("finetune", dataclasses.asdict(config), config.seed)
    run = _Run(pretrained, examples, out, config, aux, validation, device, threads, blocks, provenance)
    facts = finished_facts(out, run.fingerprint) if resume else None
    if facts is not None:
        console.warn(f"{out} is finished already; nothing left to do")
        run.state.discard_finished()
        yield from (EpochRecord(**record) for record in facts.get("epochs", []))
        return
    if resume and out.exists() and not force:
        raise UsageError(f"{out} is there, of a run with other settings or rows; replace it with --force")
    try:
        run.start(resume=resume, force=force)
        try:
            yield from run.train(watch)
        finally:
            run.accelerator.end_training()
    finally:
        run.state.release()


def plan(
    shape: Shape,
    examples: Examples,
    config: FinetuneConfig = FinetuneConfig(),
    aux: Examples | None = None,
    validation: Examples | None = None,
) -> WorkItem:
    """Count the work of one attempt, training rows measured after every epoch unless after the last only."""
    backward, trained = training_layers(shape, config)
    n, n_aux, n_held_out = (len(rows) if rows is not None else 0 for rows in (examples, aux, validation))
    measured = n * (1 if config.evaluate == "last" else config.epochs) + n_aux + n_held_out * config.epochs
    return WorkItem(
        rows=n + n_aux,
        steps=config.epochs * (math.ceil(n / config.batch_size) + math.ceil(n_aux / config.batch_size)),
        applications=(config.epochs * (n + n_aux) + measured) * shape.n_layers,
        backward=config.epochs * (n * backward + n_aux * 2 * shape.n_layers),
        copies=3 * (shape.n_layers if n_aux else trained),
    )


@dataclass
class _Run:
    pretrained: str
    examples: Examples
    out: Path
    config: FinetuneConfig
    aux: Examples | None
    validation: Examples | None
    device: torch.device | None
    threads: int | None
    blocks: str | None
    provenance: Provenance
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.fingerprint = self._fingerprint()
        self.state = SavedState(self.out, self.fingerprint)

    def _fingerprint(self) -> str:
        """What a state to resume must have been made with: settings and rows."""
        rows = [self.examples.ids, self.examples.fields, self._labels(self.examples), self.examples.noisy]
        others = [[e.ids, e.fields, e.labels] if e is not None else None for e in (self.aux, self.validation)]
        made_with = [dataclasses.asdict(self.config), rows, others, plain(self.provenance.inputs)]
        return hashlib.sha256(json.dumps(made_with, sort_keys=True, default=str).encode()).hexdigest()

    def _labels(self, examples: Examples) -> list[Label]:
        return examples.labels if self.config.target == "label" else examples.original_labels

    # -- setting up -----------------------------------------------------------------------------------

    def start(self, *, resume: bool, force: bool) -> None:
        """Load model and rows, and take up a saved state if there is one to resume."""
        self.accelerator: Accelerator = accelerator_for(self.device or torch.device("cpu"), self.config.precision)
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
            self.state.restore([task.training for task in self.tasks])

    def _load(self) -> None:
        """Open the pre-trained model with fresh heads and fresh optimisers."""
        config = replace(self.config, learning_rate=self._rate)
        set_seed(purpose_seed(config.seed, "head") % 2**32)
        names = class_names(self.examples)
        checkpoint = open_checkpoint(self.pretrained, device=self.device, fresh_head=names, blocks=self.blocks)
        checkpoint.saved_dtype = torch.float32  # what was trained; a half-precision θ_P must not round it
        if not checkpoint.fresh:
            console.warn(f"{self.pretrained} has a head for {len(names)} classes; training goes on from it")
        check_unchanged(checkpoint, self.provenance, "pretrained")
        set_threads(self.threads, checkpoint.width)
        self.main = make_task(checkpoint, self.examples, self._labels(self.examples), config, self.accelerator)
        self.tasks = [self.main]
        if self.aux is not None:
            self.tasks.append(make_aux_task(checkpoint, self.aux, class_names(self.aux), config, self.accelerator))
        self.held_out = self._encode(checkpoint, self.validation) if self.validation is not None else None
        self_check(checkpoint.runner, self.main.encoded)

    @property
    def _rate(self) -> float:
        """Peak learning rate of this attempt."""
        return self.config.learning_rate * float(RAISE_BY) ** (self.progress.attempt - 1)

    def _encode(self, checkpoint: Checkpoint, examples: Examples) -> tuple[Encoded, NDArray[np.int64]]:
        targets = target_indices(self._labels(examples), checkpoint.labels, examples)
        return checkpoint.encode(examples, self.config.max_length), targets

    # -- training -------------------------------------------------------------------------------------

    def train(self, watch: Watch | None) -> Iterator[EpochRecord]:
        """Run all epochs that are left, again at a higher rate where that is asked for, and write the checkpoint."""
        yield from (EpochRecord(**record) for record in self.progress.records)
        with deferred_stop() as stop:
            yield from self._epochs(watch, stop)
            while self._raise_rate():
                yield from self._epochs(watch, stop)
            self._write()

    def _epochs(self, watch: Watch | None, stop: Stop) -> Iterator[EpochRecord]:
        while self.progress.epoch <= self.config.epochs:
            self._epoch(watch, stop)
            yield self._finish_epoch()
            if self._asked(stop):
                self._save_state()
                stop.check()

    def _raise_rate(self) -> bool:
        """Start anew at a higher rate, if that is asked for and the last one was too low to fit the rows."""
        accuracy = self.progress.records[-1]["train_accuracy"]
        if not self.config.raise_rate or accuracy > ENOUGH or self.progress.attempt > MOST_RAISES:
            return False
        rate = self._rate
        if self.accelerator.is_main_process:
            self.state.forget_memorised()
        self.progress = Progress(self.progress.attempt + 1, records=self.progress.records)
        console.warn(f"training accuracy {accuracy:.4f} at --lr {rate:g} is not above {ENOUGH}: now {self._rate:g}")
        self._load()
        return True

    def _epoch(self, watch: Watch | None, stop: Stop) -> None:
        batches = self._batches()
        left = batches[self.progress.batch :]
        steps = self._steps(left)
        if watch is not None:
            steps = watch(steps, len(left), f"epoch {self.progress.epoch}/{self.config.epochs}")
        saved = time.monotonic()
        for _ in steps:
            if self._asked(stop) or time.monotonic() - saved > SAVE_EVERY_SECONDS:
                self._save_state()
                stop.check()
                saved = time.monotonic()

    def _batches(self) -> list[Batch]:
        """This epoch's batches of all tasks, in one random order."""
        batches = [(task, batch) for task in self.tasks for batch in task.batches(self.progress.epoch)]
        if len(self.tasks) == 1:
            return batches
        generator = np.random.default_rng(purpose_seed(self.config.seed, "mix", self.progress.epoch))
        return [batches[i] for i in generator.permutation(len(batches))]

    def _steps(self, batches: Sequence[Batch]) -> Iterator[None]:
        focus: Task | None = None
        for task, batch in batches:
            if task is not focus:
                task.focus()
                focus = task
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
        record = self._measure()
        if record.memorised and progress.memorised_epoch is None:
            progress.memorised_epoch = progress.epoch
            if self.config.target == "label" and self.accelerator.is_main_process:
                facts = {"memorised_epoch": progress.memorised_epoch}
                self.state.write_memorised(self.main.checkpoint, replace(self.provenance, facts=facts))
        progress.records.append(dataclasses.asdict(record))
        progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.loss_sum = progress.aux_loss_sum = 0.0
        return record

    def _measure(self) -> EpochRecord:
        progress, config, main = self.progress, self.config, self.main
        always = progress.epoch == config.epochs or config.evaluate == "always"
        looking = config.evaluate == "memorised" and progress.memorised_epoch is None
        train = main.scores() if always or looking else None
        held_out = measure(main.checkpoint, *self.held_out) if self.held_out is not None else None
        n_noisy, n_aux = int(main.noisy.sum()), len(self.tasks[1].rows) if self.aux is not None else None
        return EpochRecord(
            tool="finetune",
            epoch=progress.epoch,
            epochs=config.epochs,
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
            memorised=progress.memorised_epoch is not None or (train is not None and self._is_memorised(train)),
            n_aux=n_aux,
            aux_loss=progress.aux_loss_sum / n_aux if n_aux else None,
            aux_accuracy=self.tasks[1].scores().accuracy if n_aux and always else None,
            attempt=progress.attempt,
        )

    def _is_memorised(self, scores: Scores) -> bool:
        if self.config.memorised_metric == "accuracy":
            return scores.accuracy > self.config.memorised_at
        return scores.macro_f1 >= self.config.memorised_at

    # -- files ----------------------------------------------------------------------------------------

    def _save_state(self) -> None:
        if self.accelerator.is_main_process:
            self.state.save(self.progress, [task.training for task in self.tasks])

    def _facts(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "attempts": self.progress.attempt,
            "learning_rate": self._rate,
            "memorised_epoch": self.progress.memorised_epoch,
            "epochs": self.progress.records,
        }

    def _write(self) -> None:
        if self.config.target == "label" and self.progress.memorised_epoch is None:
            measured = (r["train_accuracy"] or 0.0 for r in self.progress.records)
            console.warn(
                f"training {self.config.memorised_metric} never passed {self.config.memorised_at} (best accuracy "
                f"{max(measured, default=0.0):.3f}): there is no {MEMORISED}/; train longer or with a higher --lr"
            )
        if self.accelerator.is_main_process:
            provenance = replace(self.provenance, facts=self._facts())
            save_checkpoint(self.main.checkpoint, self.out, provenance, extra=self.state.memorised)
            self.state.discard()
