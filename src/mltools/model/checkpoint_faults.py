"""What makes a checkpoint unusable: weights missing, unexpected, of another shape or not finite; its classes."""

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import align_module_device
from torch import Tensor, nn

from mltools import console
from mltools.errors import CheckpointError
from mltools.io.rows import json_preview
from mltools.model.anatomy import HEAD, POOLER
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_files import FLOATS

SINGLE_LABEL = "single_label_classification"


def weight_faults(checkpoint: Checkpoint, info: dict[str, Any], fresh: bool) -> Iterator[str]:
    """Say what makes the weights unusable.

    Args:
        checkpoint: as loaded.
        info: what transformers says of loading it: missing, unexpected and mismatched weights.
        fresh: whether a fresh head is wanted, so that its own may be missing or of another size.
    """

    def counts(key: str) -> bool:
        return not fresh or checkpoint.parts.get(key, HEAD) != HEAD

    missing = [key for key in sorted(info["missing_keys"]) if counts(key)]
    if fresh and not missing and _looks_untrained(info, checkpoint):
        missing = sorted(info["missing_keys"])
    shapes = {key: (tuple(stored), tuple(wanted)) for key, stored, wanted in info["mismatched_keys"] if counts(key)}
    mismatched = [f"{key} is {shapes[key][0]}, not {shapes[key][1]}" for key in sorted(shapes)]
    unexpected = sorted(info["unexpected_keys"])
    stale = [key for key in unexpected if _is_stale(key, checkpoint)]
    if stale:
        console.log(
            f"{checkpoint.name}: {len(stale)} tensors that no class uses any more are passed over ({stale[0]})", 1
        )
    unexpected = [key for key in unexpected if key not in stale]
    if fresh and not missing:
        unexpected = [key for key in unexpected if _of_a_block(key, checkpoint.stack.path)]
    for what, keys in (("missing", missing), ("of another shape", mismatched), ("not expected", unexpected)):
        if keys:
            hint = _prefix_hint(sorted(info["missing_keys"]), sorted(info["unexpected_keys"]))
            yield f"{len(keys)} weights are {what} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''}){hint}"
    bad = [name for name, weight in weights(checkpoint.model) if not is_finite(weight)]
    if bad:
        yield f"{len(bad)} weights hold NaN or infinity (first: {bad[0]})"


def is_finite(weight: Tensor) -> bool:
    """Whether all numbers are finite: their sum tells in one pass, unless it alone is too large."""
    return bool(weight.sum().isfinite()) or bool(torch.isfinite(weight).all())


def weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's parameters by name; those that stay on disk are read one module at a time."""
    for path, module in model.named_modules():
        with align_module_device(module):
            yield from module.named_parameters(prefix=path, recurse=False)


def check_classes(checkpoint: Checkpoint) -> None:
    """Check that the head chooses one of two classes or more, each named once.

    Raises:
        CheckpointError: there are not.
    """
    labels = checkpoint.labels
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise CheckpointError(f"{checkpoint.name}: config.json names two classes {json_preview(twice)}")
    if len(labels) < 2:
        raise CheckpointError(f"{checkpoint.name}: one output only; a classifier needs two classes")
    kind = getattr(checkpoint.model.config, "problem_type", None)
    if kind not in (None, SINGLE_LABEL):
        raise CheckpointError(
            f"{checkpoint.name}: config.json says problem_type {json_preview(kind)}, but one class a row is read from "
            f'a head; if this one chooses a single class, write "{SINGLE_LABEL}" there'
        )


def _is_stale(key: str, checkpoint: Checkpoint) -> bool:
    """Whether a tensor is a buffer of an older release (a mask, positions, a constant), or a pooler without a use."""
    tensor = checkpoint.stored.get(key)
    buffers = dict(checkpoint.model.named_buffers())
    is_buffer = any(name == key or name.endswith(f".{key}") for name in buffers)
    is_mask = tensor is not None and (tensor.kind not in FLOATS or tensor.shape[:2] == (1, 1) or not tensor.shape)
    return is_buffer or is_mask or POOLER in key.split(".")


def _of_a_block(key: str, path: str) -> bool:
    """Whether an unexpected weight is that of a block, whether or not the base model's prefix is on it."""
    return any(key.startswith(f"{tail}.") for tail in (path, path.partition(".")[2]) if tail)


def _looks_untrained(info: dict[str, Any], checkpoint: Checkpoint) -> bool:
    """Whether nothing but fresh weights is there: every parameter is missing."""
    return len(info["missing_keys"]) >= len(checkpoint.parts)


def _prefix_hint(missing: list[str], unexpected: list[str]) -> str:
    """If unexpected keys are the missing ones under another prefix, say which."""
    for key in missing:
        for other in unexpected:
            if other.endswith("." + key):
                return f'; the file has them with "{other[: -len(key)]}" in front: rename them'
            if key.endswith("." + other):
                return f'; the file has them without "{key[: -len(other)]}" in front: rename them'
            tail = key.partition(".")[2]
            if tail and other.endswith("." + tail):
                return f'; the file has "{other}" where "{key}" is wanted: rename them'
    return ""
