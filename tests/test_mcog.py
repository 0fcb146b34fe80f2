"""M-CoG: known answers, laws, groups, and what it refuses."""

import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import CONFORMANCE, SHARED, Cli, Shell, write_jsonl
from mltools.analysis.centre_of_gravity import centre_of_gravity

GOLDEN: dict[str, Any] = json.loads((CONFORMANCE / "golden.json").read_text())["heatmap"]
FIGURES = SHARED / "paper" / "figures.json"
NO_FIGURES = "the numbers read off the paper's figures are not here: no shared/paper beside the project's folder"
Rows = list[dict[str, Any]]


def windows(accuracy: Sequence[float], tool: str = "swap", **tags: Any) -> Rows:
    """The released sweep of 78 windows as records."""
    return [
        {
            "tool": tool,
            "start": start + 1,
            "end": end + 1,
            "width": end - start + 1,
            "layers": 12,
            "window": f"{start + 1}-{end + 1}" if end > start else f"{start + 1}",
            "part": "all",
            "n_noisy": 100,
            "noisy_accuracy": value,
            "memorisation_error": 1 - value,
            "memorisation_error_scaled": None,
            "n_clean": 100,
            "clean_accuracy": 1.0,
            "reverted": 0.5,
            **tags,
        }
        for (start, end), value in zip(GOLDEN["windows"], accuracy, strict=True)
    ]


def layers(scores: Sequence[float | None], tool: str = "grads", first: int = 1, **tags: Any) -> Rows:
    n_layers = len(scores) + first - 1
    return [
        {"tool": tool, "layer": layer, "layers": n_layers, "score": score, **tags}
        for layer, score in enumerate(scores, start=first)
    ]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[Rows], Path]:
    return lambda rows: write_jsonl(tmp_path / "records.jsonl", rows)


# -- known answers ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tool", "key"), [("swap", "acc_noisy"), ("retrain", "retrain_acc_noisy")])
def test_the_released_sweep_gives_the_released_m_cog_counted_from_1(
    cli: Cli, file: Callable[[Rows], Path], tool: str, key: str
) -> None:
    (record,) = cli("mcog", file(windows(GOLDEN[key], tool))).records
    scaled = GOLDEN[f"{tool}_layer_mean"]  # retraining is scaled there: the centre does not change
    expected = sum(layer * weight for layer, weight in enumerate(scaled, start=1)) / sum(scaled)
    assert record["m_cog"] == pytest.approx(expected, abs=1e-12)
    assert record["weights"][0] / record["weights"][11] == pytest.approx(scaled[0] / scaled[11])
    assert (record["tool"], record["layers"], record["n_records"], record["part"]) == (tool, 12, 78, "all")
    if tool == "swap":
        assert record["m_cog"] == pytest.approx(GOLDEN["swap_mcog_0based"] + 1, abs=1e-12)
        assert record["weights"] == pytest.approx(scaled, abs=1e-12)


def test_by_layer_writes_layer_records_that_weigh_the_same(cli: Cli, file: Callable[[Rows], Path]) -> None:
    path = file(windows(GOLDEN["acc_noisy"], dataset="toy"))
    by_layer = cli("mcog", "--by-layer", path)
    assert [record["layer"] for record in by_layer.records] == list(range(1, 13))
    assert [record["score"] for record in by_layer.records] == pytest.approx(GOLDEN["swap_layer_mean"], abs=1e-12)
    (again,) = cli("mcog", stdin=by_layer.out).records
    (direct,) = cli("mcog", path).records
    assert again["m_cog"] == direct["m_cog"]
    assert again["dataset"] == direct["dataset"] == "toy"


@pytest.mark.skipif(not FIGURES.exists(), reason=NO_FIGURES)
def test_the_papers_swapping_curves_give_its_m_cogs(cli: Cli) -> None:
    figures = json.loads(FIGURES.read_text())
    curves = figures["fig5_13_swapping_memorisation_error_per_layer"]["values"]
    rows = [
        row
        for model, tasks in curves.items()
        for task, scores in tasks.items()
        for row in layers(scores, "swap", model=model, dataset=task)
    ]
    records = cli("mcog", stdin="".join(json.dumps(row) + "\n" for row in rows)).records
    assert len(records) == 48
    for record in records:
        expected = figures["swapping_mcog"]["values"][record["model"]][record["dataset"]]
        assert record["m_cog"] == pytest.approx(expected, abs=0.03)


# -- laws ---------------------------------------------------------------------------------------------
weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=48).filter(lambda items: max(items) > 1e-6)


def centre(items: Sequence[float]) -> float:
    found = centre_of_gravity(items)
    assert found is not None
    return found


@given(weights)
def test_the_centre_lies_between_the_first_and_the_last_layer(items: list[float]) -> None:
    assert 1 <= centre(items) <= len(items)


