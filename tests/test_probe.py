"""probe: batched training is plain training, F1 is scikit-learn's, scores and events are the paper's."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file
from sklearn.metrics import f1_score
from torch import Tensor, nn

from conftest import CONFORMANCE, Cli, write_jsonl
from mltools.analysis.centre_of_gravity import centre_of_gravity
from mltools.commands.probe import Settings as ProbeSettings
from mltools.commands.probe.probes import MASK_STEPS, Diverged, Job, ProbeStack, Split, Target, f1_scores, train_probes
from mltools.commands.probe.scores import split_rows
from mltools.commands.probe.work import layer_gains, memorisation_over_generalisation, ninety_percent, probe
from mltools.io.source import Source
from mltools.io.states import open_states
from mltools.model.training import purpose_seed
from mltools.spec import bare

Floats = NDArray[np.float64]
QUICK = ["--epochs", "12", "--select-after", "4", "--lr", "5e-3", "--seeds", "2"]


def save_states(path: Path, hidden: Any, label: Any, original: Any, ids: list[Any] | None = None) -> Path:
    tensors: dict[str, NDArray[Any]] = {
        "hidden_states": np.asarray(hidden, dtype=np.float32),
        "label": np.asarray(label, dtype=np.int64),
        "original_label": np.asarray(original, dtype=np.int64),
    }
    if ids is not None:
        tensors["ids"] = np.frombuffer(json.dumps(ids).encode(), np.uint8)
    save_file(tensors, path)
    return path


def told_rows(n: int = 240, layers: int = 3, width: int = 8, noise_from: int = 2) -> tuple[Floats, Any, Any]:
    """Three classes told apart by every layer; noisy rows told from clean ones from layer `noise_from` on."""
    generator = np.random.default_rng(0)
    original = generator.integers(0, 3, n)
    noisy = generator.random(n) < 0.25
    label = np.where(noisy, (original + generator.integers(1, 3, n)) % 3, original)
    hidden = generator.normal(size=(n, layers + 1, width)) * 0.3
    for layer in range(layers + 1):
        shown = np.where(noisy & (layer >= noise_from), label, original)
        hidden[np.arange(n), layer, shown] += 2
        hidden[:, layer, 5] += 3 * (noisy & (layer >= noise_from))
    return hidden, label, original


class PlainProbe:
    """One probe as one writes it: modules, autograd, AdamW, scikit-learn's F1, on the draws of a stack of one."""

    def __init__(self, states: Tensor, split: Split, target: Target, job: Job, config: ProbeSettings) -> None:
        self.stack = ProbeStack(states, [split], [target], [Job(job.layer, 0, 0)], config)
        self.x, self.split, self.target, self.config = states[job.layer], split, target, config
        weights = [weight[0] for weight in self.stack.weights]
        self.layers = [nn.Linear(w.shape[0], w.shape[1]) for w in weights[::2]]
        with torch.no_grad():
            for layer, w, b in zip(self.layers, weights[::2], weights[1::2], strict=True):
                layer.weight.copy_(w[:, : layer.out_features].T)
                layer.bias.copy_(b[0])

    def logits(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = nn.functional.gelu(layer(x))
        result: Tensor = self.layers[-1](x)
        return result

    def train(self) -> list[int]:
        """Train; predictions for the test rows."""
        config, size = self.config, self.config.step_rows
        parameters = [p for layer in self.layers for p in layer.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
        loss_of = nn.CrossEntropyLoss(weight=torch.tensor(self.target.weights))
        labels = torch.from_numpy(self.target.labels)
        batches = [self.split.train[i : i + size] for i in range(0, len(self.split.train), size)]
        masks = self.masks()
        order = np.random.default_rng(purpose_seed(self.split.seed, "probe batches"))
        best, kept = 0.0, [p.detach().clone() for p in parameters]
        for epoch in range(1, config.epochs + 1):
            for number in order.permutation(len(batches)):
                rows = torch.from_numpy(batches[number])
                x = self.x[rows] * next(masks)[: len(rows)]
                optimiser.zero_grad()
                loss_of(self.logits(x), labels[rows]).backward()
                optimiser.step()
            if epoch > config.select_after and self.f1() > best:
                best, kept = self.f1(), [p.detach().clone() for p in parameters]
        if best > 0:
            with torch.no_grad():
                for parameter, value in zip(parameters, kept, strict=True):
                    parameter.copy_(value)
        return self.predict(self.split.test)

    def masks(self) -> Iterator[Tensor]:
        """Draw dropout as one writes it: of each step's inputs a share is 0, the others are scaled up."""
        generator = torch.Generator().manual_seed(purpose_seed(self.split.seed, "probe dropout"))
        rate, shape = self.config.dropout, (MASK_STEPS, self.config.step_rows, self.x.shape[1])
        while True:
            yield from torch.where(torch.rand(shape, generator=generator) < rate, 0.0, 1 / (1 - rate))

    def predict(self, rows: NDArray[np.int64]) -> list[int]:
        with torch.no_grad():
            found: list[int] = self.logits(self.x[torch.from_numpy(rows)]).argmax(dim=1).tolist()
        return found

    def f1(self) -> float:
        average = "macro" if self.target.positive is None else "binary"
        truth = self.target.labels[self.split.validation]
        return float(f1_score(truth, self.predict(self.split.validation), average=average, zero_division=0))


def training_case() -> tuple[Tensor, list[Split], list[Target]]:
    hidden, label, original = told_rows(n=150, layers=2)
    states = torch.from_numpy(hidden.transpose(1, 0, 2).astype(np.float32).copy())
    splits = split_rows(list(range(150)), bare(ProbeSettings, n_seeds=2))
    noise = Target(("clean", "noisy"), (label != original).astype(np.int64), (0.33, 0.67), 1)
    return states, splits, [noise, Target(("0", "1", "2"), label.astype(np.int64), (1.0,) * 3)]


@pytest.mark.parametrize("hidden_layers", [1, 2])
def test_batched_probes_are_plain_probes(hidden_layers: int) -> None:
    """All layers, seeds and targets in one stack, one probe at a time, and plain PyTorch give the same weights."""
    states, splits, targets = training_case()
    config = bare(
        ProbeSettings, hidden_layers=hidden_layers, epochs=8, select_after=2, learning_rate=3e-3, hidden_width=16
    )
    jobs = [Job(layer, split, target) for layer in range(3) for split in range(2) for target in range(2)]
    stack = ProbeStack(states, splits, targets, jobs, config)
    assert list(stack.train()) == list(range(1, 9))
    together = stack.test()
    for i, job in enumerate(jobs):
        alone = ProbeStack(states, splits, targets, [job], config)
        list(alone.train())
        for ours, its in zip(stack.best, alone.best, strict=True):
            classes = its.shape[2]
            assert (ours[i, :, :classes] - its[0]).abs().max() < 1e-5
        plain = PlainProbe(states, splits[job.split], targets[job.target], job, config)
        predicted = plain.train()
        for layer, weight, bias in zip(plain.layers, alone.best[::2], alone.best[1::2], strict=True):
            assert (weight[0].T - layer.weight).abs().max() < 1e-5
            assert (bias[0, 0] - layer.bias).abs().max() < 1e-5
        assert together[i].tolist() == alone.test()[0].tolist() == predicted


def test_the_epochs_that_are_passed_over_are_never_the_best() -> None:
    states, splits, targets = training_case()
    config = bare(ProbeSettings, epochs=2, select_after=1, learning_rate=3e-2)
    stack = ProbeStack(states, splits, targets, [Job(layer, 0, 1) for layer in range(3)], config)
    list(stack.train())
    for best, last in zip(stack.best, stack.weights, strict=True):
        assert best.equal(last)


def test_groups_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    states, splits, targets = training_case()
    config = bare(ProbeSettings, epochs=6, select_after=2, learning_rate=3e-3, hidden_width=16)
    jobs = [Job(layer, split, target) for target in range(2) for split in range(2) for layer in range(3)]
    whole = train_probes(states, splits, targets, jobs, config)
    for name in ("KEPT_BYTES", "CPU_BYTES"):  # batches gathered in every step, then groups of one probe
        monkeypatch.setattr(f"mltools.commands.probe.probes.{name}", 1)
        assert (train_probes(states, splits, targets, jobs, config) == whole).all()


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_f1_is_scikit_learns(seed: int, n_classes: int, n: int) -> None:
    generator = np.random.default_rng(seed)
    predicted, truth = generator.integers(0, n_classes, (2, 3, n))
    counted = generator.random((3, n)) < 0.7
    tensors = torch.from_numpy(predicted), torch.from_numpy(truth), n_classes
    for positive in (-1, 1):
        found = f1_scores(*tensors, torch.full((3,), positive), torch.from_numpy(counted))
        for i in range(3):
            pair = truth[i][counted[i]], predicted[i][counted[i]]
            if not len(pair[0]) or (positive == 1 and 1 not in np.concatenate(pair)):
                assert found[i].isnan()
            elif positive == 1:
                expected = f1_score(*pair, labels=[1], average="macro", zero_division=0)
                assert found[i].item() == pytest.approx(expected, abs=1e-12)
            else:
                assert found[i].item() == pytest.approx(f1_score(*pair, average="macro", zero_division=0), abs=1e-12)


def test_scores_fall_where_the_signal_is(cli: Cli, tmp_path: Path) -> None:
    """Noise shows from layer 2 of 3 on, so layer 2 gets the score; mcog reads the records as they come."""
    path = save_states(tmp_path / "s", *told_rows())
    result = cli("probe", path, *QUICK, "--target", "noise,label", "--tag", "task=toy")
    assert result.code == 0, result.err
    assert "layers=3 targets=noise,label probes=16" in result.err
    records = {(r["target"], r["layer"]): r for r in result.records}
    assert len(records) == 8 and {r["task"] for r in result.records} == {"toy"}
    f1 = [records["noise", layer]["f1"] for layer in range(4)]
    assert max(f1[:2]) < 0.6 and min(f1[2:]) > 0.9
    scores = [records["noise", layer]["score"] for layer in range(4)]
    assert scores[0] is None and scores[2] == pytest.approx(f1[2] - f1[1]) and scores[2] > 0.3
    for r in result.records:
        assert (r["n_train"], r["n_validation"], r["n_test"], r["seeds"]) == (168, 24, 48, [1, 2])
        assert r["f1"] == pytest.approx(np.mean(r["f1_by_seed"])) and len(r["f1_by_seed"]) == 2
        assert r["f1_sd"] == pytest.approx(np.std(r["f1_by_seed"], ddof=1))
        assert (r["f1_clean"] is None) == (r["target"] == "noise")
    label = [records["label", layer] for layer in range(4)]
    assert label[1]["f1_clean"] > 0.9 > 0.4 > label[1]["f1_noisy"] and label[3]["f1_noisy"] > 0.9
    centres = cli("mcog", write_jsonl(tmp_path / "probe.jsonl", result.records)).records
    assert {r["target"] for r in centres} == {"noise", "label"}
    assert next(r for r in centres if r["target"] == "noise")["m_cog"] == pytest.approx(2, abs=0.4)


def test_row_order_does_not_matter_and_seeds_do(cli: Cli, tmp_path: Path) -> None:
    hidden, label, original = told_rows(120)
    order = np.random.default_rng(5).permutation(120)
    ids = [f"row {i}" for i in range(120)]
    plain = save_states(tmp_path / "a", hidden, label, original, ids)
    mixed = save_states(tmp_path / "b", hidden[order], label[order], original[order], [ids[i] for i in order])
    options = [*QUICK, "--allow-absent"]
    first = cli("probe", plain, *options)
    assert first.code == 0, first.err
    assert first.out == cli("probe", plain, *options).out == cli("probe", mixed, *options).out
    other = cli("probe", plain, *options, "--seed", "7")
    assert other.records[0]["seeds"] == [7, 8] and other.out != first.out


def test_splits_cover_all_rows_once() -> None:
    ids = [*range(60), *(f"id {i}" for i in range(43))]
    first, second = split_rows(ids, bare(ProbeSettings, n_seeds=2))
    for split in (first, second):
        assert [len(split.train), len(split.validation), len(split.test)] == [72, 10, 21]
        assert sorted([*split.train, *split.validation, *split.test]) == list(range(103))
    assert set(first.test) != set(second.test)


def test_the_noise_probe_weighs_noisy_rows_twice(tmp_path: Path) -> None:
    """Clean rows .33, noisy ones .67 (released code, NLL weights), whichever class is which in the rows."""
    from mltools.commands.probe.scores import probe_target
    from mltools.commands.probe.work import DEFAULTS

    with open_states(Source(save_states(tmp_path / "s", *told_rows()))) as states:
        target = probe_target(states, "noise", DEFAULTS)
        assert target.names[1] == "noisy rows" and target.weights == pytest.approx((0.33, 0.67))
        assert target.labels.tolist() == states.rows.noisy.astype(int).tolist()


def test_conformance_weights() -> None:
    """Layer weights of the released notebook, and the M-CoG that it meant, from F1s by seed and layer."""
    golden = json.loads((CONFORMANCE / "golden.json").read_text())["probing_weights"]
    frozen = np.array(golden["frozen"])[:, 1]
    weights = [layer_gains(np.array(f1).T, frozen) for f1 in golden["model_seeds"].values()]
    mean = np.mean(weights, axis=0)
    assert mean.tolist() == pytest.approx(golden["weights"], abs=1e-12)
    assert centre_of_gravity(mean.tolist()) == pytest.approx(golden["mcog_0based_intended"] + 1, abs=1e-12)


def test_falls_count_as_0_and_gains_are_over_the_layer_below() -> None:
    f1 = np.array([[0.5], [0.3], [0.6], [0.6]])
    assert layer_gains(f1, np.array([0.4])) == pytest.approx([0.0, 0.3, 0.0])


def test_conformance_band(tmp_path: Path, cli: Cli) -> None:
    """With 16 noisy rows no probe finds them: the released code's F1s lie within 0-0.4, so do ours."""
    folder = CONFORMANCE / "bert-questions"
    result = cli("probe", folder / "noisy", folder / "noisy.jsonl", "--preset", "released-code", "-o", tmp_path / "p")
    assert result.code == 0, result.err
    records = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    assert len(records) == 5 and max(f1 for r in records for f1 in r["f1_by_seed"]) <= 0.4
    refused = cli("probe", folder / "noisy", folder / "noisy.jsonl")
    assert refused.code == 3 and "noisy rows (16 of 120 rows): none among the 12 validation rows of" in refused.err
    assert "about 44 of them are needed, so 330 rows like these; or accept it with --allow-absent" in refused.err


def test_k2_probes_that_diverge_are_no_probes(cli: Cli, tmp_path: Path) -> None:
    """The first layer and seed whose numbers leave the floats is named."""
    hidden, label, original = told_rows()
    path = save_states(tmp_path / "s", hidden, label, original)
    result = cli("probe", path, *QUICK, "--lr", 1e30, "--seed", 3)
    assert result.code == 1 and not result.out
    assert f"{path}: the probe for noise of layer 0, seed 3, diverged" in result.err and "lower --lr" in result.err
    hidden[:, 2] = np.copysign(3e38, hidden[:, 2])  # sums of these overflow
    one = save_states(tmp_path / "one", hidden, label, original)
    result = cli("probe", one, *QUICK, "--seed", 3)
    assert result.code == 1 and f"{one}: the probe for noise of layer 2, seed 3, diverged" in result.err
    hidden[:, 1] = hidden[:, 2]
    baseline = save_states(tmp_path / "baseline", hidden, label, original)
    result = cli("probe", path, *QUICK, "--baseline", baseline)
    assert result.code == 1 and f"{baseline}: the probe for noise of layer 1, seed 1, diverged" in result.err


def test_k2_a_probe_that_diverges_in_its_last_step_is_seen_too() -> None:
    states, splits, targets = training_case()
    config = bare(ProbeSettings, epochs=1, batch_size=128, learning_rate=1e30)
    with pytest.raises(Diverged) as found:
        train_probes(states, splits, targets, [Job(1, 1, 0), Job(1, 1, 1)], config)
    assert found.value.job == Job(1, 1, 0)


def test_baseline(cli: Cli, tmp_path: Path) -> None:
    """Layer 1 is scored against layer 1 of the baseline, whose rows may come in another order."""
    hidden, label, original = told_rows(noise_from=1)
    path = save_states(tmp_path / "s", hidden, label, original)
    order = np.random.default_rng(1).permutation(240)
    same = save_states(tmp_path / "same", hidden[order], label[order], original[order], order.tolist())
    none = save_states(tmp_path / "none", told_rows(noise_from=9)[0], label, original)
    plain = cli("probe", path, *QUICK).records
    with_same = cli("probe", path, *QUICK, "--baseline", same).records
    with_none = cli("probe", path, *QUICK, "--baseline", none).records
    assert plain[1]["score"] > 0.3 and plain[1]["baseline_f1"] == plain[0]["f1"]
    assert with_same[1]["score"] == 0 and with_same[1]["baseline_f1"] == plain[1]["f1"]
    assert with_none[1]["score"] > 0.3 and with_none[1]["baseline_f1"] != plain[0]["f1"]
    assert [r["f1"] for r in with_same] == [r["f1"] for r in plain]
    other = save_states(tmp_path / "other", hidden, label, original, [f"x{i}" for i in range(240)])
    result = cli("probe", path, *QUICK, "--baseline", other)
    assert result.code == 3 and "take both states from the same rows" in result.err
    assert cli("probe", path, *QUICK, "--baseline", tmp_path / "nowhere").code == 5


def test_events(cli: Cli, tmp_path: Path) -> None:
    path = save_states(tmp_path / "s", *told_rows())
    result = cli("probe", path, *QUICK, "--events")
    assert result.code == 0, result.err
    found = {r["event"]: r for r in result.records}
    assert found["memorisation>>generalisation"]["layer"] == 2
    assert found["90 % F1"]["layer"] == 0 and found["90 % F1"]["reason"] is None
    never = save_states(tmp_path / "never", *told_rows(noise_from=9))
    found = {r["event"]: r for r in cli("probe", never, *QUICK, "--events").records}
    assert found["memorisation>>generalisation"]["layer"] is None
    assert "never exceeds" in found["memorisation>>generalisation"]["reason"]
    assert cli("probe", path, "--events", "--target", "label").code == 2


def test_ninety_percent_is_of_clean_rows(cli: Cli, tmp_path: Path) -> None:
    """Clean rows are told from layer 1 on, noisy ones by their original labels from layer 3 only: the event is 1."""
    hidden, label, original = told_rows(n=300, noise_from=9)
    generator = np.random.default_rng(1)
    noisy = label != original
    hidden[:, 0] = generator.normal(size=hidden[:, 0].shape)
    shown = np.zeros((len(label), 8))
    shown[np.arange(len(label)), label] = 2
    for layer in (1, 2):
        hidden[noisy, layer] = shown[noisy] + 0.3 * generator.normal(size=(int(noisy.sum()), 8))
    result = cli("probe", save_states(tmp_path / "s", hidden, label, original), *QUICK, "--events")
    assert result.code == 0, result.err
    assert {r["event"]: r["layer"] for r in result.records}["90 % F1"] == 1


def test_event_rules() -> None:
    assert memorisation_over_generalisation([0.1, 0.3, 0.5], [0.2, 0.2, 0.2]) == 2
    assert memorisation_over_generalisation([0.35, 0.3], [0.2, 0.2]) == 0
    assert memorisation_over_generalisation([float("nan"), 0.3], [0.2, 0.2]) is None
    assert ninety_percent([0.5, 0.8, 0.94, 0.95, 0.9], 0.5) == 2
    assert ninety_percent([0.5, 0.4], 0.5) is None


def test_linear_probe(cli: Cli, tmp_path: Path) -> None:
    path = save_states(tmp_path / "s", *told_rows())
    records = cli("probe", path, "--probe", "linear", "--seeds", "2").records
    assert {r["probe"] for r in records} == {"linear"}
    assert records[1]["f1"] < 0.6 and records[2]["f1"] > 0.95


def test_refused(cli: Cli, tmp_path: Path) -> None:
    hidden, label, original = told_rows()
    rare = np.where(np.arange(240) < 2, 3, original)
    cases: list[tuple[Any, list[str], str]] = [
        ((hidden, original, original), [], "no noisy rows; name the column of right labels"),
        ((hidden, (original + 1) % 3, original), [], "every row is noisy"),
        ((hidden, 0 * label, original), ["--target", "label"], "one class only (0); a probe for label needs two"),
        ((hidden, rare, rare), ["--target", "label"], 'label "3" (2 of 240 rows): none among the '),
        ((hidden, rare, rare), ["--target", "label"], "about 44 of them are needed, so 5280 rows like these"),
        ((hidden[:9], label[:9], original[:9]), [], "9 rows cannot be split 70/10/20; at least 10 are needed"),
    ]
    for rows, options, message in cases:
        result = cli("probe", save_states(tmp_path / "s", *rows), *options)
        assert result.code == 3 and message in result.err and result.out == ""
    rare_states = save_states(tmp_path / "rare", hidden, rare, rare)
    assert cli("probe", rare_states, "--target", "label", "--allow-absent", *QUICK).code == 0
    path = save_states(tmp_path / "s", hidden, label, original)
    for options in (["--target", "labels"], ["--target", "noise,noise"], ["--probe", "tree"], ["--epochs", "0"]):
        assert cli("probe", path, *options).code == 2


def test_presets(tmp_path: Path) -> None:
    """The released probe has a second hidden layer; other layers, targets and rows leave a probe as it is."""
    path = save_states(tmp_path / "s", *told_rows())
    quick = bare(ProbeSettings, epochs=6, select_after=2, learning_rate=5e-3, n_seeds=1)
    with open_states(Source(path)) as states:
        one = list(probe(states, quick))
        two = list(probe(states, replace(quick, hidden_layers=2)))
        both = list(probe(states, replace(quick, targets=("label", "noise"))))
    assert [r.f1 for r in one] != [r.f1 for r in two]
    assert [r.f1 for r in both if r.target == "noise"] == [r.f1 for r in one]
    assert {r.f1_sd for r in one} == {None}
