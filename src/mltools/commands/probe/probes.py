"""Training many small classifiers at once: one probe a (layer, seed, target), stacked into batched products.

A probe drops out inputs, then has hidden layers with GELU and a softmax (§3.1, released code §1.8). What is random is
a function of the probe's seed alone: weights at the start, dropout masks, the order of batches. So a probe is
the same however many others are trained beside it, and probes of one seed differ in their layer and target only.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adamw import adamw

from mltools.commands.probe import Settings
from mltools.model.training import purpose_seed
from mltools.spec import bare

DEFAULTS = bare(Settings)

Ints = NDArray[np.int64]
Progress = Callable[[Iterator[int], int], Iterator[int]]

MASK_STEPS = 32
"""Steps whose dropout masks are drawn at once."""
EVALUATION_ROWS = 256
KEPT_BYTES = 64 << 20
"""Inputs of batches that are gathered once, not in every epoch."""
NARROW = 16
"""Columns up to which the product that has them is slower than its transpose."""
CPU_BYTES = 6 << 20
"""Weights, gradients and moments of probes trained at once on a CPU: what its caches hold."""
ACCELERATOR_BYTES = 4 << 30


@dataclass(frozen=True)
class Target:
    """What probes predict: a class index for each row, (n,).

    `names` and `weights` are of the classes, weights in the loss. `positive` is the class whose F1 counts; None
    averages the F1 of all classes.
    """

    names: tuple[str, ...]
    labels: Ints
    weights: tuple[float, ...]
    positive: int | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.weights)


@dataclass(frozen=True)
class Split:
    """The rows that a seed's probes train on (in the order of their batches), choose by, and are tested on."""

    seed: int
    train: Ints
    validation: Ints
    test: Ints


@dataclass(frozen=True)
class Job:
    """One probe: a layer (index into the states), a split and a target (indices into their lists)."""

    layer: int
    split: int
    target: int


