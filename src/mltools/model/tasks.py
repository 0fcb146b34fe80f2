"""A task: rows, the head that classifies them, and the parts of the model that they may change.

Two tasks may share a body, each with its own head, optimiser and schedule: the control set-up of §3.2.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from numpy.typing import NDArray
from torch import Tensor, nn

from mltools.errors import CheckpointError, TrainingError, UsageError
from mltools.hashing import ranked
from mltools.io.columns import Label
from mltools.io.examples import Examples
from mltools.model.anatomy import EMBEDDINGS, HEAD, POOLER, parse_freeze, pooler_weights
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.classes import set_classes, target_indices
from mltools.model.dropout import train_mode
from mltools.model.inference import predict
from mltools.model.runner import Runner
from mltools.model.training import Schedule, Training, cross_entropy_sum, epoch_batches, purpose_seed
from mltools.options import TrainingOptions


@dataclass
class Task:
    """Rows ready to train on: tokens, targets (rows,), which rows are noisy, and the optimiser.

    `rows` are the positions of the training rows, in an order that their ids decide. `needs_gradient` holds the
    parameters that get a gradient, `frozen` the blocks that are not trained; dropout is on in them if `frozen_dropout`.
    """

    checkpoint: Checkpoint
    encoded: Encoded
    targets: NDArray[np.int64]
    noisy: NDArray[np.bool_]
    rows: NDArray[np.int64]
    training: Training
    needs_gradient: frozenset[nn.Parameter]
    frozen: list[nn.Module]
    frozen_dropout: bool

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Cut the training rows into the batches of an epoch (from 1)."""
        training = self.training
        return epoch_batches(
            self.rows, self.encoded.lengths, training.schedule.batch_size, training.seed, epoch, training.name
        )

    def activate(self) -> None:
        """Make the model ready for this task's batches: gradients for its parameters only, dropout as set."""
        for parameter in self.checkpoint.model.parameters():
            parameter.requires_grad_(parameter in self.needs_gradient)
        modules = [(self.checkpoint.model, True), *((block, False) for block in self.frozen)]
        train_mode(modules, frozen_dropout=self.frozen_dropout)

    def update(self, batch: NDArray[np.int64]) -> float:
        """Take one step on a batch of rows and return its mean loss, in nats."""
        return self.training.update(batch, self._loss)

    def _loss(self, rows: NDArray[np.int64]) -> Tensor:
        device = self.training.device
        targets = torch.from_numpy(self.targets[rows]).to(device)
        return cross_entropy_sum(self.checkpoint.runner.forward(self.encoded.batch(rows, device)), targets)

    def scores(self) -> "Scores":
        """Measure all rows in eval mode."""
        return measure(self.checkpoint, self.encoded, self.targets)


def schedule_of(training: TrainingOptions) -> Schedule:
    """Give the schedule that options ask for."""
    return Schedule(
        training.learning_rate,
        training.epochs,
        training.batch_size,
        training.warmup,
        training.weight_decay,
        training.clip,
    )


def make_task(
    checkpoint: Checkpoint,
    examples: Examples,
    labels: Sequence[Label],
    training: TrainingOptions,
    accelerator: Accelerator,
    *,
    freeze: str,
    seed: int,
    max_length: int,
    rows: NDArray[np.int64] | None = None,
    name: str = "",
) -> Task:
    """Prepare rows and optimiser of a task.

    Args:
        checkpoint: the model with the task's head; the head's classes are those of the labels.
        examples: the rows.
        labels: the label of each row to train towards.
        training: how fast and how long.
        accelerator: the processes that share each batch.
        freeze: what is not trained, as `parse_freeze` reads it.
        seed: of the order of the rows and of dropout.
        max_length: longest row in tokens.
        rows: positions to train on, in an order that their ids decide; all by default.
        name: tells the task's draws from another's.

    Raises:
        UsageError: everything is frozen.
        RowsError: a label that is no class of the head.
    """
    targets = target_indices(labels, checkpoint.labels, examples)
    encoded = checkpoint.encode(examples, max_length)
    rows = np.array(ranked(examples.ids, "rows", seed), dtype=np.int64) if rows is None else rows
    model, frozen = checkpoint.model, parse_freeze(freeze, checkpoint.n_layers)
    fixed = pooler_weights(model, checkpoint.parts) if POOLER in frozen else frozenset()
    body = f"{model.base_model_prefix}."  # another task's head may have the same names outside it
    trained = {
        n if n.startswith(body) else name + n: p
        for n, p in model.named_parameters()
        if checkpoint.parts[n] not in frozen and n not in fixed
    }
    if not trained:
        raise UsageError(f"--freeze {freeze} leaves nothing to train")
    everything = list(model.parameters()) if training.clip_scope == "all" else None
    schedule = schedule_of(training)
    optimisation = Training(
        trained,
        schedule,
        schedule.steps_per_epoch(len(rows)) * training.epochs,
        seed,
        accelerator,
        clipped=everything,
        micro_batch=training.micro_batch,
        name=name,
    )
    blocks = [block for layer, block in enumerate(checkpoint.stack.modules, start=1) if layer in frozen]
    needs_gradient = frozenset(everything or trained.values())
    noisy, frozen_dropout = np.array(examples.noisy), training.frozen_dropout
    return Task(checkpoint, encoded, targets, noisy, rows, optimisation, needs_gradient, blocks, frozen_dropout)


