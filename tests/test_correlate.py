"""correlate: statistics against scipy and by hand, matching of keys, the paper's numbers, and messages."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from conftest import CONFORMANCE, SHARED, Cli, Shell, write_jsonl
from mltools.analysis import statistics
from mltools.analysis.statistics import Method, adjust, agreement, coefficient, ranks, resampled

FIGURES = SHARED / "paper" / "figures.json"
NO_FIGURES = "the numbers read off the paper's figures are not here: no shared/paper beside the project's folder"
METHODS: tuple[Method, ...] = ("spearman", "pearson", "kendall")
SCIPY: dict[str, Callable[..., Any]] = {
    "spearman": stats.spearmanr,
    "pearson": stats.pearsonr,
    "kendall": stats.kendalltau,
}
Floats = NDArray[np.float64]
Rows = list[dict[str, Any]]


def lines(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def centres(tool: str, values: dict[str, float | None], **tags: Any) -> Rows:
    """mcog records of one tool: task to M-CoG."""
    return [{"tool": tool, "layers": 12, "m_cog": value, "dataset": task, **tags} for task, value in values.items()]


def series(low: int, high: int) -> st.SearchStrategy[tuple[Floats, Floats]]:
    numbers = st.integers(low, high).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(0, 5), min_size=n, max_size=n) for _ in range(2)])
    )
    return numbers.map(lambda pair: (np.array(pair[0], float), np.array(pair[1], float))).filter(
        lambda pair: bool(np.ptp(pair[0]) and np.ptp(pair[1]))
    )


# -- statistics ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS)
@given(pair=series(3, 30))
def test_coefficients_are_scipys(method: Method, pair: tuple[Floats, Floats]) -> None:
    assert coefficient(*pair, method) == pytest.approx(SCIPY[method](*pair).statistic, abs=1e-12)


@given(series(2, 30))
def test_ranks_are_scipys(pair: tuple[Floats, Floats]) -> None:
    assert ranks(pair[0]).tolist() == stats.rankdata(pair[0]).tolist()


@pytest.mark.parametrize("method", METHODS)
@given(pair=series(9, 40))
def test_above_8_pairs_p_is_scipys(method: Method, pair: tuple[Floats, Floats]) -> None:
    found = agreement(*pair, method, resamples=0)
    options = {"method": "asymptotic"} if method == "kendall" else {}
    assert found.p_method == "asymptotic"
    assert found.p == pytest.approx(SCIPY[method](*pair, **options).pvalue, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=15)
@given(pair=series(3, 5))
def test_up_to_8_pairs_p_counts_all_orders(method: Method, pair: tuple[Floats, Floats]) -> None:
    x, y = pair
    found = agreement(x, y, method, resamples=0)
    null = stats.permutation_test(
        (y,), lambda order: SCIPY[method](x, order).statistic, permutation_type="pairings", n_resamples=np.inf
    ).null_distribution
    assert found.p_method == "permutation"
    assert found.p == pytest.approx(np.mean(np.abs(null) >= abs(found.correlation or 0) - 1e-9))


def test_the_least_p_of_four_and_eight_pairs_is_exact() -> None:
    for n, p in ((4, 2 / 24), (8, 2 / 40320)):
        x = np.arange(n, dtype=float)
        assert agreement(x, x, "spearman").p == pytest.approx(p)
        assert agreement(x, -x, "kendall").p == pytest.approx(p)


@pytest.mark.parametrize("method", METHODS)
@given(pair=series(3, 12), data=st.data())
def test_weighted_resamples_are_resamples(method: Method, pair: tuple[Floats, Floats], data: st.DataObject) -> None:
    x, y = pair
    chosen = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=2, max_size=12))
    counts = np.bincount(chosen, minlength=len(x)).astype(float)[None, :]
    (found,) = resampled(x, y, counts, method)
    if np.ptp(x[chosen]) == 0 or np.ptp(y[chosen]) == 0:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(coefficient(x[chosen], y[chosen], method), abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_intervals_cover_and_fishers_agree_with_bootstrap_ones(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = x + rng.normal(size=400)
    bootstrap = agreement(x, y, method)
    monkeypatch.setattr(statistics, "BOOTSTRAP_UP_TO", 100)
    fisher = agreement(x, y, method)
    assert (bootstrap.ci_method, fisher.ci_method) == ("bootstrap", "fisher")
    assert bootstrap.ci_low is not None and bootstrap.ci_high is not None and bootstrap.correlation is not None
    assert bootstrap.ci_low < bootstrap.correlation < bootstrap.ci_high
    assert (fisher.ci_low, fisher.ci_high) == pytest.approx((bootstrap.ci_low, bootstrap.ci_high), abs=0.02)


def test_bootstrap_intervals_leave_out_one_in_forty_at_either_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mltools.analysis.statistics.resampled", lambda *_: np.linspace(-1, 1, 2001))
    found = agreement(np.arange(9.0), np.arange(9.0)[::-1], "pearson")
    assert [found.ci_low, found.ci_high] == pytest.approx([-0.95, 0.95]) and found.ci_method == "bootstrap"


@pytest.mark.parametrize(
    ("method", "variance"),
    [
        ("pearson", lambda r, n: 1 / (n - 3)),
        ("spearman", lambda r, n: (1 + r * r / 2) / (n - 3)),
        ("kendall", lambda r, n: 0.437 / (n - 4)),
    ],
)
def test_fishers_interval_has_the_variance_of_its_method(
    method: Method, variance: Callable[[float, int], float]
) -> None:
    """Bonett and Wright (2000), worked out here: methods differ by a tenth, which a bootstrap cannot show."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=700)
    found = agreement(x, x + rng.normal(size=700), method)
    assert found.ci_method == "fisher" and found.correlation is not None
    half = stats.norm.ppf(0.975) * np.sqrt(variance(found.correlation, 700))
    expected = np.tanh(np.arctanh(found.correlation) + np.array([-half, half]))
    assert [found.ci_low, found.ci_high] == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
