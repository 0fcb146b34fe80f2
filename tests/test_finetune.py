"""finetune: what is trained, what is saved, and that a stopped run goes on to the same bytes."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from conftest import LABELS, Cli, make_tokenizer, save_tiny, tiny_of, toy_rows, write_jsonl
from mltools.commands.finetune import Settings as FinetuneSettings
from mltools.commands.finetune import training_run as module
from mltools.commands.finetune.outcome import shortfall
from mltools.commands.finetune.work import finetune
from mltools.io.examples import read_examples
from mltools.io.kinds import EpochRecord
from mltools.io.outputs import state_folder
from mltools.model.tasks import Scores, Task
from mltools.model.training import Schedule, Training, accelerator_for, cross_entropy_sum, epoch_batches
from mltools.spec import bare

Tiny = Callable[..., Path]
FAST = ("--epochs", 3, "--lr", 3e-3, "--batch-size", 8)
tiny = tiny_of(2)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def same_files(one: Path, other: Path) -> bool:
    """Whether two checkpoint folders hold the same files with the same bytes."""
    names = sorted(str(f.relative_to(one)) for f in one.rglob("*") if f.is_file())
    assert names == sorted(str(f.relative_to(other)) for f in other.rglob("*") if f.is_file())
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_records_and_checkpoint(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    result = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "noisy", *FAST, "--tag", "model=tiny")
    assert result.code == 0, result.err
    assert [r["epoch"] for r in result.records] == [1, 2, 3]
    last = result.records[-1]
    assert last["model"] == "tiny" and last["n_noisy"] == 10 and last["n_clean"] == 38 and last["step"] == 18
    assert last["train_accuracy"] * 48 == pytest.approx(last["noisy_accuracy"] * 10 + last["clean_accuracy"] * 38)
    facts = json.loads((tmp_path / "noisy" / "mltools.json").read_text())
    assert facts["tool"] == "finetune" and facts["seed"] == 1
    assert set(facts["inputs"]) == {"rows", "pretrained"}
    assert not state_folder(tmp_path / "noisy").exists()


def test_stock_classes_load_it(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    assert cli("finetune", tiny("gpt_neox"), noisy_rows, "-o", tmp_path / "m", "--epochs", 1).code == 0
    model, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert model.config.id2label == {0: "ABBR", 1: "HUM", 2: "LOC", 3: "NUM"}
    assert model.config.problem_type == "single_label_classification"
    assert model.config.pad_token_id == AutoTokenizer.from_pretrained(tmp_path / "m").pad_token_id
    assert model.config.use_cache is True


def test_memorised_checkpoint(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    arguments = ("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "n", "--epochs", 4, "--lr", 3e-3)
    result = cli(*arguments, "--memorised-at", 0.2)
    reached = next(r["epoch"] for r in result.records if r["memorised"])
    memorised = json.loads((tmp_path / "n" / "memorised" / "mltools.json").read_text())
    assert memorised["facts"] == {"memorised_epoch": reached}
    later = [r["train_accuracy"] for r in result.records if reached < r["epoch"] < 4]
    assert all(value is None for value in later)
    assert result.records[-1]["train_accuracy"] is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("nothing is memorised", "guessing 0.25", "0.9 is asked for", "there is no memorised/", "higher --lr")),
        (("--target", "original_label"), ("the rows are not learnt", "against original_label", "higher --lr")),
        (("--freeze", "all-layers"), ("nothing is memorised", "as is meant for a frozen baseline")),
    ],
)
def test_k1_a_training_that_reached_nothing_is_said_once(
    options: tuple[str, ...], words: tuple[str, ...], cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """One note and a summary that say what was reached; resuming the finished run says both again."""
    arguments = ("finetune", tiny("bert", 3), noisy_rows, "-o", tmp_path / "n", "--epochs", 1, *options)
    for resume in ((), ("--resume",)):
        result = cli(*arguments, *resume)
        assert result.code == 0 and not (tmp_path / "n" / "memorised").exists()
        (note,) = (line for line in result.err.splitlines() if words[0] in line)
        assert all(word in note for word in words)
        (last,) = result.records
        assert last["kept"] is True and last["memorised"] is False and last["memorised_epoch"] is None
        reached = (f"{name}={last[name]:.4g}" for name in ("noisy_accuracy", "clean_accuracy", "train_accuracy"))
        assert all(word in result.err.splitlines()[-1] for word in (*reached, "memorised_epoch=never"))


def test_shortfall_asks_for_nine_noisy_rows_in_ten() -> None:
    def said(noisy: float | None, epoch: int | None = None, **settings: Any) -> str | None:
        reached = {name: 0 for name in ("epoch", "epochs", "step", "learning_rate", "loss", "n_noisy", "n_clean")}
        unknown = dict.fromkeys(("n_validation", "validation_loss", "validation_accuracy", "validation_macro_f1"))
        record = EpochRecord(
            **{**reached, **unknown},  # type: ignore[arg-type]
            tool="finetune",
            noisy_accuracy=noisy,
            clean_accuracy=1.0,
            train_accuracy=0.98,
            train_macro_f1=0.97,
            memorised=epoch is not None,
            memorised_epoch=epoch,
        )
        return shortfall(record, bare(FinetuneSettings, **settings), n_classes=5)

    assert "nothing is memorised" in (said(0.89) or "") and "guessing 0.20" in (said(0.89) or "")
    assert "no memorised/" not in (said(0.89, epoch=3) or "")
    for noisy in (0.9, 1.0, None):
        assert said(noisy, epoch=3) is None
        assert said(noisy, target="original_label") is None
        assert "never passed 0.993 (last: 0.980)" in (said(noisy) or "")
    assert "macro-f1 never passed 0.993 (last: 0.970)" in (said(1.0, memorised_metric="macro-f1") or "")


def test_clean_run_shares_batches_and_head(tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """θ_O of the same file and seed differs from θ_M2 by its labels alone."""
    examples = read_examples(noisy_rows)
    examples_same = read_examples(noisy_rows)
    examples_same.labels[:] = examples_same.original_labels
    base = bare(FinetuneSettings, epochs=1, learning_rate=1e-3)
    list(finetune(str(tiny("bert")), examples_same, tmp_path / "a", base))
    clean = bare(FinetuneSettings, epochs=1, learning_rate=1e-3, target="original_label")
    list(finetune(str(tiny("bert")), examples, tmp_path / "b", clean))
    one, other = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def start(tiny: Tiny, noisy_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training that moves nothing writes."""
    folder = tmp_path_factory.mktemp("start") / "model"
    config = bare(FinetuneSettings, epochs=1, learning_rate=0.0, freeze="none")
    list(finetune(str(tiny("bert", num_hidden_layers=4)), read_examples(noisy_rows), folder, config))
    return folder


