"""Whether two checkpoints fit each other: shapes, classes, blocks and tokenizer."""

from mltools.errors import CheckpointError
from mltools.io.rows import json_preview
from mltools.model.checkpoint import Checkpoint


def check_same(noisy: Checkpoint, other: Checkpoint) -> None:
    """Check that blocks can go from one checkpoint to the other: shapes, classes and tokenizer are the same.

    Raises:
        CheckpointError: names the first difference.
    """
    names = f"{noisy.name} and {other.name}"
    mine = {n: tuple(p.shape) for n, p in noisy.model.named_parameters()}
    theirs = {n: tuple(p.shape) for n, p in other.model.named_parameters()}
    differ = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    if noisy.labels != other.labels:
        raise CheckpointError(f"{names} differ in their classes: {noisy.labels} and {other.labels}")
    if differ:
        key = differ[0]
        shapes = f"{mine.get(key, 'absent')} and {theirs.get(key, 'absent')}"
        raise CheckpointError(f"{names} differ in {len(differ)} weights: {key} is {shapes}")
    if noisy.stack.path != other.stack.path:
        raise CheckpointError(f"{names} keep their blocks at {noisy.stack.path} and {other.stack.path}")
    check_same_tokenizer(noisy, other)


def check_same_tokenizer(noisy: Checkpoint, other: Checkpoint) -> None:
    """Check that two checkpoints cut text into the same tokens.

    Raises:
        CheckpointError: vocabularies or special tokens differ; names the first difference.
    """
    mine, theirs = noisy.tokenizer.get_vocab(), other.tokenizer.get_vocab()
    if mine != theirs:
        token = next(each for each in sorted(mine.keys() | theirs.keys()) if mine.get(each) != theirs.get(each))
        raise CheckpointError(
            f"{noisy.name} and {other.name} have other tokenizers: {json_preview(token)} is token "
            f"{mine.get(token, 'absent')} and {theirs.get(token, 'absent')}"
        )
    probe = "Is 3.5 km far? Él said: «no»!"
    if noisy.tokenizer(probe)["input_ids"] != other.tokenizer(probe)["input_ids"]:
        raise CheckpointError(f"{noisy.name} and {other.name} have tokenizers that cut text in other places")