@given(pair=series(3, 12), seed=st.integers(0, 100))
def test_nothing_depends_on_the_order_of_pairs(method: Method, pair: tuple[Floats, Floats], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(pair[0]))
    x, y = pair
    assert agreement(x[order], y[order], method, resamples=50) == agreement(x, y, method, resamples=50)


@given(series(3, 12))
def test_only_ranks_matter_to_spearman_and_kendall(pair: tuple[Floats, Floats]) -> None:
    x, y = pair
    for method in ("spearman", "kendall"):
        assert agreement(np.exp(x), y**3, method, resamples=50) == agreement(x, y, method, resamples=50)


def test_numbers_that_differ_by_rounding_are_ties() -> None:
    x, y = np.array([0.1 + 0.2, 0.3, 0.5]), np.array([1.0, 2.0, 3.0])
    assert agreement(x, y, "spearman").correlation == pytest.approx(stats.spearmanr([1, 1, 2], y).statistic)
    assert agreement(np.array([0.1 + 0.2, 0.3, 0.3]), y, "spearman").reason == "a is constant"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_adjusted_p_values_are_benjamini_and_hochbergs(p: list[float]) -> None:
    assert adjust(p) == pytest.approx(stats.false_discovery_control(p, method="bh").tolist())
    assert adjust([None, *p, None]) == [None, *adjust(p), None]


# -- matching -----------------------------------------------------------------------------------------
def test_the_example_of_the_help(cli: Cli) -> None:
    rows = [
        *centres("swap", {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "only": 5.0}),
        *centres("retrain", {"d": 8.0, "c": 6.0, "b": 7.0, "a": 5.0, "other": 1.0, "undefined": None}),
    ]
    (record,) = cli("correlate", "--pivot", "tool", "--value", "mcog", "--on", "dataset", stdin=lines(rows)).records
    names = ("a", "b", "pivot", "value", "method", "n", "n_dropped", "p_method", "ci_method", "reason")
    assert [record[name] for name in names] == [
        *("retrain", "swap", "tool", "m_cog", "spearman", 4, 3, "permutation", "bootstrap", None)
    ]
    assert record["correlation"] == pytest.approx(0.8)
    assert record["p"] == record["p_adjusted"] == pytest.approx(8 / 24)
    assert -1 <= record["ci_low"] <= 0.8 <= record["ci_high"] <= 1
    assert cli("correlate", stdin=lines(rows)).records == [record]


def test_every_two_series_get_a_record_and_p_is_adjusted_over_all(cli: Cli) -> None:
    rng = random.Random(1)
    tasks = [f"t{i}" for i in range(12)]
    rows = [row for tool in "dcba" for row in centres(tool, {task: rng.random() for task in tasks})]
    records = cli("correlate", stdin=lines(rows)).records
    assert ["".join((r["a"], r["b"])) for r in records] == ["ab", "ac", "ad", "bc", "bd", "cd"]
    adjusted = stats.false_discovery_control([r["p"] for r in records])
    assert [r["p_adjusted"] for r in records] == pytest.approx(adjusted.tolist())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, 1.0, 1.0], "b is constant"),
        ([1.0, 2.0, None], "n<3"),
    ],
)
def test_b18_series_without_a_correlation_give_null_and_the_reason(
    cli: Cli, values: list[float | None], reason: str
) -> None:
    rows = [*centres("a", {"x": 1.0, "y": 2.0, "z": 3.0}), *centres("b", dict(zip("xyz", values, strict=True)))]
    result = cli("correlate", stdin=lines(rows))
    (record,) = result.records
    assert result.code == 0
    assert record["reason"] == reason
    undefined = ("correlation", "p", "p_method", "p_adjusted", "ci_low", "ci_high", "ci_method")
    assert [record[name] for name in undefined] == [None] * len(undefined)
    assert (record["n"], record["n_dropped"]) == ((3, 0) if reason != "n<3" else (2, 1))