@given(weights, st.floats(1e-200, 1e200))
def test_the_centre_does_not_change_with_scale(items: list[float], scale: float) -> None:
    scaled = [item * scale for item in items]
    assert centre(scaled) == pytest.approx(centre(items), rel=1e-9)


@given(weights)
def test_turned_round_the_centre_is_mirrored(items: list[float]) -> None:
    mirrored = len(items) + 1 - centre(items[::-1])
    assert centre(items) == pytest.approx(mirrored, rel=1e-9)


@pytest.mark.parametrize("layer", range(1, 13))
def test_one_layer_alone_is_the_centre(layer: int) -> None:
    assert centre_of_gravity([float(i == layer) for i in range(1, 13)]) == layer


def test_without_weight_there_is_no_centre_and_the_record_says_why(cli: Cli) -> None:
    rows = [*layers([0.0, 0.0], dataset="a"), *layers([0.0, 1.0], dataset="b")]
    result = cli("mcog", stdin="".join(json.dumps(row) + "\n" for row in rows))
    assert [(r["m_cog"], r["reason"]) for r in result.records] == [(None, "all weights are zero"), (2.0, None)]
    message = "1 of 2 groups have no centre of gravity: all weights are zero\n"
    assert result.code == 0 and f"mltools: note: {message}" in result.err
    alone = cli("mcog", stdin="".join(json.dumps(row) + "\n" for row in rows[:2]))
    assert (alone.code, len(alone.records)) == (3, 1)
    assert alone.err.endswith("mltools: 1 of 1 groups have no centre of gravity: all weights are zero\n")
    assert centre_of_gravity([]) is None


def test_nothing_depends_on_the_order_of_the_records(cli: Cli, file: Callable[[Rows], Path]) -> None:
    rows = [*windows(GOLDEN["acc_noisy"], seed=1), *windows(GOLDEN["retrain_acc_noisy"], seed=2)]
    straight = {json.dumps(record) for record in cli("mcog", file(rows)).records}
    averaged = cli("mcog", file(rows), "--by", "tool").out
    random.Random(0).shuffle(rows)
    assert {json.dumps(record) for record in cli("mcog", file(rows)).records} == straight
    assert cli("mcog", file(rows), "--by", "tool").out == averaged


@pytest.mark.parametrize("layer", [True, 1.0, False, 0.0])
@pytest.mark.parametrize("first", [True, False])
def test_what_only_equals_a_layer_is_none_wherever_it_stands(cli: Cli, layer: object, first: bool) -> None:
    """Cells were once kept by equality alone: `true` was refused at first, and layer 1 after a record of layer 1."""
    good: Rows = [{"tool": "grads", "layer": number, "layers": 2, "score": 1.0, "run": 1} for number in (1, 2)]
    bad: Rows = [{**row, "run": 2, **({"layer": layer} if row["layer"] == 1 else {})} for row in good]
    rows = bad + good if first else good + bad
    result = cli("mcog", stdin="".join(json.dumps(row) + "\n" for row in rows))
    assert result.code == 3 and f'"layer" is {json.dumps(layer)}' in result.err


def test_many_blocks_of_records_are_one_stream(cli: Cli, file: Callable[[Rows], Path]) -> None:
    rows = [row for seed in range(40) for row in windows(GOLDEN["acc_noisy"], seed=seed, note="x" * 100)]
    records = cli("mcog", file(rows)).records
    assert [record["seed"] for record in records] == list(range(40))
    assert {record["n_records"] for record in records} == {78}
    assert len({record["m_cog"] for record in records}) == 1


# -- groups -------------------------------------------------------------------------------------------
def test_groups_are_tools_and_tags_in_order_of_appearance(cli: Cli) -> None:
    rows = [
        *layers([0.0, 1.0], dataset="b", model="m"),
        *layers([1.0, 0.0], dataset="a", model="m"),
        *layers([1.0, 1.0], "swap", model="m", dataset="a"),
    ]
    records = cli("mcog", stdin="".join(json.dumps(row) + "\n" for row in rows)).records
    found = [(r["tool"], r["dataset"], r["m_cog"]) for r in records]
    assert found == [("grads", "b", 2.0), ("grads", "a", 1.0), ("swap", "a", 1.5)]


def test_by_averages_runs_before_weighing(cli: Cli, file: Callable[[Rows], Path]) -> None:
    rows = [*layers([1.0, 0.0], seed=1, dataset="a"), *layers([0.0, 3.0], seed=2, dataset="a")]
    (record,) = cli("mcog", file(rows), "--by", "dataset").records
    assert record["weights"] == [0.5, 1.5]
    assert (record["m_cog"], record["n_records"], record["dataset"]) == (1.75, 4, "a")
    assert "seed" not in record


def test_order_of_columns_does_not_make_groups(cli: Cli) -> None:
    first, second = layers([1.0, 1.0], dataset="a", model="m")
    second = dict(reversed(second.items()))
    (record,) = cli("mcog", stdin=f"{json.dumps(first)}\n{json.dumps(second)}\n").records
    assert record["n_records"] == 2


