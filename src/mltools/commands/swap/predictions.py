"""What every row is predicted as under every window, in float32 or, checked, in bfloat16."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mltools import console
from mltools.commands.swap import Settings
from mltools.errors import brief, lacks_memory
from mltools.io.columns import RowId
from mltools.layers import Window
from mltools.model.batches import Batch, Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checks import Walk
from mltools.model.reduced import FASTER, SAFE, SAFE_AGAIN, gain, largest_error, reduced
from mltools.model.runner import UNUSUAL
from mltools.model.validity import Labels, PairValidity, label_margins
from mltools.model.window_tree import patched_logits, window_logits
from mltools.processes import Team

UNCHANGED = Window(())


class Walked(NamedTuple):
    """What a batch's rows give under some windows (windows, rows), and by CLEAN (rows,), where that was asked for."""

    predicted: NDArray[np.int16]
    margin: NDArray[np.float32]
    label_margin: NDArray[np.float32]
    donor: NDArray[np.int16] | None
    donor_margin: NDArray[np.float32] | None


@dataclass
class SwapResult:
    """Predictions of every row under every window, and what they cost.

    `measured` are the windows asked for, then those measured besides (NOISY unchanged, the full window). Of these,
    `predicted` is (windows, rows), class indices; `margin` the gap between the two best logits; `label_margin` the
    rows' `label_margins`; `rerun` how many rows were run again in float32. `donor` and `donor_margin` (rows,) are those
    of CLEAN whole. The first `n_measured` windows are measured by now.
    """

    windows: list[Window] = field(default_factory=list)
    measured: list[Window] = field(default_factory=list)
    predicted: NDArray[np.int16] = field(default_factory=lambda: np.empty((0, 0), np.int16))
    margin: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    label_margin: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    rerun: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    donor: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    donor_margin: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    precision: str = "fp32"
    applications: int = 0
    layers: int = 0
    rows: int = 0
    labels: list[str] = field(default_factory=list)
    validity: PairValidity | None = None
    n_measured: int = 0

    def start(self, noisy: Checkpoint, windows: Sequence[Window], further: Sequence[Window], rows: int) -> None:
        """Make room for the predictions of `rows` rows under each window."""
        self.windows, self.measured = list(windows), [*windows, *further]
        self.labels, self.layers, self.rows = noisy.labels, noisy.n_layers, rows
        shape = len(self.measured), rows
        self.predicted, self.donor = np.zeros(shape, np.int16), np.zeros(rows, np.int16)
        self.margin, self.donor_margin = np.zeros(shape, np.float32), np.zeros(rows, np.float32)
        self.label_margin = np.zeros(shape, np.float32)
        self.rerun, self.precision = np.zeros(len(self.measured), np.int64), "fp32"
        self.n_measured, self.validity = 0, None

    def take(self, chosen: Sequence[int], rows: NDArray[np.int64], found: Walked) -> None:
        """Put in what was found for some rows under the windows at these places, and by CLEAN."""
        for place, index in enumerate(chosen):
            self.predicted[index, rows], self.margin[index, rows] = found.predicted[place], found.margin[place]
            self.label_margin[index, rows] = found.label_margin[place]
        if found.donor is not None and found.donor_margin is not None:
            self.donor[rows], self.donor_margin[rows] = found.donor, found.donor_margin

    def mend(
        self, index: int, rows: NDArray[np.int64], predicted: NDArray[np.int16], margin: NDArray[np.float32]
    ) -> float:
        """Put float32's predictions in place of those of some rows under a window; gives the largest error of a gap."""
        same = self.predicted[index, rows] == predicted
        errors = np.abs(self.margin[index, rows] - np.where(same, margin, -margin))
        self.predicted[index, rows], self.margin[index, rows] = predicted, margin
        return float(errors.max(initial=0.0))

    def of(self, window: Window) -> NDArray[np.int16]:
        """Give the rows' predictions under a window that was measured, (rows,)."""
        found: NDArray[np.int16] = self.predicted[self.measured.index(window)]
        return found


class Sides(NamedTuple):
    """What is run: NOISY, CLEAN whole, and the donor of blocks, which is CLEAN or has a part of its blocks."""

    noisy: Checkpoint
    clean: Checkpoint
    donor: Checkpoint


@dataclass(frozen=True)
class Walker:
    """Walks windows over one batch after the other; without `labels`, label margins are not known."""

    sides: Sides
    walk: Walk
    labels: Labels | None

    def walked(self, batch: Batch, windows: Sequence[Window], *, with_donor: bool) -> Walked:
        """Run a batch under the windows."""
        shape = len(windows), len(batch)
        predicted, margin = np.zeros(shape, np.int16), np.zeros(shape, np.float32)
        label_margin = np.full(shape, np.nan, np.float32)
        with torch.inference_mode():
            donor = _best(self.sides.clean.runner.forward(batch).float()) if with_donor else (None, None)
        for place, logits in self.walk(self.sides.noisy, self.sides.donor, batch, windows):
            predicted[place], margin[place] = _best(logits)
            if self.labels is not None:
                label_margin[place] = label_margins(logits.cpu().numpy(), self.labels, batch.rows)
        return Walked(predicted, margin, label_margin, *donor)

    @property
    def applications(self) -> int:
        """Layer applications so far."""
        return sum(runner.applications for runner in {self.sides.noisy.runner, self.sides.clean.runner})