def test_repeated_measures_are_refused_or_pooled(cli: Cli) -> None:
    once = [*centres("a", {"x": 1.0, "y": 2.0, "z": 4.0}), *centres("b", {"x": 2.0, "y": 3.0, "z": 1.0})]
    rows = [{**row, "seed": seed, "m_cog": row["m_cog"] + seed - 2} for seed in (1, 2, 3) for row in once]
    (by_seed,) = cli("correlate", stdin=lines(rows)).records
    assert by_seed["n"] == 9
    refused = cli("correlate", "--on", "dataset", stdin=lines(rows))
    assert refused.code == 3
    assert refused.err == (
        "mltools: stdin:7: m_cog again for dataset=x; name the column that tells the records apart with --on, "
        "or average runs of the same with --pool\n"
    )
    (pooled,) = cli("correlate", "--on", "dataset", "--pool", stdin=lines(rows)).records
    (expected,) = cli("correlate", stdin=lines(once)).records
    assert pooled == expected


def test_by_makes_tables(cli: Cli) -> None:
    rows = [
        row
        for model, sign in (("m", 1.0), ("n", -1.0))
        for tool, factor in (("a", 1.0), ("b", sign))
        for row in centres(tool, {task: 5 + factor * i for i, task in enumerate("xyz")}, model=model)
    ]
    records = cli("correlate", "--per", "model", stdin=lines(rows)).records
    assert [(r["model"], r["n"], r["correlation"]) for r in records] == [("m", 3, 1.0), ("n", 3, -1.0)]
    (one,) = cli("correlate", stdin=lines(rows)).records
    assert one["n"] == 6


def test_another_pivot_compares_within_tools(cli: Cli) -> None:
    rows = [
        row
        for model, sign in (("m", 1.0), ("n", -1.0))
        for tool in ("a", "b")
        for row in centres(tool, {task: 5 + sign * i for i, task in enumerate("xyz")}, model=model)
    ]
    (record,) = cli("correlate", "--pivot", "model", stdin=lines(rows)).records
    assert (record["a"], record["b"], record["n"], record["correlation"]) == ("m", "n", 6, -1.0)


def layer_rows(tool: str, scores: Sequence[float], **tags: Any) -> Rows:
    return [
        {"tool": tool, "layer": layer, "layers": len(scores), "score": score, **tags}
        for layer, score in enumerate(scores, start=1)
    ]


def test_scores_are_matched_layer_by_layer(cli: Cli) -> None:
    rows = [*layer_rows("grads", [3.0, 1.0, 2.0, 0.0]), *layer_rows("probe", [0.4, 0.2, 0.1, 0.0])]
    rows.append({"tool": "probe", "layer": 0, "layers": 4, "score": None})  # the embeddings
    random.Random(0).shuffle(rows)
    (record,) = cli("correlate", "--value", "score", stdin=lines(rows)).records
    assert (record["n"], record["n_dropped"], record["correlation"]) == (4, 0, pytest.approx(0.8))


def test_minmax_scales_each_tool_of_a_series(cli: Cli) -> None:
    models = {"m": (1.0, 100.0), "n": (50.0, 2.0)}
    rows = [
        row
        for model, factors in models.items()
        for tool, factor in zip(("grads", "swap"), factors, strict=True)
        for shift in [40.0 * (model == "n" and tool == "swap")]
        for row in layer_rows(
            tool, [shift + factor * x for x in ([1.0, 2.0, 4.0] if tool == "swap" else [3.0, 1.0, 2.0])], model=model
        )
    ]
    arguments = ("correlate", "--value", "score", "--pivot", "model")
    (raw,) = cli(*arguments, stdin=lines(rows)).records
    (scaled,) = cli(*arguments, "--scale", "minmax", stdin=lines(rows)).records
    assert scaled["correlation"] == pytest.approx(1.0)
    assert raw["correlation"] < 0.9


def test_window_records_are_weighed_first(cli: Cli, tmp_path: Path) -> None:
    golden = json.loads((CONFORMANCE / "golden.json").read_text())["heatmap"]
    rng = random.Random(0)
    rows = [
        {
            "tool": tool,
            "start": a + 1,
            "end": b + 1,
            "layers": 12,
            "memorisation_error": (1 - value) * rng.random(),
            "dataset": task,
        }
        for tool in ("swap", "retrain")
        for task in "wxyz"
        for (a, b), value in zip(golden["windows"], golden["acc_noisy"], strict=True)
    ]
    path = write_jsonl(tmp_path / "windows.jsonl", rows)
    assert cli("correlate", path).records == cli("correlate", stdin=cli("mcog", path).out).records
    scores = cli("mcog", "--by-layer", path).out
    assert (
        cli("correlate", path, "--value", "score").records == cli("correlate", "--value", "score", stdin=scores).records
    )
    pl.DataFrame(rows).write_parquet(tmp_path / "windows.parquet")
    assert cli("correlate", tmp_path / "windows.parquet").out == cli("correlate", path).out


