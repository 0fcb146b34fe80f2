"""Layer lists, windows and the layer scores that a sweep gives."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import CONFORMANCE, Cli
from mltools.analysis.layer_scores import layer_scores, window_means
from mltools.errors import UsageError
from mltools.layers import Span, Window, all_windows, format_layers, parse_layers, parse_windows, planned_windows

GOLDEN: dict[str, Any] = json.loads((CONFORMANCE / "golden.json").read_text())["heatmap"]


def sweep(accuracy: list[float], full: float = 0.0) -> dict[Span, float]:
    """Errors by (start, end) from the released accuracies; scaled as released for retraining if `full` is given."""
    spans = [(start + 1, end + 1) for start, end in GOLDEN["windows"]]
    return {span: (1 - value) / (1 - full) for span, value in zip(spans, accuracy, strict=True)}


# -- layer lists --------------------------------------------------------------------------------------
@given(st.sets(st.integers(1, 200), min_size=1))
def test_layer_lists_round_trip(layers: set[int]) -> None:
    assert parse_layers(format_layers(sorted(layers))) == tuple(sorted(layers))


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("3", (3,)),
        ("2-4", (2, 3, 4)),
        ("3-3", (3,)),
        ("1,4,7-8", (1, 4, 7, 8)),
        (" 3 - 5 ", (3, 4, 5)),
        ("7-8,1,7", (1, 7, 8)),
        ("12", (12,)),
    ],
)
def test_b20_layer_lists_are_read_as_in_cut(text: str, layers: tuple[int, ...]) -> None:
    assert parse_layers(text, 12) == layers


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "1-", "-3", "1-2-3", "1.5", "²", "٣", "1e1", "99999"])
def test_what_is_no_layer_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layers(text, 12)
    assert str(caught.value) == f'"{text}" is no layer list; write 3, 2-4 or 1,4,7-8 (layers count from 1)'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5-3", 'layer range "5-3" falls; write 3-5'),
        ("0-2", 'layers "0-2" outside 1-12 (layers count from 1; 0 is the embeddings)'),
        ("13-13", 'layers "13-13" outside 1-12 (layers count from 1; 0 is the embeddings)'),
        ("1,13", 'layers "13" outside 1-12 (layers count from 1; 0 is the embeddings)'),
    ],
)
def test_b20_layers_outside_the_model_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layers(text, 12)
    assert str(caught.value) == message


# -- windows ------------------------------------------------------------------------------------------
@given(st.integers(1, 40))
def test_there_are_half_l_times_l_plus_one_windows(n_layers: int) -> None:
    windows = all_windows(n_layers)
    assert len(windows) == len(set(windows)) == n_layers * (n_layers + 1) // 2
    assert windows == sorted(windows)
    assert all(window.contiguous and 1 <= window.start <= window.end <= n_layers for window in windows)
    for width in range(1, n_layers + 1):
        assert all_windows(n_layers, width) == [window for window in windows if window.width == width]


def test_the_paper_sweeps_78_and_300_windows() -> None:
    assert (len(all_windows(12)), len(all_windows(24))) == (78, 300)


def test_windows_named_twice_are_one_and_none_named_means_all() -> None:
    assert parse_windows(["2-3", "1", "2,3"], 4) == [Window((2, 3)), Window((1,))]
    assert parse_windows([], 3) == all_windows(3)


@pytest.mark.parametrize("n_layers", range(1, 49))
def test_the_spread_plan_determines_every_layer_and_the_offset(n_layers: int) -> None:
    """By the rank of the problem, with numpy, from two layers on: windows of whole widths, about 2 L of them."""
    windows = planned_windows(n_layers, "spread")
    design = [[1.0] + [float(layer in window.layers) for layer in range(1, n_layers + 1)] for window in windows]
    assert np.linalg.matrix_rank(np.array(design)) == (n_layers + 1 if n_layers > 1 else 1)
    assert len(set(windows)) == len(windows) == sum(n_layers - w + 1 for w in {window.width for window in windows})
    assert len(windows) <= 2 * n_layers + 2 and windows == sorted(windows)
    assert set(windows) <= set(planned_windows(n_layers)) == set(all_windows(n_layers))


def test_the_spread_plan_of_12_layers_trains_a_quarter_of_the_layers() -> None:
    """Widths 4, 7 and 10; a window from layer s on trains 12 - s + 1 layers, 650 in all of a full sweep."""
    windows = planned_windows(12, "spread")
    assert {window.width for window in windows} == {4, 7, 10}
    assert sum(12 - window.start + 1 for window in windows) == 72 + 57 + 33


def test_the_command_prints_work_items(cli: Cli) -> None:
    assert cli("windows", 3).out.split() == ["1", "1-2", "1-3", "2", "2-3", "3"]
    assert cli("windows", 4, "--width", 3).out.split() == ["1-3", "2-4"]
    assert len(cli("windows", 12).out.split()) == 78
    assert cli("windows", 4, "--plan", "spread").out.split() == ["1", "1-2", "1-3", "2", "2-3", "2-4", "3", "3-4", "4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "0 layers: at least 1 is needed"),
        ((0, "--plan", "spread"), "0 layers: at least 1 is needed"),
        ((4, "--width", 5), "width 5 outside 1-4"),
        ((4, "--width", 2, "--plan", "spread"), "--plan and --width both say which windows: give one of them"),
    ],
)
def test_windows_that_cannot_be_are_refused(cli: Cli, arguments: tuple[object, ...], message: str) -> None:
    result = cli("windows", *arguments)
    assert (result.code, result.out, result.err) == (2, "", f"mltools: {message}\n")


# -- layer scores -------------------------------------------------------------------------------------
@pytest.mark.parametrize("tool", ["swap", "retrain"])
def test_heat_map_and_layer_means_are_the_released_ones(tool: str) -> None:
    accuracy = GOLDEN["acc_noisy" if tool == "swap" else "retrain_acc_noisy"]
    full = 0.0 if tool == "swap" else accuracy[GOLDEN["windows"].index([0, 11])]
    errors = sweep(accuracy, full)
    means = window_means(errors, 12)
    for width, row in enumerate(GOLDEN[f"{tool}_heatmap"], start=1):
        assert [means[width, layer] for layer in range(1, 13)] == pytest.approx(row, abs=1e-12)
    assert layer_scores(errors, 12) == pytest.approx(GOLDEN[f"{tool}_layer_mean"], abs=1e-12)


def means_by_definition(errors: Mapping[Span, float], n_layers: int) -> list[float]:
    """The definition, spelled out: mean over widths of the mean over the windows of that width that hold the layer."""
    scores = []
    for layer in range(1, n_layers + 1):
        rows = []
        for width in sorted({end - start + 1 for start, end in errors}):
            held = [e for (a, b), e in errors.items() if b - a + 1 == width and a <= layer <= b]
            rows.append(sum(held) / len(held))
        scores.append(sum(rows) / len(rows))
    return scores


@given(st.integers(1, 7), st.data())
def test_layer_scores_follow_the_definition(n_layers: int, data: st.DataObject) -> None:
    widths = data.draw(st.sets(st.integers(1, n_layers), min_size=1))
    spans = [(w.start, w.end) for width in widths for w in all_windows(n_layers, width)]
    errors = {span: data.draw(st.floats(0, 1)) for span in data.draw(st.permutations(spans))}
    assert layer_scores(errors, n_layers) == pytest.approx(means_by_definition(errors, n_layers), abs=1e-12)
    again = {span: errors[span] for span in reversed(errors)}
    assert layer_scores(again, n_layers) == layer_scores(errors, n_layers)


def test_windows_of_one_layer_score_the_layers_themselves() -> None:
    assert layer_scores({(1, 1): 0.25, (2, 2): 0.5, (3, 3): 1.0}, 3) == [0.25, 0.5, 1.0]


def test_a_width_that_lacks_windows_is_refused() -> None:
    errors = {(1, 1): 0.1, (2, 2): 0.1, (3, 3): 0.1, (1, 2): 0.2}
    with pytest.raises(UsageError) as caught:
        layer_scores(errors, 3)
    assert str(caught.value) == "1 of 2 windows of width 2 are missing (first: 2-3); run them, or leave width 2 out"


def test_shards_are_the_whole_and_of_like_cost(cli: Cli) -> None:
    whole = cli("windows", 12).out.splitlines()
    parts = [cli("windows", 12, "--shard", f"{place}/4").out.splitlines() for place in range(1, 5)]
    assert [window for part in parts for window in part] == whole
    costs = [sum(13 - int(window.split("-")[-1]) for window in part) for part in parts]
    assert max(costs) - min(costs) <= 12