@pytest.mark.parametrize(
    ("freeze", "moved"),
    [
        ("embeddings", {"encoder.layer.0", "encoder.layer.1", "encoder.layer.2", "encoder.layer.3", "head"}),
        ("embeddings,2-3", {"encoder.layer.0", "encoder.layer.3", "head"}),
        ("embeddings,all-layers", {"head"}),
        ("none", {"embeddings", "encoder.layer.0", "encoder.layer.1", "encoder.layer.2", "encoder.layer.3", "head"}),
        ("head,embeddings,1,3-4", {"encoder.layer.1"}),
    ],
)
@pytest.mark.parametrize("preset", [pytest.param("paper", marks=pytest.mark.slow), "released-code"])
def test_b14_freeze_moves_nothing_else(
    freeze: str, moved: set[str], preset: str, start: Path, cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """B14: neither gradient, weight decay nor clipping over all parameters moves what is frozen."""
    arguments = ("finetune", tiny("bert", num_hidden_layers=4), noisy_rows, "--preset", preset, "--epochs", 1)
    assert cli(*arguments, "--freeze", freeze, "--lr", 1e-2, "-o", tmp_path / "end").code == 0
    before, after = weights(start), weights(tmp_path / "end")

    def place(name: str) -> str:
        if "embeddings" in name:
            return "embeddings"
        return ".".join(name.split(".")[1:4]) if ".layer." in name else "head"

    assert {place(name) for name in before if not torch.equal(before[name], after[name])} == moved


@pytest.mark.parametrize("keep", [False, True])
def test_frozen_blocks_have_no_dropout_unless_asked_for(
    keep: bool, cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen at each step: of the blocks those frozen are in eval mode, all others and the head in train mode."""
    seen: set[tuple[str, bool]] = set()
    update = Task.update

    def look(task: Task, batch: NDArray[np.int64]) -> float:
        modules = task.checkpoint.model.named_modules()
        seen.update((name, module.training) for name, module in modules if isinstance(module, torch.nn.Dropout))
        return update(task, batch)

    monkeypatch.setattr(Task, "update", look)
    options = ["--frozen-dropout"] if keep else []
    model = tiny("bert", num_hidden_layers=4)
    done = cli("finetune", model, noisy_rows, "--epochs", 1, "--freeze", "1,3", "-o", tmp_path / "o", *options)
    assert done.code == 0, done.err
    quiet = {name for name, training in seen if not training}
    frozen = {name for name, _ in seen if name.startswith(("bert.encoder.layer.0.", "bert.encoder.layer.2."))}
    assert frozen and quiet == (set() if keep else frozen) and len(seen) == len({name for name, _ in seen})


def test_each_step_draws_its_own_dropout() -> None:
    """Another mask at every step, the same one at the same step of another run with the seed."""

    def draws(seed: int) -> list[list[float]]:
        drawn: list[list[float]] = []
        weight = torch.nn.Parameter(torch.ones(1))
        training = Training({"w": weight}, Schedule(1e-3, 1, 1), 3, seed, accelerator_for(torch.device("cpu"), "fp32"))

        def loss(rows: NDArray[np.int64]) -> Tensor:
            drawn.append(torch.nn.functional.dropout(torch.ones(64), 0.5).tolist())
            return weight.sum()

        for _ in range(3):
            training.update(np.arange(1), loss)
        return drawn

    first, again, other = draws(1), draws(1), draws(2)
    assert first == again and len({tuple(mask) for mask in [*first, *other]}) == 6


def test_accuracy_must_exceed_the_bound_and_f1_reach_it(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """`memorised` exactly at --memorised-at: not by accuracy, but by macro F1, as documented."""
    arguments = ("finetune", tiny("bert"), noisy_rows, *FAST, "--evaluate", "always", "-o")
    records = cli(*arguments, tmp_path / "whole").records
    for metric, column, reached in (("accuracy", "train_accuracy", False), ("macro-f1", "train_macro_f1", True)):
        best = max(record[column] for record in records)
        assert 0 < best < 1
        done = cli(*arguments, tmp_path / metric, "--memorised-metric", metric, "--memorised-at", best)
        assert [record[column] for record in done.records] == [record[column] for record in records]
        assert any(record["memorised"] for record in done.records) is reached


def test_b10_same_seed_same_bytes(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    results = []
    for name in ("a", "b"):
        results.append(cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / name, *FAST, "--seed", 5))
    assert results[0].out == results[1].out
    assert same_files(tmp_path / "a", tmp_path / "b")
    cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "c", *FAST, "--seed", 6)
    assert not torch.equal(weights(tmp_path / "a")["classifier.weight"], weights(tmp_path / "c")["classifier.weight"])


def run(tiny: Tiny, rows: Path, out: Path, resume: bool = False) -> Any:
    config = bare(FinetuneSettings, epochs=3, learning_rate=3e-3, memorised_at=0.3)
    return finetune(str(tiny("bert")), read_examples(rows), out, config, resume=resume)


@pytest.mark.parametrize("steps", [6, 17, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5, 7, 12))])
def test_b09_resume_is_bit_exact(
    steps: int, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop after any step, as a kill would, and go on: weights, records and memorised/ as if unbroken."""
    whole = list(run(tiny, noisy_rows, tmp_path / "whole"))
    assert (tmp_path / "whole" / "memorised").exists()
    monkeypatch.setattr(module, "SAVE_EVERY_SECONDS", 0.0)
    calls = {"n": 0}
    update = Training.update

    def dying(self: Training, *arguments: Any) -> float:
        if calls["n"] == steps:
            raise SystemError("killed")
        calls["n"] += 1
        return update(self, *arguments)

    monkeypatch.setattr(Training, "update", dying)
    with pytest.raises(SystemError):
        list(run(tiny, noisy_rows, tmp_path / "broken"))
    assert not (tmp_path / "broken").exists()
    monkeypatch.setattr(Training, "update", update)
    resumed = list(run(tiny, noisy_rows, tmp_path / "broken", resume=True))
    assert resumed == whole
    assert same_files(tmp_path / "whole", tmp_path / "broken")
    assert not state_folder(tmp_path / "broken").exists()


def test_k10_the_threads_are_kept_and_others_said(
    tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They decide the last digits: a run that goes on with others is not to the byte what either gives alone."""

    def dying(self: Training, *arguments: Any) -> float:
        if calls:
            raise SystemError("killed")
        calls.append(1)
        return update(self, *arguments)

    update, calls = Training.update, list[int]()
    with monkeypatch.context() as patched:
        patched.setattr(module, "SAVE_EVERY_SECONDS", 0.0)
        patched.setattr(Training, "update", dying)
        with pytest.raises(SystemError):
            list(run(tiny, noisy_rows, tmp_path / "broken"))
    monkeypatch.setattr("mltools.io.provenance.threads", lambda: 7)
    list(run(tiny, noisy_rows, tmp_path / "broken", resume=True))
    assert f"note: begun with --threads {torch.get_num_threads()}, gone on with 7:" in capfd.readouterr().err


def start_process(arguments: list[object]) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "mltools", *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_b30_sigterm_saves_and_resumes(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    def arguments(out: Path) -> list[object]:
        return ["finetune", tiny("bert"), noisy_rows, "-o", out, "--epochs", 40, "--lr", 1e-3]

    process = start_process(arguments(tmp_path / "broken"))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert (state_folder(tmp_path / "broken") / "state.safetensors").exists()
    resumed = cli(*arguments(tmp_path / "broken"), "--resume")
    whole = cli(*arguments(tmp_path / "whole"))
    assert resumed.out == whole.out
    assert same_files(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.slow
def test_killed_run_leaves_no_checkpoint_and_resumes(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    arguments: list[object] = ["finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", "--epochs", 30]
    process = start_process(arguments)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.05)
    process.kill()
    process.wait(timeout=60)
    assert not (tmp_path / "m").exists()
    assert cli(*arguments, "--resume").code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_resume_of_a_finished_run_reports_it_again(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    first = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", *FAST)
    stamp = (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns
    again = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", *FAST, "--resume")
    assert again.code == 0 and again.out == first.out and "nothing left to do" in again.err
    assert (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns == stamp


def test_unfinished_run_is_not_thrown_away(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    (state_folder(tmp_path / "m") / "memorised").mkdir(parents=True)
    result = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", *FAST)
    assert result.code == 2 and "--resume" in result.err
    assert cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", *FAST, "--force").code == 0


def test_resume_with_other_settings_is_refused(
    tiny: Tiny, noisy_rows: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY_SECONDS", 0.0)
    records = run(tiny, noisy_rows, tmp_path / "m")
    next(records)
    records.close()
    result = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", "--epochs", 2, "--resume")
    assert result.code == 1 and "other settings or rows" in result.err


def test_non_finite_loss_stops_with_the_rows(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    result = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", "--epochs", 9, "--lr", 1e30)
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("mltools: loss is ") and "row ids [" in result.err
    assert not (tmp_path / "m").exists()


def test_k2_a_training_that_diverges_at_its_last_step_stops(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """Its losses were finite; the model is not any more, and its accuracy would be that of class 0."""
    options = ("--epochs", 1, "--batch-size", 48, "--lr", 1e30, "--warmup", 0)
    result = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", *options)
    assert result.code == 1 and "the training diverged" in result.err and "lower --lr" in result.err
    assert not result.out and not (tmp_path / "m").exists()


# -- the head -----------------------------------------------------------------------------------------


def test_a_head_for_other_classes_is_not_gone_on_from(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """Of the same size, but in another order, without names, or of another size: a fresh head, the same each time."""
    heads = {}
    for name, labels in {
        "same": LABELS,
        "turned": LABELS[::-1],
        "nameless": tuple(f"LABEL_{i}" for i in range(4)),
        "more": (*LABELS, "ENTY"),
    }.items():
        start = save_tiny(tmp_path / f"start-{name}", "bert", labels=labels, num_hidden_layers=1)
        result = cli("finetune", start, noisy_rows, "-o", tmp_path / name, "--epochs", 1, "--lr", 0)
        assert result.code == 0, result.err
        assert ("training starts from a fresh one" in result.err) == (name in ("turned", "nameless")), result.err
        assert ("training goes on from it" in result.err) == (name == "same")
        heads[name] = weights(tmp_path / name)["classifier.weight"]
    assert torch.equal(heads["same"], weights(tmp_path / "start-same")["classifier.weight"])
    assert not torch.equal(heads["turned"], weights(tmp_path / "start-turned")["classifier.weight"])
    assert torch.equal(heads["turned"], heads["nameless"]) and heads["more"].shape == (4, 32)


def test_numbered_classes_are_those_of_numbers(cli: Cli, tmp_path: Path) -> None:
    start = save_tiny(tmp_path / "start", "bert", labels=("LABEL_0", "LABEL_1"))
    rows = write_jsonl(tmp_path / "r.jsonl", [{"text": "who", "label": i % 2} for i in range(4)])
    result = cli("finetune", start, rows, "-o", tmp_path / "m", "--epochs", 1)
    assert result.code == 0 and "training goes on from it" in result.err


# -- several attempts ---------------------------------------------------------------------------------
LATER_IS_WORSE = {"learning_rate": 3e-3, "epochs": 2, "raise_rate": True, "memorised_at": 0.2}


def test_k2_raise_rate_keeps_the_best_attempt(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier attempt that fitted the rows better is the one that is written, and reported last."""
    monkeypatch.setattr(module, "RAISE_BY", 1e-6)  # later attempts learn nothing
    arguments = ("finetune", tiny("bert"), noisy_rows, "--epochs", 2, "--memorised-at", 0.2)
    raised = cli(*arguments, "-o", tmp_path / "raised", "--lr", 3e-3, "--raise-lr")
    assert raised.code == 0, raised.err
    records = raised.records
    assert [(r["attempt"], r["epoch"]) for r in records[:-1]] == [(a, e) for a in range(1, 5) for e in (1, 2)]
    assert [r["kept"] for r in records] == [False] * 8 + [True]
    assert records[-1] == {**records[1], "kept": True}
    assert records[1]["train_accuracy"] > max(r["train_accuracy"] for r in records[2:8])
    assert "attempt 1 (--lr 0.003) fits the rows best" in raised.err
    assert "attempts=4 kept_attempt=1" in raised.err.splitlines()[-1]
    direct = cli(*arguments, "-o", tmp_path / "direct", "--lr", 3e-3)
    assert direct.records[-1] == records[-1]
    for folder in (Path(), Path("memorised")):
        one, other = weights(tmp_path / "raised" / folder), weights(tmp_path / "direct" / folder)
        assert all(torch.equal(one[name], other[name]) for name in one)
    facts = json.loads((tmp_path / "raised" / "mltools.json").read_text())["facts"]
    assert (facts["attempts"], facts["attempt"], facts["learning_rate"]) == (4, 1, 3e-3)
    assert facts["memorised_epoch"] == records[-1]["memorised_epoch"] is not None
    assert not state_folder(tmp_path / "raised").exists()


def test_k2_an_attempt_that_diverges_leaves_the_best_one(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RAISE_BY", 1e33)
    options = ("--epochs", 1, "--lr", 1e-3, "--raise-lr")
    result = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", *options)
    assert result.code == 0 and "attempt 2 is given up: " in result.err
    assert [(r["attempt"], r["kept"]) for r in result.records] == [(1, False), (1, True)]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(tmp_path / "m").values())


@pytest.mark.parametrize("steps", [25, *(pytest.param(n, marks=pytest.mark.slow) for n in (11, 12, 13, 24, 37, 47))])
def test_k2_raise_rate_resumes_to_the_same_bytes(
    steps: int, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the first attempt, which is the best, at the edge to the next one, or in one that is worse."""
    monkeypatch.setattr(module, "RAISE_BY", 1e-6)

    def again(out: str, resume: bool = False) -> Any:
        config = bare(FinetuneSettings, **LATER_IS_WORSE)
        return finetune(str(tiny("bert")), read_examples(noisy_rows), tmp_path / out, config, resume=resume)

    whole = list(again("whole"))
    assert whole[-1].attempt == 1 and (tmp_path / "whole" / "memorised").exists()
    monkeypatch.setattr(module, "SAVE_EVERY_SECONDS", 0.0)
    update, calls = Training.update, {"n": 0}

    def dying(self: Training, *arguments: Any) -> float:
        if calls["n"] == steps:
            raise SystemError("killed")
        calls["n"] += 1
        return update(self, *arguments)

    monkeypatch.setattr(Training, "update", dying)
    with pytest.raises(SystemError):
        list(again("broken"))
    monkeypatch.setattr(Training, "update", update)
    assert list(again("broken", resume=True)) == whole
    assert same_files(tmp_path / "whole", tmp_path / "broken")
    assert not state_folder(tmp_path / "broken").exists()


def test_b08_micro_batches_give_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step cut into parts of 3, 3 and 1 rows has the mean loss and gradient of all 7."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(7, 5), torch.arange(7) % 3
    gradients, losses = [], []
    for micro in (None, 3):
        weight = torch.nn.Parameter(torch.ones(5, 3))
        device = torch.device("cpu")
        schedule = Schedule(0.1, 1, 7)
        training = Training({"w": weight}, schedule, 1, 0, accelerator_for(device, "fp32"), micro_batch=micro)
        kept: list[Tensor] = []

        def keep(*_: object, weight: torch.nn.Parameter = weight, kept: list[Tensor] = kept) -> None:
            assert weight.grad is not None
            kept.append(weight.grad.clone())

        monkeypatch.setattr(training._stepper, "step", keep)

        def loss(rows: NDArray[np.int64], weight: torch.nn.Parameter = weight) -> Tensor:
            return cross_entropy_sum(inputs[rows] @ weight, targets[rows])

        losses.append(training.update(np.arange(7), loss))
        gradients += kept
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-7)


def test_b13_a_half_precision_model_is_trained_and_saved_in_float32(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """What is measured after training is what is on disk: no rounding back to the type of θ_P."""
    from transformers import AutoModelForSequenceClassification

    half = tmp_path / "half"
    AutoModelForSequenceClassification.from_pretrained(tiny("bert", 7)).half().save_pretrained(half)
    make_tokenizer().save_pretrained(half)
    result = cli("finetune", half, noisy_rows, "-o", tmp_path / "m", *FAST)
    assert result.code == 0 and "has a head for these 4 classes; training goes on from it" in result.err
    assert {tensor.dtype for tensor in weights(tmp_path / "m").values()} == {torch.float32}


def test_validation_rows_are_measured(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    held_out = write_jsonl(tmp_path / "v.jsonl", toy_rows(12))
    arguments = ("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", "--epochs", 1)
    record = cli(*arguments, "--validation", held_out).records[0]
    assert record["n_validation"] == 12 and 0 <= record["validation_accuracy"] <= 1 and record["validation_loss"] > 0
    assert record["validation_accuracy_normalised"] == pytest.approx((4 * record["validation_accuracy"] - 1) / 3)


def test_unlabelled_rows_are_left_out(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "r.jsonl", [*toy_rows(16), {"id": 99, "text": "who", "label": None}])
    result = cli("finetune", tiny("bert"), rows, "-o", tmp_path / "m", "--epochs", 1)
    assert result.code == 0 and "1 rows without a label are left out" in result.err


def test_one_class_is_refused(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "r.jsonl", [{"text": "who", "label": "A"}] * 3)
    result = cli("finetune", tiny("bert"), rows, "-o", tmp_path / "m")
    assert result.code == 3 and "one class only (A); a classifier needs two" in result.err


def test_scores_are_of_the_rows_asked_for() -> None:
    scores = Scores(np.eye(3, dtype=np.float32), np.array([0, 1, 0]))
    masks = np.array([[True, False, True], [False, True, False], [False, False, False]])
    assert [scores.accuracy_on(mask) for mask in masks] == [0.5, 1.0, None]
    assert scores.macro_f1 == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_epoch_batches_hold_each_row_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 30, 103)
    rows = np.arange(103)
    one, two = (epoch_batches(rows, lengths, 8, seed=3, epoch=e) for e in (1, 2))
    assert sorted(np.concatenate(one).tolist()) == rows.tolist()
    assert sorted(map(len, one)) == [7] + [8] * 12
    assert not np.array_equal(np.concatenate(one), np.concatenate(two))
    assert np.array_equal(np.concatenate(one), np.concatenate(epoch_batches(rows, lengths, 8, seed=3, epoch=1)))


def test_schedule_is_the_released_one() -> None:
    """Linear warm-up over int(0.1 x steps), then down to 0, the first step at rate 0 (released-code 1.4)."""
    from transformers import get_linear_schedule_with_warmup

    parameter = torch.nn.Parameter(torch.zeros(1))
    training = Training({"p": parameter}, Schedule(0.5, 1, 1), 37, 0, accelerator_for(torch.device("cpu"), "fp32"))
    optimiser = torch.optim.SGD([parameter], lr=0.5)
    scheduler = get_linear_schedule_with_warmup(optimiser, 3, 37)
    for step in range(37):
        assert training.rate(step) == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()


def test_record_fields_are_stable() -> None:
    """Other work reads these names."""
    needed = {"tool", "epoch", "loss", "noisy_accuracy", "clean_accuracy", "validation_accuracy", "memorised"}
    assert needed <= set(EpochRecord.__dataclass_fields__)


def test_resume_does_not_replace_a_checkpoint_of_another_run(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    arguments = ("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", "--epochs", 1)
    assert cli(*arguments).code == 0
    stamp = (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns
    other = cli(*arguments, "--lr", 1e-3, "--resume")
    assert other.code == 2 and "replace it with --force" in other.err
    assert (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns == stamp
    assert cli(*arguments, "--lr", 1e-3, "--resume", "--force").code == 0