# -- what the records say of themselves ----------------------------------------------------------------
def epochs(tool: str, task: str, values: Sequence[float], kept: int | None = None, attempt: int = 1) -> Rows:
    """Epochs of one run; `kept` is the index of the one that the checkpoint holds, None in the first version."""
    own = [{} if kept is None else {"attempt": attempt, "kept": i == kept} for i in range(len(values))]
    return [
        {
            "tool": tool,
            "epoch": i,
            "epochs": 9,
            "step": i,
            "learning_rate": 1e-5,
            "loss": 1.0,
            "noisy_accuracy": value,
            "dataset": task,
            **own[i - 1],
        }
        for i, value in enumerate(values, start=1)
    ]


def test_epochs_are_read_at_their_last_one_and_never_pooled(cli: Cli) -> None:
    """--pool was advised, and averaged over epochs: -1 where the last epochs say +1."""
    paths = {"x": (0.9, 0.9, 0.1), "y": (0.5, 0.5, 0.2), "z": (0.1, 0.1, 0.3)}
    for kept in (None, 2):
        rows = [row for task, path in paths.items() for row in epochs("finetune", task, path, kept)]
        rows += centres("swap", {"x": 1.0, "y": 2.0, "z": 3.0})
        random.Random(0).shuffle(rows)
        for more in ((), ("--pool",)):
            arguments = ("correlate", "--value", "noisy_accuracy,mcog", "--on", "dataset", *more)
            (record,) = cli(*arguments, stdin=lines(rows)).records
            assert (record["n"], record["correlation"]) == (3, 1.0)


def test_epochs_that_are_asked_for_are_compared_one_by_one(cli: Cli) -> None:
    rows = [
        {**row, "model": model}
        for model, path in (("a", [0.1, 0.2, 0.3]), ("b", [0.3, 0.5, 0.6]))
        for row in epochs("finetune", "x", path)
    ]
    arguments = ("correlate", "--value", "noisy_accuracy", "--pivot", "model", "--on", "epoch")
    (record,) = cli(*arguments, stdin=lines(rows)).records
    assert (record["n"], record["correlation"]) == (3, 1.0)


def test_of_several_attempts_the_kept_one_counts(cli: Cli) -> None:
    rows = centres("swap", {"x": 1.0, "y": 2.0, "z": 3.0})
    for task, best in (("x", 0.1), ("y", 0.2), ("z", 0.3)):
        rows += epochs("finetune", task, [0.5, best], kept=9) + epochs("finetune", task, [0.4, 1 - best], 9, attempt=2)
        rows += epochs("finetune", task, [0.5, best], kept=1)[1:]  # the earlier attempt once more
    arguments = ("correlate", "--value", "noisy_accuracy,mcog", "--on", "dataset")
    ended = cli(*arguments, stdin=lines(rows))
    (record,) = ended.records
    assert (record["n"], record["correlation"]) == (3, 1.0) and "has not ended" not in ended.err
    unfinished = cli(*arguments, stdin=lines([row for row in rows if row.get("kept") is not True]))
    (record,) = unfinished.records
    assert record["correlation"] == -1.0  # the last attempt so far
    note = "mltools: note: stdin:7: epoch 2 of 9 is the last of its run, which has not ended, and so of 2 more\n"
    assert note in unfinished.err


def test_two_runs_of_finetune_that_nothing_tells_apart_are_refused(cli: Cli) -> None:
    rows = [*centres("swap", {"x": 1.0}), *epochs("finetune", "x", [0.5, 1.0], 1) * 2]
    result = cli("correlate", "--value", "noisy_accuracy,mcog", "--on", "dataset", stdin=lines(rows))
    assert result.code == 3 and "noisy_accuracy again for dataset=x; name the column" in result.err


@pytest.mark.parametrize(("place", "first"), [("layer", {"layer": 1}), ("window", {"start": 1, "window": "1"})])
def test_places_in_a_model_are_not_advised_to_be_pooled(cli: Cli, place: str, first: dict[str, Any]) -> None:
    rows = [{"tool": "a", "dataset": "x", "layers": 2, "f1": 0.5, "start": None, **first}] * 2
    result = cli("correlate", "--value", "f1", "--on", "dataset", stdin=lines(rows))
    assert result.code == 3 and "--pool" not in result.err
    assert result.err.endswith(f"compare them {place} by {place}, --on dataset,{place}\n")


def widths(tool: str, text: str | None, layers: int = 12, **tags: Any) -> Rows:
    rows = centres(tool, {"x": 1.0, "y": 2.0, "z": 4.0}, widths=text, **tags)
    return [{**row, "layers": layers} for row in rows]


