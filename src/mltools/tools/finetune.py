"""Fine-tune a pre-trained model on rows and write checkpoints (§3, released-code §1.4).

`--target label` gives θ_M2, and θ_M1 in `memorised/`; `--target original_label` gives θ_O with the same batches
and the same fresh head. A run can be stopped or killed at any moment and resumed to the same bytes.
"""

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from numpy.typing import NDArray
from torch import Tensor

from mltools import console
from mltools.config import FinetuneConfig
from mltools.errors import TrainingError, UsageError
from mltools.io.atomic import atomic_folder
from mltools.io.provenance import CHECKPOINT_FILE, Provenance, plain
from mltools.io.records import EpochRecord
from mltools.io.rows import Examples, Label
from mltools.io.tensors import open_tensors, read_metadata, write_tensors
from mltools.model.blocks import parse_freeze
from mltools.model.checkpoints import (
    class_names,
    open_checkpoint,
    save_checkpoint,
    target_indices,
    write_checkpoint,
)
from mltools.model.device import set_threads
from mltools.model.inference import Encoded, predict, self_check
from mltools.model.training import (
    Schedule,
    Training,
    accelerator_for,
    cross_entropy_sum,
    epoch_batches,
    purpose_seed,
    run_epoch,
)
from mltools.signals import Stop, deferred_stop

SAVE_EVERY_SECONDS = 60.0
MEMORISED = "memorised"
Watch = Callable[[Iterator[tuple[int, float]], int, str], Iterator[tuple[int, float]]]


@dataclass
class _Data:
    """Rows ready to train on: tokens, targets, and which rows are noisy."""

    encoded: Encoded
    targets: NDArray[np.int64]
    noisy: NDArray[np.bool_]

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.arange(len(self.encoded))


@dataclass
class _Progress:
    """How far a run is: with the weights and moments, all that resuming needs."""

    epoch: int = 1
    batch: int = 0
    loss_sum: float = 0.0
    memorised_epoch: int | None = None
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def state_folder(out: Path) -> Path:
    """Where an unfinished run for `out` keeps its state: beside it, as `OUT.resume`."""
    return out.with_name(out.name + ".resume")


