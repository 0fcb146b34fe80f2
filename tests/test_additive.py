"""The additive solution of a sweep: known answers, laws, an oracle, and what windows do not determine."""

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import nnls

from mltools.analysis.additive import TINY, Additive, solve_additive
from mltools.analysis.centre_of_gravity import centre_of_gravity
from mltools.analysis.layer_scores import layer_scores
from mltools.layers import Span, all_windows

Errors = dict[Span, float]
shares = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))


def sweep(n_layers: int, error: Callable[[int, int], float], width: int | None = None) -> Errors:
    return {(w.start, w.end): error(w.start, w.end) for w in all_windows(n_layers, width)}


def additive(weights: Sequence[float], offset: float = 0.0) -> Errors:
    return sweep(len(weights), lambda start, end: offset + sum(weights[start - 1 : end]))


def planted(n_layers: int, layer: int, size: float = 1.0, offset: float = 0.0) -> Errors:
    return sweep(n_layers, lambda start, end: offset + size * (start <= layer <= end))


def matrix(spans: Sequence[Span], n_layers: int) -> Any:
    return np.array([[1.0, *(float(start <= n <= end) for n in range(1, n_layers + 1))] for start, end in spans])


def solved(errors: Errors, n_layers: int) -> tuple[tuple[float, ...], float, float]:
    found = solve_additive(errors, n_layers)
    assert found.weights is not None and found.offset is not None and found.residual is not None, found.reason
    return found.weights, found.offset, found.residual


@st.composite
def models(draw: st.DrawFn) -> tuple[list[float], float]:
    n_layers = draw(st.integers(2, 12))
    return draw(st.lists(shares, min_size=n_layers, max_size=n_layers)), draw(shares)


@st.composite
def noisy_sweeps(draw: st.DrawFn) -> tuple[Errors, int]:
    """Sweeps that no model fits, some with windows left out."""
    n_layers = draw(st.integers(2, 12))
    spans = [(w.start, w.end) for w in all_windows(n_layers)]
    if draw(st.booleans()):
        spans = draw(st.lists(st.sampled_from(spans), min_size=n_layers + 1, unique=True))
    rng = random.Random(draw(st.integers(0, 2**32)))
    true, noise = [rng.choice([0.0, rng.random()]) for _ in range(n_layers)], rng.choice([0.01, 0.1, 1.0])
    return {(s, e): rng.random() / 10 + sum(true[s - 1 : e]) + rng.gauss(0, noise) for s, e in spans}, n_layers


# -- known answers ------------------------------------------------------------------------------------
def test_the_window_mean_of_memory_in_layer_1_of_12_says_4_293_and_the_solution_1() -> None:
    errors = planted(12, 1)
    assert centre_of_gravity(layer_scores(errors, 12)) == pytest.approx(4.293, abs=5e-4)
    found = solve_additive(errors, 12)
    assert found.centre == pytest.approx(1, abs=1e-9)
    assert found.reason is None
    assert found.weights == pytest.approx([1.0] + [0.0] * 11, abs=1e-9)
    assert found.offset == 0
    assert found.residual == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("n_layers", range(2, 25))
def test_memory_in_one_layer_alone_gives_that_layer(n_layers: int) -> None:
    for layer in range(1, n_layers + 1):
        for offset in (0.0, 0.1):
            found = solve_additive(planted(n_layers, layer, offset=offset), n_layers)
            assert found.centre == pytest.approx(layer, abs=1e-9)
            assert found.offset == pytest.approx(offset, abs=1e-9)


@pytest.mark.parametrize("n_layers", [6, 12, 24])
@pytest.mark.parametrize("value", [0.0, 0.3, 1e-200, 7e100])
def test_errors_that_are_equal_are_all_offset_and_have_no_centre(n_layers: int, value: float) -> None:
    found = solve_additive(sweep(n_layers, lambda start, end: value), n_layers)
    assert found.weights == (0.0,) * n_layers
    assert found.offset == pytest.approx(value)
    assert (found.centre, found.reason) == (None, "all weights are zero")


def test_errors_below_0_have_no_weights() -> None:
    found = solve_additive(sweep(6, lambda start, end: -1.0 - (start <= 3 <= end)), 6)
    assert (found.weights, found.offset, found.centre) == ((0.0,) * 6, 0.0, None)
    assert found.residual is not None and found.residual > 1


