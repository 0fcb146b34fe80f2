"""score: accuracy@k and reciprocal rank against all orders of ties, the paper's control figures, and messages."""

import json
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from conftest import CONFORMANCE, SHARED, Cli, write_jsonl
from mltools.analysis.statistics import wilson
from mltools.commands.score.work import accuracy_at, reciprocal_rank

FIGURES = SHARED / "paper" / "figures.json"
NO_FIGURES = "the numbers read off the paper's figures are not here: no shared/paper beside the project's folder"


def layers(scores: Sequence[float], tool: str = "swap", **tags: Any) -> list[dict[str, Any]]:
    return [
        {"tool": tool, "layer": layer, "layers": len(scores), "score": score, **tags}
        for layer, score in enumerate(scores, start=1)
    ]


def lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# -- laws ---------------------------------------------------------------------------------------------
def orders(scores: Sequence[float]) -> list[tuple[int, ...]]:
    """Every order of the layers, best first, that the scores allow."""
    numbered = range(1, len(scores) + 1)
    return [
        order for order in permutations(numbered) if all(scores[a - 1] >= scores[b - 1] for a, b in pairwise(order))
    ]


cases = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 2).map(float), min_size=n, max_size=n), st.sets(st.integers(1, n), min_size=1)
    )
)


@given(cases, st.data())
def test_ties_count_as_the_mean_over_all_their_orders(case: tuple[list[float], set[int]], data: st.DataObject) -> None:
    scores, truth = case
    k = data.draw(st.integers(1, len(scores)))
    found = orders(scores)
    hits = sum(Fraction(len(truth & set(order[:k])), k) for order in found) / len(found)
    ranks = sum(Fraction(1, min(order.index(layer) + 1 for layer in truth)) for order in found) / len(found)
    assert accuracy_at(scores, tuple(truth), k) == pytest.approx(float(hits))
    assert reciprocal_rank(scores, tuple(truth)) == pytest.approx(float(ranks))


@given(cases, st.floats(1e-3, 1e3))
def test_only_the_order_of_scores_matters(case: tuple[list[float], set[int]], scale: float) -> None:
    scores, truth = case
    scaled = [score * scale for score in scores]
    assert accuracy_at(scaled, tuple(truth), 1) == accuracy_at(scores, tuple(truth), 1)
    assert reciprocal_rank(scaled, tuple(truth)) == reciprocal_rank(scores, tuple(truth))


def test_scores_that_differ_by_rounding_are_ties() -> None:
    assert accuracy_at([0.1 + 0.2, 0.3], (2,), 1) == 0.5


