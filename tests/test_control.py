"""The control set-up (§3.2): an auxiliary task changes every layer, the main task only the layers that are left.

The planted models have six layers of which two could learn the mislabelled rows. What the techniques say of them
is asserted at the end.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conftest import BY_ARCHITECTURE, LABELS, Cli, Shell, keyword_rows, save_tiny, toy_rows, write_jsonl
from mltools.analysis.layer_scores import layer_scores
from mltools.commands.finetune import Settings as FinetuneSettings
from mltools.commands.finetune import training_run as module
from mltools.commands.finetune.work import finetune
from mltools.commands.retrain import Settings as RetrainSettings
from mltools.commands.retrain.work import retrain
from mltools.commands.swap.work import swap
from mltools.io.examples import read_examples
from mltools.io.outputs import state_folder
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.inference import predict
from mltools.model.tasks import second_head
from mltools.model.training import Training
from mltools.spec import bare

Tiny = Callable[..., Path]
Train = Callable[..., dict[str, Tensor]]
LAYERS = 6
PLACEMENTS = ((1, 2), (3, 4), (5, 6))


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def part(name: str) -> str:
    """The part of a BERT or DistilBERT that a weight is of: embeddings, a layer, or a module of the head."""
    words = name.split(".")
    return str(int(words[words.index("layer") + 1]) + 1) if "layer" in words else words[-2 if len(words) < 3 else 1]


def moved(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    return {part(name) for name in one if not torch.equal(one[name], other[name])}


@pytest.fixture(scope="module")
def aux_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("aux") / "aux.jsonl", toy_rows(16, ("no", "yes"), noise_every=99))


@pytest.fixture
def train(tiny: Tiny, noisy_rows: Path, aux_rows: Path, tmp_path: Path) -> Train:
    """Give a function (architecture, aux or not, settings) -> weights after one epoch."""

    def run(architecture: str = "bert", aux: bool = True, **settings: Any) -> dict[str, Tensor]:
        config = bare(FinetuneSettings, epochs=1, evaluate="last", **settings)
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        others = read_examples(aux_rows) if aux else None
        list(finetune(str(tiny(architecture)), read_examples(noisy_rows), out, config, aux=others))
        return weights(out)

    return run


def test_main_batches_move_only_what_is_left(train: Train) -> None:
    start = train(learning_rate=0, aux_learning_rate=0)
    end = train(learning_rate=1e-2, aux_learning_rate=0, freeze="embeddings,1,4")
    assert moved(start, end) == {"2", "3", "pooler", "classifier"}


def test_aux_batches_move_all_but_the_embeddings_and_the_main_head(train: Train) -> None:
    start = train(learning_rate=0, aux_learning_rate=0)
    end = train(learning_rate=0, aux_learning_rate=1e-2, freeze="embeddings,1,4")
    assert moved(start, end) == {"1", "2", "3", "4", "pooler"}


@pytest.mark.parametrize("released", [{}, {"clip_scope": "all", "frozen_dropout": True}])
def test_frozen_body_knows_nothing_of_the_main_labels(released: dict[str, Any], train: Train) -> None:
    """With all layers frozen, auxiliary batches alone move the body: perturbed labels leave no bit in it."""
    settings = {"learning_rate": 1e-2, "aux_learning_rate": 1e-3, "freeze": "all-layers", **released}
    start = train("distilbert", learning_rate=0, aux_learning_rate=0)
    one, other = (train("distilbert", target=target, **settings) for target in ("label", "original_label"))
    assert moved(start, one) == {"1", "2", "3", "4", "pre_classifier", "classifier"}
    assert moved(one, other) == {"pre_classifier", "classifier"}


def test_frozen_baseline_without_aux(train: Train) -> None:
    start = train(aux=False, learning_rate=0)
    assert moved(start, train(aux=False, learning_rate=1e-2, freeze="all-layers")) == {"pooler", "classifier"}


def test_the_norm_of_all_gradients_is_clipped_if_asked_for(train: Train) -> None:
    own, whole = (
        train(aux=False, learning_rate=1e-2, freeze="embeddings,1-3", clip_scope=scope)
        for scope in ("trainable", "all")
    )
    assert moved(own, whole) == {"4", "pooler", "classifier"}


def test_a_frozen_pooler_leaves_the_classifier_alone_to_memorise(train: Train) -> None:
    start = train(aux=False, learning_rate=0)
    assert moved(start, train(aux=False, learning_rate=1e-2, freeze="all-layers,pooler")) == {"classifier"}


def test_a_final_norm_is_no_pooler(train: Train) -> None:
    start = train("opt", aux=False, learning_rate=0)
    end = train("opt", aux=False, learning_rate=1e-2, freeze="all-layers,pooler")
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert {name.split(".")[-2] for name in changed} == {"final_layer_norm", "score"}


def test_both_accuracies_are_recorded_and_only_the_main_head_saved(
    cli: Cli, tiny: Tiny, noisy_rows: Path, aux_rows: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    pairs = [{**json.loads(line), "pair": "who"} for line in aux_rows.read_text().splitlines()]
    aux = write_jsonl(tmp_path / "pairs.jsonl", [{**row, "answer": row.pop("label")} for row in pairs])
    result = cli(
        *("finetune", tiny("gpt_neox"), noisy_rows, "-o", tmp_path / "m", "--epochs", 2, "--freeze", "embeddings,3-4"),
        *("--aux", aux, "--aux-text", "text,pair", "--aux-label", "answer", "--aux-lr", 1e-3, "--lr", 1e-3),
    )
    assert result.code == 0, result.err
    first, last = result.records
    assert last["n_aux"] == 16 and last["aux_loss"] > 0 and 0 <= last["aux_accuracy"] <= 1
    assert first["aux_accuracy"] is None and last["train_accuracy"] is not None
    model, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and model.config.num_labels == len(LABELS)
    assert set(json.loads((tmp_path / "m" / "mltools.json").read_text())["inputs"]) == {"rows", "aux", "pretrained"}


@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
def test_second_head_shares_the_body(architecture: str, tiny: Tiny, noisy_rows: Path) -> None:
    """Every architecture: same body, other classes, and a row's logits do not depend on its batch."""
    checkpoint = open_checkpoint(str(tiny(architecture)))
    torch.manual_seed(1)
    other = second_head(checkpoint, ["a", "b", "c"])
    prefix = f"{checkpoint.model.base_model_prefix}."
    mine, theirs = (dict(c.model.named_parameters()) for c in (checkpoint, other))
    assert {n for n in mine if mine[n] is theirs[n]} == {n for n in mine if n.startswith(prefix)}
    assert other.labels == ["a", "b", "c"] and checkpoint.labels == list(LABELS)
    rows = np.arange(6)
    encoded = checkpoint.encode(read_examples(noisy_rows), 64)
    together, alone = (predict(other.runner, encoded, rows, size) for size in (6, 1))
    assert together.shape == (6, 3) and np.abs(together - alone).max() < 1e-5
    assert predict(checkpoint.runner, encoded, rows, 6).shape == (6, len(LABELS))


