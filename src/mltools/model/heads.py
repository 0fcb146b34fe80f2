"""The head that a training starts from: fresh, or one that the checkpoint has for the very classes of the rows."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate.utils import set_seed

from mltools import console
from mltools.io.rows import json_preview
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.tasks import second_head
from mltools.model.training import purpose_seed

CLASSIFIER = "ForSequenceClassification"


def open_for_training(
    name: str,
    classes: Sequence[str],
    seed: int,
    *,
    device: torch.device | None = None,
    blocks: str | None = None,
    keep_head: bool = False,
) -> Checkpoint:
    """Open a checkpoint with a head for `classes`, drawn by `seed`.

    A classifier's head is never gone on from by chance: it was trained on rows that may be those to come, and its
    weights may mean other classes than the rows do.

    Args:
        name: a folder or a hub repository.
        classes: names of the classes, in the order of the logits.
        seed: of the run.
        device: where the model goes; CPU by default.
        blocks: module path of the block list (`--blocks`).
        keep_head: go on from the checkpoint's own head, with a note, if it is for these classes in this order.

    Raises:
        NotFoundError, CheckpointError: as `open_checkpoint`.
    """
    set_seed(purpose_seed(seed, "head") % 2**32)
    checkpoint = open_checkpoint(name, device=device, fresh_head=classes, blocks=blocks)
    body = f"{checkpoint.model.base_model_prefix}."
    own = {weight for weight, _ in checkpoint.model.named_parameters() if not weight.startswith(body)}
    complete = own.isdisjoint(checkpoint.fresh)
    if own <= checkpoint.fresh or not (complete or _is_classifier(checkpoint)):
        return checkpoint
    stored = _stored_classes(checkpoint.folder)
    if keep_head and complete and _same(stored, classes):
        console.warn(f"{name} has a head for these {len(classes)} classes; training goes on from it")
        return checkpoint
    if keep_head:
        found = f"for {', '.join(map(json_preview, stored[:8]))}" if stored else "that names no classes"
        console.warn(f"{name} has a head {found}{', …' if len(stored) > 8 else ''}; training starts from a fresh one")
    return second_head(checkpoint, classes)


def _is_classifier(checkpoint: Checkpoint) -> bool:
    """Whether config.json says that the files are a sequence classifier's, with however many classes."""
    return any(CLASSIFIER in architecture for architecture in checkpoint.model.config.architectures or ())


def _stored_classes(folder: Path) -> list[str]:
    """The class names in config.json, in the order of the logits; none if it has none."""
    names: dict[str, str] = json.loads((folder / "config.json").read_bytes()).get("id2label") or {}
    return [names[index] for index in sorted(names, key=int)]


def _same(stored: Sequence[str], classes: Sequence[str]) -> bool:
    """Whether the names are those of the classes; numbered ones are where the classes are numbers too."""
    numbers = range(len(classes))
    if list(stored) in ([], [f"LABEL_{i}" for i in numbers]):
        return list(classes) == [str(i) for i in numbers]
    return list(stored) == list(classes)