def test_a_tag_may_be_a_column_of_another_kind_of_record(cli: Cli, file: Callable[[Rows], Path]) -> None:
    rows = [row for epoch in (1, 2) for row in windows(GOLDEN["acc_noisy"], epoch=epoch)]
    assert [record["epoch"] for record in cli("mcog", file(rows)).records] == [1, 2]


@pytest.mark.parametrize("tag", [{"m_cog": 0.5}, {"n_runs": "a"}])
def test_a_tag_named_like_what_is_found_is_refused_and_takes_no_place(
    tag: dict[str, Any], cli: Cli, file: Callable[[Rows], Path]
) -> None:
    """A column `m_cog` of the sweep's records stood where the centre found belongs."""
    result = cli("mcog", file(layers([0.2, 0.4, 0.4], **tag)))
    assert (result.code, result.out) == (3, "")
    assert f'column "{next(iter(tag))}" ({next(iter(tag.values()))!r}) is also one of what is found' in result.err


def test_targets_and_parts_are_groups_and_the_embeddings_do_not_count(cli: Cli) -> None:
    rows = [
        {**row, "target": target}
        for target, scores in (("noise", [None, 0.0, 1.0]), ("label", [None, 1.0, 0.0]))
        for row in layers(scores, "probe", first=0)
    ]
    records = cli("mcog", stdin="".join(json.dumps(row) + "\n" for row in rows)).records
    assert [(record["target"], record["m_cog"]) for record in records] == [("noise", 2.0), ("label", 1.0)]


# -- streams and files --------------------------------------------------------------------------------
def test_stdin_a_dash_and_a_file_are_the_same(cli: Cli, file: Callable[[Rows], Path]) -> None:
    path = file(windows(GOLDEN["acc_noisy"]))
    text = path.read_text()
    expected = cli("mcog", path).out
    assert cli("mcog", stdin=text).out == expected
    assert cli("mcog", "-", stdin=text).out == expected
    half = len(text.splitlines()) // 2
    first, second = text.splitlines(keepends=True)[:half], text.splitlines(keepends=True)[half:]
    path.write_text("".join(first))
    assert cli("mcog", path, "-", stdin="".join(second)).out == expected


def test_parquet_is_read_and_written_as_jsonl_is(cli: Cli, tmp_path: Path, file: Callable[[Rows], Path]) -> None:
    rows = [*windows(GOLDEN["acc_noisy"], seed=1), *layers([1.0, 2.0, 3.0], model="m")]
    parquet = tmp_path / "records.parquet"
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(parquet)  # columns of the other kind are null
    expected = cli("mcog", file(rows)).records
    assert cli("mcog", parquet).records == expected and len(expected) == 2
    pl.DataFrame([*rows[78:], *rows[:78]], infer_schema_length=None).write_parquet(tmp_path / "other-order.parquet")
    assert cli("mcog", tmp_path / "other-order.parquet").records == expected[::-1]
    assert cli("mcog", parquet, "-o", tmp_path / "mcog.parquet").code == 0
    written = pl.read_parquet(tmp_path / "mcog.parquet")
    assert written["m_cog"].to_list() == [record["m_cog"] for record in expected]
    assert json.loads(pl.read_parquet_metadata(tmp_path / "mcog.parquet")["mltools"])["tool"] == "mcog"


def test_a_closed_pipe_ends_quietly(shell: Shell, tmp_path: Path) -> None:
    rows = [row for i in range(5000) for row in layers([1.0], dataset=f"{i:0100}")]
    write_jsonl(tmp_path / "records.jsonl", rows)
    result = shell("mltools mcog -q records.jsonl | head -1 | wc -l; echo ${PIPESTATUS[*]}", tmp_path)
    assert (result.code, result.out.split(), result.err) == (0, ["1", "0", "0", "0"], "")


# -- what it refuses ----------------------------------------------------------------------------------
def spoilt(index: int, **changes: Any) -> Rows:
    rows = windows(GOLDEN["acc_noisy"], seed=1)
    rows[index] = {key: value for key, value in {**rows[index], **changes}.items() if value != "gone"}
    return rows


