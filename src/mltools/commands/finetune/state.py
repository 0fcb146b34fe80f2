"""What a run of `finetune` keeps on disk, beside its checkpoint: all that is needed to go on after a stop.

The state is the progress, the weights and the moments, and θ_M1 once it is reached. It is written whole, so that
a run killed at any moment finds the last one.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltools.errors import MltoolsError, ResourceError, TrainingError, UsageError
from mltools.io.atomic import atomic_folder
from mltools.io.outputs import state_folder
from mltools.io.provenance import CHECKPOINT_FILE, Provenance
from mltools.io.tensors import open_tensors, read_metadata, write_tensors
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_saving import write_checkpoint
from mltools.model.training import Training

MEMORISED = "memorised"
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


class SavedState:
    """The state of an unfinished run for the checkpoint `out`."""

    def __init__(self, out: Path, fingerprint: str) -> None:
        """Look at the state of the run that writes `out`; nothing is written yet."""
        self.folder = state_folder(out)
        self._fingerprint = fingerprint
        self._lock: int | None = None

    @property
    def memorised(self) -> Path | None:
        """The checkpoint θ_M1, if it has been written."""
        path = self.folder / MEMORISED
        return path if path.exists() else None

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
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise UsageError(f"{self.folder} is in use by another run; wait for it, or choose another -o") from None
        except OSError:  # a file system without locks
            pass

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
        for path in [path for name in (STATE, MEMORISED) for path in _files(self.folder, name)]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def failed(self, error: Exception) -> MltoolsError:
        """Say that the checkpoint could not be written, and what is kept of its training."""
        words = getattr(error, "strerror", None) or str(error)
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in words
        kept = f"{self.folder} keeps the training; go on with --resume" if self._meta() else "nothing of it is kept"
        text = f"the checkpoint could not be written ({words}); {kept}"
        return ResourceError(text) if full else TrainingError(text)

    def discard_finished(self) -> None:
        """Remove what a run left that was killed when all but this was done."""
        meta = self._meta()
        if meta is None or meta.get("fingerprint") == self._fingerprint:
            self.discard()
            with contextlib.suppress(OSError):  # not there, or holds files of others
                self.folder.rmdir()

    def save(self, progress: Progress, trainings: Sequence[Training]) -> None:
        """Write progress, weights and moments of the trainings, which may share weights."""
        self.folder.mkdir(exist_ok=True)
        steps = [training.step for training in trainings]
        meta = {**dataclasses.asdict(progress), "steps": steps, "fingerprint": self._fingerprint}
        tensors = {name: tensor for training in trainings for name, tensor in training.state().items()}
        write_tensors(self.folder / STATE, tensors, json.dumps(meta, sort_keys=True), replace=True)

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
        return Progress(**meta)

    def restore(self, trainings: Sequence[Training]) -> None:
        """Put the saved weights and moments back, if there are any."""
        meta = self._meta()
        if meta is None:
            return
        with open_tensors(self.folder / STATE) as file:
            names = set(file.keys())
            for training, step in zip(trainings, meta["steps"], strict=True):
                training.restore(int(step), lambda name: file.get_tensor(name) if name in names else None)

    def _meta(self) -> dict[str, Any] | None:
        path = self.folder / STATE
        return read_metadata(path) if path.exists() else None

    def write_memorised(self, checkpoint: Checkpoint, provenance: Provenance) -> None:
        """Keep θ_M1 until the run is done."""
        self.folder.mkdir(exist_ok=True)
        with atomic_folder(self.folder / MEMORISED, replace=True) as folder:
            write_checkpoint(checkpoint, folder, provenance)

    def forget_memorised(self) -> None:
        """Remove θ_M1 of an attempt that is given up."""
        shutil.rmtree(self.folder / MEMORISED, ignore_errors=True)


def _files(folder: Path, name: str) -> list[Path]:
    """Name a file of the state, and what a killed run left half written of it."""
    return [folder / name, *folder.glob(f".{name}.*")]