def test_either_of_two_layers_and_both_have_weight_on_these_two_and_a_residual() -> None:
    """Neither is a sum over layers: the layers are found, but their shares and so the centre follow the windows."""
    found = {}
    for n_layers in (6, 12):
        found["either", n_layers] = solve_additive(
            sweep(n_layers, lambda start, end: float(start <= 2 <= end or start <= 5 <= end)), n_layers
        )
        found["both", n_layers] = solve_additive(
            sweep(n_layers, lambda start, end: float(start <= 2 and end >= 5)), n_layers
        )
        found["sum", n_layers] = solve_additive(additive([0, 0.5, 0, 0, 0.5] + [0] * (n_layers - 5)), n_layers)
    for one in found.values():
        assert [layer for layer, weight in enumerate(one.weights or (), start=1) if weight] == [2, 5]
    centres = {key: one.centre for key, one in found.items()}
    assert centres["either", 6] == centres["both", 6] == pytest.approx(3.5)  # 2 and 5 mirror each other there
    assert centres["either", 12] == pytest.approx(4.06, abs=0.01)
    assert centres["both", 12] == pytest.approx(2.60, abs=0.01)
    residuals = {key: one.residual for key, one in found.items()}
    assert residuals["sum", 6] == pytest.approx(0, abs=1e-9)
    assert residuals["sum", 12] == pytest.approx(0, abs=1e-9)
    assert residuals["either", 6] == pytest.approx(0.2466, abs=1e-4)
    assert residuals["both", 6] == pytest.approx(0.2857, abs=1e-4)
    assert residuals["either", 12] == pytest.approx(0.2060, abs=1e-4)
    assert residuals["both", 12] == pytest.approx(0.2176, abs=1e-4)
    assert found["either", 12].offset == pytest.approx(0.103, abs=1e-3)
    assert found["both", 12].offset == 0


# -- laws ---------------------------------------------------------------------------------------------
@given(models())
def test_what_is_additive_is_found_exactly(model: tuple[list[float], float]) -> None:
    true, offset = model
    weights, found_offset, residual = solved(additive(true, offset), len(true))
    assert weights == pytest.approx(true, abs=1e-9 * len(true))
    assert found_offset == pytest.approx(offset, abs=1e-9 * len(true))
    assert residual == pytest.approx(0, abs=1e-9)


@given(st.integers(2, 24), st.data())
def test_equal_shares_in_two_layers_give_their_mean(n_layers: int, data: st.DataObject) -> None:
    p, q = (data.draw(st.integers(1, n_layers)) for _ in range(2))
    errors = sweep(n_layers, lambda start, end: 0.5 * (start <= p <= end) + 0.5 * (start <= q <= end))
    assert solve_additive(errors, n_layers).centre == pytest.approx((p + q) / 2, abs=1e-9)


@given(noisy_sweeps(), st.floats(0, 10))
def test_a_constant_added_to_all_windows_changes_the_offset_alone(drawn: tuple[Errors, int], more: float) -> None:
    errors, n_layers = drawn
    before = solve_additive(errors, n_layers)
    assume(before.offset)  # at 0 it may be held there, and then a constant is room for it
    assert before.weights is not None and before.offset is not None
    weights, offset, residual = solved({span: error + more for span, error in errors.items()}, n_layers)
    assert weights == pytest.approx(before.weights, abs=1e-8)
    assert offset == pytest.approx(before.offset + more, abs=1e-8)
    assert residual == pytest.approx(before.residual, abs=1e-8)


@given(noisy_sweeps(), st.integers(-900, 900), st.floats(1, 2))
def test_scaled_errors_scale_the_solution_and_by_a_power_of_two_exactly(
    drawn: tuple[Errors, int], power: int, factor: float
) -> None:
    errors, n_layers = drawn
    before = solve_additive(errors, n_layers)
    assume(before.weights is not None)
    weights, offset, residual = solved(errors, n_layers)
    doubled = solve_additive({span: error * 2.0**power for span, error in errors.items()}, n_layers)
    assert doubled.weights == tuple(weight * 2.0**power for weight in weights)
    assert (doubled.offset, doubled.residual) == (offset * 2.0**power, residual * 2.0**power)
    assert doubled.centre == before.centre
    more = solved({span: error * factor for span, error in errors.items()}, n_layers)
    top = max(map(abs, errors.values()))
    assert more[0] == pytest.approx([weight * factor for weight in weights], abs=10 * n_layers * TINY * top)
    assert more[1] == pytest.approx(offset * factor, abs=10 * n_layers * TINY * top)


@given(noisy_sweeps(), st.randoms(use_true_random=False))
def test_the_order_of_windows_does_not_matter(drawn: tuple[Errors, int], rng: random.Random) -> None:
    errors, n_layers = drawn
    items = list(errors.items())
    rng.shuffle(items)
    assert solve_additive(dict(items), n_layers) == solve_additive(errors, n_layers)


@given(noisy_sweeps())
def test_the_centre_lies_in_1_to_l(drawn: tuple[Errors, int]) -> None:
    found = solve_additive(*drawn)
    assert found.centre is None or 1 <= found.centre <= drawn[1]
    assert (found.centre is None) == (found.reason is not None)


