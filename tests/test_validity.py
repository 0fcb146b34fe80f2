"""`valid`: whether the experiment behind a record took place, as swap, retrain and grads say it (K1)."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModel, AutoTokenizer

from conftest import CONFORMANCE, Cli, keyword_rows, toy_rows, write_jsonl
from mltools.model.validity import Labels, judge, judge_pair

Tiny = Callable[..., Path]
CASE = CONFORMANCE / "bert-questions"
CLEAN, ROWS = CASE / "clean", CASE / "noisy.jsonl"


def notes(err: str) -> list[str]:
    return [line for line in err.splitlines() if "invalid (" in line]


def commands(noisy: Path) -> list[list[object]]:
    return [
        ["swap", noisy, CLEAN, ROWS, "--layers", 1],
        ["retrain", noisy, CLEAN, ROWS, "--layers", 4, "--epochs", 1],
        ["grads", noisy, ROWS],
    ]


@pytest.mark.parametrize("index", range(3), ids=["swap", "retrain", "grads"])
def test_a_model_that_memorised_nothing_is_invalid(index: int, cli: Cli) -> None:
    """The pre-trained body under a trained head: a mark in every record, one warning, status 0; --strict 1."""
    command = commands(CASE / "frozen")[index]
    found = cli(*command)
    assert found.code == 0 and len(notes(found.err)) == 1 and "--min-noisy-accuracy 0.9" in found.err
    assert {(r["valid"], r["valid_reason"]) for r in found.records} == {(False, "noisy_not_memorised")}
    quiet = cli(*command, "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, found.out, "")
    strict = cli(*command, "--strict", "-q")
    assert strict.code == 1 and len(notes(strict.err)) == len(strict.err.splitlines()) == 1
    assert strict.out == (found.out if index == 0 else "")
    off = cli(*command, "--min-noisy-accuracy", 0, "--strict", *(["--donor-is", "other"] if index == 0 else []))
    assert off.code == 0 and {r["valid"] for r in off.records} == {True}


def test_resuming_a_whole_sweep_still_judges_it(cli: Cli, tmp_path: Path) -> None:
    """With nothing left to do, what the earlier records say counts, for --strict too (before: status 0 and no word)."""
    command = commands(CASE / "frozen")[0]
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text(cli(*command).out)
    again = cli(*command, "--resume", earlier)
    assert (again.code, again.out) == (0, "") and len(notes(again.err)) == 1
    strict = cli(*command, "--resume", earlier, "--strict", "-q")
    assert (strict.code, strict.out) == (1, "") and "noisy_not_memorised" in strict.err


def test_any_donor_will_do_where_no_twin_is_meant(cli: Cli) -> None:
    one_folder_twice = ("swap", CASE / "noisy", CASE / "noisy", ROWS, "--layers", 1)
    assert cli(*one_folder_twice).records[0]["valid_reason"] == "clean_gives_noisy_labels"
    assert cli(*one_folder_twice, "--donor-is", "other").records[0]["valid"] is True


def test_baselines_are_the_checkpoints_own_accuracies(cli: Cli) -> None:
    """Counted by hand from the released code's logits of these checkpoints."""
    expected = json.loads((CASE / "expected.json").read_text())
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    names = expected["labels"]

    def hits(checkpoint: str, column: str, *, noisy: bool) -> float:
        logits = np.array(expected["logits"][checkpoint])
        found: list[bool] = [
            names[int(scores.argmax())] == row[column]
            for scores, row in zip(logits, rows, strict=True)
            if row["noisy"] == noisy
        ]
        return sum(found) / len(found)

    record = cli("swap", CASE / "noisy", CLEAN, ROWS, "--layers", "2-3").records[0]
    assert record["baseline_noisy_accuracy"] == pytest.approx(hits("noisy", "label", noisy=True))
    assert record["baseline_clean_accuracy"] == pytest.approx(hits("noisy", "label", noisy=False))
    assert record["donor_noisy_reverted"] == pytest.approx(hits("clean", "original_label", noisy=True))
    assert record["donor_clean_accuracy"] == pytest.approx(hits("clean", "label", noisy=False))
    assert record["memorisation_error_scaled"] is not None
    assert (record["n_cut"], record["n_unlabelled"]) == (0, 0)


