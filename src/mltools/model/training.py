"""The one training loop: AdamW, linear warm-up and decay, clipping, one step at a time (released-code §1.4).

Everything random is a function of (seed, purpose, epoch or step): the order of rows, dropout, a fresh head.
So a run can stop after any step and go on bit-exactly, and two runs with one seed share batches.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from mltools.errors import TrainingError
from mltools.processes import believed

GROUP = 50
"""Batches among which rows are grouped by length: padding falls, and the order stays random."""

Loss = Callable[[NDArray[np.int64]], Tensor]
"""Rows to their summed cross-entropy, with gradients."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    learning_rate: float
    epochs: int
    batch_size: int
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0

    def steps_per_epoch(self, n_rows: int) -> int:
        """Number of batches that n rows make."""
        return math.ceil(n_rows / self.batch_size)


def purpose_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Derive an independent 63-bit seed for one purpose, e.g. ("dropout", step)."""
    sequence = np.random.SeedSequence([seed, crc32(purpose.encode()), *numbers])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def epoch_batches(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int, name: str = ""
) -> list[NDArray[np.int64]]:
    """Cut the rows into this epoch's batches: a random order, rows of like length together, each row once.

    Args:
        rows: positions of the training rows, in an order that does not depend on the file (by their ids).
        lengths: length in tokens of every position.
        batch_size: rows in a batch; the last may be shorter.
        seed: of the run.
        epoch: from 1.
        name: of the training, where a run has more than one.
    """
    generator = np.random.default_rng(purpose_seed(seed, f"{name}order", epoch))
    order = generator.permutation(rows)
    pool = batch_size * GROUP
    grouped = [
        chunk[np.argsort(lengths[chunk], kind="stable")]
        for chunk in (order[start : start + pool] for start in range(0, len(order), pool))
    ]
    sorted_rows = np.concatenate(grouped)
    batches = [sorted_rows[start : start + batch_size] for start in range(0, len(sorted_rows), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]


class Training:
    """An optimiser with its schedule, whose whole state is (step, weights, moments)."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        schedule: Schedule,
        total_steps: int,
        seed: int,
        accelerator: Accelerator,
        *,
        clipped: Sequence[nn.Parameter] | None = None,
        micro_batch: int | None = None,
        name: str = "",
    ) -> None:
        """Prepare to train `parameters` by name.

        Args:
            parameters: what the optimiser gets.
            schedule: how fast.
            total_steps: of the whole run.
            seed: of the run.
            accelerator: the processes that share each batch.
            clipped: the parameters whose gradient norm is clipped; those trained by default.
            micro_batch: rows at once, where a batch does not fit.
            name: tells its draws and its moments from those of another training of the same weights.
        """
        self.parameters = parameters
        self.name = name
        self.schedule = schedule
        self.total_steps = total_steps
        self.seed = seed
        self.step = 0
        self.accelerator = accelerator
        self.micro_batch = micro_batch
        self.device = next(iter(parameters.values())).device
        self._clipped = list(clipped) if clipped is not None else list(parameters.values())
        self._optimiser = torch.optim.AdamW(
            list(parameters.values()),
            lr=schedule.learning_rate,
            weight_decay=schedule.weight_decay,
            fused=self.device.type in ("cpu", "cuda"),
        )
        self._stepper: Any = accelerator.prepare_optimizer(self._optimiser)

    def rate(self, step: int | None = None) -> float:
        """Learning rate of a step (from 0; the next one by default): up over the warm-up, then down to 0."""
        step = self.step if step is None else step
        warmup = int(self.schedule.warmup * self.total_steps)
        if step < warmup:
            return self.schedule.learning_rate * step / max(1, warmup)
        left = (self.total_steps - step) / max(1, self.total_steps - warmup)
        return self.schedule.learning_rate * max(0.0, left)

    def update(self, rows: NDArray[np.int64], loss: Loss) -> float:
        """Take one step on a batch and return its mean loss.

        Args:
            rows: the batch.
            loss: gives the summed loss of some rows; the mean is over the whole batch however it is cut.

        Raises:
            TrainingError: the loss or the gradient norm is not finite; no weight has changed then.
        """
        torch.manual_seed(purpose_seed(self.seed, f"{self.name}dropout", self.step, self.accelerator.process_index))
        size = self.micro_batch or len(rows)
        total = torch.zeros((), device=self.device)
        share = self._own(rows)
        for start in range(0, len(share), size):
            with self.accelerator.autocast():
                part = loss(share[start : start + size]) / len(rows)
            self.accelerator.backward(part * self.accelerator.num_processes)
            total += part.detach()
        self._average_gradients()
        value = float(self.accelerator.reduce(total, "sum"))
        if not math.isfinite(value):
            raise TrainingError(f"loss is {value} at step {self.step + 1}")
        self.accelerator.clip_grad_norm_(self._clipped, self.schedule.clip)
        for group in self._optimiser.param_groups:
            group["lr"] = self.rate()
        self._stepper.step()
        self._optimiser.zero_grad(set_to_none=True)
        for parameter in self._clipped:
            parameter.grad = None
        self.step += 1
        return value

    def _own(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of a batch that this process computes: every n-th of them."""
        return rows[self.accelerator.process_index :: self.accelerator.num_processes]

    def _average_gradients(self) -> None:
        """Average each gradient over the processes; a parameter that none of them used keeps having none."""
        if self.accelerator.num_processes == 1:
            return
        own = torch.tensor([float(p.grad is not None) for p in self._clipped], device=self.device)
        used = self.accelerator.reduce(own, "sum").tolist()
        for parameter, count in zip(self._clipped, used, strict=True):
            if count:
                gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
                parameter.grad = self.accelerator.reduce(gradient, "mean")

    def state(self) -> dict[str, Tensor]:
        """Give weights and moments as tensors by name; with `step` that is all there is to the state.

        Trainings that share weights name them alike, and their moments by the training.
        """
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            tensors[f"weight/{name}"] = parameter.detach()
            for key in ("exp_avg", "exp_avg_sq"):
                moment = self._optimiser.state[parameter].get(key) if parameter in self._optimiser.state else None
                if moment is not None:
                    tensors[f"{self.name}{key}/{name}"] = moment
        return tensors

    def restore(self, step: int, tensors: Callable[[str], Tensor | None]) -> None:
        """Take up a state that `state` gave; `tensors` finds a tensor by name."""
        self.step = step
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                weight = tensors(f"weight/{name}")
                if weight is None:
                    raise TrainingError(f"the saved state lacks {name}")
                parameter.copy_(weight)
                moments = {key: tensors(f"{self.name}{key}/{name}") for key in ("exp_avg", "exp_avg_sq")}
                if all(moment is not None for moment in moments.values()):
                    self._optimiser.state[parameter] = {
                        "step": torch.tensor(float(step), device=parameter.device if self._fused else None),
                        **{key: m.to(parameter.device).clone() for key, m in moments.items() if m is not None},
                    }

    @property
    def _fused(self) -> bool:
        return bool(self._optimiser.defaults.get("fused"))


def run_epoch(
    training: Training, batches: Sequence[NDArray[np.int64]], loss: Loss, skip: int = 0
) -> Iterator[tuple[int, float]]:
    """Train on an epoch's batches from batch `skip` on; yields (rows in the batch, its mean loss) after each."""
    for batch in batches[skip:]:
        yield len(batch), training.update(batch, loss)


def accelerator_for(device: torch.device, precision: str, *, shared: bool = False) -> Accelerator:
    """Build the accelerator for a device and a precision (`fp32`, `bf16`, `fp16`).

    Args:
        device: where to train.
        precision: of the forward and backward passes.
        shared: whether the processes of a launcher share each batch; else this one trains alone, whatever the
            environment says.
    """
    mixed = {"fp32": "no"}.get(precision, precision)
    with believed(shared):
        return Accelerator(cpu=device.type == "cpu", mixed_precision=mixed)


def cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum the cross-entropy of logits (batch, classes) in float32, nats."""
    return nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