@dataclass(frozen=True)
class Sweep:
    """A sweep of windows over rows.

    `low` walks with the same models in bfloat16, where they are used: a prediction with a margin of less than `safe` is
    then made again in float32.
    """

    walker: Walker
    encoded: Encoded
    batch_size: int | None
    team: Team
    low: Walker | None = None
    safe: float = 0.0

    @property
    def precision(self) -> str:
        """The number type of the weights that all rows are run with."""
        return "fp32" if self.low is None else "bf16"

    @property
    def applications(self) -> int:
        """Layer applications so far, in either precision and in all processes."""
        return sum(self.team.gather(self.walker.applications + (self.low.applications if self.low is not None else 0)))

    def predict(self, result: SwapResult, parts: Sequence[Sequence[int]], *, keeps: bool) -> Iterator[int]:
        """Fill in every row's prediction under every window, and by CLEAN; yields each row once it is done in a pass.

        Args:
            result: to be filled.
            parts: the windows of each pass, by their places in `result.measured`.
            keeps: whether what NOISY gives is kept between the passes.
        """
        used = self.low or self.walker
        batches = self._batches(np.arange(len(self.encoded)))
        left = set(range(len(result.windows)))
        with used.sides.noisy.runner.keeping() if keeps and len(parts) > 1 else contextlib.nullcontext():
            for chosen in parts:
                windows = [result.measured[index] for index in chosen]
                walked = partial(used.walked, windows=windows, with_donor=chosen is parts[0])
                for batch, found in self.team.dealt(batches, walked):
                    result.take(chosen, batch.rows, found)
                    if batch is batches[-1]:
                        if self.low is not None:
                            self._again(chosen, result, with_donor=chosen is parts[0])
                        left -= {*chosen}
                        result.n_measured = min(left, default=len(result.windows))
                    yield from (int(row) for row in batch.rows)

    def _batches(self, rows: NDArray[np.int64]) -> list[Batch]:
        return list(self.encoded.batches(rows, self.batch_size, self.walker.sides.noisy.runner.device))

    def _again(self, chosen: Sequence[int], result: SwapResult, *, with_donor: bool) -> None:
        """Run again, in float32, the rows whose prediction under some of these windows, or by CLEAN, is not certain.

        A window's limit rises with the errors that show, until no row is left below it. What is certain stays as it is.
        So what is run again under a window does not depend on the other windows.
        """
        windows = [result.measured[index] for index in chosen]
        limits, done = np.full(len(chosen), self.safe), np.zeros((len(chosen), len(self.encoded)), np.bool_)
        while True:
            near = ~(result.margin[chosen] >= limits[:, None]) & ~done  # so what is no number too
            rows = np.flatnonzero(near.any(axis=0) | (with_donor & ~(result.donor_margin >= self.safe)))
            if not len(rows):
                break
            walked = partial(self._walked_where, near=near, windows=windows, with_donor=with_donor)
            for batch, (places, found) in self.team.dealt(self._batches(rows), walked):
                for number, place in enumerate(places):
                    own = near[place, batch.rows]
                    one = found.predicted[number, own], found.margin[number, own]
                    limits[place] = max(limits[place], SAFE_AGAIN * result.mend(chosen[place], batch.rows[own], *one))
                result.take([], batch.rows, found)
            done, with_donor = done | near, False
        result.rerun[chosen] = done.sum(axis=1)

    def _walked_where(
        self, batch: Batch, near: NDArray[np.bool_], windows: Sequence[Window], *, with_donor: bool
    ) -> tuple[list[int], Walked]:
        """Run a batch under those of the windows that some of its rows are near a tie in; gives their places too."""
        places = [place for place, own in enumerate(near[:, batch.rows]) if own.any()]
        return places, self.walker.walked(batch, [windows[place] for place in places], with_donor=with_donor)


def sweep_of(
    sides: Sides, encoded: Encoded, ids: Sequence[RowId], labels: Labels, settings: Settings, team: Team
) -> Sweep:
    """Decide how a sweep is run: in bfloat16 where that is asked for, faster here, and works, with a note if not."""
    positions = settings.positions
    walk = window_logits if positions == "all" else partial(patched_logits, pooled=positions == "pooled")
    if settings.precision == "fp32":
        return Sweep(Walker(sides, walk, labels), encoded, settings.batch_size, team)
    times = min(team.gather(gain(sides.noisy.width, sides.noisy.runner.device)))
    if times < FASTER:
        finding = f"matrix products are {times:.2g} times as fast in bfloat16 here, {FASTER} are needed"
    else:
        low, error, finding = _lowered(sides, encoded, ids, walk)
        error, finding = max(team.gather(error)), max(team.gather(finding))
        if not finding and low is not None:
            walkers = Walker(sides, walk, None), Walker(low, walk, None)
            return Sweep(walkers[0], encoded, settings.batch_size, team, walkers[1], SAFE * error)
    console.warn(f"--precision bf16: {finding}; the sweep runs in float32")
    return Sweep(Walker(sides, walk, labels), encoded, settings.batch_size, team)


def _lowered(sides: Sides, encoded: Encoded, ids: Sequence[RowId], walk: Walk) -> tuple[Sides | None, float, str]:
    """Give the models in bfloat16 and the largest error of their logits; or say what keeps them from being used."""
    try:
        low = Sides(*reduced([*sides]))
        error = largest_error([*sides], [*low], encoded, ids, walk)
    except UNUSUAL as failure:
        if lacks_memory(failure):
            raise
        return None, 0.0, brief(failure)
    return low, error, "" if isfinite(error) else "its logits are no finite numbers"


def _best(logits: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Give the class of the best logit of each row, (rows,), and the gap between the two best."""
    best = logits.topk(min(2, logits.shape[1]), dim=1)
    return best.indices[:, 0].cpu().numpy(), (best.values[:, 0] - best.values[:, -1]).cpu().numpy()
