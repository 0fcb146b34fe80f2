"""Shapley values of layers, where a set of layers is worth what swapping it lowers the noisy rows' mean margin by.

Exactly, by walking the tree of all 2^L sets, 2^(L+1) - 2 layer applications a row; or by drawing orders of the
layers, each with its reverse (antithetic), whose mean is an unbiased estimate with an interval (Castro et al. 2009;
Mitchell et al. 2022).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
import torch
from numpy.typing import NDArray

from mltools.commands.shapley import Settings
from mltools.console import Track, untracked
from mltools.errors import RowsError
from mltools.io.kinds import ShapleyRecord
from mltools.io.provenance import threads
from mltools.io.records import Record
from mltools.layers import Window
from mltools.model.checkpoint_pairs import check_same
from mltools.model.cost import WorkItem
from mltools.model.margins import MarginPair, open_pair, pair_margins, prepare
from mltools.model.training import purpose_seed
from mltools.model.window_tree import window_logits
from mltools.run import Run

MOST_EXACT = 10
"""Layers up to which all sets of them are measured: 2,046 applications a row."""
MOST_SAMPLES = 1000
ROUND = 8
"""Pairs of orders that are measured together, before the interval is looked at."""

Floats = NDArray[np.float64]
Layers = tuple[int, ...]


class SetValues:
    """The mean margin of the noisy rows by the layers that are CLEAN's, each set measured once."""

    def __init__(self, pair: MarginPair, batch_size: int | None, progress: Track = untracked) -> None:
        """Know none yet."""
        self._pair, self._batch_size, self._progress = pair, batch_size, progress
        self._known: dict[Layers, float] = {}

    def __getitem__(self, layers: Layers) -> float:
        return self._known[layers]

    def measure(self, sets: Iterable[Layers]) -> None:
        """Measure the sets that are not known yet, in one walk."""
        new = sorted(set(sets) - self._known.keys())
        if not new:
            return
        pair, windows = self._pair, [Window(layers) for layers in new]
        margins = np.zeros((len(new), len(pair.encoded)))

        def walk() -> Iterator[int]:
            for batch in pair.encoded.batches(pair.rows, self._batch_size, pair.noisy.runner.device):
                with torch.inference_mode():
                    for index, logits in window_logits(pair.noisy, pair.donor, batch, windows):
                        margins[index, batch.rows] = pair.margins(batch, logits).double().cpu().numpy()
                yield from (int(row) for row in batch.rows)

        for _ in self._progress(walk(), len(pair.rows)):
            pass
        self._known.update(zip(new, margins[:, pair.rows].mean(axis=1).tolist(), strict=True))


@dataclass
class Estimate:
    """Means (L,) over `n` pairs of orders, and the sums of squared deviations from them."""

    mean: Floats
    squares: Floats
    n: int = 0

    def add(self, values: Floats) -> None:
        """Add a pair's values (Welford's way)."""
        self.n += 1
        before = values - self.mean
        self.mean = self.mean + before / self.n
        self.squares = self.squares + before * (values - self.mean)

    @property
    def standard_error(self) -> Floats:
        """Of the means; infinite for fewer than two pairs."""
        if self.n < 2:
            return np.full(len(self.mean), np.inf)
        error: Floats = np.sqrt(self.squares / (self.n - 1) / self.n)
        return error

    @property
    def half_interval(self) -> Floats:
        """Half of the 95 % interval, by Student's t."""
        from scipy.stats import t

        return self.standard_error * float(t.ppf(0.975, max(self.n - 1, 1)))


def exact_values(values: SetValues, n_layers: int) -> Floats:
    """Give the Shapley value of each layer: (L,)."""
    layers = range(1, n_layers + 1)
    sets = list(chain.from_iterable(combinations(layers, size) for size in range(n_layers + 1)))
    values.measure(sets)
    shares = np.zeros(n_layers)
    for own in sets:
        weight = 1 / (n_layers * math.comb(n_layers - 1, len(own))) if len(own) < n_layers else 0.0
        for layer in set(layers).difference(own):
            shares[layer - 1] += weight * (values[own] - values[tuple(sorted((*own, layer)))])
    return shares


def sample_values(values: SetValues, n_layers: int, settings: Settings, start: Estimate) -> Estimate:
    """Draw pairs of orders until the intervals are narrow enough, or there are as many as wanted.

    The pair of a number is always the same, so that going on from `start` is as if it had never stopped.
    """
    most, found = settings.samples or MOST_SAMPLES, start
    everything = tuple(range(1, n_layers + 1))
    values.measure([(), everything])
    wanted = settings.until * abs(values[()] - values[everything])
    while found.n < most and not (found.n and float(found.half_interval.max()) <= wanted):
        orders = [_order(settings.seed, number, n_layers) for number in range(found.n, min(found.n + ROUND, most))]
        both = [each for order in orders for each in (order, order[::-1])]
        values.measure(chain.from_iterable(map(_sets, both)))
        for forth, back in zip(both[::2], both[1::2], strict=True):
            found.add((_of_order(values, forth) + _of_order(values, back)) / 2)
    return found