@given(noisy_sweeps())
def test_it_is_the_non_negative_least_squares_solution_and_there_is_one_where_the_rank_is_full(
    drawn: tuple[Errors, int],
) -> None:
    errors, n_layers = drawn
    columns, values = matrix(list(errors), n_layers), np.array(list(errors.values()))
    found = solve_additive(errors, n_layers)
    assert (found.weights is not None) == (np.linalg.matrix_rank(columns) == n_layers + 1)
    if found.weights is not None:
        expected, norm = nnls(columns, values)
        assert [found.offset, *found.weights] == pytest.approx(expected, abs=1e-8)
        assert found.residual == pytest.approx(norm / sqrt(len(values)), abs=1e-8)


@pytest.mark.parametrize("n_layers", [24, 48])
def test_it_is_so_for_many_layers_too(n_layers: int) -> None:
    rng = random.Random(n_layers)
    for _ in range(3):
        true = [rng.random() * (rng.random() < 0.4) for _ in range(n_layers)]
        errors = {span: error + rng.gauss(0, 0.5) for span, error in additive(true, 0.1).items()}
        weights, offset, _ = solved(errors, n_layers)
        expected = nnls(matrix(list(errors), n_layers), np.array(list(errors.values())))[0]
        assert [offset, *weights] == pytest.approx(expected, abs=1e-8)


# -- what windows do not determine --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("spans", "n_layers", "reason"),
    [
        ([(1, 4)], 4, "the windows do not determine layers 1-4"),
        ([(1, 2), (2, 3), (3, 4)], 4, "the windows do not determine layers 1-4"),
        ([(1, 1), (2, 2), (3, 4), (1, 4)], 4, "the windows do not determine layers 3-4"),
        ([(1, 1), (2, 2), (1, 2)], 3, "the windows do not determine layer 3"),
        ([(1, 1), (2, 2), (3, 3)], 3, "the windows do not tell the offset from the layers"),
        ([(1, 1)], 1, "the windows do not tell the offset from the layers"),
    ],
)
def test_windows_that_do_not_determine_every_layer_give_nothing_and_say_why(
    spans: list[Span], n_layers: int, reason: str
) -> None:
    for value in (0.0, 0.5):
        found = solve_additive(dict.fromkeys(spans, value), n_layers)
        assert found == Additive(None, None, None, None, reason)


def test_single_layers_and_one_wider_window_determine_everything() -> None:
    true = [0.1, 0.0, 0.3, 0.2]
    errors = {**{(n, n): 0.05 + true[n - 1] for n in range(1, 5)}, (2, 3): 0.05 + 0.3}
    weights, offset, _ = solved(errors, 4)
    assert weights == pytest.approx(true, abs=1e-9)
    assert offset == pytest.approx(0.05, abs=1e-9)


def test_some_whole_widths_determine_everything() -> None:
    true = [0.1, 0.0, 0.3, 0.2, 0.0, 0.6]
    errors = {span: error for span, error in additive(true, 0.05).items() if span[1] - span[0] in (1, 2)}
    assert solved(errors, 6)[0] == pytest.approx(true, abs=1e-9)


# -- what it refuses, numbers at the edge --------------------------------------------------------------
@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ({}, "no windows"),
        ({(0, 1): 0.5}, "window 0-1 outside 1-3"),
        ({(2, 4): 0.5}, "window 2-4 outside 1-3"),
        ({(2, 1): 0.5}, "window 2-1 outside 1-3"),
        ({(1, 3): nan}, "an error is not finite"),
        ({**sweep(3, lambda start, end: 0.5), (1, 2): inf}, "an error is not finite"),
    ],
)
def test_it_refuses_what_is_no_sweep(errors: Errors, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve_additive(errors, 3)


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e308, sys.float_info.max])
def test_errors_of_any_size_have_a_centre(size: float) -> None:
    for layer in range(1, 13):
        found = solve_additive(planted(12, layer, size), 12)
        assert found.centre == pytest.approx(layer, abs=1e-9)
        assert found.weights is not None and max(found.weights) == pytest.approx(size)
        assert found.residual == pytest.approx(0, abs=1e-9 * size)


@given(noisy_sweeps())
def test_no_weight_exceeds_the_largest_error(drawn: tuple[Errors, int]) -> None:
    found = solve_additive(*drawn)
    if found.weights is not None and found.offset is not None and found.residual is not None:
        assert max(found.offset, *found.weights) <= max(0, *drawn[0].values()) * (1 + 1e-12)
        assert found.residual <= max(map(abs, drawn[0].values()))


def test_it_imports_neither_numpy_nor_scipy() -> None:
    program = "import sys, mltools.analysis.additive; sys.exit(bool({'numpy', 'scipy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