def test_sweeps_of_other_widths_are_not_compared_unless_allowed(cli: Cli) -> None:
    rows = lines([*widths("retrain", "1-12"), *widths("swap", "1-2")])
    refused = cli("correlate", stdin=rows)
    assert (refused.code, refused.out) == (3, "")
    assert "retrain and swap: numbers of windows of widths 1-2 and 1-L would be compared" in refused.err
    assert cli("correlate", "--allow-mixed", stdin=rows).records[0]["correlation"] == 1.0


@pytest.mark.parametrize(("text", "layers"), [("1-24", 24), (None, 12)])
def test_full_sweeps_of_any_depth_and_records_without_windows_are_compared(
    cli: Cli, text: str | None, layers: int
) -> None:
    rows = [*widths("retrain", "1-12"), *widths("swap", text, layers)]
    assert cli("correlate", stdin=lines(rows)).records[0]["correlation"] == 1.0


def test_widths_of_window_records_are_seen_too(cli: Cli) -> None:
    spans = {"swap": [(1, 1), (2, 2)], "retrain": [(1, 1), (2, 2), (1, 2)]}
    rows = [
        {"tool": tool, "start": a, "end": b, "layers": 2, "memorisation_error": 0.1 * a * i, "dataset": task}
        for i, task in enumerate("xyz", start=1)
        for tool, found in spans.items()
        for a, b in found
    ]
    for value in ("mcog", "score"):
        refused = cli("correlate", "--value", value, stdin=lines(rows))
        assert refused.code == 3 and "widths 1 and 1-L would be compared" in refused.err
        assert cli("correlate", "--value", value, "--allow-mixed", stdin=lines(rows)).code == 0
    partial = cli("correlate", stdin=lines(rows[1:]))  # swap's x lacks a window: no number, and no key
    assert partial.code == 3 and "widths" in partial.err
    (record,) = cli("correlate", "--allow-mixed", stdin=lines(rows[1:])).records
    assert (record["n"], record["n_dropped"]) == (2, 1)


@pytest.mark.parametrize("weighed", [True, False])
def test_a_correlation_is_as_valid_as_its_records(cli: Cli, weighed: bool) -> None:
    valid = {"a": (True, True, True), "b": (True, False, True), "c": (True, None, True)}
    rows = []
    for tool, found in valid.items():
        for i, (task, is_valid) in enumerate(zip("xyz", found, strict=True)):
            said = {"valid": is_valid, "valid_reason": "clean_untrained" if is_valid is False else None}
            made = layer_rows(tool, [1.0, float(i)], dataset=task) if weighed else centres(tool, {task: float(i)})
            rows += [{**row, **said} for row in made]
    found_pairs = {
        r["a"] + r["b"]: (r["valid"], r["valid_reason"]) for r in cli("correlate", stdin=lines(rows)).records
    }
    invalid = (False, "clean_untrained")
    assert found_pairs == {"ab": invalid, "ac": (None, None), "bc": invalid}
    (both,) = cli(
        "correlate",
        stdin=lines(
            [row for row in rows if row["tool"] == "a"] + [{**row, "tool": "d"} for row in rows if row["tool"] == "a"]
        ),
    ).records
    assert both["valid"] is True


def event(name: str, layer: int | None, task: str, pair: str | None = None) -> dict[str, Any]:
    return {
        "tool": "centroid",
        "event": name,
        "layer": layer,
        "layers": 12,
        "assigned_label": pair,
        "original_label": pair,
        "reason": None,
        "dataset": task,
    }


def test_several_values_are_series_themselves(cli: Cli) -> None:
    crossing, initiation = [3, 5, None, 8], [9, 7, 6, 1]
    rows = [
        *centres("swap", {"w": 4.0, "x": 5.0, "y": 6.0, "z": 7.0}),
        *(event("crossing", layer, task) for task, layer in zip("wxyz", crossing, strict=True)),
        *(event("crossing", 1, task, "HUM") for task in "wxyz"),  # of one pair of classes: does not count
        *(event("initiation", layer, task) for task, layer in zip("wxyz", initiation, strict=True)),
    ]
    records = cli("correlate", "--value", "mcog,crossing,initiation", stdin=lines(rows)).records
    found = [(r["a"], r["b"], r["pivot"], r["n"], r["n_dropped"], r["correlation"]) for r in records]
    assert found == [
        ("m_cog", "crossing", None, 3, 1, 1.0),
        ("m_cog", "initiation", None, 4, 0, -1.0),
        ("crossing", "initiation", None, 3, 1, -1.0),
    ]