COLUMNS = ", ".join(key for key in windows(GOLDEN["acc_noisy"], seed=1)[0] if key != "tool")
REFUSED: list[tuple[Rows, str]] = [
    ([], "no records came in"),
    (spoilt(3, tool="gone"), f'records.jsonl:4: no "tool" (found: {COLUMNS})'),
    (spoilt(3, start=0), "records.jsonl:4: window 0-4 outside 1-12"),
    (spoilt(3, end=13), "records.jsonl:4: window 1-13 outside 1-12"),
    (spoilt(3, end="4"), 'records.jsonl:4: "end" is "4", not a whole number'),
    (spoilt(3, end=True), 'records.jsonl:4: "end" is true, not a whole number'),
    (spoilt(3, memorisation_error=None), 'records.jsonl:4: "memorisation_error" is null, not a number'),
    (
        spoilt(3, width=2),
        "records.jsonl:4: window 1-4 of width 2 is not contiguous; M-CoG weighs contiguous windows",
    ),
    (
        spoilt(3, end=3, width=3),
        "records.jsonl:4: window 1-3 again in the same group; tag runs apart or average --by",
    ),
    (spoilt(77, layers=24), "records.jsonl:78: 24 layers, others of its group have 12; group with --by"),
    (
        [*windows(GOLDEN["acc_noisy"]), *layers([1.0] * 12, "swap", part="all")],
        "records.jsonl:79: window and layer records in one group; tag them apart or group with --by",
    ),
    (layers([1.0, 2.0])[:1], "records.jsonl:1: layer 2 of 2 has no record in its group"),
    (layers([1.0, 2.0]) * 2, "records.jsonl:3: layer 1 again in the same group; tag runs apart or average --by"),
    (layers([1.0, None]), 'records.jsonl:2: "score" is null, not a number'),
    (
        layers([1.0, -0.5], dataset="toy"),
        "records.jsonl:1: no centre of gravity: a weight is negative (-0.5) (tool=grads, dataset=toy)",
    ),
    (
        [{"tool": "swap", "layers": 2, "dataset": "toy"}],
        'records.jsonl:1: no "layer" (found: tool, layers, dataset)',
    ),
]


@pytest.mark.parametrize(("rows", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_records_that_cannot_be_weighed_are_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Rows, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("records.jsonl"), rows)
    result = cli("mcog", "records.jsonl")
    assert (result.code, result.out, result.err) == (3, "", f"mltools: {message}\n")


@pytest.mark.parametrize(
    ("rows", "by", "message"),
    [
        (
            [*layers([1.0, 2.0], seed=1), *layers([1.0, 2.0], seed=2)[:1]],
            "tool",
            "records.jsonl:1: layer 2 has 1 records in its group, layer 1 has 2; the runs averaged must be complete",
        ),
        (layers([1.0, 2.0]), "dataset", 'records.jsonl:1: no "dataset" (found: tool, layer, layers, score)'),
        (
            layers([1.0, 2.0], dataset=["a"]),
            "dataset",
            'records.jsonl:1: "dataset" is ["a"], not one value',
        ),
    ],
)
def test_groups_that_cannot_be_are_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Rows, by: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("records.jsonl"), rows)
    result = cli("mcog", "records.jsonl", "--by", by)
    assert (result.code, result.out, result.err) == (3, "", f"mltools: {message}\n")


def test_a_list_where_other_records_have_a_tag_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = layers([1.0, 2.0], note="a")
    write_jsonl(Path("records.jsonl"), [first, {**second, "note": ["a"]}])
    result = cli("mcog", "records.jsonl")
    assert (result.code, result.err) == (3, 'mltools: records.jsonl:2: "note" is ["a"], not one value\n')


# -- averaging runs of retrain -------------------------------------------------------------------------
def sweep(errors: dict[tuple[int, int], float], tool: str = "retrain", n_layers: int = 2, **tags: Any) -> Rows:
    return [
        {
            "tool": tool,
            "start": start,
            "end": end,
            "width": end - start + 1,
            "layers": n_layers,
            "window": f"{start}-{end}" if end > start else f"{start}",
            "part": "all",
            "memorisation_error": error,
            "memorisation_error_scaled": None,
            **tags,
        }
        for (start, end), error in errors.items()
    ]


