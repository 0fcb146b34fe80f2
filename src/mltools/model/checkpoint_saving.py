"""Saving checkpoints so that stock classes load them."""

import shutil
from pathlib import Path

from mltools.io.atomic import atomic_folder
from mltools.io.provenance import CHECKPOINT_FILE, Provenance, foreign
from mltools.model.checkpoint import Checkpoint


def save_checkpoint(
    checkpoint: Checkpoint, path: Path, provenance: Provenance, extra: Path | None = None, *, replace: bool = False
) -> None:
    """Write a checkpoint folder that stock Auto classes load, all at once.

    Args:
        checkpoint: what to save; weights go out in the type they came in.
        path: the folder to be.
        provenance: goes to `mltools.json`.
        extra: a folder to copy inside (the `memorised` checkpoint).
        replace: whether a checkpoint of ours that is there is replaced.

    Raises:
        UsageError: something is there that is not to be replaced; what was written is kept beside it.
    """
    with atomic_folder(path, replace=replace and _is_ours(path)) as temporary:
        write_checkpoint(checkpoint, temporary, provenance)
        if extra is not None:
            shutil.copytree(extra, temporary / extra.name)


def _is_ours(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and foreign(path) is None)


def write_checkpoint(checkpoint: Checkpoint, folder: Path, provenance: Provenance) -> None:
    """Write a checkpoint's files into a folder that exists."""
    model, config = checkpoint.model, checkpoint.model.config
    in_memory = [(each, key, getattr(each, key)) for each, key, _ in checkpoint.saved_settings]
    state = {
        key: value.to(checkpoint.stored_dtype(key)) if value.is_floating_point() else value
        for key, value in model.state_dict().items()
    }
    try:
        for each, key, value in checkpoint.saved_settings:
            setattr(each, key, value)
        model.save_pretrained(folder, state_dict=state)
        config.dtype = checkpoint.saved_dtype  # else it says the type in memory
        config.save_pretrained(folder)
    finally:
        for each, key, value in in_memory:
            setattr(each, key, value)
    checkpoint.tokenizer.save_pretrained(folder)
    (folder / CHECKPOINT_FILE).write_text(provenance.as_json() + "\n", encoding="utf-8")
