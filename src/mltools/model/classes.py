"""Labels of rows as classes of a checkpoint: names, and indices of the logits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltools.errors import RowsError, UsageError
from mltools.io.columns import Label
from mltools.io.examples import Examples
from mltools.io.rows import json_preview
from mltools.model.checkpoint import Checkpoint


def target_indices(labels: Sequence[Label], names: Sequence[str], where: Examples) -> NDArray[np.int64]:
    """Turn row labels into class indices: by name if all are names, else integers as indices.

    Args:
        labels: one label a row.
        names: class names of the checkpoint, in the order of the logits.
        where: the rows, for messages.

    Raises:
        RowsError: a label that is no class of the checkpoint.
    """
    index = {name: i for i, name in enumerate(names)}
    texts = {label: str(label) for label in set(labels)}
    unknown = [label for label, text in texts.items() if text not in index]
    if not unknown:
        return np.array([index[texts[label]] for label in labels], dtype=np.int64)
    if all(isinstance(label, int) and 0 <= label < len(names) for label in texts) and len(unknown) == len(texts):
        return np.array(labels, dtype=np.int64)
    row = next(i for i, label in enumerate(labels) if label in unknown)
    raise RowsError(
        f"{where.source.name}: label {json_preview(unknown[0])} (row id {json_preview(where.ids[row])}) is no class of "
        f"the checkpoint ({', '.join(names[:8])}{', …' if len(names) > 8 else ''})"
        + ("; name them with --classes" if list(names) == unnamed(len(names)) else "")
    )


def name_classes(checkpoint: Checkpoint, names: Sequence[str]) -> None:
    """Give a checkpoint that only knows LABEL_0, LABEL_1, … the names of its classes, in the order of the logits.

    Raises:
        UsageError: it has other names already, not as many classes, or a name comes twice.
    """
    own = checkpoint.labels
    if len(names) != len(own) or len(set(names)) < len(names):
        raise UsageError(f"--classes {','.join(names)}: {checkpoint.name} has {len(own)} classes; name each once")
    if own not in (list(names), unnamed(len(own))):
        raise UsageError(f"--classes: {checkpoint.name} names its classes already ({', '.join(own[:8])}); leave it out")
    set_classes(checkpoint.model.config, names)


def set_classes(config: Any, names: Sequence[str]) -> None:
    """Say in a configuration which classes there are, in the order of the logits."""
    config.num_labels = len(names)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: i for i, name in enumerate(names)}


def unnamed(n: int) -> list[str]:
    """Give what transformers calls n classes that nobody named."""
    return [f"LABEL_{i}" for i in range(n)]


def class_names(examples: Examples) -> list[str]:
    """Name the classes of training rows, in the order of names that came with them, else sorted: a head's `id2label`.

    Raises:
        RowsError: fewer than two classes.
    """
    vocabulary = examples.vocabulary()
    named = examples.names is not None and {*vocabulary} <= {*examples.names}
    names = list(examples.names or ()) if named else [str(label) for label in vocabulary]
    if len(vocabulary) < 2:
        raise RowsError(f"{examples.source.name}: one class only ({names[0]}); a classifier needs two")
    return names