def test_order_of_batches_is_of_seed_and_epoch(
    tiny: Tiny, noisy_rows: Path, aux_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row once an epoch, main and auxiliary batches mixed, in another order each epoch, labels or not."""
    orders: list[list[tuple[str, tuple[int, ...]]]] = []
    update = Training.update

    def note(self: Training, rows: Any, loss: Any) -> float:
        orders[-1].append((self.name, tuple(int(row) for row in rows)))
        return update(self, rows, loss)

    monkeypatch.setattr(Training, "update", note)
    for run, target in enumerate(("label", "original_label")):
        orders.append([])
        config = bare(FinetuneSettings, epochs=2, target=target, evaluate="last")
        aux = read_examples(aux_rows)
        list(finetune(str(tiny("bert")), read_examples(noisy_rows), tmp_path / str(run), config, aux=aux))
    assert orders[0] == orders[1]
    epochs = orders[0][:8], orders[0][8:]
    for epoch in epochs:
        names = [name for name, _ in epoch]
        assert names.count("") == 6 and names.count("aux ") == 2 and names != sorted(names)
        for name, n in (("", 48), ("aux ", 16)):
            assert sorted(row for kind, rows in epoch for row in rows if kind == name) == list(range(n))
    assert epochs[0] != epochs[1]
    assert [name for name, _ in epochs[0]] != [name for name, _ in epochs[1]]


@pytest.mark.parametrize("steps", [9, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8, 14))])
def test_b09_resume_with_aux_is_bit_exact(
    steps: int, tiny: Tiny, noisy_rows: Path, aux_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(out: str, resume: bool = False) -> Any:
        config = bare(
            FinetuneSettings,
            learning_rate=3e-3,
            aux_learning_rate=1e-3,
            epochs=2,
            freeze="embeddings,1-2",
            memorised_at=0.2,
        )
        rows, aux = read_examples(noisy_rows), read_examples(aux_rows)
        return finetune(str(tiny("bert")), rows, tmp_path / out, config, aux=aux, resume=resume)

    whole = list(run("whole"))
    monkeypatch.setattr(module, "SAVE_EVERY_SECONDS", 0.0)
    update, calls = Training.update, {"n": 0}

    def dying(self: Training, *arguments: Any) -> float:
        if calls["n"] == steps:
            raise SystemError("killed")
        calls["n"] += 1
        return update(self, *arguments)

    monkeypatch.setattr(Training, "update", dying)
    with pytest.raises(SystemError):
        list(run("broken"))
    monkeypatch.setattr(Training, "update", update)
    assert list(run("broken", resume=True)) == whole
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(one[name], other[name]) for name in one)
    one, other = weights(tmp_path / "whole" / "memorised"), weights(tmp_path / "broken" / "memorised")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_raise_rate_is_a_run_at_the_higher_rate(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    arguments = ("finetune", tiny("bert"), noisy_rows, "--epochs", 2)
    raised = cli(*arguments, "-o", tmp_path / "raised", "--lr", 3e-4, "--raise-lr")
    assert [record["attempt"] for record in raised.records] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert "training accuracy" in raised.err and "attempts=4 kept_attempt=4" in raised.err
    direct = cli(*arguments, "-o", tmp_path / "direct", "--lr", 24e-4)
    assert raised.records[-1] == {**direct.records[-1], "attempt": 4}
    one, other = weights(tmp_path / "raised"), weights(tmp_path / "direct")
    assert all(torch.equal(one[name], other[name]) for name in one)
    facts = json.loads((tmp_path / "raised" / "mltools.json").read_text())["facts"]
    assert facts["attempts"] == 4 and facts["learning_rate"] == pytest.approx(24e-4)


def test_raise_rate_stops_once_the_rows_are_fitted(tiny: Tiny, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "r.jsonl", [{"text": word, "label": word} for word in ("who", "where")] * 4)
    config = bare(FinetuneSettings, learning_rate=3e-3, epochs=20, raise_rate=True, warmup=0)
    records = list(finetune(str(tiny("bert", dropout=False)), read_examples(rows), tmp_path / "m", config))
    assert records[-1].attempt == 1 and records[-1].train_accuracy == 1


@pytest.mark.slow
def test_raise_rate_resumes_in_a_later_attempt(
    tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(out: str, resume: bool = False) -> Any:
        config = bare(FinetuneSettings, learning_rate=1e-4, epochs=1, raise_rate=True, memorised_at=0)
        return finetune(str(tiny("bert")), read_examples(noisy_rows), tmp_path / out, config, resume=resume)

    whole = list(run("whole"))
    monkeypatch.setattr(module, "SAVE_EVERY_SECONDS", 0.0)
    records = run("broken")
    next(records), next(records)
    records.close()
    assert (state_folder(tmp_path / "broken") / "attempt-2" / "memorised").exists()
    assert list(run("broken", resume=True)) == whole
    one, other = weights(tmp_path / "whole" / "memorised"), weights(tmp_path / "broken" / "memorised")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_aux_options_without_aux_are_refused(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    result = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", "--aux-lr", 1e-5)
    assert result.code == 2 and "name them with --aux" in result.err


def test_aux_rows_of_one_class_are_refused(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    aux = write_jsonl(tmp_path / "aux.jsonl", [{"text": "who", "label": "yes"}] * 3)
    result = cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "m", "--aux", aux)
    assert result.code == 3 and f"{aux}: one class only (yes)" in result.err


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_two_processes_give_the_result_of_one(
    launcher: str, noisy_rows: Path, aux_rows: Path, tmp_path: Path, cli: Cli
) -> None:
    """Without dropout: same records but for rounding, and only the first process writes."""
    model = save_tiny(tmp_path / "tiny", "bert", dropout=False)
    arguments = ["finetune", model, noisy_rows, "--epochs", 3, "--lr", 3e-3, "--freeze", "embeddings,3-4"]
    arguments += ["--aux", aux_rows, "--aux-lr", 1e-3, "--memorised-at", 0.3]
    one = cli(*arguments, "-o", tmp_path / "one")
    folder = Path(sys.executable).parent
    start = {
        "torchrun": "torchrun --nproc_per_node 2",
        "accelerate": "accelerate launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no "
        "--dynamo_backend no",
    }
    words: list[list[Any]] = [
        f"{folder}/{start[launcher]}".split(),
        ["-m", "mltools", *arguments, "-o", tmp_path / "two"],
    ]
    environment = {**os.environ, "MASTER_PORT": "29517"}
    two = subprocess.run(
        [str(word) for part in words for word in part], capture_output=True, text=True, env=environment, timeout=240
    )
    assert two.returncode == 0, two.stderr
    records = [json.loads(line) for line in two.stdout.splitlines()]
    rounded = [
        {key: pytest.approx(value, rel=1e-5) if isinstance(value, float) else value for key, value in record.items()}
        for record in one.records
    ]
    assert records == rounded
    assert two.stderr.count("finetune: checkpoint=") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "tiny", "two"]
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    # a key bias shifts all scores of a query alike: its gradient is rounding, which Adam scales up to the rate
    free = {name for name in first if name.endswith("key.bias")}
    assert max(float((first[n] - second[n]).abs().max()) for n in first.keys() - free) < 1e-4


# -- planted layers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """The models of one placement: noisy, clean and, with no layer left, the frozen baseline."""

    layers: tuple[int, ...]
    rows: Path
    pretrained: Path
    noisy: Path
    clean: Path


@pytest.fixture(
    scope="module",
    params=[pytest.param(p, marks=[] if p == (3, 4) else pytest.mark.slow) for p in PLACEMENTS],
    ids=lambda layers: "-".join(map(str, layers)),
)
def planted(
    request: pytest.FixtureRequest, tiny: Tiny, aux_rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> Planted:
    folder = tmp_path_factory.mktemp("planted")
    rows = write_jsonl(folder / "rows.jsonl", keyword_rows(42))
    pretrained = tiny("bert", dropout=False, num_hidden_layers=LAYERS)
    frozen = ",".join(str(layer) for layer in range(1, LAYERS + 1) if layer not in request.param)
    for target in ("label", "original_label"):
        config = bare(
            FinetuneSettings,
            learning_rate=5e-3,
            aux_learning_rate=3e-5,
            batch_size=14,
            epochs=24,
            freeze=f"embeddings,{frozen}",
            target=target,
            evaluate="last",
        )
        aux = read_examples(aux_rows)
        *_, last = finetune(str(pretrained), read_examples(rows), folder / target, config, aux=aux)
        assert last.train_accuracy is not None and last.train_accuracy > 0.9
    return Planted(request.param, rows, pretrained, folder / "label", folder / "original_label")


def best(scores: list[float], k: int) -> set[int]:
    """The k layers with the highest scores."""
    return set(sorted(range(1, len(scores) + 1), key=lambda layer: -scores[layer - 1])[:k])


def test_swap_finds_the_planted_layers(planted: Planted) -> None:
    noisy, clean = open_checkpoint(str(planted.noisy)), open_checkpoint(str(planted.clean))
    records = list(swap(noisy, clean, read_examples(planted.rows)))
    scores = layer_scores({(r.start, r.end): r.memorisation_error for r in records}, LAYERS)
    assert best(scores, 2) == set(planted.layers)


def test_retrain_finds_the_planted_layers(planted: Planted) -> None:
    noisy = open_checkpoint(str(planted.noisy))
    pretrained = open_checkpoint(str(planted.pretrained), fresh_head=noisy.labels)
    config = bare(RetrainSettings, learning_rate=1e-3, batch_size=14)
    records = list(retrain(noisy, pretrained, read_examples(planted.rows), settings=config))
    scores = layer_scores({(r.start, r.end): r.memorisation_error for r in records}, LAYERS)
    assert best(scores, 2) == set(planted.layers)


@pytest.fixture(scope="module")
def frozen(tiny: Tiny, aux_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The frozen baseline of the planted models: the body has seen auxiliary rows only."""
    folder = tmp_path_factory.mktemp("frozen")
    rows = read_examples(write_jsonl(folder / "rows.jsonl", keyword_rows(42)))
    config = bare(
        FinetuneSettings,
        learning_rate=5e-3,
        aux_learning_rate=3e-5,
        batch_size=14,
        epochs=24,
        freeze="all-layers",
        evaluate="last",
    )
    pretrained = tiny("bert", dropout=False, num_hidden_layers=LAYERS)
    list(finetune(str(pretrained), rows, folder / "model", config, aux=read_examples(aux_rows)))
    return folder / "model"


def test_gradients_and_probes_miss_the_planted_layers(planted: Planted, frozen: Path, cli: Cli) -> None:
    """What the other two say here: gradients rank a frozen layer among the two best in every placement (chance would
    put both planted ones there once in 15), and probes cannot tell 9 noisy rows from 33 clean ones in any layer."""
    grads = cli("grads", planted.noisy, planted.rows, "--frozen", frozen)
    assert grads.code == 0, grads.err
    assert best([record["score"] for record in grads.records], 2) != set(planted.layers)
    states = planted.rows.with_name("frozen.safetensors")
    assert cli("states", frozen, planted.rows, "-o", states).code == 0
    probe = cli("probe", planted.noisy, planted.rows, "--baseline", states, "--allow-absent")
    assert probe.code == 0, probe.err
    assert len(probe.records) == LAYERS + 1 and max(record["f1"] for record in probe.records) < 0.5


CONTROL = Path(__file__).parents[1] / "examples" / "control.sh"


def clean_rows(folder: Path, n: int) -> Path:
    rows = [{"id": row["id"], "text": row["text"], "label": row["original_label"]} for row in keyword_rows(n)]
    return write_jsonl(folder / "rows.jsonl", rows)


def test_k1_the_example_stops_at_a_model_that_did_not_memorise(
    shell: Shell, tiny: Tiny, aux_rows: Path, tmp_path: Path
) -> None:
    rows = clean_rows(tmp_path, 42)
    done = shell(f"{CONTROL} {rows} {tiny('bert')} {aux_rows}", tmp_path, EPOCHS="1")
    assert done.code == 1 and not done.out
    *_, last = done.err.splitlines()
    assert re.search(
        r"control/1-2-label did not memorise: noisy accuracy 0\.\d+, \.9 is needed; raise EPOCHS or LR", last
    )
    assert {path.name for path in (tmp_path / "control").glob("*.jsonl")} == {
        "noisy.jsonl",
        "frozen-epochs.jsonl",
        "1-2-label-epochs.jsonl",
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_example_scores_four_techniques(shell: Shell, tiny: Tiny, aux_rows: Path, tmp_path: Path) -> None:
    """It trains models that memorise, and says how sharp the known answer is."""
    rows = clean_rows(tmp_path, 84)
    settings = {"EPOCHS": "30", "LR": "5e-3", "AUX_LR": "3e-5", "BATCH": "14", "ALLOW_ABSENT": "1"}
    model = tiny("bert", dropout=False, num_hidden_layers=LAYERS)
    done = shell(f"{CONTROL} {rows} {model} {aux_rows}", tmp_path, timeout=1800, **settings)
    assert done.code == 0, done.err
    scores = [json.loads(line) for line in (tmp_path / "control" / "score.jsonl").read_text().splitlines()]
    assert {score["tool"] for score in scores} == {"swap", "retrain", "grads", "probe"}
    assert all(
        score["n_groups"] == 3 and score["chance"] == pytest.approx(1 / 3) for score in scores if score["k"] == 2
    )
    for planted in ("1-2", "3-4", "5-6"):
        truth = (tmp_path / "control" / f"{planted}-truth.jsonl").read_text().splitlines()
        records = {record["window"]: record for record in map(json.loads, truth)}
        (others,) = records.keys() - {planted, "1-6"}
        these, rest = records[planted], records[others]
        assert set(others).isdisjoint(planted.split("-"))
        assert (
            f"planted {planted}: swapping these layers alone reverts {these['reverted']} of the noisy rows "
            f"(memorisation error {these['memorisation_error']}), the others alone reverts {rest['reverted']} of the "
            f"noisy rows (memorisation error {rest['memorisation_error']})\n"
        ) in done.err
        if planted != "5-6":  # there what the auxiliary task moved below decides as well
            assert these["reverted"] > 0.5 > rest["reverted"]