def lines(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


FIRST = {(1, 1): 0.1, (2, 2): 0.3, (1, 2): 0.4}
SECOND = {(1, 1): 0.5, (2, 2): 0.2, (1, 2): 0.8}


@pytest.mark.parametrize("apart", ["seed", "run", "other"])
def test_runs_of_retrain_are_scaled_before_they_are_averaged(cli: Cli, apart: str) -> None:
    """Raw errors were averaged, so that the run which forgot more of everything weighed more (1.481 for 1.536)."""
    rows = [{**row, "dataset": "a", apart: "1"} for row in sweep(FIRST)]
    rows += [{**row, "dataset": "a", apart: "2"} for row in sweep(SECOND)]
    (record,) = cli("mcog", "--by", "dataset", stdin=lines(rows)).records
    first, second = (0.25 + 0.625) / 2, (0.75 + 0.25) / 2
    weights = [(first + 1) / 2, (second + 1) / 2]
    assert record["weights"] == pytest.approx(weights, abs=1e-12)
    assert record["m_cog"] == pytest.approx((weights[0] + 2 * weights[1]) / sum(weights), abs=1e-12)
    assert record["n_records"] == 6
    random.Random(1).shuffle(rows)
    (again,) = cli("mcog", "--by", "dataset", stdin=lines(rows)).records
    assert (again["m_cog"], again["weights"]) == (record["m_cog"], record["weights"])
    (swapped,) = cli("mcog", "--by", "dataset", stdin=lines([{**row, "tool": "swap"} for row in rows])).records
    assert swapped["weights"] == pytest.approx([(0.3 + 0.6) / 2, (0.25 + 0.6) / 2], abs=1e-12)
    by_layer = cli("mcog", "--by", "dataset", "--by-layer", stdin=lines(rows)).records
    assert [row["score"] for row in by_layer] == record["weights"]


def test_one_run_of_retrain_needs_no_scale(cli: Cli) -> None:
    rows = sweep({(1, 1): 0.1, (2, 2): 0.3}, seed=1)
    (record,) = cli("mcog", "--by", "tool", stdin=lines(rows)).records
    assert (record["m_cog"], record["weights"], record["widths"]) == (pytest.approx(1.75), [0.1, 0.3], "1")


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({(1, 1): 0.5, (2, 2): 0.2}, "run part=all, seed=2 lacks that window; run --layers 1-2"),
        ({**SECOND, (1, 2): 0.0}, "run part=all, seed=2 has error 0 there"),
    ],
)
def test_a_run_of_retrain_that_cannot_be_scaled_gives_null(
    cli: Cli, second: dict[tuple[int, int], float], why: str
) -> None:
    rows = [*sweep(FIRST, seed=1), *sweep(second, seed=2)]
    result = cli("mcog", "--by", "tool", stdin=lines(rows))
    (record,) = result.records
    assert (record["m_cog"], record["weights"], record["m_cog_solved"], result.code) == (None, None, None, 3)
    assert record["reason"] == record["solved_reason"]
    assert record["reason"].endswith(why)
    for command in (("mcog", "--by-layer"), ("plot", "layers"), ("plot", "heatmap")):
        refused = cli(*command, "--by", "tool", stdin=lines(rows))
        assert refused.code == 3 and refused.err.endswith(f"{why}\n") and "stdin:1: " in refused.err


def test_runs_of_retrain_that_nothing_tells_apart_are_refused(cli: Cli) -> None:
    result = cli("mcog", "--by", "tool", stdin=lines([*sweep(FIRST), *sweep(SECOND)]))
    assert (result.code, result.err) == (
        3,
        "mltools: stdin:4: window 1 again in the same group; tag runs apart\n",
    )


def test_layer_scores_of_several_runs_of_retrain_cannot_be_averaged(cli: Cli) -> None:
    rows = [*layers([1.0, 2.0], "retrain", seed=1), *layers([3.0, 2.0], "retrain", seed=2)]
    result = cli("mcog", "--by", "tool", stdin=lines(rows))
    assert result.code == 3 and "holds layer scores: average its windows" in result.records[0]["reason"]


# -- widths -------------------------------------------------------------------------------------------
def test_a_width_that_lacks_windows_gives_null_and_the_reason_and_keeps_nothing_else(cli: Cli) -> None:
    whole = windows(GOLDEN["acc_noisy"], dataset="a")
    rows = [*windows(GOLDEN["acc_noisy"], dataset="b")[:-1], *whole]
    result = cli("mcog", stdin=lines(rows))
    lacking, full = result.records
    reason = "1 of 12 windows of width 1 are missing (first: 12); run them, or leave width 1 out"
    assert (lacking["m_cog"], lacking["weights"], lacking["widths"], lacking["reason"]) == (None, None, None, reason)
    assert (full["reason"], full["widths"], result.code) == (None, "1-12", 0)
    assert f"mltools: note: 1 of 2 groups have no centre of gravity: {reason}\n" in result.err
    for command in (("mcog", "--by-layer"), ("plot", "layers"), ("plot", "heatmap"), ("score", "--truth", "1")):
        refused = cli(*command, stdin=lines(rows))
        assert (refused.code, refused.err) == (3, f"mltools: stdin:1: {reason}\n")


@pytest.mark.parametrize(("widths", "text"), [({1, 2}, "1-2"), ({12}, "12"), ({1, 3, 4}, "1,3-4")])
def test_whole_widths_give_a_number_and_say_which(cli: Cli, widths: set[int], text: str) -> None:
    rows = [row for row in windows(GOLDEN["acc_noisy"]) if row["width"] in widths]
    (record,) = cli("mcog", stdin=lines(rows)).records
    assert record["widths"] == text and record["m_cog"] is not None
    by_layer = cli("mcog", "--by-layer", stdin=lines(rows))
    assert {row["widths"] for row in by_layer.records} == {text}
    (again,) = cli("mcog", stdin=by_layer.out).records
    assert (again["widths"], again["m_cog"]) == (text, record["m_cog"])


def test_layer_scores_of_different_widths_are_not_averaged(cli: Cli) -> None:
    rows = [*layers([1.0, 2.0], "swap", seed=1, widths="1"), *layers([1.0, 2.0], "swap", seed=2, widths="1-2")]
    result = cli("mcog", "--by", "tool", stdin=lines(rows))
    assert result.code == 3
    assert result.records[0]["reason"] == "scores made of windows of different widths (1, 1-L)"


