"""What a run of `finetune` keeps on disk, beside its checkpoint: all that is needed to go on after a stop.

The state is the progress, the weights and the moments. It is written whole, so that a run killed at any moment
finds the last one. θ_M1 and, where `--raise-lr` goes on after it, the end of an attempt are in the attempt's folder.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltools.errors import MltoolsError, ResourceError, TrainingError, UsageError, exit_status
from mltools.io.atomic import atomic_folder, lock
from mltools.io.outputs import state_folder
from mltools.io.provenance import CHECKPOINT_FILE, CHECKPOINT_INSIDE, Provenance, tell_other_threads, threads
from mltools.io.tensors import open_tensors, read_metadata, write_tensors
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_saving import write_checkpoint
from mltools.model.training import Training

STATE = "state.safetensors"


@dataclass
class Progress:
    """How far a run is: with the steps, weights and moments, all that resuming needs.

    `attempt` counts the reruns of `--raise-lr`, from 1; `batch` is the number of batches done in the epoch.
    """

    attempt: int = 1
    epoch: int = 1
    batch: int = 0
    loss_sum: float = 0.0
    aux_loss_sum: float = 0.0
    memorised_epoch: int | None = None
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def finished_facts(out: Path, fingerprint: str) -> dict[str, Any] | None:
    """Give what the checkpoint `out` says of its run, if it is there and of the run with this fingerprint."""
    try:
        facts = json.loads((out / CHECKPOINT_FILE).read_bytes()).get("facts")
    except (OSError, ValueError, AttributeError):
        return None
    return facts if isinstance(facts, dict) and facts.get("fingerprint") == fingerprint else None


OURS = (STATE, f".{STATE}.*", "attempt-*", ".attempt-*", CHECKPOINT_INSIDE, f".{CHECKPOINT_INSIDE}.*", ".tmp*")
"""What a run keeps in its folder, and what one that was killed left half written, by safetensors too (`.tmp…`)."""


class SavedState:
    """The state of an unfinished run for the checkpoint `out`."""

    def __init__(self, out: Path, fingerprint: str) -> None:
        """Look at the state of the run that writes `out`; nothing is written yet."""
        self.folder = state_folder(out)
        self._fingerprint = fingerprint
        self._lock: int | None = None

    def memorised(self, attempt: int) -> Path:
        """Where θ_M1 of an attempt is kept until the run is done."""
        return self._attempt(attempt) / CHECKPOINT_INSIDE

    def _attempt(self, attempt: int) -> Path:
        return self.folder / f"attempt-{attempt}"

    def check(self, *, resume: bool, force: bool) -> None:
        """Refuse to start over an unfinished run, unless it is resumed or may be thrown away.

        Raises:
            UsageError: as said.
        """
        if self.folder.exists() and any(self.folder.iterdir()) and not resume and not force:
            raise UsageError(f"{self.folder} holds an unfinished run: go on with --resume, or discard it with --force")

    def claim(self) -> None:
        """Keep other runs away until `release` or the end of the process.

        Raises:
            UsageError: another run for the same checkpoint is going on.
        """
        self.folder.mkdir(exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            lock(self._lock, self.folder)
        except UsageError:
            os.close(self._lock)
            self._lock = None
            raise

    def release(self) -> None:
        """Let other runs have it, and leave no empty folder."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):  # it holds what resuming needs, or is gone
            self.folder.rmdir()
        os.close(self._lock)
        self._lock = None

    def discard(self) -> None:
        """Remove all that is ours, but not the folder itself, which holds the lock."""
        for path in [path for pattern in OURS for path in self.folder.glob(pattern)]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def failed(self, error: Exception) -> MltoolsError:
        """Say that the checkpoint could not be written, and what is kept of its training."""
        words = getattr(error, "strerror", None) or str(error)
        kept = f"{self.folder} keeps the training; go on with --resume" if self._meta() else "nothing of it is kept"
        text = f"the checkpoint could not be written ({words}); {kept}"
        return ResourceError(text) if exit_status(error) == ResourceError.exit_code else TrainingError(text)

    def discard_finished(self) -> None:
        """Remove what a run left that was killed when all but this was done."""
        meta = self._meta()
        if meta is None or meta.get("fingerprint") == self._fingerprint:
            self.discard()
            with contextlib.suppress(OSError):  # not there, or holds files of others
                self.folder.rmdir()

    def save(self, progress: Progress, trainings: Sequence[Training]) -> None:
        """Write progress, weights and moments of the trainings, which may share weights."""
        self._save(self.folder, progress, trainings)

    def save_attempt(self, progress: Progress, trainings: Sequence[Training]) -> None:
        """Write the end of an attempt, which may turn out to be the best one."""
        self._save(self._attempt(progress.attempt), progress, trainings)

    def forget_attempts(self, kept: int) -> None:
        """Remove what there is of earlier attempts than the present one, but for the best of them."""
        for path in self.folder.glob("attempt-*"):
            if path != self._attempt(kept):
                shutil.rmtree(path, ignore_errors=True)

    def _save(self, folder: Path, progress: Progress, trainings: Sequence[Training]) -> None:
        folder.mkdir(exist_ok=True)
        steps = [training.step for training in trainings]
        meta = {**dataclasses.asdict(progress), "steps": steps, "fingerprint": self._fingerprint, "threads": threads()}
        tensors = {name: tensor for training in trainings for name, tensor in training.state().items()}
        write_tensors(folder / STATE, tensors, json.dumps(meta, sort_keys=True), replace=True)

    def progress(self) -> Progress:
        """Read how far the run was; at its beginning if it was killed before the first save.

        Raises:
            TrainingError: the state is of a run with other settings or rows.
        """
        meta = self._meta()
        if meta is None:
            return Progress()
        if meta.pop("fingerprint", None) != self._fingerprint:
            raise TrainingError(
                f"{self.folder} is of a run with other settings or rows; start anew with --force, or change --out"
            )
        del meta["steps"]
        tell_other_threads([meta.pop("threads", None)])
        return Progress(**meta)

    def restore(self, trainings: Sequence[Training], attempt: int | None = None) -> None:
        """Put saved weights and moments back, if there are any: the last ones, or those that an attempt ended with."""
        folder = self.folder if attempt is None else self._attempt(attempt)
        meta = self._meta(folder)
        if meta is None:
            return
        with open_tensors(folder / STATE) as file:
            names = set(file.keys())
            for training, step in zip(trainings, meta["steps"], strict=True):
                training.restore(int(step), lambda name: file.get_tensor(name) if name in names else None)

    def _meta(self, folder: Path | None = None) -> dict[str, Any] | None:
        path = (folder or self.folder) / STATE
        return read_metadata(path) if path.exists() else None

    def write_memorised(self, checkpoint: Checkpoint, provenance: Provenance, attempt: int) -> None:
        """Keep θ_M1 of an attempt until the run is done."""
        self._attempt(attempt).mkdir(exist_ok=True)
        with atomic_folder(self.memorised(attempt), replace=True) as folder:
            write_checkpoint(checkpoint, folder, provenance)