def test_kinds_of_records_may_share_a_parquet_file(cli: Cli, tmp_path: Path) -> None:
    rows = [
        *centres("a", {"w": 1.0, "x": 2.0, "y": 4.0, "z": 3.0}),
        *(event("crossing", layer, task) for layer, task in zip((3, 4, 5, 9), "wxyz", strict=True)),
        *(
            row
            for task, top in zip("wxyz", (1.0, 2.0, 3.0, 0.5), strict=True)
            for row in layer_rows("b", [1.0, top], dataset=task)
        ),
    ]
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(tmp_path / "records.parquet")
    for value in ("mcog", "mcog,crossing"):
        expected = cli("correlate", "--value", value, "--on", "dataset", "--pool", stdin=lines(rows)).records
        found = cli("correlate", tmp_path / "records.parquet", "--value", value, "--on", "dataset", "--pool").records
        assert found == expected and [record["n"] for record in found] == [4]


def test_table_2_is_one_correlate(cli: Cli) -> None:
    rows = []
    for model, sign in (("m", 1.0), ("n", -1.0)):
        for i, task in enumerate("wxyz"):
            rows += centres("swap", {task: 5 + sign * i}, model=model)
            rows += centres("probe", {task: 6 + sign * i}, model=model)
            rows.append({**event("crossing", 3 + i, task), "model": model})
            rows.append({**event("memorisation>>generalisation", 8 - i, task), "model": model, "tool": "probe"})
            rows.append({"tool": "generalise", "generalisation_score": 0.1 * i, "dataset": task, "model": model})
    values = "generalisation_score,crossing,memorisation>>generalisation,mcog"
    arguments = ("correlate", "--value", values, "--on", "dataset", "--per", "model", "--pool")
    records = cli(*arguments, stdin=lines(rows)).records
    found = {(r["model"], r["b"]): (r["n"], r["correlation"]) for r in records if r["a"] == "generalisation_score"}
    assert found == {
        ("m", "crossing"): (4, 1.0),
        ("m", "memorisation>>generalisation"): (4, -1.0),
        ("m", "m_cog"): (4, 1.0),
        ("n", "crossing"): (4, 1.0),
        ("n", "memorisation>>generalisation"): (4, -1.0),
        ("n", "m_cog"): (4, -1.0),
    }


def test_the_seed_decides_and_the_order_of_records_does_not(cli: Cli) -> None:
    rng = random.Random(0)
    rows = [row for tool in "abc" for row in centres(tool, {f"t{i}": rng.random() for i in range(20)})]
    first = cli("correlate", stdin=lines(rows)).out
    rng.shuffle(rows)
    assert cli("correlate", stdin=lines(rows)).out == first
    other = cli("correlate", "--seed", "2", stdin=lines(rows)).records
    assert other[0]["ci_low"] != json.loads(first.splitlines()[0])["ci_low"]
    assert other[0]["p"] == json.loads(first.splitlines()[0])["p"]


def test_released_code_compares_tools_by_pearson_and_models_by_spearman(cli: Cli) -> None:
    rows = [
        row
        for model in "mn"
        for tool in "ab"
        for row in centres(tool, {"x": 1.0, "y": 2.0, "z": 9.0 if tool == "a" else 2.5}, model=model)
    ]
    released = ("correlate", "--preset", "released-code")
    assert cli(*released, stdin=lines(rows)).records[0]["method"] == "pearson"
    assert cli(*released, "--pivot", "model", stdin=lines(rows)).records[0]["method"] == "spearman"
    assert cli(*released, "--method", "kendall", stdin=lines(rows)).records[0]["method"] == "kendall"


def test_parquet_out_holds_the_records(cli: Cli, tmp_path: Path) -> None:
    rows = [*centres("a", {"x": 1.0, "y": 2.0, "z": 4.0}), *centres("b", {"x": 2.0, "y": 3.0, "z": 1.0})]
    path = write_jsonl(tmp_path / "mcog.jsonl", rows)
    expected = cli("correlate", path).records
    assert cli("correlate", path, "-o", tmp_path / "out.parquet").code == 0
    assert pl.read_parquet(tmp_path / "out.parquet").to_dicts() == expected


def test_a_closed_pipe_ends_quietly(shell: Shell, tmp_path: Path) -> None:
    rows = [row for tool in range(24) for row in centres(f"tool {tool:050}", {"x": 1.0, "y": 2.0 + tool, "z": 4.0})]
    write_jsonl(tmp_path / "mcog.jsonl", rows)
    result = shell("mltools correlate -q mcog.jsonl | head -1 | wc -l; echo ${PIPESTATUS[*]}", tmp_path)
    assert (result.code, result.out.split(), result.err) == (0, ["1", "0", "0", "0"], "")


# -- the paper's numbers ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    if not FIGURES.exists():
        pytest.skip(NO_FIGURES)
    result: dict[str, Any] = json.loads(FIGURES.read_text())
    return result