# -- the additive solution ----------------------------------------------------------------------------
def test_m_cog_solved_finds_the_layer_that_the_window_mean_smears(cli: Cli) -> None:
    spans = [(a, b) for a in range(1, 13) for b in range(a, 13)]
    rows = sweep({(a, b): float(a <= 2 <= b) for a, b in spans}, "swap", 12)
    (record,) = cli("mcog", stdin=lines(rows)).records
    assert record["m_cog_solved"] == pytest.approx(2, abs=1e-9)
    assert record["m_cog"] > 4
    assert (record["offset"], record["solved_reason"]) == (0, None)
    assert record["residual"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (layers([1.0, 2.0]), "layer records hold no windows"),
        (sweep({(1, 1): 0.1, (2, 2): 0.3}), "the windows do not tell the offset from the layers"),
        (layers([1.0] * 129), "layer records hold no windows"),
        (sweep({(i, i): 0.1 for i in range(1, 130)}, n_layers=129), "more than 128 layers"),
    ],
)
def test_without_a_solution_m_cog_solved_is_null_with_its_reason(cli: Cli, rows: Rows, reason: str) -> None:
    (record,) = cli("mcog", stdin=lines(rows)).records
    assert record["m_cog"] is not None
    assert [record[name] for name in ("m_cog_solved", "offset", "residual", "solved_reason")] == [*[None] * 3, reason]


# -- laws of whole sweeps -----------------------------------------------------------------------------
@st.composite
def sweeps(draw: st.DrawFn) -> tuple[int, dict[tuple[int, int], float]]:
    n_layers = draw(st.integers(1, 6))
    spans = [(a, b) for a in range(1, n_layers + 1) for b in range(a, n_layers + 1)]
    errors = draw(st.lists(st.integers(0, 20), min_size=len(spans), max_size=len(spans)).filter(any))
    return n_layers, {span: error / 20 for span, error in zip(spans, errors, strict=True)}


def weighed(rows: Rows, by: tuple[str, ...] | None = None) -> Any:
    from mltools.analysis.centre_of_gravity import mcog
    from mltools.io.records import Records
    from mltools.io.source import Source

    ((record, _),) = mcog([Records(Source("-"), range(1, len(rows) + 1), rows)], by)
    return record


@given(sweeps(), st.randoms(use_true_random=False))
def test_both_centres_lie_in_the_layers_whatever_the_order(
    given_sweep: tuple[int, dict[tuple[int, int], float]], order: random.Random
) -> None:
    n_layers, errors = given_sweep
    rows = sweep(errors, "swap", n_layers)
    record = weighed(rows)
    assert 1 <= record.m_cog <= n_layers
    assert record.m_cog_solved is None or 1 <= record.m_cog_solved <= n_layers
    assert (record.m_cog_solved is None) == (record.solved_reason is not None)
    order.shuffle(rows)
    assert weighed(rows) == record


@given(sweeps(), sweeps(), st.floats(0.01, 1))
def test_the_scale_of_one_run_of_retrain_does_not_matter(
    one: tuple[int, dict[tuple[int, int], float]], two: tuple[int, dict[tuple[int, int], float]], scale: float
) -> None:
    n_layers = min(one[0], two[0])
    spans = [(a, b) for a in range(1, n_layers + 1) for b in range(a, n_layers + 1)]
    first, second = ({span: found[1][span] for span in spans} for found in (one, two))
    first[1, n_layers] = second[1, n_layers] = 0.5
    rows = [*sweep(first, n_layers=n_layers, seed=1), *sweep(second, n_layers=n_layers, seed=2)]
    smaller = sweep({span: error * scale for span, error in second.items()}, n_layers=n_layers, seed=2)
    expected = weighed(rows, ("tool",))
    found = weighed([*rows[: len(spans)], *smaller], ("tool",))
    assert found.weights == pytest.approx(expected.weights, rel=1e-9)
    assert found.m_cog == pytest.approx(expected.m_cog, rel=1e-9)


# -- validity and tags --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("found", "expected"),
    [([True, True], True), ([True, None], None), ([False, None], False), ([False, True], False)],
)
def test_validity_of_the_records_is_carried_on(cli: Cli, found: list[bool | None], expected: bool | None) -> None:
    rows = layers([1.0, 2.0])
    for row, valid in zip(rows, found, strict=True):
        row |= {"valid": valid, "valid_reason": "noisy_not_memorised" if valid is False else None}
    (record,) = cli("mcog", stdin="".join(json.dumps(row) + "\n" for row in rows)).records
    assert record["valid"] is expected
    assert record["valid_reason"] == ("noisy_not_memorised" if expected is False else None)
    by_layer = cli("mcog", "--by-layer", stdin=lines(rows)).records
    assert {(row["valid"], row["valid_reason"]) for row in by_layer} == {(expected, record["valid_reason"])}