@given(st.integers(1, 200), st.data())
def test_the_interval_is_wilsons(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


# -- through the program ------------------------------------------------------------------------------
def test_each_tool_and_k_gets_a_record(cli: Cli) -> None:
    rows = [
        *layers([0.9, 0.8, 0.1, 0.0], dataset="a"),
        *layers([0.1, 0.9, 0.2, 0.0], dataset="b"),
        *layers([0.0, 0.0, 0.0, 1.0], "grads", dataset="a"),
    ]
    result = cli("score", "--truth", "1-2", "-k", "1,2", stdin=lines(rows))
    found = [(r["tool"], r["k"], r["n_groups"], r["accuracy"], r["chance"]) for r in result.records]
    assert found == [
        ("swap", 1, 2, 1.0, 0.5),
        ("swap", 2, 2, 0.75, 0.5),
        ("grads", 1, 1, 0.0, 0.5),
        ("grads", 2, 1, pytest.approx(1 / 3), 0.5),
    ]
    assert [r["mean_reciprocal_rank"] for r in result.records] == [
        1.0,
        1.0,
        *[pytest.approx((1 / 2 + 1 / 2 + 1 / 3) / 3)] * 2,
    ]
    assert result.records[0]["chance_reciprocal_rank"] == pytest.approx((1 * 3 + 1 / 2 * 2 + 1 / 3) / 6)
    assert (result.records[1]["ci_low"], result.records[1]["ci_high"]) == pytest.approx(wilson(0.75, 2))


def test_equal_scores_are_at_chance(cli: Cli) -> None:
    (record,) = cli("score", "--truth", "3", "-k", "2", stdin=lines(layers([0.25] * 5))).records
    assert record["accuracy"] == pytest.approx(record["chance"]) == 0.2
    assert record["mean_reciprocal_rank"] == pytest.approx(record["chance_reciprocal_rank"])


def test_known_layers_may_stand_in_a_tag(cli: Cli) -> None:
    rows = [*layers([1, 0, 0.0], planted="1"), *layers([1, 0, 0.0], planted="2-3"), *layers([0, 0, 1.0], planted=3)]
    (record,) = cli("score", "--truth", "planted", "-k", "1", stdin=lines(rows)).records
    assert (record["n_groups"], record["accuracy"]) == (3, pytest.approx(2 / 3))
    assert record["chance"] == pytest.approx((1 + 2 + 1) / 9)


def test_by_sums_up_over_less(cli: Cli) -> None:
    rows = [row for model in "ab" for seed in (1, 2) for row in layers([1, 0.0], model=model, seed=seed)]
    records = cli("score", "--truth", "1", "-k", "1", "--per", "model", stdin=lines(rows)).records
    assert [(record["model"], record["n_groups"]) for record in records] == [("a", 2), ("b", 2)]


def test_windows_are_scored_as_mcog_does(cli: Cli, tmp_path: Path) -> None:
    golden = json.loads((CONFORMANCE / "golden.json").read_text())["heatmap"]
    windows = [
        {"tool": "swap", "start": a + 1, "end": b + 1, "layers": 12, "memorisation_error": 1 - value}
        for (a, b), value in zip(golden["windows"], golden["acc_noisy"], strict=True)
    ]
    best = sorted(range(1, 13), key=lambda layer: -golden["swap_layer_mean"][layer - 1])[:2]
    truth = ",".join(map(str, best))
    path = write_jsonl(tmp_path / "swap.jsonl", windows)
    assert [record["accuracy"] for record in cli("score", path, "--truth", truth).records] == [1.0, 1.0]
    pl.DataFrame(windows).write_parquet(tmp_path / "swap.parquet")
    assert cli("score", tmp_path / "swap.parquet", "--truth", truth).out == cli("score", path, "--truth", truth).out


@pytest.mark.skipif(not FIGURES.exists(), reason=NO_FIGURES)
@pytest.mark.parametrize("technique", ["probing", "gradients", "swapping", "retraining"])
def test_figure_2_with_its_chance_level(cli: Cli, technique: str) -> None:
    figure = json.loads(FIGURES.read_text())["fig2_control_accuracy"]
    (first, n), (both, _) = figure["per_technique"][technique]["a1"], figure["per_technique"][technique]["a2"]
    rows = []
    for case in range(n):  # layers 6-7 are right: the best of `first` cases, the second best of the others
        best = 6 if case < first else 1
        second = 7 if case < both - first else 12
        rows += layers([2.0 * (layer == best) + (layer == second) for layer in range(1, 13)], case=case)
    at_1, at_2 = cli("score", "--truth", "6-7", stdin=lines(rows)).records
    assert at_1["n_groups"] == n == 108
    assert (at_1["accuracy"], at_2["accuracy"]) == pytest.approx((first / 108, both / 216))
    assert at_1["chance"] == at_2["chance"] == pytest.approx(figure["random_baseline"], abs=0.0005)
    assert at_1["ci_low"] < at_1["accuracy"] < at_1["ci_high"]


# -- what it refuses ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "which layers are right? give --truth, e.g. --truth 6-7"),
        (("--truth", "3-1"), 2, 'layer range "3-1" falls; write 1-3'),
        (("--truth", "1", "-k", "0"), 2, '-k "0": write numbers from 1, e.g. 1,2'),
        (("--truth", "1", "-k", "x"), 2, '-k "x": write numbers from 1, e.g. 1,2'),
        (("--truth", "1", "-k", "4"), 3, "stdin:1: 3 layers, of which 4 cannot be the best; lower -k"),
        (
            ("--truth", "3-4"),
            3,
            'stdin:1: known layers: layers "3-4" outside 1-3 (layers count from 1; 0 is the embeddings)',
        ),
        (("--truth", "planted"), 3, 'stdin:1: no tag "planted" (found: tool, dataset)'),
        (("--truth", "1", "--per", "model"), 3, 'stdin:1: no tag "model" (found: tool, dataset)'),
    ],
)
def test_messages(cli: Cli, arguments: tuple[object, ...], code: int, message: str) -> None:
    result = cli("score", *arguments, stdin=lines(layers([1.0, 0.5, 0.0], dataset="a")))
    assert (result.code, result.out, result.err) == (code, "", f"mltools: {message}\n")


def test_value_judges_several_columns_of_one_run(cli: Cli, tmp_path: Path) -> None:
    """Table 4: one run of grads holds all variants."""
    rows = [
        {"tool": "grads", "layer": layer, "layers": 3, "score": None, "planted": "2", "l1": l1, "l2": l2}
        for layer, (l1, l2) in enumerate([(0.1, 0.9), (0.8, 0.05), (0.1, 0.05)], start=1)
    ]
    path = write_jsonl(tmp_path / "grads.jsonl", rows)
    found = cli("score", path, "--truth", "planted", "-k", "1", "--value", "l1,l2").records
    assert [(record["value"], record["accuracy"]) for record in found] == [("l1", 1.0), ("l2", 0.0)]


# -- how much of the scores is right, and where their centre is ---------------------------------------
def test_share_and_centre_error(cli: Cli) -> None:
    rows = [*layers([0, 3, 0, 1], seed=1), *layers([1, 1, 0, -2], seed=2), *layers([0, 0, 0, 0], seed=3)]
    record = cli("score", "--truth", "2", "-k", "1", stdin=lines(rows)).records[0]
    assert record["n_groups"] == 3 and record["share"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert record["centre_error"] == pytest.approx((0.5 + 0.5) / 2)
    assert cli("score", "--truth", "2", stdin=lines(layers([0, 0]))).records[0]["share"] is None


def test_solved_leaves_the_window_mean(cli: Cli) -> None:
    """Memory in layer 1 of 6 alone: the window mean smears it, the additive solution does not."""
    spans = [(start, end) for start in range(1, 7) for end in range(start, 7)]
    rows = [
        {"tool": "swap", "start": a, "end": b, "width": b - a + 1, "layers": 6, "memorisation_error": float(a == 1)}
        for a, b in spans
    ]
    smeared, solved = (
        cli("score", "--truth", "1", *more, stdin=lines(rows)).records[0] for more in ((), ("--solved",))
    )
    assert smeared["accuracy"] == solved["accuracy"] == 1
    assert smeared["share"] < 0.5 and smeared["centre_error"] > 0.5
    assert (solved["share"], solved["centre_error"]) == (pytest.approx(1), pytest.approx(0))
    assert cli("score", "--truth", "1", "--solved", stdin=lines(layers([1, 0]))).code == 3