def test_swapping_m_cog_of_small_models_and_opt_1_3b(cli: Cli, figures: dict[str, Any]) -> None:
    rows = [
        row
        for model, tasks in figures["fig5_13_swapping_memorisation_error_per_layer"]["values"].items()
        for task, scores in tasks.items()
        for row in layer_rows("swap", scores, model=model, dataset=task)
    ]
    large = figures["fig18_opt1.3b_swapping_error_per_layer"]["values"]
    rows += [row for task, scores in large.items() for row in layer_rows("swap", scores, model="1.3B", dataset=task)]
    records = cli("correlate", "--pivot", "model", "--on", "dataset", stdin=lines(rows)).records
    found = {r["b"]: r for r in records if r["a"] == "1.3B"}
    for model, rho in figures["paper"]["inline_numbers"]["swap_mcog_small_vs_1.3B"].items():
        assert (found[model]["n"], round(found[model]["correlation"], 2)) == (12, pytest.approx(rho, abs=0.011))
    small = [r["correlation"] for r in records if "1.3B" not in (r["a"], r["b"])]
    assert len(small) == 6
    assert np.mean(small) == pytest.approx(figures["swapping_mcog"]["pairwise_spearman_mean"], abs=0.005)


@pytest.mark.parametrize(("index", "name"), [(0, "crossing"), (1, "initiation")])
def test_events_of_binarised_tasks(cli: Cli, figures: dict[str, Any], index: int, name: str) -> None:
    events = figures["fig20_binarised_events"]
    rows = [
        {**event(name, None, task), "layer": layers[index], "classes": kind}
        for kind in ("multi_class_seed1", "binary_seed1")
        for task, layers in events[kind].items()
    ]
    arguments = ("correlate", "--value", name, "--pivot", "classes", "--on", "dataset")
    (record,) = cli(*arguments, stdin=lines(rows)).records
    printed = figures["notebook_stdout"]["binarised_events"][name]
    assert (record["n"], round(record["correlation"], 2)) == (5, printed["rho"])
    # p is exact here, and was approximated there
    assert record["p_method"] == "permutation" and record["p"] > printed["p"] - 0.005


# -- what it refuses ----------------------------------------------------------------------------------
GOOD = [*centres("a", {"x": 1.0, "y": 2.0}), *centres("b", {"x": 2.0, "y": 3.0})]