INVALID = {"valid": False, "valid_reason": "noisy_not_memorised"}
SAYS = "mltools: note: invalid (noisy_not_memorised): 1 of 2 records are made of records with valid=false; they say so"


@pytest.mark.parametrize(
    "command",
    [
        ("mcog",),
        ("score", "--truth", "1", "-k", "1"),
        ("correlate", "--value", "score", "--on", "dataset", "--per", "half"),
        ("plot", "layers"),
    ],
)
def test_invalid_records_warn_once_and_strict_ends_with_1_once_all_is_written(
    cli: Cli, command: tuple[str, ...]
) -> None:
    rows = [*layers([1.0, 2.0, 3.0], half=1, dataset="a"), *layers([1.0, 2.0, 3.0], "swap", half=1, dataset="a")]
    rows += [{**row, "half": 2, **INVALID} for row in rows]
    if command[0] in ("mcog", "plot"):
        rows = [row for row in rows if row["tool"] == "swap"]
    elif command[0] == "score":
        rows = [row for row in rows if (row["tool"] == "swap") == (row["half"] == 1)]
    result = cli(*command, stdin=lines(rows))
    what = "panels" if command[0] == "plot" else "records"
    assert result.code == 0
    assert result.err.count(SAYS.replace("2 records are", f"2 {what} are")) == result.err.count("invalid") == 1
    strict = cli(*command, "--strict", stdin=lines(rows))
    assert (strict.code, strict.out) == (1, result.out) and "(--strict)" in strict.err
    assert "INVALID: noisy_not_memorised" in result.out or {r["valid"] for r in result.records} == {False, None}
    valid = cli(*command, "--strict", stdin=lines([{**row, "valid": True, "valid_reason": None} for row in rows]))
    assert valid.code == 0 and "invalid" not in valid.err.lower() and "INVALID" not in valid.out


def test_a_tag_named_like_a_column_of_another_kind_is_a_tag_for_resume_too(tmp_path: Path) -> None:
    from mltools.io.records import read_records
    from mltools.sweep import finished

    rows = windows(GOLDEN["acc_noisy"], split=1)  # `split` is a column of half splits
    records = [r for block in read_records([write_jsonl(tmp_path / "a.jsonl", rows)]) for r in block]
    assert len(finished(records, "swap", "all", {"split": 1})) == 78
    assert not finished(records, "swap", "all", {})


def test_thirty_thousand_layers_are_weighed_in_linear_time() -> None:
    from mltools.analysis.layer_scores import layer_scores

    assert layer_scores({(i, i): 1.0 for i in range(1, 30_001)}, 30_000) == [1.0] * 30_000


# -- other columns, spread, averages of centres, the additive solution ------------------------------------
def test_value_weighs_other_columns_in_groups_of_their_own(cli: Cli, file: Callable[[Rows], Path]) -> None:
    rows = [{**row, "l2": score} for row, score in zip(layers([1.0, 0.0]), [0.0, 1.0], strict=True)]
    found = cli("mcog", file(rows), "--value", "score,l2").records
    assert [(record["value"], record["m_cog"]) for record in found] == [("score", 1.0), ("l2", 2.0)]
    by_layer = cli("mcog", file(rows), "--value", "l2", "--by-layer").records
    assert [(record["value"], record["score"]) for record in by_layer] == [("l2", 0.0), ("l2", 1.0)]
    missing = cli("mcog", file(rows), "--value", "l3")
    assert missing.code == 3 and 'no "l3"' in missing.err


def test_runs_averaged_say_how_far_their_centres_spread(cli: Cli, file: Callable[[Rows], Path]) -> None:
    rows = [*layers([1.0, 0.0, 0.0], seed=1), *layers([0.0, 1.0, 0.0], seed=2), *layers([0.0, 0.0, 1.0], seed=3)]
    (record,) = cli("mcog", file(rows), "--by", "tool").records
    assert (record["m_cog"], record["m_cog_sd"], record["n_runs"]) == (2.0, 1.0, 3)
    single = cli("mcog", file(rows)).records
    assert [(each["m_cog_sd"], each["n_runs"]) for each in single] == [(None, 1)] * 3
    rows += layers([0.0, 0.0, 0.0], seed=4)  # a run without a centre
    assert cli("mcog", file(rows), "--by", "tool").records[0]["m_cog_sd"] is None


