"""Saving checkpoints so that stock classes load them."""

import shutil
from pathlib import Path

from mltools.errors import UsageError
from mltools.io.atomic import atomic_folder
from mltools.io.provenance import CHECKPOINT_FILE, Provenance
from mltools.model.checkpoint import Checkpoint


def save_checkpoint(checkpoint: Checkpoint, path: Path, provenance: Provenance, extra: Path | None = None) -> None:
    """Write a checkpoint folder that stock Auto classes load, all at once.

    Args:
        checkpoint: what to save; weights go out in the type they came in.
        path: the folder to be.
        provenance: goes to `mltools.json`.
        extra: a folder to copy inside (the `memorised` checkpoint).

    Raises:
        UsageError: a folder is there that is no checkpoint of ours to replace.
    """
    if path.exists() and not (path / "config.json").exists():
        raise UsageError(f"{path} is there and is no checkpoint; choose another path")
    with atomic_folder(path) as temporary:
        write_checkpoint(checkpoint, temporary, provenance)
        if extra is not None:
            shutil.copytree(extra, temporary / extra.name)


def write_checkpoint(checkpoint: Checkpoint, folder: Path, provenance: Provenance) -> None:
    """Write a checkpoint's files into a folder that exists."""
    model, config = checkpoint.model, checkpoint.model.config
    in_memory = {key: getattr(config, key, None) for key in checkpoint.saved_settings}
    state = {
        key: value.to(checkpoint.saved_dtype) if value.is_floating_point() else value
        for key, value in model.state_dict().items()
    }
    try:
        for key, value in checkpoint.saved_settings.items():
            setattr(config, key, value)
        model.save_pretrained(folder, state_dict=state)
        config.dtype = checkpoint.saved_dtype  # else it says the type in memory
        config.save_pretrained(folder)
    finally:
        for key, value in in_memory.items():
            setattr(config, key, value)
    checkpoint.tokenizer.save_pretrained(folder)
    (folder / CHECKPOINT_FILE).write_text(provenance.as_json() + "\n", encoding="utf-8")