def finetune(
    pretrained: str,
    examples: Examples,
    out: Path,
    config: FinetuneConfig = FinetuneConfig(),
    *,
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
        validation: rows to measure after each epoch.
        device: CPU by default.
        threads: CPU threads; see `set_threads`.
        blocks: module path of the block list, where the model does not decide.
        resume: go on with a run that was stopped; a finished one is only reported again.
        force: throw away an unfinished run that is in the way.
        provenance: written into the checkpoints.
        watch: wraps the batches of an epoch, to show progress.

    Yields:
        One record an epoch, also those of the epochs before a resumed stop.

    Raises:
        TrainingError: a loss that is not finite, or a state to resume that is of another run.
        UsageError: an unfinished run is in the way.
        KeyboardInterrupt, Terminated: after saving what resuming needs.
    """
    run = _Run(pretrained, examples, out, config, validation, device, blocks, provenance)
    run.threads = threads
    if resume and run.finished():
        console.warn(f"{out} is finished already; nothing left to do")
        yield from run.old_records()
        return
    run.open(resume=resume, force=force)
    yield from run.train(watch)


class _Run:
    def __init__(
        self,
        pretrained: str,
        examples: Examples,
        out: Path,
        config: FinetuneConfig,
        validation: Examples | None,
        device: torch.device | None,
        blocks: str | None,
        provenance: Provenance | None,
    ) -> None:
        self.pretrained, self.examples, self.validation = pretrained, examples, validation
        self.out, self.config, self.blocks = out, config, blocks
        self.device = device or torch.device("cpu")
        self.provenance = provenance or Provenance("finetune", dataclasses.asdict(config), config.seed)
        self.state = state_folder(out)
        self.threads: int | None = None
        self.progress = _Progress()

    # -- what is there already ------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """What a state to resume must have been made with: settings and rows."""
        rows = [self.examples.ids, self.examples.fields, self._labels(self.examples), self.examples.noisy]
        text = json.dumps(
            [dataclasses.asdict(self.config), rows, plain(self.provenance.inputs)], sort_keys=True, default=str
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def finished(self) -> bool:
        facts = self._old_facts()
        return facts is not None and facts.get("fingerprint") == self.fingerprint

    def _old_facts(self) -> dict[str, Any] | None:
        try:
            facts = json.loads((self.out / CHECKPOINT_FILE).read_bytes()).get("facts")
        except (OSError, ValueError, AttributeError):
            return None
        return facts if isinstance(facts, dict) else None

    def old_records(self) -> Iterator[EpochRecord]:
        facts = self._old_facts() or {}
        yield from (EpochRecord(**record) for record in facts.get("epochs", []))

    # -- setting up -----------------------------------------------------------------------------------

    def open(self, *, resume: bool, force: bool) -> None:
        """Load model and rows, and take up a saved state if there is one."""
        if self.state.exists() and not resume:
            if not force:
                raise UsageError(
                    f"{self.state} holds an unfinished run: go on with --resume, or discard it with --force"
                )
            shutil.rmtree(self.state)
        set_seed(purpose_seed(self.config.seed, "head") % 2**32)
        names = class_names(self.examples)
        self.checkpoint = open_checkpoint(self.pretrained, device=self.device, fresh_head=names, blocks=self.blocks)
        set_threads(self.threads, self.checkpoint.width)
        self.data = self._data(self.examples, names)
        self.validation_data = self._data(self.validation, names) if self.validation is not None else None
        self_check(self.checkpoint.runner, self.data.encoded)
        self.training = self._training()
        if self.state.exists():
            self._restore()

    def _labels(self, examples: Examples) -> list[Label]:
        return examples.labels if self.config.target == "label" else examples.original_labels

    def _data(self, examples: Examples, names: list[str]) -> _Data:
        targets = target_indices(self._labels(examples), names, examples)
        encoded = self.checkpoint.encode(examples, self.config.max_length)
        return _Data(encoded, targets, np.array(examples.noisy))

    def _training(self) -> Training:
        config, checkpoint = self.config, self.checkpoint
        frozen = parse_freeze(config.freeze, checkpoint.n_layers)
        parameters = {n: p for n, p in checkpoint.model.named_parameters() if checkpoint.parts[n] not in frozen}
        if not parameters:
            raise UsageError(f"--freeze {config.freeze} leaves nothing to train")
        everything = list(checkpoint.model.parameters())
        for name, parameter in checkpoint.model.named_parameters():
            parameter.requires_grad_(config.clip_scope == "all" or name in parameters)
        self.frozen_blocks = [block for layer, block in enumerate(checkpoint.stack.modules, start=1) if layer in frozen]
        schedule = Schedule(
            config.learning_rate, config.epochs, config.batch_size, config.warmup, config.weight_decay, config.clip
        )
        return Training(
            parameters,
            schedule,
            schedule.steps_per_epoch(len(self.data.encoded)) * config.epochs,
            config.seed,
            accelerator_for(self.device, config.precision),
            clipped=everything if config.clip_scope == "all" else None,
            micro_batch=config.micro_batch,
        )

    # -- training -------------------------------------------------------------------------------------

    def train(self, watch: Watch | None) -> Iterator[EpochRecord]:
        """Run all epochs that are left, then write the checkpoint."""
        yield from (EpochRecord(**record) for record in self.progress.records)
        with deferred_stop() as stop:
            while self.progress.epoch <= self.config.epochs:
                self._epoch(watch, stop)
                record = self._finish_epoch()
                yield record
                stop_now = bool(stop)
                if stop_now:
                    self._save_state()
                    stop.check()
            self._write()

    def _epoch(self, watch: Watch | None, stop: Stop) -> None:
        progress, config = self.progress, self.config
        batches = epoch_batches(
            self.data.rows, self.data.encoded.lengths, config.batch_size, config.seed, progress.epoch
        )
        self._train_mode()
        steps = run_epoch(self.training, batches, self._loss, skip=progress.batch)
        if watch is not None:
            steps = watch(steps, len(batches) - progress.batch, f"epoch {progress.epoch}/{config.epochs}")
        saved = time.monotonic()
        try:
            for size, loss in steps:
                progress.batch += 1
                progress.loss_sum += size * loss
                if stop or time.monotonic() - saved > SAVE_EVERY_SECONDS:
                    self._save_state()
                    stop.check()
                    saved = time.monotonic()
        except TrainingError as error:
            rows = [self.examples.ids[i] for i in batches[progress.batch]]
            raise TrainingError(
                f"{error} (epoch {progress.epoch}, row ids {rows}); lower --lr, or use --precision fp32"
            ) from None

    def _train_mode(self) -> None:
        self.checkpoint.model.train()
        if not self.config.frozen_dropout:
            for block in self.frozen_blocks:
                block.eval()

    def _loss(self, rows: NDArray[np.int64]) -> Tensor:
        batch = self.data.encoded.batch(rows, self.device)
        targets = torch.from_numpy(self.data.targets[rows]).to(self.device)
        return cross_entropy_sum(self.checkpoint.runner.forward(batch), targets)

    def _finish_epoch(self) -> EpochRecord:
        progress = self.progress
        record = self._measure()
        if record.memorised and progress.memorised_epoch is None:
            progress.memorised_epoch = progress.epoch
            if self.config.target == "label":
                self._write_memorised()
        progress.records.append(dataclasses.asdict(record))
        progress.epoch, progress.batch, progress.loss_sum = progress.epoch + 1, 0, 0.0
        return record

    def _measure(self) -> EpochRecord:
        progress, config, data = self.progress, self.config, self.data
        last = progress.epoch == config.epochs
        looking = config.evaluate == "memorised" and progress.memorised_epoch is None
        train = self._scores(data) if last or looking or config.evaluate == "always" else None
        validation = self._scores(self.validation_data) if self.validation_data is not None else None
        return EpochRecord(
            tool="finetune",
            epoch=progress.epoch,
            epochs=config.epochs,
            step=self.training.step,
            learning_rate=self.training.rate(self.training.step - 1),
            loss=progress.loss_sum / len(data.encoded),
            n_noisy=int(data.noisy.sum()),
            noisy_accuracy=train.accuracy_on(data.noisy) if train else None,
            n_clean=int((~data.noisy).sum()),
            clean_accuracy=train.accuracy_on(~data.noisy) if train else None,
            train_accuracy=train.accuracy if train else None,
            train_macro_f1=train.macro_f1 if train else None,
            n_validation=len(self.validation_data.targets) if self.validation_data else None,
            validation_loss=validation.loss if validation else None,
            validation_accuracy=validation.accuracy if validation else None,
            validation_macro_f1=validation.macro_f1 if validation else None,
            memorised=progress.memorised_epoch is not None or (train is not None and self._is_memorised(train)),
        )

    def _scores(self, data: _Data) -> "_Scores":
        logits = predict(self.checkpoint.runner, data.encoded, data.rows, None)
        return _Scores(logits, data.targets)

    def _is_memorised(self, scores: "_Scores") -> bool:
        if self.config.memorised_metric == "accuracy":
            return scores.accuracy > self.config.memorised_at
        return scores.macro_f1 >= self.config.memorised_at

    # -- files ----------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "memorised_epoch": self.progress.memorised_epoch,
            "epochs": self.progress.records,
        }

    @property
    def _is_main(self) -> bool:
        return bool(self.training.accelerator.is_main_process)

    def _save_state(self) -> None:
        if not self._is_main:
            return
        self.state.mkdir(exist_ok=True)
        meta = {**dataclasses.asdict(self.progress), "step": self.training.step, "fingerprint": self.fingerprint}
        write_tensors(self.state / "state.safetensors", self.training.state(), json.dumps(meta, sort_keys=True))

    def _restore(self) -> None:
        path = self.state / "state.safetensors"
        if not path.exists():  # killed before the first save: start again from the beginning
            return
        meta = read_metadata(path)
        if meta.pop("fingerprint", None) != self.fingerprint:
            raise TrainingError(
                f"{self.state} is of a run with other settings or rows; start anew with --force, or change --out"
            )
        step = int(meta.pop("step"))
        with open_tensors(path) as file:
            names = set(file.keys())
            self.training.restore(step, lambda name: file.get_tensor(name) if name in names else None)
        self.progress = _Progress(**meta)

    def _write_memorised(self) -> None:
        if not self._is_main:
            return
        facts = {"memorised_epoch": self.progress.memorised_epoch}
        self.state.mkdir(exist_ok=True)
        with atomic_folder(self.state / MEMORISED) as folder:
            write_checkpoint(self.checkpoint, folder, replace(self.provenance, facts=facts))

    def _write(self) -> None:
        self._assert_frozen_unmoved()
        if self.config.target == "label" and self.progress.memorised_epoch is None:
            best = max((r["train_accuracy"] or 0.0 for r in self.progress.records), default=0.0)
            console.warn(
                f"training {self.config.memorised_metric} never passed {self.config.memorised_at} (best accuracy "
                f"{best:.3f}): there is no {MEMORISED}/; train longer or with a higher --lr"
            )
        if not self._is_main:
            return
        memorised = self.state / MEMORISED
        save_checkpoint(
            self.checkpoint,
            self.out,
            replace(self.provenance, facts=self._facts()),
            extra=memorised if memorised.exists() else None,
        )
        shutil.rmtree(self.state, ignore_errors=True)

    def _assert_frozen_unmoved(self) -> None:
        """Nothing outside the trained set can have moved, since the optimiser holds only the trained set."""
        held = {id(p) for group in self.training._optimiser.param_groups for p in group["params"]}
        assert held == {id(p) for p in self.training.parameters.values()}


class _Scores:
    """Accuracy, macro-F1 and loss of logits (rows, classes) against targets (rows,)."""

    def __init__(self, logits: NDArray[np.float32], targets: NDArray[np.int64]) -> None:
        self.hits = logits.argmax(axis=1) == targets
        self._logits, self._targets = logits, targets

    @property
    def accuracy(self) -> float:
        return float(self.hits.mean())

    def accuracy_on(self, rows: NDArray[np.bool_]) -> float | None:
        return float(self.hits[rows].mean()) if rows.any() else None

    @property
    def macro_f1(self) -> float:
        from sklearn.metrics import f1_score

        return float(f1_score(self._targets, self._logits.argmax(axis=1), average="macro", zero_division=0))

    @property
    def loss(self) -> float:
        logits, targets = torch.from_numpy(self._logits), torch.from_numpy(self._targets)
        return float(cross_entropy_sum(logits.double(), targets)) / len(targets)
