"""generalise: half splits as work items, and what they say of rows and tasks."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from conftest import LABELS, WORDS, Cli, tiny_of, toy_rows, write_jsonl
from mltools.commands.generalise import Settings as GeneraliseSettings
from mltools.commands.generalise.merge import merge
from mltools.commands.generalise.work import generalise, train_half
from mltools.io.examples import Examples, read_examples
from mltools.io.inputs import Rows
from mltools.io.records import read_records
from mltools.spec import bare

Tiny = Callable[..., Path]
tiny = tiny_of(2)
FAST = ("--epochs", 1, "--lr", 1e-3)


def examples_of(ids: list[int]) -> Examples:
    n = len(ids)
    labels: list[int | str] = ["a"] * n
    return Examples(Rows("-"), list(ids), [("x",)] * n, labels, labels, [False] * n)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=60, unique=True), st.integers(1, 30), st.integers(0, 99))
def test_half_depends_on_seed_split_and_id_only(ids: list[int], split: int, seed: int) -> None:
    chosen = [ids[i] for i in train_half(examples_of(ids), seed, split)]
    other = random.Random(0).sample(ids, len(ids))
    assert len(set(chosen)) == len(ids) // 2
    assert [other[i] for i in train_half(examples_of(other), seed, split)] == chosen


def test_halves_differ_and_every_row_is_inside_half_of_the_time() -> None:
    examples = examples_of(list(range(400)))
    halves = [set(train_half(examples, 1, split).tolist()) for split in range(1, 31)]
    counts = [sum(row in chosen for chosen in halves) for row in range(400)]
    assert len({frozenset(chosen) for chosen in halves}) == 30
    assert min(counts) > 2 and max(counts) < 28 and sum(counts) == 30 * 200


def test_splits_are_work_items(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    """Split 2 alone gives what it gives in a run of several; same seed, same bytes."""
    command = ("generalise", tiny("bert"), noisy_rows, *FAST, "--tag", "dataset=toy")
    both = cli(*command, "--run", 1, "--run", 2)
    alone = [cli(*command, "--run", split) for split in (1, 2)]
    assert both.code == 0 and both.out == alone[0].out + alone[1].out
    assert cli(*command, "--runs", 2).out == both.out
    first = both.records[0]
    assert first["dataset"] == "toy" and first["classes"] == 4 and len(both.records) == 96
    assert sum(record["inside"] for record in both.records) == 48
    assert cli(*command, "--run", 1, "--seed", 2).records[0]["probability"] != first["probability"]


def test_k1_a_trained_head_is_never_gone_on_from(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """Whatever head the checkpoint has, for these classes or none: the head is fresh, so the records are the same."""
    start = tiny("distilbert")
    turned, bare = tmp_path / "turned", tmp_path / "bare"
    for folder in (turned, bare):
        shutil.copytree(start, folder)
    tensors = load_file(start / "model.safetensors")
    head = {name: tensor for name, tensor in tensors.items() if not name.startswith("distilbert.")}
    assert set(head) == {f"{part}.{kind}" for part in ("pre_classifier", "classifier") for kind in ("weight", "bias")}
    save_file(tensors | {name: 3 - tensor for name, tensor in head.items()}, turned / "model.safetensors")
    found = [cli("generalise", model, noisy_rows, *FAST, "--runs", 1) for model in (start, turned)]
    one, other = ([{**record, "run": None, "item_digest": None} for record in result.records] for result in found)
    assert found[0].code == 0 and one == other
    save_file({name: tensors[name] for name in tensors.keys() - head.keys()}, bare / "model.safetensors")
    assert cli("generalise", bare, noisy_rows, *FAST, "--runs", 1).code == 0


def test_rows_in_another_order_give_the_same(tiny: Tiny, tmp_path: Path) -> None:
    rows = toy_rows(20)
    found = []
    for name, order in (("a", rows), ("b", random.Random(1).sample(rows, 20))):
        examples = read_examples(write_jsonl(tmp_path / name, order))
        records = generalise(str(tiny("bert")), examples, [1], bare(GeneraliseSettings, epochs=2, learning_rate=1e-3))
        found.append({record.id: (record.inside, pytest.approx(record.probability, abs=1e-6)) for record in records})
    assert found[0] == found[1]


def test_noisy_rows_are_memorised_and_do_not_generalise(tiny: Tiny, cli: Cli, tmp_path: Path) -> None:
    """The first word tells the class: mislabelled rows are right inside and wrong outside, others right in both."""
    rows = []
    for i in range(64):
        kind, noisy = i % 4, i % 7 == 0
        label = LABELS[(kind + 1 + i // 7 % 3) % 4] if noisy else LABELS[kind]
        text = f"{WORDS[kind]} {WORDS[4 + i // 4]}"
        rows.append({"id": i, "text": text, "label": label, "original_label": LABELS[kind]})
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ("generalise", tiny("bert", dropout=False), path, "--epochs", 15, "--lr", 3e-3, "--runs", 4)
    halves = cli(*command, "-o", tmp_path / "halves.parquet")
    assert halves.code == 0, halves.err
    result = cli("generalise", "--merge", tmp_path / "halves.parquet", "--per-row", tmp_path / "rows.parquet")
    (score,) = result.records
    assert score["n_splits"] == 4 and score["n_rows"] + score["n_left_out"] == 64 and score["chance"] == 0.25
    assert score["clean_score"] > score["noisy_score"] + 0.3
    table = pl.read_parquet(tmp_path / "rows.parquet").drop("tool").group_by("noisy").mean().sort("noisy")
    clean_mean, noisy_mean = table.to_dicts()
    assert noisy_mean["training_memorisation"] > clean_mean["training_memorisation"] + 0.3
    assert clean_mean["generalisation"] > noisy_mean["generalisation"] + 0.3


# -- merging ------------------------------------------------------------------------------------------


def record(split: int, row: Any, inside: bool, probability: float, correct: bool, **more: Any) -> dict[str, Any]:
    return {
        "tool": "generalise",
        "split": split,
        "id": row,
        "noisy": row == "n",
        "inside": inside,
        "probability": probability,
        "correct": correct,
        "classes": 2,
        "run": "abc",
        **more,
    }


HALVES = [
    record(1, 5, True, 0.9, True),
    record(2, 5, False, 0.25, False),
    record(3, 5, False, 0.5, True),
    record(1, "n", False, 0.1, False),
    record(2, "n", True, 0.8, True),
    record(3, "n", True, 0.6, True),
    record(1, 6, False, 0.6, True),
    record(2, 6, False, 0.9, True),
    record(3, 6, False, 0.9, True),
    record(1, 7, True, 0.9, True),
]


def test_merge_by_hand(cli: Cli, tmp_path: Path) -> None:
    halves = write_jsonl(tmp_path / "halves.jsonl", HALVES)
    result = cli("generalise", "--merge", halves, "--per-row", tmp_path / "rows.jsonl")
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    columns = ("id", "n_in", "n_out", "generalisation", "training_memorisation")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        (5, 1, 2, 0.375, 0.5),
        ("n", 2, 1, 0.1, 1.0),
        (6, 0, 3, pytest.approx(0.8), None),
        (7, 1, 0, None, None),
    ]
    (score,) = result.records
    assert score["generalisation_score"] == pytest.approx(1 / 3)
    assert (score["noisy_score"], score["clean_score"]) == (0, 0.5)
    assert (score["n_rows"], score["n_left_out"], score["n_splits"], score["classes"]) == (3, 1, 3, 2)
    assert "exceeds 1/classes" in score["definition"]


def test_exactly_chance_does_not_count(cli: Cli) -> None:
    text = json.dumps(record(1, 1, False, 0.5, True))
    assert cli("generalise", "--merge", stdin=text).records[0]["generalisation_score"] == 0


def test_merge_does_not_depend_on_order_or_files(cli: Cli, tmp_path: Path) -> None:
    whole = write_jsonl(tmp_path / "whole.jsonl", HALVES)
    shuffled = random.Random(3).sample(HALVES, len(HALVES))
    parts = [write_jsonl(tmp_path / f"{i}.jsonl", shuffled[i::3]) for i in range(3)]
    assert cli("generalise", "--merge", whole).records == cli("generalise", "--merge", *parts).records
    (one,), (other,) = (merge(read_records([path])) for path in (whole, write_jsonl(tmp_path / "s", shuffled)))
    rows = [{row.id: row for row in merged.records()} for merged in (one, other)]
    assert rows[0] == rows[1]


def test_tags_tell_tasks_apart(cli: Cli, tmp_path: Path) -> None:
    halves = write_jsonl(
        tmp_path / "h.jsonl", [{**r, "dataset": name, "run": name} for name in ("rte", "trec") for r in HALVES]
    )
    result = cli("generalise", "--merge", halves, "--tag", "model=tiny", "--per-row", tmp_path / "rows.parquet")
    assert [(r["dataset"], r["model"]) for r in result.records] == [("rte", "tiny"), ("trec", "tiny")]
    assert result.records[0]["generalisation_score"] == result.records[1]["generalisation_score"]
    table = pl.read_parquet(tmp_path / "rows.parquet")
    assert table["dataset"].to_list() == ["rte"] * 4 + ["trec"] * 4


def test_scores_correlate_with_centres_of_gravity(cli: Cli, tmp_path: Path) -> None:
    """Table 2 is one correlate: a task's score against its M-CoG, by the tag they share."""
    lines: list[dict[str, Any]] = []
    for task in range(4):
        scores = cli("generalise", "--merge", stdin=json.dumps(record(1, 1, False, 0.9 if task > 1 else 0.1, True)))
        lines.append({**scores.records[0], "dataset": f"t{task}"})
        lines.append(
            {"tool": "swap", "layers": 2, "m_cog": 1 + task / 9, "weights": [], "n_records": 3, "dataset": f"t{task}"}
        )
    path = write_jsonl(tmp_path / "long.jsonl", lines)
    result = cli("correlate", path, "--value", "m_cog,generalisation_score", "--on", "dataset")
    assert result.code == 0, result.err
    (pair,) = result.records
    assert pair["n"] == 4 and pair["correlation"] > 0.8


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (record(1, 5, False, 0.1, True), "row 5 again in split 1; give each split once"),
        (record(4, 5, False, 0.1, True, classes=3), "classes is 3, but 2 at"),
        (record(4, 5, False, 0.1, True, run="xyz"), "splits made with other settings or rows cannot be merged"),
        ({"tool": "generalise", "id": 1}, 'no "split"'),
        ({**record(4, 5, False, 0.1, True), "probability": None}, '"probability" is null'),
    ],
)
def test_merge_refuses(extra: dict[str, Any], message: str, cli: Cli, tmp_path: Path) -> None:
    halves = write_jsonl(tmp_path / "halves.jsonl", [*HALVES, extra])
    result = cli("generalise", "--merge", halves)
    assert result.code == 3 and message in result.err and not result.out


def test_dry_run_lists_the_splits(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    result = cli("generalise", tiny("bert"), noisy_rows, "-n")
    assert len(result.records) == 30
    fifth = result.records[4]
    assert (fifth["item"], fifth["steps"], fifth["rows"]) == ("--run 5", 30, 48)
    assert fifth["applications"] == (10 * 24 + 48) * 2


def test_usage(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    model = tiny("bert")
    assert cli("generalise").code == 2
    assert "--run 31: there are 30 half splits" in cli("generalise", model, noisy_rows, "--run", 31).err
    assert cli("generalise", model, noisy_rows, "--per-row", tmp_path / "r.jsonl").code == 2
    assert cli("generalise", "--merge", noisy_rows, "-o", noisy_rows, "--force").code == 2
    one = write_jsonl(tmp_path / "one.jsonl", toy_rows(1))
    assert "one row only" in cli("generalise", model, one, "--run", 1).err
