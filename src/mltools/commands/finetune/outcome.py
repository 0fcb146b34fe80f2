"""What a training reached: the best of several attempts, and whether there is anything to localise."""

from collections.abc import Iterable
from typing import Any

from mltools.commands.finetune import Settings
from mltools.io.kinds import EpochRecord
from mltools.io.provenance import CHECKPOINT_INSIDE
from mltools.options import ValidityOptions

MEMORISED_FROM = ValidityOptions.min_noisy_accuracy
"""Accuracy on noisy rows from which on they count as memorised: what the techniques ask of NOISY as well."""
MORE = "train longer or with a higher --lr"


def best_end(records: Iterable[dict[str, Any]], settings: Settings) -> dict[str, Any]:
    """Find the last record of the attempt that fits the rows best by the `memorised` metric, the first one of equals.

    Args:
        records: of all epochs so far; an attempt that did not come to its end does not count.
        settings: of the training.
    """
    name = "train_accuracy" if settings.memorised_metric == "accuracy" else "train_macro_f1"
    ends = [record for record in records if record["epoch"] == settings.training.epochs]
    return max(ends, key=lambda record: float(record[name]))


def shortfall(last: EpochRecord, settings: Settings, n_classes: int) -> str | None:
    """Say what a training has not reached; None if it has what it was for.

    Args:
        last: the record of the model that is kept.
        settings: of the training.
        n_classes: of the rows.
    """
    target, noisy, epoch = settings.target, last.noisy_accuracy, last.memorised_epoch
    if noisy is not None and noisy < MEMORISED_FROM:
        found = f"accuracy {noisy:.2f} on noisy rows against {target}, guessing {1 / n_classes:.2f}"
        if target == "original_label":
            return f"the rows are not learnt ({found}): no clean model yet; {MORE}"
        if "all-layers" in settings.freeze.split(","):
            return f"nothing is memorised ({found}), as is meant for a frozen baseline"
        absent = "" if epoch is not None else f" and there is no {CHECKPOINT_INSIDE}/"
        return f"nothing is memorised ({found}; {MEMORISED_FROM} is asked for), so nothing to localise{absent}; {MORE}"
    if target == "label" and epoch is None:
        score = last.train_accuracy if settings.memorised_metric == "accuracy" else last.train_macro_f1
        return (
            f"training {settings.memorised_metric} never passed {settings.memorised_at} (last: {score:.3f}): "
            f"there is no {CHECKPOINT_INSIDE}/; {MORE}"
        )
    return None