LABEL, ORIGINAL = np.array([1, 1, 0, 1, 0, 1, 0, 1]), np.array([0, 0, 1, 1, 0, 1, 0, 1])
FLAGS = LABEL != ORIGINAL
LABELS = Labels(LABEL, ORIGINAL, FLAGS)


@pytest.mark.parametrize(
    ("noisy", "clean", "reason"),
    [
        (LABEL, ORIGINAL, None),
        (ORIGINAL, LABEL, "noisy_not_memorised"),  # arguments reversed
        (LABEL, LABEL, "clean_gives_noisy_labels"),  # one folder twice
        (np.append(LABEL[:-1], 0), np.append(ORIGINAL[:-1], 0), None),  # .8 of the clean rows, both
        (LABEL, np.where(FLAGS, ORIGINAL, 1 - ORIGINAL), "clean_untrained"),
        (1 - LABEL, ORIGINAL, "noisy_not_memorised"),  # classes in another order
    ],
)
def test_causes(noisy: Any, clean: Any, reason: str | None) -> None:
    counts = {"n_cut": 0, "n_unlabelled": 0}
    found = judge_pair(noisy, clean, LABELS, 0.9, ("a", "b"), twin=True, **counts)
    assert (found.valid, found.valid_reason) == (reason is None, reason)
    other = judge_pair(noisy, clean, LABELS, 0.9, ("a", "b"), twin=False, **counts)
    assert other.valid_reason == (reason if reason == "noisy_not_memorised" else None)
    unknown = judge_pair(noisy, clean, Labels(LABEL, None, FLAGS), 0.9, ("a", "b"), twin=True, **counts)
    assert unknown.donor_noisy_reverted is None and unknown.valid_reason == reason


@pytest.mark.parametrize(("hits", "valid"), [(9, True), (8, False)])
def test_the_bound_itself_is_valid(hits: int, valid: bool) -> None:
    predicted = np.array([1] * hits + [0] * (10 - hits))
    labels = Labels(np.ones(10, np.int64), np.zeros(10, np.int64), np.ones(10, bool))
    assert judge(predicted, labels, 0.9, "a", n_cut=0, n_unlabelled=0).valid is valid