def _order(seed: int, number: int, n_layers: int) -> list[int]:
    generator = np.random.default_rng(purpose_seed(seed, "shapley", number))
    return [int(layer) + 1 for layer in generator.permutation(n_layers)]


def _sets(order: Sequence[int]) -> list[Layers]:
    """Give the sets that grow as layers are swapped in this order."""
    return [tuple(sorted(order[:size])) for size in range(len(order) + 1)]


def _of_order(values: SetValues, order: Sequence[int]) -> Floats:
    found, sets = np.zeros(len(order)), _sets(order)
    for layer, before, after in zip(order, sets[:-1], sets[1:], strict=True):
        found[layer - 1] = values[before] - values[after]
    return found


def check_earlier(records: Sequence[Record], run: str | None, *, exact: bool) -> None:
    """Check that records are of this very run, to be left out where exact, else to go on from.

    Raises:
        RowsError: records of other settings or inputs.
    """
    for record in records:
        if record.values.get("made_from") != run or record.values.get("exact") is not exact:
            raise RowsError(f"{record.place}: made with other settings or inputs; resume with the same ones")


def earlier_estimate(records: Sequence[Record], n_layers: int) -> Estimate:
    """Take up what the records of an earlier sample say; nothing where there are none.

    Raises:
        RowsError: there is not one a layer.
    """
    found = Estimate(np.zeros(n_layers), np.zeros(n_layers))
    for record in records:
        layer, found.n = record.get("layer", int) - 1, record.get("n_samples", int)
        found.mean[layer] = record.number("contribution")
        found.squares[layer] = record.number("standard_error") ** 2 * found.n * (found.n - 1)
    if records and len(records) != n_layers:
        raise RowsError(f"{records[0].place}: {len(records)} records to resume from; {n_layers} are needed")
    return found


def items(run: Run) -> list[WorkItem]:
    """Count the work, which is one item; of sampled values, as if all orders wanted were drawn."""
    settings: Settings = run.settings
    n_layers, n_noisy = run.shape.n_layers, sum(run.rows.noisy)
    noisy, donor = open_pair(run.model("noisy"), run.model("clean"), settings.judging)
    check_same(noisy, donor)
    prepare(noisy, donor, run.rows, settings.judging.reading.max_length)
    sets = 2 ** (n_layers + 1) - 2 if noisy.runner.walks else n_layers * 2**n_layers
    if not _is_exact(settings, n_layers):
        sets = 2 * (settings.samples or MOST_SAMPLES) * (n_layers - 1) * n_layers
    models = 2 if settings.judging.donor_is == "clean" else 1
    whole = models * len(run.rows) * n_layers
    return [WorkItem(rows=len(run.rows), applications=whole + n_noisy * sets, models=2)]


def _is_exact(settings: Settings, n_layers: int) -> bool:
    return settings.samples is None and n_layers <= MOST_EXACT


def run(run: Run) -> Iterator[ShapleyRecord]:
    """Share out the noisy rows' margins among layers."""
    settings: Settings = run.settings
    noisy, donor = open_pair(run.model("noisy"), run.model("clean"), settings.judging)
    exact = _is_exact(settings, noisy.n_layers)
    check_earlier(run.earlier, run.digest, exact=exact)
    done = {record.get("layer", int) for record in run.earlier} if exact else set()
    if len(done) == noisy.n_layers:
        return
    start = earlier_estimate(run.earlier if not exact else (), noisy.n_layers)
    pair = pair_margins(noisy, donor, run.rows, settings.judging)
    noisy.runner.applications = 0
    values = SetValues(pair, settings.batch_size, run.track)
    found = None if exact else sample_values(values, noisy.n_layers, settings, start)
    shares = exact_values(values, noisy.n_layers) if found is None else found.mean
    made = records(pair, values, shares, found, run.digest)
    yield from (record for record in made if record.layer not in done)
    run.report(samples=found.n if found is not None else None)
    per_row = noisy.runner.applications / len(pair.rows)
    run.report(rows=len(pair.rows), applications=noisy.runner.applications, applications_per_row=per_row)


def records(
    pair: MarginPair, values: SetValues, shares: Floats, sampled: Estimate | None, run: str | None
) -> Iterator[ShapleyRecord]:
    """Give a record a layer."""
    everything = tuple(range(1, pair.noisy.n_layers + 1))
    drop = values[()] - values[everything]
    for layer, share in enumerate(shares.tolist(), start=1):
        half = float(sampled.half_interval[layer - 1]) if sampled is not None else None
        yield ShapleyRecord(
            tool="shapley",
            layer=layer,
            exact=sampled is None,
            n_samples=sampled.n if sampled is not None else None,
            standard_error=float(sampled.standard_error[layer - 1]) if sampled is not None else None,
            ci_low=share - half if half is not None else None,
            ci_high=share + half if half is not None else None,
            made_from=run,
            threads=threads(),
            **pair.columns(share, values[()], drop),
        )