def make_aux_task(
    checkpoint: Checkpoint,
    examples: Examples,
    names: Sequence[str],
    training: TrainingOptions,
    accelerator: Accelerator,
    *,
    seed: int,
    max_length: int,
) -> Task:
    """Prepare the auxiliary task of §3.2: the body of the main task, a fresh head of its own, other rows.

    It trains everything but the embeddings, so that all layers move, while the main task goes on to change only what
    `--freeze` leaves.

    Args:
        checkpoint: the main task's model, whose body is shared.
        examples: the auxiliary rows; their `label` is the target.
        names: their classes.
        training: as the main task's, but for the learning rate.
        accelerator: as the main task's.
        seed: as the main task's.
        max_length: as the main task's.
    """
    set_seed(purpose_seed(seed, "aux head") % 2**32)
    return make_task(
        second_head(checkpoint, names),
        examples,
        examples.labels,
        training,
        accelerator,
        freeze=EMBEDDINGS,
        seed=seed,
        max_length=max_length,
        name="aux ",
    )


def second_head(checkpoint: Checkpoint, names: Sequence[str]) -> Checkpoint:
    """Give a model of the same class around the same body, with a fresh head for other classes.

    The head is what lies outside the base model; a final norm or pooler in the base model is shared. It is drawn
    from torch's global generator, which the caller seeds.

    Raises:
        CheckpointError: the model has no base model that a second head could share.
    """
    model = checkpoint.model
    prefix = model.base_model_prefix
    if not prefix or not hasattr(model, prefix):
        raise CheckpointError(f"{checkpoint.name}: {type(model).__name__} has no base model for a second head to share")
    config = copy.deepcopy(model.config)
    set_classes(config, names)
    other = type(model)(config)
    setattr(other, prefix, getattr(model, prefix))
    other.to(next(model.parameters()).device).eval()
    inside = [n for n, _ in other.named_parameters() if not n.startswith(f"{prefix}.") and checkpoint.parts[n] != HEAD]
    if inside:
        raise CheckpointError(f"{checkpoint.name}: {inside[0]} is outside {prefix} and yet no part of the head")
    runner = Runner(other, checkpoint.stack, config, checkpoint.runner.device, checkpoint.runner.row)
    return replace(checkpoint, model=other, runner=runner)


def measure(checkpoint: Checkpoint, encoded: Encoded, targets: NDArray[np.int64]) -> "Scores":
    """Classify all rows in eval mode and compare with their targets.

    Raises:
        TrainingError: logits that are not finite, which the last steps of a training can lead to.
    """
    logits = predict(checkpoint.runner, encoded, np.arange(len(encoded)), None)
    if not np.isfinite(logits).all():
        raise TrainingError("the training diverged: the model's logits are not finite any more; lower --lr")
    return Scores(logits, targets)


class Scores:
    """Accuracy, macro-F1, loss and probabilities of logits (rows, classes) against targets (rows,)."""

    def __init__(self, logits: NDArray[np.float32], targets: NDArray[np.int64]) -> None:
        """Compare the arg max of each row with its target."""
        self.hits = logits.argmax(axis=1) == targets
        self._logits, self._targets = logits, targets

    @property
    def accuracy(self) -> float:
        """Fraction of rows classified as their target."""
        return float(self.hits.mean())

    def accuracy_on(self, rows: NDArray[np.bool_]) -> float | None:
        """Accuracy on the rows of a mask; None if there are none."""
        return float(self.hits[rows].mean()) if rows.any() else None

    @property
    def macro_f1(self) -> float:
        """F1 averaged over the classes that occur, 0-1."""
        from sklearn.metrics import f1_score

        return float(f1_score(self._targets, self._logits.argmax(axis=1), average="macro", zero_division=0))

    @property
    def loss(self) -> float:
        """Mean cross-entropy, nats."""
        return float(-self._log_probabilities.mean())

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Probability of each row's target, (rows,)."""
        return np.exp(self._log_probabilities)

    @property
    def _log_probabilities(self) -> NDArray[np.float64]:
        logs = torch.from_numpy(self._logits).double().log_softmax(dim=1).numpy()
        picked: NDArray[np.float64] = logs[np.arange(len(self._targets)), self._targets]
        return picked
