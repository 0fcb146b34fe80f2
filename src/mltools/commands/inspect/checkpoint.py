"""Look at a checkpoint, or at the difference of two: where the layers are, what is in them, how it was made."""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mltools.io.kinds import CheckpointRecord, DifferenceRecord, PartOfCheckpoint
from mltools.io.provenance import CHECKPOINT_FILE
from mltools.model.anatomy import BLOCK_PARTS, EMBEDDINGS, HEAD, block_parts
from mltools.model.checkpoint import NO_LIMIT, Checkpoint
from mltools.model.checkpoint_files import stored_types
from mltools.model.checkpoint_loading import examine_checkpoint

Tensors = Mapping[str, Tensor]
N = TypeVar("N", int, float)
TRAINER_STATE = "trainer_state.json"


def inspect(name: str, blocks: str | None = None, layers: Collection[int] | None = None) -> CheckpointRecord:
    """Look at one checkpoint; a head may be missing, and weights may be unusable.

    Args:
        name: a folder or hub repository.
        blocks: module path of the block list, where the model does not decide.
        layers: whose parts to give; None is all, with embeddings and head.

    Raises:
        NotFoundError, CheckpointError: it cannot be opened at all.
    """
    checkpoint, faults = examine_checkpoint(name, blocks)
    limit = checkpoint.limit(NO_LIMIT)
    parts = list(_parts(checkpoint))
    trainer = read_object(checkpoint.folder / TRAINER_STATE) or {}
    finite = not any(part.not_finite for part in parts)
    return CheckpointRecord(
        tool="inspect",
        path=name,
        model_class=type(checkpoint.model).__name__,
        block_path=checkpoint.stack.path,
        block_class=type(checkpoint.stack.modules[0]).__name__,
        layers=checkpoint.n_layers,
        width=checkpoint.width,
        head=not checkpoint.fresh,
        class_names=checkpoint.labels if not checkpoint.fresh else [],
        pooled_position=checkpoint.runner.pooling if finite else None,
        weights=sum(part.weights for part in parts),
        weights_type=", ".join(stored_types(checkpoint.folder, name)),
        tokens=len(checkpoint.tokenizer),
        longest=limit if limit < NO_LIMIT else None,
        faults=faults,
        parts=[part for part in parts if layers is None or part.layer in layers],
        provenance=read_object(checkpoint.folder / CHECKPOINT_FILE),
        step=_number(trainer.get("global_step"), int),
        best_metric=_number(trainer.get("best_metric"), float),
    )


def _number(value: Any, kind: type[N]) -> N | None:
    return kind(value) if type(value) in (int, float) and math.isfinite(value) else None


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object that may be there, of how a checkpoint was made; None if it is not."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _grouped(checkpoint: Checkpoint) -> dict[int | None, dict[str, Tensor]]:
    """Sort the weights that came from the checkpoint's files into embeddings (0), layers 1..L and head (None)."""
    order = (*range(checkpoint.n_layers + 1), None)
    groups: dict[int | None, dict[str, Tensor]] = {layer: {} for layer in order}
    for name, parameter in checkpoint.model.named_parameters():
        if name not in checkpoint.fresh:
            part = checkpoint.parts[name]
            groups[0 if part == EMBEDDINGS else None if part == HEAD else int(part)][name] = parameter.detach()
    return {layer: tensors for layer, tensors in groups.items() if tensors}


def _parts(checkpoint: Checkpoint) -> Iterator[PartOfCheckpoint]:
    own = block_parts(checkpoint.stack)
    for layer, tensors in _grouped(checkpoint).items():
        counts = _counts(tensors, own) if layer and own is not None else {}
        l2 = math.hypot(*(float(torch.linalg.vector_norm(t, dtype=torch.float64)) for t in tensors.values()))
        finite = math.isfinite(l2)  # the model is in float32, whose squares float64 holds
        bad = 0 if finite else _not_finite(tensors.values())
        yield PartOfCheckpoint(
            layer=layer,
            weights=sum(tensor.numel() for tensor in tensors.values()),
            attn=counts.get("attn"),
            mlp=counts.get("mlp"),
            norm=counts.get("norm"),
            l2=l2 if finite else None,
            largest=max(max(map(abs, map(float, t.aminmax()))) for t in tensors.values()) if finite else None,
            not_finite=bad,
        )


def _counts(tensors: Tensors, own: Mapping[str, str]) -> dict[str, int]:
    return {part: sum(t.numel() for name, t in tensors.items() if own[name] == part) for part in BLOCK_PARTS}


def _not_finite(tensors: Iterable[Tensor]) -> int:
    return sum(int((~torch.isfinite(tensor)).sum()) for tensor in tensors)


def _dot(left: Tensors, right: Tensors) -> float:
    """Sum the products of two sets of tensors, as one vector each, in float64."""
    return sum(float((left[name].double() * right[name].double()).sum()) for name in left)


def compare(
    name: str, other: str, blocks: str | None = None, layers: Collection[int] | None = None
) -> Iterator[DifferenceRecord]:
    """Compare two checkpoints layer by layer; yields the embeddings, the layers from 1, the head.

    Args:
        name: checkpoint A.
        other: checkpoint B; weights are compared by their names.
        blocks: module path of the block list, where a model does not decide.
        layers: which layers; None is all, with embeddings and head.

    Raises:
        NotFoundError, CheckpointError: one of them cannot be opened at all.
    """
    first, _ = examine_checkpoint(name, blocks)
    second, _ = examine_checkpoint(other, blocks)
    left, right = _grouped(first), _grouped(second)
    for layer in dict.fromkeys((*left, *right)):
        if layers is not None and layer not in layers:
            continue
        a, b = left.get(layer, {}), right.get(layer, {})
        both = [key for key in a if key in b and a[key].shape == b[key].shape]
        equal = [key for key in both if torch.equal(a[key], b[key])]
        distance, cosine, gap = _distance({key: a[key] for key in both}, {key: b[key] for key in both})
        yield DifferenceRecord(
            tool="inspect",
            path=name,
            other=other,
            layer=layer,
            layers=first.n_layers,
            distance=distance,
            cosine=cosine,
            equal=equal,
            different=[key for key in both if key not in equal],
            unmatched=sorted({*a, *b} - {*both}),
            score=gap if layer and both else None,
            not_finite=_not_finite(a[key] for key in both) if gap is None else 0,
            other_not_finite=_not_finite(b[key] for key in both) if gap is None else 0,
        )


def _distance(a: Tensors, b: Tensors) -> tuple[float | None, float | None, float | None]:
    """Give relative distance, cosine and distance of two sets of tensors; None where a norm is 0 or not finite."""
    norm_a, norm_b, product = math.sqrt(_dot(a, a)), math.sqrt(_dot(b, b)), _dot(a, b)
    gap = math.sqrt(sum(float(((b[key].double() - a[key].double()) ** 2).sum()) for key in a))
    distance = gap / norm_a if norm_a else None
    cosine = max(-1.0, min(1.0, product / (norm_a * norm_b))) if norm_a and norm_b else None
    finite = math.isfinite(gap) and math.isfinite(norm_a) and math.isfinite(norm_b)
    return (distance, cosine, gap) if finite else (None, None, None)