@pytest.mark.parametrize(
    ("rows", "arguments", "code", "message"),
    [
        ([], (), 3, "nothing to correlate: series none; two are needed in each table"),
        (GOOD[:2], (), 3, "nothing to correlate: series a; two are needed in each table"),
        (GOOD, ("--value", "score"), 3, 'stdin:1: no "score" (found: tool, layers, m_cog, dataset)'),
        (GOOD, ("--on", "model"), 3, 'stdin:1: no "model" (found: tool, layers, m_cog, dataset)'),
        (GOOD, ("--per", "model"), 3, 'stdin:1: no "model" (found: tool, layers, m_cog, dataset)'),
        (GOOD, ("--pivot", "model"), 3, 'stdin:1: no "model" (found: tool, layers, m_cog, dataset)'),
        ([{**GOOD[0], "m_cog": "1"}], (), 3, 'stdin:1: "m_cog" is "1", not a number'),
        ([GOOD[0], {**GOOD[1], "dataset": ["y"]}], (), 3, 'stdin:2: "dataset" is ["y"], not one value'),
        (
            [{"tool": "a", "layers": 2, "m_cog": 1.0}],
            (),
            3,
            "stdin:1: no tags to match records on; name the key columns with --on",
        ),
        (
            GOOD,
            ("--method", "spearmen"),
            2,
            '--method "spearmen": choose spearman, pearson or kendall; did you mean spearman?',
        ),
        (GOOD, ("--scale", "z"), 2, '--scale "z": choose none or minmax'),
        (GOOD, ("--on", "a,,b"), 2, '"a,,b" has an empty name in it'),
    ],
)
def test_messages(cli: Cli, rows: Rows, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = cli("correlate", *arguments, stdin=lines(rows))
    assert (result.code, result.out, result.err) == (code, "", f"mltools: {message}\n")


# -- differences, mean of all pairs, clusters ---------------------------------------------------------------
def test_differences_are_of_a_less_b(cli: Cli) -> None:
    rows = [*centres("binary", {"x": 1.0, "y": 2.0, "z": 2.5}), *centres("multi", {"x": 2.0, "y": 1.5, "z": 4.0})]
    (record,) = cli("correlate", stdin=lines(rows)).records
    assert record["mean_difference"] == pytest.approx((-1 + 0.5 - 1.5) / 3)
    assert record["mean_absolute_difference"] == pytest.approx((1 + 0.5 + 1.5) / 3)
    (far,) = cli("correlate", stdin=lines([*centres("a", {"x": 1.0}), *centres("b", {"y": 1.0})])).records
    assert (far["n"], far["mean_difference"], far["mean_absolute_difference"]) == (0, None, None)


def test_mean_of_all_pairs_is_over_keys_that_all_have(cli: Cli) -> None:
    rng = random.Random(3)
    numbers: dict[str, dict[str, float | None]]
    numbers = {tool: {task: rng.random() for task in "tuvwxy"} for tool in "abc"}
    rows = [row for tool, own in numbers.items() for row in centres(tool, own)] + centres("a", {"only": 9.0})
    (record,) = cli("correlate", "--mean", stdin=lines(rows)).records
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    found = [stats.spearmanr(list(numbers[a].values()), list(numbers[b].values())).statistic for a, b in pairs]
    assert record["correlation"] == pytest.approx(np.mean(found))
    assert (record["a"], record["b"], record["n"], record["n_dropped"]) == ("a,b,c", "each other", 6, 1)
    assert (record["n_pairs"], record["p"], record["mean_difference"]) == (3, None, None)
    assert record["ci_low"] <= record["correlation"] <= record["ci_high"]
    rows += centres("d", dict.fromkeys("tuvwxy", 1.0))
    assert cli("correlate", "--mean", stdin=lines(rows)).records[0]["reason"] == "a series is constant"


@pytest.mark.parametrize("method", METHODS)
def test_intervals_of_clusters_are_those_of_their_copies(method: Method) -> None:
    """Ten copies of each key, as one cluster, know no more than the keys; alone they would seem to."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=12)
    y = x + rng.normal(size=12)
    once = agreement(x, y, method)
    copies = np.arange(12).repeat(10)
    found = agreement(x[copies], y[copies], method, clusters=copies)
    alone = agreement(x[copies], y[copies], method)
    assert found.correlation == pytest.approx(alone.correlation) and found.p is None
    widths = [one.ci_high - one.ci_low for one in (once, found, alone) if one.ci_high and one.ci_low]
    assert widths[1] == pytest.approx(widths[0], rel=0.25) and widths[2] < widths[0] / 2
    order = rng.permutation(120)
    assert agreement(x[copies][order], y[copies][order], method, clusters=copies[order]) == found
    few = agreement(x, y, method, clusters=np.arange(12) // 6)
    assert (few.ci_low, few.ci_method) == (None, None) and few.correlation is not None


def test_clusters_at_the_prompt(cli: Cli) -> None:
    rng = random.Random(1)
    rows = [
        row
        for tool in "ab"
        for model in ("m", "n")
        for row in centres(tool, {task: rng.random() for task in "uvwxyz"}, model=model)
    ]
    arguments = ("correlate", "--on", "dataset,model", "--cluster", "dataset")
    (record,) = cli(*arguments, stdin=lines(rows)).records
    assert (record["n"], record["n_clusters"], record["p"], record["ci_method"]) == (
        12,
        6,
        None,
        "bootstrap of clusters",
    )
    (mean,) = cli(*arguments, "--mean", stdin=lines(rows)).records
    assert (mean["ci_low"], mean["ci_high"]) == pytest.approx((record["ci_low"], record["ci_high"]))
    refused = cli("correlate", "--on", "model", "--pool", "--cluster", "dataset", stdin=lines(rows))
    assert (refused.code, refused.err) == (2, "mltools: --cluster dataset: no key column (model); name it in --on\n")


# -- what would mislead -------------------------------------------------------------------------------
def test_models_of_several_depths_in_one_series_are_said(cli: Cli) -> None:
    """Centres of 6 and of 24 layers agree because one model is deeper."""
    rows = [
        {"tool": tool, "layers": depth, "m_cog": depth / 2 + i, "dataset": task, "model": str(depth)}
        for depth in (6, 24)
        for i, task in enumerate("abc")
        for tool in ("swap", "grads")
    ]
    note = "layers of models with 6 and 24 layers are in one series"
    assert note in cli("correlate", "--on", "dataset,model", stdin=lines(rows)).err
    assert note not in cli("correlate", "--on", "dataset", "--per", "model", stdin=lines(rows)).err
    assert note not in cli("correlate", "--on", "tool,dataset", "--pivot", "model", stdin=lines(rows)).err


def test_a_key_with_a_number_and_an_undefined_one_is_refused_or_said(cli: Cli) -> None:
    """The undefined one was left out in silence, pooled or not."""
    rows = [*centres("swap", {"a": 1.0, "b": 2.0, "c": 3.0}), *centres("grads", {"a": 1.0, "b": 2.0, "c": 3.0})]
    rows.append({**rows[0], "m_cog": None})
    what = "1 keys have undefined numbers and others (first: a)"
    refused = cli("correlate", "--on", "dataset", stdin=lines(rows))
    assert refused.code == 3 and what in refused.err
    pooled = cli("correlate", "--on", "dataset", "--pool", stdin=lines(rows))
    assert f"note: {what}; the means are of the others" in pooled.err and pooled.records[0]["n"] == 3