def test_centres_are_averaged_over_tools_whatever_else_is_theirs(cli: Cli, file: Callable[[Rows], Path]) -> None:
    rows = [
        *layers([1.0, 0.0], "grads", part="all", task="a"),
        *layers([0.0, 1.0], "probe", target="noise", task="a"),
        *layers([1.0, 1.0], "grads", part="all", task="b"),
    ]
    first, second = cli("mcog", file(rows), "--over", "tool").records
    assert (first["tool"], first["task"], first["m_cog"], first["n_runs"]) == ("grads,probe", "a", 1.5, 2)
    assert first["m_cog_sd"] == pytest.approx(0.5**0.5) and first["weights"] is None
    assert (second["tool"], second["m_cog"], second["m_cog_sd"]) == ("grads", 1.5, None)
    rows[0]["valid"], rows[0]["valid_reason"] = False, "noisy_not_memorised"
    marked = cli("mcog", file(rows), "--over", "tool").records
    assert [record["valid"] for record in marked] == [False, None]
    unknown = cli("mcog", file(rows), "--over", "modle")
    assert (unknown.code, unknown.err.count("--over modle: no such tag (found: part, target, task, tool)")) == (2, 1)
    deeper = cli("mcog", file([*rows, *layers([1.0, 1.0, 1.0], "grads", task="c")]), "--over", "task,tool")
    assert deeper.code == 3 and "different numbers of layers" in deeper.err


def test_one_centre_that_is_unknown_makes_the_average_unknown(cli: Cli, file: Callable[[Rows], Path]) -> None:
    rows = [*layers([1.0, 0.0], "grads"), *layers([0.0, 0.0], "probe")]
    result = cli("mcog", file(rows), "--over", "tool")
    assert (result.records[0]["m_cog"], result.records[0]["reason"]) == (None, "all weights are zero")


def test_windows_say_their_clean_error_and_the_largest_error_of_one_layer(
    cli: Cli, file: Callable[[Rows], Path]
) -> None:
    rows = windows(GOLDEN["acc_noisy"])
    for number, row in enumerate(rows):
        row["clean_accuracy"] = 1 - number / 1000
    (record,) = cli("mcog", file(rows)).records
    assert record["clean_error"] == pytest.approx(sum(range(78)) / 78 / 1000)
    alone = [
        1 - value for (start, end), value in zip(GOLDEN["windows"], GOLDEN["acc_noisy"], strict=True) if start == end
    ]
    assert record["max_single_layer"] == pytest.approx(max(alone))
    rows[5]["clean_accuracy"] = None
    assert cli("mcog", file(rows)).records[0]["clean_error"] is None
    (of_layers,) = cli("mcog", file(layers([1.0, 2.0]))).records
    assert of_layers["clean_error"] is of_layers["max_single_layer"] is None


def test_the_additive_solution_by_layer(cli: Cli, file: Callable[[Rows], Path]) -> None:
    own = [0.1, 0.0, 0.3]
    rows = [
        {"tool": "swap", "start": a, "end": b, "layers": 3, "memorisation_error": sum(own[a - 1 : b]) + 0.05}
        for a in (1, 2, 3)
        for b in range(a, 4)
    ]
    found = cli("mcog", "--by-layer", "--solved", file(rows)).records
    assert [record["score"] for record in found] == pytest.approx(own)
    alone = cli("mcog", "--by-layer", "--solved", file([row for row in rows if row["start"] == row["end"]]))
    assert alone.code == 3 and "no additive solution: the windows do not tell the offset" in alone.err
    assert cli("mcog", "--solved", file(rows)).code == 2
    assert cli("mcog", "--by-layer", "--over", "tool", file(rows)).code == 2


@pytest.mark.parametrize("groups", [1, 2500])
def test_k10_30_000_layer_records_within_a_second(cli: Cli, tmp_path: Path, groups: int) -> None:
    """One model of 30,000 layers, or 2,500 of twelve: seconds of the processor."""
    layers = 30_000 // groups
    path = tmp_path / "layers.jsonl"
    path.write_text(
        "".join(
            f'{{"tool":"grads","layer":{layer},"layers":{layers},"score":0.5,"group":{group}}}\n'
            for group in range(groups)
            for layer in range(1, layers + 1)
        )
    )
    start = time.process_time()
    result = cli("mcog", path)
    assert time.process_time() - start < 1 and len(result.records) == groups
    assert result.records[0]["m_cog"] == pytest.approx((layers + 1) / 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 10**18}, "1000000000000000000 layers are more than 1000000"),
        ({"memorisation_error": 1e308}, '"memorisation_error" is 1e+308, not a number of at most 1e+100'),
    ],
)
def test_numbers_that_no_run_gives(changes: dict[str, object], said: str, cli: Cli, tmp_path: Path) -> None:
    """They would keep what lists layers busy for ever, and break what sums squares (correlate, pictures)."""
    record = {"tool": "swap", "start": 1, "end": 1, "layers": 1, "memorisation_error": 0.5, **changes}
    path = write_jsonl(tmp_path / "r.jsonl", [record])
    for words in ("mcog", "score --truth 1", "plot layers"):
        result = cli(*words.split(), path)
        assert result.code == 3 and said in result.err
    if "layers" not in changes:  # which correlate does not read
        result = cli("correlate", "--value", "memorisation_error", "--on", "start", path)
        assert result.code == 3 and said in result.err
