"""shapley: the sum of its values, brute force over orders, and the interval of sampled ones."""

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Cli, toy_rows, write_jsonl
from mltools.analysis.additive import solve_additive
from mltools.commands.shapley import Settings
from mltools.commands.shapley.work import Estimate, SetValues, exact_values, sample_values
from mltools.layers import all_windows, format_layers
from mltools.spec import bare

Tiny = Callable[..., Path]
Layers = tuple[int, ...]


class Known(SetValues):
    """Values that a function gives, in place of a model's; counts the sets measured."""

    def __init__(self, value: Callable[[Layers], float]) -> None:
        self.value, self.asked = value, set[Layers]()

    def __getitem__(self, layers: Layers) -> float:
        return self.value(layers)

    def measure(self, sets: Any) -> None:
        self.asked |= set(sets)


def synergy(layers: Layers) -> float:
    """Margin by the layers swapped: 2 alone undoes 3, 4 and 5 only together undo 2, and noise that orders differ in."""
    return 10 - 3 * (2 in layers) - 2 * (4 in layers and 5 in layers) - 0.1 * (len(layers) > 1 and 1 in layers)


def test_exact_values_of_a_known_game() -> None:
    known = Known(synergy)
    found = exact_values(known, 5)
    assert len(known.asked) == 32
    assert found.sum() == pytest.approx(synergy(()) - synergy((1, 2, 3, 4, 5)))
    orders = list(permutations(range(1, 6)))
    brute = np.zeros(5)
    for order in orders:
        for place, layer in enumerate(order):
            before, after = (tuple(sorted(order[:end])) for end in (place, place + 1))
            brute[layer - 1] += (synergy(before) - synergy(after)) / len(orders)
    np.testing.assert_allclose(found, brute, atol=1e-12)
    assert found[3] == pytest.approx(found[4])


def test_where_layers_add_up_values_are_their_weights_and_those_of_the_additive_solution() -> None:
    """Layers 2 and 4 do nothing, and so have none."""
    weights = (0.5, 0.0, 2.0, 0.0, 1.0)
    found = exact_values(Known(lambda layers: 10 - sum(weights[layer - 1] for layer in layers)), 5)
    windows = {(w.start, w.end): sum(weights[w.start - 1 : w.end]) for w in all_windows(5)}
    assert list(found) == pytest.approx(list(weights), abs=1e-12)
    assert list(found) == pytest.approx(solve_additive(windows, 5).weights, abs=1e-9)


def test_an_order_and_its_reverse_are_exact_where_layers_act_in_pairs() -> None:
    """Of the two orders, in one each layer of a pair comes last; so there is nothing left to vary."""
    found = sample_values(
        Known(lambda layers: 10 - 2 * (3 in layers and 7 in layers) - (1 in layers)),
        12,
        bare(Settings, samples=2, until=0),
        Estimate(np.zeros(12), np.zeros(12)),
    )
    assert list(found.mean) == pytest.approx([1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0], abs=1e-12)
    assert float(found.half_interval.max()) == pytest.approx(0, abs=1e-12)


def test_sampled_values_agree_within_their_interval_and_go_on() -> None:
    """Intervals of 12 layers hold the truth; a run in two parts gives what one does."""

    def value(layers: Layers) -> float:
        return 10 - sum(layers) / 10 - 3 * ({3, 7, 9} <= {*layers}) + 2 * (5 in layers and 3 in layers)

    truth = np.array([layer / 10 for layer in range(1, 13)]) + np.eye(12)[[6, 8]].sum(axis=0) - np.eye(12)[4]
    wide = bare(Settings, samples=200, until=0.02)
    found = sample_values(Known(value), 12, wide, Estimate(np.zeros(12), np.zeros(12)))
    assert 8 <= found.n < 200
    whole = abs(value(()) - value(tuple(range(1, 13))))
    assert float(found.half_interval.max()) <= 0.02 * whole
    assert (np.abs(found.mean - truth) <= 2 * found.half_interval + 1e-9).all()
    assert found.mean.sum() == pytest.approx(whole)
    few = sample_values(Known(value), 12, bare(Settings, samples=9, until=0), Estimate(np.zeros(12), np.zeros(12)))
    again = sample_values(Known(value), 12, bare(Settings, samples=24, until=0), few)
    once = sample_values(Known(value), 12, bare(Settings, samples=24, until=0), Estimate(np.zeros(12), np.zeros(12)))
    np.testing.assert_allclose(again.mean, once.mean, rtol=1e-12)
    np.testing.assert_allclose(again.half_interval, once.half_interval, rtol=1e-9)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("few") / "rows.jsonl", toy_rows(20))


def test_values_of_a_model_are_those_of_its_windows(cli: Cli, tiny: Tiny, rows: Path) -> None:
    """With four layers: brute force over all orders, from the margins that swap gives for sets of layers."""
    pair = (tiny("bert", 1), tiny("bert", 2), rows)
    result = cli("shapley", *pair)
    assert result.code == 0, result.err
    sets = [tuple(layer for layer in range(1, 5) if mask >> (layer - 1) & 1) for mask in range(1, 16)]
    words = [word for layers in sets for word in ("--layers", format_layers(layers))]
    drops = {
        (): 0.0,
        **dict(zip(sets, [r["label_margin_drop"] for r in cli("swap", *pair, *words).records], strict=True)),
    }
    brute = np.zeros(4)
    for order in permutations(range(1, 5)):
        for place, layer in enumerate(order):
            before, after = (tuple(sorted(order[:end])) for end in (place, place + 1))
            brute[layer - 1] += (drops[after] - drops[before]) / 24
    found = [record["contribution"] for record in result.records]
    assert found == pytest.approx(list(brute), abs=3e-4)
    assert sum(found) == pytest.approx(result.records[0]["label_margin_drop"], abs=2e-4)
    assert {record["exact"] for record in result.records} == {True} and result.records[0]["ci_low"] is None
    summary = dict(word.split("=") for word in result.err.splitlines()[-1].split() if "=" in word)
    assert float(summary["applications_per_row"]) == 2**5 - 2


def test_resume_goes_on_as_if_never_stopped(cli: Cli, tiny: Tiny, rows: Path, tmp_path: Path) -> None:
    words = ("shapley", tiny("bert", 1), tiny("bert", 2), rows, "--until", 0)
    once, few = cli(*words, "--samples", 6), cli(*words, "--samples", 3)
    earlier = tmp_path / "few.jsonl"
    earlier.write_text(few.out)
    again = cli(*words, "--samples", 6, "--resume", earlier)
    assert again.code == 0, again.err
    for one, other in zip(once.records, again.records, strict=True):
        assert one["n_samples"] == other["n_samples"] == 6
        assert other["contribution"] == pytest.approx(one["contribution"], abs=1e-9)
        assert other["ci_high"] == pytest.approx(one["ci_high"], abs=1e-6)
    earlier.write_text(json.dumps({**few.records[0], "made_from": "0"}) + "\n")
    assert cli(*words, "--samples", 6, "--resume", earlier).code == 3