class Diverged(Exception):
    """A probe whose weights or outputs are not finite any more: there is no prediction to speak of."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"probe of {job}")
        self.job = job


def train_probes(
    states: Tensor,
    splits: Sequence[Split],
    targets: Sequence[Target],
    jobs: Sequence[Job],
    settings: Settings = DEFAULTS,
    progress: Progress | None = None,
) -> Ints:
    """Train one probe a job and give its predictions for the test rows, (jobs, test rows), as class indices.

    Args:
        states: (layers, n, width), float32, on the device to train on.
        splits: of equal sizes.
        targets: what is predicted.
        jobs: the probes to train.
        settings: schedule and shape of a probe.
        progress: wraps the epochs of all groups of probes, to show progress.

    Raises:
        Diverged: at the first probe that does.
    """
    result = np.empty((len(jobs), len(splits[0].test)), dtype=np.int64)
    groups = _groups(jobs, states, targets, settings)
    done = _train_groups(states, splits, targets, jobs, groups, settings, result)
    for _ in progress(done, len(groups) * settings.epochs) if progress else done:
        pass
    return result


def _train_groups(
    states: Tensor,
    splits: Sequence[Split],
    targets: Sequence[Target],
    jobs: Sequence[Job],
    groups: Sequence[Sequence[int]],
    settings: Settings,
    result: Ints,
) -> Iterator[int]:
    for group in groups:
        stack = ProbeStack(states, splits, targets, [jobs[i] for i in group], settings)
        yield from stack.train()
        result[np.array(group)] = stack.test()


def _groups(jobs: Sequence[Job], states: Tensor, targets: Sequence[Target], settings: Settings) -> list[list[int]]:
    """Cut the jobs into groups to train at once, by seed, so that a group shares batches and masks."""
    inner = settings.hidden_width * (settings.hidden_width + 1) * (settings.hidden_layers - 1)
    outer = settings.hidden_width * (states.shape[2] + 2 + max(t.n_classes for t in targets))
    room = CPU_BYTES if states.device.type == "cpu" else ACCELERATOR_BYTES
    size = max(1, room // (16 * (inner + outer)))
    order = sorted(range(len(jobs)), key=lambda i: (jobs[i].split, jobs[i].layer, jobs[i].target))
    by_seed: dict[int, list[int]] = {}
    for i in order:
        by_seed.setdefault(jobs[i].split if states.device.type == "cpu" else 0, []).append(i)
    return [
        part.tolist()
        for members in by_seed.values()
        for part in np.array_split(np.array(members), math.ceil(len(members) / size))
    ]


class ProbeStack:
    """A group of probes trained together: P probes of S splits, batches of B rows, states of width d."""

    def __init__(
        self,
        states: Tensor,
        splits: Sequence[Split],
        targets: Sequence[Target],
        jobs: Sequence[Job],
        settings: Settings,
    ) -> None:
        used = sorted({job.split for job in jobs})
        self.settings, self.device, self.jobs = settings, states.device, jobs
        self.states = states.reshape(-1, states.shape[2])  # (layers x n, d)
        self.splits = [splits[i] for i in used]
        self.targets = [targets[job.target] for job in jobs]
        self.owners = [used.index(job.split) for job in jobs]
        self.owner = self._tensor(self.owners)  # (P,), index into the splits
        self.layer_start = self._tensor([job.layer * states.shape[1] for job in jobs])[:, None]  # (P, 1)
        self.n_classes = max(target.n_classes for target in self.targets)
        self.positive = self._tensor([-1 if t.positive is None else t.positive for t in self.targets])
        absent = np.arange(self.n_classes) >= np.array([[target.n_classes] for target in self.targets])
        self.absent = torch.from_numpy(absent).to(self.device)[:, None]  # (P, 1, classes)
        self.some_absent = bool(absent.any())
        self.kept: dict[int, Tensor] = {}  # inputs of batches
        self._lay_out_batches()
        self._draw_weights()

    def _tensor(self, values: Sequence[int] | Ints) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(self.device)

    def _lay_out_batches(self) -> None:
        """Cut the training rows into batches, and weigh what each probe has to say of them.

        Batches stay the same, only their order changes from epoch to epoch (as released). The last is filled up
        with rows that count nothing.
        """
        n, size = len(self.splits[0].train), self.settings.step_rows
        self.n_batches = math.ceil(n / size)
        rows = np.stack([np.resize(split.train, self.n_batches * size) for split in self.splits])
        wanted = np.zeros((len(self.targets), rows.shape[1], self.n_classes), dtype=np.float32)
        for probe, (target, owner) in enumerate(zip(self.targets, self.owners, strict=True)):
            labels = target.labels[rows[owner]]
            wanted[probe, np.arange(rows.shape[1]), labels] = np.take(target.weights, labels)
        wanted[:, n:] = 0
        self.rows = self._tensor(rows).view(len(self.splits), self.n_batches, size)
        shaped = torch.from_numpy(wanted).to(self.device).view(len(self.targets), self.n_batches, size, -1)
        self.wanted = shaped / shaped.sum(dim=(2, 3), keepdim=True)  # (P, batches, B, classes), a batch sums to 1

    def _draw_weights(self) -> None:
        """Draw the first weights, as PyTorch does a linear layer's. One tensor holds all, one all gradients."""
        settings = self.settings
        sizes = [self.states.shape[1]] + [settings.hidden_width] * settings.hidden_layers + [self.n_classes]
        shapes = [shape for i, o in pairwise(sizes) for shape in ((i, o), (1, o))]
        lengths = [len(self.targets) * i * o for i, o in shapes]
        # weights, their gradients, and the two moments of AdamW
        self.flat, self.gradient, *self.moments = (torch.zeros(sum(lengths), device=self.device) for _ in range(4))
        self.steps = torch.zeros((), device=self.device)

        def views(flat: Tensor) -> list[Tensor]:
            return [part.view(-1, *s) for part, s in zip(torch.split(flat, lengths), shapes, strict=True)]

        self.weights, self.gradients = views(self.flat), views(self.gradient)  # weight, bias of each layer in turn
        for probe, (target, owner) in enumerate(zip(self.targets, self.owners, strict=True)):
            generator = _generator(self.splits[owner].seed, "probe weights")
            for index, (inputs, outputs) in enumerate(shapes):
                bound = 1 / math.sqrt(shapes[index - index % 2][0])
                outputs = min(outputs, target.n_classes) if index >= len(shapes) - 2 else outputs
                drawn = torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)
                self.weights[index][probe, :, :outputs] = drawn
        # what enters each linear layer in a step, and the sums that the hidden ones make of it
        shape = len(self.targets), settings.step_rows
        self.entering = [torch.empty(*shape, size, device=self.device) for size in sizes[:-1]]
        self.sums = [torch.empty(*shape, size, device=self.device) for size in sizes[1:-1]]
        self.best = [weight.clone() for weight in self.weights]
        self.best_score = torch.zeros(len(self.targets), device=self.device, dtype=torch.float64)

    @torch.no_grad()
    def train(self) -> Iterator[int]:
        """Train, yielding the number of each epoch after it, and keep each probe's best weights."""
        masks = self.masks()
        orders = [np.random.default_rng(purpose_seed(split.seed, "probe batches")) for split in self.splits]
        probes = torch.arange(len(self.targets), device=self.device)[:, None]
        for epoch in range(1, self.settings.epochs + 1):
            order = np.stack([generator.permutation(self.n_batches) for generator in orders])
            wanted = self.wanted[probes, self._tensor(order)[self.owner]]  # (P, batches, B, classes)
            weight = wanted.sum(dim=3, keepdim=True)
            for step, batch in enumerate(order.T):
                self._step(self._batch(batch), wanted[:, step], weight[:, step], next(masks))
            if not math.isfinite(self.flat.sum()):  # no number that is not finite hides in a sum
                self._check(
                    torch.stack([weight.isfinite().flatten(1).all(dim=1) for weight in self.weights]).all(dim=0)
                )
            if epoch > self.settings.select_after:
                self._keep_best()
            yield epoch
        better = (self.best_score > 0)[:, None, None]  # a probe that never scored keeps its last weights
        self.best = [torch.where(better, best, last) for best, last in zip(self.best, self.weights, strict=True)]

    def _batch(self, batch: Ints) -> Tensor:
        """Give the inputs of a batch of each split, (S,), an index: (P, B, d). Those of a single split are kept."""
        key = int(batch[0])
        if key in self.kept:
            return self.kept[key]
        rows = self.rows[torch.arange(len(self.splits), device=self.device), self._tensor(batch)][self.owner]
        inputs = self._inputs(rows + self.layer_start)
        if len(self.splits) == 1 and (len(self.kept) + 1) * inputs.nbytes <= KEPT_BYTES:
            self.kept[key] = inputs
        return inputs

    def masks(self) -> Iterator[Tensor]:
        """Yield each step's dropout mask, scaled: (1 or P, B, d)."""
        generators = [_generator(split.seed, "probe dropout") for split in self.splits]
        shape, rate = (MASK_STEPS, self.settings.step_rows, self.states.shape[1]), self.settings.dropout
        while True:
            drawn = [torch.rand(shape, generator=generator).ge_(rate).div_(1 - rate) for generator in generators]
            if len(drawn) == 1:
                yield from drawn[0].to(self.device)[:, None]
            else:
                yield from (mask[self.owner] for mask in torch.stack(drawn, dim=1).to(self.device))

    def _step(self, inputs: Tensor, wanted: Tensor, weight: Tensor, mask: Tensor) -> None:
        """Take one step: the gradient of the weighted mean cross-entropy, worked out by hand, then AdamW.

        Args:
            inputs: (P, B, d), states.
            wanted: (P, B, classes), the weight of a row at its class.
            weight: (P, B, 1), the weight of a row.
            mask: (1 or P, B, d).
        """
        entering, sums = self.entering, self.sums
        torch.mul(inputs, mask, out=entering[0])
        for layer, total in enumerate(sums):
            torch.baddbmm(self.weights[2 * layer + 1], entering[layer], self.weights[2 * layer], out=total)
            torch.ops.aten.gelu.out(total, out=entering[layer + 1])
        change = self._logits(entering[-1], self.weights).softmax(dim=2).mul_(weight).sub_(wanted)
        for layer in reversed(range(len(entering))):
            self._multiply_transposed(entering[layer], change, self.gradients[2 * layer])
            torch.sum(change, dim=1, keepdim=True, out=self.gradients[2 * layer + 1])
            if layer:
                below = torch.bmm(change, self.weights[2 * layer].transpose(1, 2))
                change = torch.ops.aten.gelu_backward(below, sums[layer - 1])
        self._descend()

    def _multiply_transposed(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        """Write (left of each probe)ᵀ × right. A few columns are multiplied as rows: 4 times as fast, the same sums."""
        if right.shape[2] > NARROW:
            torch.bmm(left.transpose(1, 2), right, out=out)
        else:
            out.copy_(torch.bmm(right.transpose(1, 2), left).transpose(1, 2))

    def _descend(self) -> None:
        """Take AdamW's step. As a function it costs a third of the optimiser object's overhead, and no import."""
        first, second = self.moments
        adamw(
            *([self.flat], [self.gradient], [first], [second], [], [self.steps]),
            fused=self.device.type in ("cpu", "cuda"),
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def _inputs(self, rows: Tensor) -> Tensor:
        return self.states.index_select(0, rows.flatten()).view(*rows.shape, -1)

    def _logits(self, hidden: Tensor, weights: Sequence[Tensor]) -> Tensor:
        logits = torch.baddbmm(weights[-1], hidden, weights[-2])
        return logits.masked_fill_(self.absent, -torch.inf) if self.some_absent else logits

    def _keep_best(self) -> None:
        """Keep the weights of the probes whose validation F1 is higher than ever."""
        predicted = self._predict([split.validation for split in self.splits], self.weights)
        scores = f1_scores(
            predicted, self._truth([split.validation for split in self.splits]), self.n_classes, self.positive
        )
        better = scores > self.best_score
        if better.any():
            self.best_score = torch.where(better, scores, self.best_score)
            for best, weight in zip(self.best, self.weights, strict=True):
                best[better] = weight[better]

    @torch.no_grad()
    def test(self) -> Ints:
        """Predict each probe's test rows with its best weights: (P, test rows).

        Raises:
            Diverged: a probe's outputs are not finite.
        """
        logits = torch.cat(list(self._outputs([split.test for split in self.splits], self.best)), dim=1)
        self._check(logits.amax(dim=2).isfinite().all(dim=1))
        return logits.argmax(dim=2).cpu().numpy()

    def _check(self, finite: Tensor) -> None:
        """Raise at the first probe that is not finite, (P,)."""
        for job, sound in zip(self.jobs, finite.tolist(), strict=True):
            if not sound:
                raise Diverged(job)

    def _predict(self, rows: Sequence[Ints], weights: Sequence[Tensor]) -> Tensor:
        return torch.cat([logits.argmax(dim=2) for logits in self._outputs(rows, weights)], dim=1)

    def _outputs(self, rows: Sequence[Ints], weights: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the logits of some rows after the others, (P, rows, classes)."""
        places = self._tensor(np.stack(rows))[self.owner] + self.layer_start
        for part in torch.split(places, EVALUATION_ROWS, dim=1):
            hidden = self._inputs(part)
            for matrix, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
                hidden = nn.functional.gelu(torch.baddbmm(bias, hidden, matrix))
            yield self._logits(hidden, weights)

    def _truth(self, rows: Sequence[Ints]) -> Tensor:
        found = [target.labels[rows[owner]] for target, owner in zip(self.targets, self.owners, strict=True)]
        return self._tensor(np.stack(found))


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(purpose_seed(seed, purpose))


def f1_scores(
    predicted: Tensor, truth: Tensor, n_classes: int, positive: Tensor, counted: Tensor | None = None
) -> Tensor:
    """Compute the F1 of many predictions at once: (P,), float64, fractions 0-1.

    Args:
        predicted: (P, rows), class indices.
        truth: (P, rows).
        n_classes: number of classes, the most of any target.
        positive: (P,), the class whose F1 is wanted; -1 averages over the classes that occur in either.
        counted: (P, rows), which rows count; all by default.

    Returns:
        The scores; NaN where the class wanted is neither there nor predicted, or no row counts.
    """
    weight = torch.ones_like(truth) if counted is None else counted.to(truth.dtype)

    def count(classes: Tensor, weights: Tensor) -> Tensor:
        return torch.zeros((len(classes), n_classes), device=classes.device, dtype=torch.int64).scatter_add_(
            1, classes, weights
        )

    hits = count(truth, weight * (predicted == truth))
    either = count(truth, weight) + count(predicted, weight)
    scores = 2 * hits.double() / either  # NaN where a class does not occur
    one = scores.gather(1, positive.clamp(min=0)[:, None])[:, 0]
    return torch.where(positive < 0, scores.nanmean(dim=1), one)
