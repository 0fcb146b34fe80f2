"""A checkpoint that a command was given: known by its digest before it is opened, and opened when it is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from mltools.errors import CheckpointError
from mltools.io.provenance import folder_digest, folder_stamp
from mltools.model.checkpoint import Checkpoint, CheckpointMeta
from mltools.model.checkpoint_files import locate
from mltools.model.checkpoint_loading import open_checkpoint, open_meta
from mltools.model.classes import name_classes
from mltools.model.device import set_threads


@dataclass
class Model:
    """A checkpoint by name, or one that is open already."""

    given: str | Path | Checkpoint
    device: torch.device
    blocks: str | None = None
    threads: int | None = None
    offload: bool = False
    classes: Sequence[str] = ()

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.given.name if isinstance(self.given, Checkpoint) else str(self.given)

    @property
    def is_lent(self) -> bool:
        """Whether it belongs to the caller, who has it open."""
        return isinstance(self.given, Checkpoint)

    @cached_property
    def sha256(self) -> str:
        """Digest of its files, taken once.

        Raises:
            NotFoundError, CheckpointError: there are none.
        """
        self._stamp = folder_stamp(self.folder)
        return folder_digest(self.folder)

    @cached_property
    def folder(self) -> Path:
        """Where its files are."""
        return self.given.folder if isinstance(self.given, Checkpoint) else locate(str(self.given))

    def outline(self) -> CheckpointMeta:
        """Open it without reading a weight."""
        return self.given if isinstance(self.given, Checkpoint) else open_meta(self.name, self.blocks)

    def open(self, *, fresh_head: Sequence[str] | None = None) -> Checkpoint:
        """Open it, and set the number of threads by its width; else as `open_checkpoint`.

        Raises:
            CheckpointError: as `open_checkpoint`; or its files are not those of the digest.
            UsageError: the classes are not those that it names, or not as many.
        """
        if isinstance(self.given, Checkpoint):
            return self.given
        checkpoint = open_checkpoint(
            self.name, device=self.device, fresh_head=fresh_head, blocks=self.blocks, offload=self.offload
        )
        if "sha256" in vars(self) and checkpoint.stamp != self._stamp:
            raise CheckpointError(f"{self.name}: its files changed while they were read; run again")
        set_threads(self.threads, checkpoint.width)
        if self.classes and fresh_head is None:
            name_classes(checkpoint, self.classes)
        return checkpoint