def test_twins_are_told_by_how_they_were_made(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """Seed, rows and target; without them, embeddings of two models. Neither makes a run invalid."""
    one, two = (tiny("bert", seed, num_hidden_layers=1) for seed in (1, 2))
    noisy, clean = (shutil.copytree(one, tmp_path / name) for name in ("noisy", "clean"))

    def made(folder: Path, seed: int, target: str, rows: str = "a") -> None:
        values = {
            "tool": "finetune",
            "seed": seed,
            "settings": {"target": target},
            "inputs": {"rows": {"sha256": rows}},
        }
        (folder / "mltools.json").write_text(json.dumps(values))

    def told(*options: object) -> tuple[bool | None, bool]:
        found = cli("swap", noisy, clean, noisy_rows, "--layers", 1, "--min-noisy-accuracy", 0, *options)
        return found.records[0]["twins"], "no twins" in found.err

    assert told() == (None, False)
    made(noisy, 1, "label")
    assert told() == (None, False)
    made(clean, 1, "original_label")
    assert told() == (True, False)
    for changed in ((2, "original_label"), (1, "label"), (1, "original_label", "b")):
        made(clean, *changed)
        assert told() == (False, True)
        assert told("--donor-is", "other") == (None, False)
    other = cli("swap", one, two, noisy_rows, "--layers", 1, "--min-noisy-accuracy", 0)
    assert other.records[0]["twins"] is False and "come from two models" in other.err


def test_rows_cut_and_rows_without_a_label_are_counted(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [*toy_rows(), {"id": 90, "text": "who", "label": None, "original_label": None}]
    cut = sum(len(row["text"].split()) > 4 for row in rows)  # and two special tokens
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    for command in (
        ["swap", tiny("bert", 1), tiny("bert", 2), path, "--layers", 1],
        ["retrain", tiny("bert", 1), tiny("bert", 2), path, "--layers", 4, "--epochs", 1],
        ["grads", tiny("bert", 1), path],
    ):
        found = cli(*command, "--max-length", 6)
        assert {(r["n_cut"], r["n_unlabelled"]) for r in found.records} == {(cut, 1)}, found.err
        assert found.err.count(f"{cut} rows are longer than 6 tokens") == 1
        assert found.err.count("1 rows without a label are left out") == 1


def test_reverted_is_null_without_original_labels(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "original_label"} for row in toy_rows()]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    for tool, options in (("swap", []), ("retrain", ["--epochs", 1])):
        record = cli(tool, tiny("bert", 1), tiny("bert", 2), path, "--layers", 4, *options).records[0]
        assert record["reverted"] is None and record["donor_noisy_reverted"] is None
        assert record["baseline_noisy_accuracy"] is not None


def test_retrain_says_when_it_did_not_learn(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    """Accuracy on the rows retrained on, against NOISY's own on the same rows."""
    rows = write_jsonl(tmp_path / "rows.jsonl", keyword_rows(48))
    model = tmp_path / "model"
    training = ("--epochs", 15, "--lr", 3e-3, "--target", "original_label", "-q")
    pretrained, other = (tiny("bert", seed, num_hidden_layers=2) for seed in (1, 2))
    assert cli("finetune", pretrained, rows, "-o", model, *training).code == 0
    learnt, not_learnt = (
        cli("retrain", model, other, rows, "--layers", "1-2", "--epochs", epochs, "--lr", rate)
        for epochs, rate in ((15, 5e-3), (1, 1e-9))
    )
    for found, expected in ((learnt, True), (not_learnt, False)):
        record = found.records[0]
        assert record["learnt"] is expected, record
        assert record["baseline_train_accuracy"] > 0.7
        assert found.err.count("did not learn") == (not expected)


def test_states_keep_the_accuracies_by_which_probes_for_noise_are_judged(cli: Cli, tmp_path: Path) -> None:
    """The head's, from the same pass; a model without a head leaves it unknown; other targets only carry them."""
    path = tmp_path / "states.safetensors"
    assert cli("states", CASE / "frozen", ROWS, "-o", path).code == 0
    known = cli("grads", CASE / "frozen", ROWS, "-q").records[0]
    expected = [known["baseline_noisy_accuracy"], known["baseline_clean_accuracy"]]
    command = ("probe", path, "--target", "noise,label", "--probe", "linear", "--seeds", 1, "--allow-absent")
    found = cli(*command)
    assert found.code == 0 and len(notes(found.err)) == 1
    for record in found.records:
        assert [record["baseline_noisy_accuracy"], record["baseline_clean_accuracy"]] == pytest.approx(expected)
        assert record["valid"] is (False if record["target"] == "noise" else None)
    strict = cli(*command, "--strict")
    assert (strict.code, strict.out) == (1, "")
    headless = tmp_path / "headless"
    AutoModel.from_pretrained(CASE / "frozen").save_pretrained(headless)
    AutoTokenizer.from_pretrained(CASE / "frozen").save_pretrained(headless)
    unknown = cli(command[0], headless, ROWS, *command[2:], "--strict")
    assert unknown.code == 0 and {r["valid"] for r in unknown.records} == {None}
    assert {r["baseline_noisy_accuracy"] for r in unknown.records} == {None}
    centroid = cli("centroid", path).records[0]
    assert centroid["baseline_noisy_accuracy"] == pytest.approx(expected[0]) and centroid["valid"] is None
    assert cli("states", CASE / "noisy", ROWS, "-o", path, "--force").code == 0
    assert cli("centroid", path).records[0]["baseline_noisy_accuracy"] > 0.9


@pytest.mark.parametrize("value", ["-0.1", "1.1"])
def test_accuracy_lies_in_0_to_1(value: str, cli: Cli) -> None:
    assert cli("swap", "a", "b", ROWS, "--min-noisy-accuracy", value).code == 2
