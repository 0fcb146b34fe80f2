"""retrain: the laws of retraining, cached equals uncached, resuming, and what it refuses."""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from conftest import BY_ARCHITECTURE, CONFORMANCE, Cli, Result, keyword_rows, marked, settle, toy_rows, write_jsonl
from mltools.commands.retrain import Settings as RetrainSettings
from mltools.commands.retrain.window_trainer import split_rows
from mltools.commands.retrain.work import retrain
from mltools.commands.swap.work import swap
from mltools.errors import RowsError
from mltools.io.examples import Examples, read_examples
from mltools.io.kinds import WindowRecord
from mltools.io.provenance import Provenance
from mltools.layers import Window, all_windows
from mltools.model.anatomy import HEAD
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checkpoint_saving import save_checkpoint
from mltools.model.training import epoch_batches
from mltools.spec import bare

Tiny = Callable[..., Path]
FULL = Window((1, 2, 3, 4))
SHORT = bare(RetrainSettings, epochs=2, learning_rate=3e-3)
"""6 or so steps that move the weights: the learning rate is high for tiny models."""


def pair(noisy: Path, pretrained: Path) -> tuple[Checkpoint, Checkpoint]:
    base = open_checkpoint(str(noisy))
    return base, open_checkpoint(str(pretrained), fresh_head=base.labels)


def run(
    noisy: Path, pretrained: Path, rows: Path, windows: list[Window], config: RetrainSettings = SHORT, **options: Any
) -> dict[str, WindowRecord]:
    base, fresh = pair(noisy, pretrained)
    return {record.window: record for record in retrain(base, fresh, read_examples(rows), windows, config, **options)}


# -- laws ---------------------------------------------------------------------------------------------


def test_full_window_ignores_the_blocks_of_noisy(tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """All blocks come from PRETRAINED, so two NOISYs that differ only in blocks give the same."""
    other, blocks = open_checkpoint(str(tiny("bert", 1))), open_checkpoint(str(tiny("bert", 3)))
    other.stack.modules.load_state_dict(blocks.stack.modules.state_dict())
    save_checkpoint(other, tmp_path / "other", Provenance("test", {}))
    windows = [FULL, Window((2,))]
    first, second = (
        run(folder, tiny("bert", 2), noisy_rows, windows) for folder in (tiny("bert", 1), tmp_path / "other")
    )
    own: dict[str, Any] = {
        "baseline_noisy_accuracy": None,
        "baseline_clean_accuracy": None,
        "baseline_train_accuracy": None,
        "label_margin_drop": None,
    }
    assert replace(first["1-4"], **own, learnt=None) == replace(second["1-4"], **own, learnt=None)
    assert first["2"] != second["2"]


def test_one_window_equals_the_same_window_in_a_sweep(tiny: Tiny, noisy_rows: Path) -> None:
    noisy, pretrained = (tiny("bert", seed, num_hidden_layers=3) for seed in (1, 2))
    sweep = run(noisy, pretrained, noisy_rows, [])
    assert list(sweep) == ["1-3", "1", "1-2", "2", "2-3", "3"]
    for window in (Window((1, 2)), Window((2,)), Window((3,))):
        alone = run(noisy, pretrained, noisy_rows, [window])[str(window)]
        assert alone.memorisation_error_scaled is None
        together = sweep[str(window)]
        for name in ("noisy_accuracy", "clean_accuracy", "train_accuracy", "reverted", "n_ties"):
            assert getattr(alone, name) == getattr(together, name)
        full = sweep["1-3"].memorisation_error
        assert together.memorisation_error_scaled == pytest.approx(together.memorisation_error / full)
    assert sweep["1-3"].memorisation_error_scaled == 1.0


@pytest.mark.parametrize("part", ["all", "attn", pytest.param("norm", marks=pytest.mark.slow)])
def test_without_learning_it_is_swapping(part: str, tiny: Tiny, noisy_rows: Path) -> None:
    """At a learning rate of 0 the window is PRETRAINED's as it is, and all else is NOISY's."""
    noisy, other = (open_checkpoint(str(tiny("gpt_neox", seed, num_hidden_layers=3))) for seed in (1, 2))
    examples = read_examples(noisy_rows)
    swapped = {r.window: r for r in swap(noisy, other, examples, settings=settle("swap", "paper", part=part))}
    config = settle("retrain", "paper", part=part, epochs=1, learning_rate=0.0, batch_size=16)
    for record in retrain(noisy, other, examples, settings=config):
        assert record.part == part
        assert record.noisy_accuracy == swapped[record.window].noisy_accuracy
        assert record.reverted == swapped[record.window].reverted
        assert record.clean_accuracy is not None and record.train_accuracy is not None
        hits = record.n_clean * record.clean_accuracy + (record.n_train or 0) * record.train_accuracy
        assert hits == pytest.approx(swapped[record.window].n_clean * (swapped[record.window].clean_accuracy or 0))


def test_clean_rows_are_learnt_and_noise_is_forgotten(tiny: Tiny, tmp_path: Path) -> None:
    """Held-out clean rows are classified; the labels of noisy rows, never seen, are not given again but reverted."""
    rows = write_jsonl(tmp_path / "rows.jsonl", keyword_rows(96))
    config = bare(RetrainSettings, epochs=12, learning_rate=5e-3)
    record = run(tiny("bert", 1), tiny("bert", 2), rows, [FULL], config)["1-4"]
    assert record.train_accuracy is not None and record.train_accuracy > 0.9
    assert record.clean_accuracy is not None and record.clean_accuracy > 0.7
    assert record.noisy_accuracy < 0.3 and record.reverted is not None and record.reverted > 0.7


def test_row_order_changes_nothing(tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    backwards = write_jsonl(tmp_path / "rows.jsonl", toy_rows()[::-1])
    windows = [Window((2,)), Window((3, 4))]
    first, second = (run(tiny("bert", 1), tiny("bert", 2), rows, windows) for rows in (noisy_rows, backwards))
    assert first == second


def test_seed_decides(tiny: Tiny, noisy_rows: Path) -> None:
    """The same seed gives the same to the bit, dropout included; another seed draws other rows."""
    losses: list[list[float]] = []

    def watch(steps: Iterator[Any], total: int, *said: object) -> Iterator[Any]:
        losses.append([])
        for step in steps:
            losses[-1].append(step[1])
            yield step
        assert len(losses[-1]) == total and said == ("steps", "window 2 (1/1)", 1)

    base, fresh = pair(tiny("bert", 1), tiny("bert", 2))
    for seed in (1, 1, 2):
        config = bare(RetrainSettings, epochs=1, learning_rate=3e-3, seed=seed)
        list(retrain(base, fresh, read_examples(noisy_rows), [Window((2,))], config, progress=watch))
    assert losses[0] == losses[1] != losses[2]


def test_split(noisy_rows: Path) -> None:
    examples = read_examples(noisy_rows)
    split, other = split_rows(examples, 1), split_rows(examples, 2)
    assert len(split.held_out) == len(split.noisy) == 10 and len(split.train) == 28
    assert sorted([*split.noisy, *split.held_out, *split.train]) == list(range(48))
    assert {bool(examples.noisy[i]) for i in split.noisy} == {True}
    assert not any(examples.noisy[i] for i in [*split.held_out, *split.train])
    assert {*split.held_out} != {*other.held_out}


# -- what is trained ----------------------------------------------------------------------------------


def state(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}


@pytest.mark.parametrize(
    "changes", [{}, {"train_head": False}, {"part": "mlp"}, {"frozen_dropout": True, "clip_scope": "all"}]
)
def test_b14_nothing_else_moves(changes: dict[str, Any], tiny: Tiny, noisy_rows: Path) -> None:
    """During a window only the trained tensors move (all of them do); afterwards NOISY is what it was."""
    base, fresh = pair(tiny("bert", 1), tiny("bert", 2))
    before, moved = state(base), set[str]()

    def watch(steps: Iterator[Any], *_: object) -> Iterator[Any]:
        start = state(base)
        yield from steps
        moved.update(name for name, tensor in base.model.state_dict().items() if not torch.equal(tensor, start[name]))

    config = settle("retrain", "paper", epochs=1, learning_rate=1e-3, **changes)
    (record,) = retrain(base, fresh, read_examples(noisy_rows), [Window((2, 4))], config, progress=watch)
    window = {name for name, part in base.parts.items() if part in (2, 4)}
    if config.part == "mlp":
        window = {name for name in window if "dense" in name and "attention" not in name}
    head = {name for name, part in base.parts.items() if part == HEAD}
    assert moved == (window | head if config.train_head else window)
    assert record.train_head is config.train_head and record.window == "2,4"
    after = base.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_frozen_tensor_that_moves_is_noticed(tiny: Tiny, noisy_rows: Path) -> None:
    base, fresh = pair(tiny("bert", 1), tiny("bert", 2))
    frozen = next(base.stack.modules[0].parameters())

    def meddle(steps: Iterator[Any], *_: object) -> Iterator[Any]:
        yield from steps
        with torch.no_grad():
            frozen.view(-1)[0] += 1e-6

    with pytest.raises(AssertionError, match=r"frozen tensors moved: \['bert\.encoder\.layer\.0\."):
        list(retrain(base, fresh, read_examples(noisy_rows), [Window((2,))], SHORT, progress=meddle))


def test_dropout_only_in_what_is_trained(tiny: Tiny, noisy_rows: Path) -> None:
    """Default: window and head in train mode, all else in eval mode; --frozen-dropout: everything in train mode."""
    for config in (
        SHORT,
        bare(RetrainSettings, epochs=1, train_head=False),
        bare(RetrainSettings, epochs=1, frozen_dropout=True),
    ):
        base, fresh = pair(tiny("bert", 1), tiny("bert", 2))
        seen: dict[str, bool] = {}

        def look(
            steps: Iterator[Any], *_: object, base: Checkpoint = base, seen: dict[str, bool] = seen
        ) -> Iterator[Any]:
            seen.update({n: m.training for n, m in base.model.named_modules() if isinstance(m, torch.nn.Dropout)})
            yield from steps

        list(retrain(base, fresh, read_examples(noisy_rows), [Window((3,))], config, progress=look))
        on = {name for name, training in seen.items() if training}
        trained = {name for name in seen if name.startswith("bert.encoder.layer.2.")}
        expected = (
            set(seen) if config.training.frozen_dropout else trained | ({"dropout"} if config.train_head else set())
        )
        assert on == expected


# -- cached equals uncached ---------------------------------------------------------------------------


def recorded_losses(folder: Path, other: Path, rows: Path, config: RetrainSettings, window: Window) -> list[float]:
    losses: list[float] = []

    def watch(steps: Iterator[Any], total: int, unit: str, title: str, left: int) -> Iterator[Any]:
        for step in steps:
            losses.append(step[1])
            yield step

    run(folder, other, rows, [window], config, progress=watch)
    return losses


@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
def test_cached_equals_uncached(architecture: str, tiny: Tiny, noisy_rows: Path) -> None:
    """Without dropout, going on from kept states gives every step's loss to 1e-5, in every architecture."""
    noisy, other = (tiny(architecture, seed, dropout=False) for seed in (1, 2))
    cached, whole = (
        recorded_losses(
            noisy,
            other,
            noisy_rows,
            settle("retrain", "paper", epochs=2, learning_rate=1e-3, frozen_dropout=not keep),
            Window((3,)),
        )
        for keep in (True, False)
    )
    assert len(cached) == 8 and cached[0] != cached[-1]
    assert np.abs(np.array(cached) - np.array(whole)).max() < 1e-5


def plain_retrain(noisy: Path, other: Path, examples: Examples, window: Window, config: RetrainSettings) -> list[float]:
    """The protocol as one would write it down: stock model, all of it run in every step."""
    model = AutoModelForSequenceClassification.from_pretrained(noisy)
    donor = AutoModelForSequenceClassification.from_pretrained(other).state_dict()
    tokenizer = AutoTokenizer.from_pretrained(noisy)
    inside = [n for n, _ in model.named_parameters() if any(f"encoder.layer.{i - 1}." in n for i in window.layers)]
    model.load_state_dict({**model.state_dict(), **{name: donor[name] for name in inside}})
    trained = [p for n, p in model.named_parameters() if n in inside or "pooler" in n or "classifier" in n]
    optimiser = torch.optim.AdamW(trained, lr=config.training.learning_rate, weight_decay=0.01)
    lengths = np.array([len(tokenizer(parts[0])["input_ids"]) for parts in examples.fields])
    train = split_rows(examples, config.seed).train
    total = config.training.epochs * math.ceil(len(train) / config.training.batch_size)
    warmup = int(0.1 * total)
    losses: list[float] = []
    for epoch in range(1, config.training.epochs + 1):
        for rows in epoch_batches(train, lengths, config.training.batch_size, config.seed, epoch):
            step = len(losses)
            for group in optimiser.param_groups:
                rising = step / max(1, warmup) if step < warmup else (total - step) / (total - warmup)
                group["lr"] = config.training.learning_rate * rising
            inputs = tokenizer([examples.fields[i][0] for i in rows], padding=True, return_tensors="pt")
            labels = torch.tensor([model.config.label2id[examples.labels[i]] for i in rows])
            loss = torch.nn.functional.cross_entropy(model(**inputs).logits, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            everything = config.training.clip_scope == "all"
            torch.nn.utils.clip_grad_norm_([*model.parameters()] if everything else trained, 1.0)
            optimiser.step()
            model.zero_grad()
            losses.append(loss.item())
    return losses


def test_equals_the_protocol_written_down(tiny: Tiny, noisy_rows: Path) -> None:
    noisy, other = (tiny("bert", seed, dropout=False) for seed in (1, 2))
    config = bare(RetrainSettings, epochs=2, learning_rate=1e-3)
    for window in (Window((1,)), Window((2, 3)), FULL):
        expected = plain_retrain(noisy, other, read_examples(noisy_rows), window, config)
        losses = recorded_losses(noisy, other, noisy_rows, config, window)
        assert np.abs(np.array(losses) - np.array(expected)).max() < 1e-5


def test_the_norm_of_all_gradients_is_clipped_if_asked_for(tiny: Tiny, noisy_rows: Path) -> None:
    """clip_scope `all`: the gradients of frozen tensors count too, so that steps are smaller, as written down."""
    noisy, other = (tiny("bert", seed, dropout=False) for seed in (1, 2))
    own, whole = (
        bare(RetrainSettings, epochs=3, learning_rate=1e-3, clip_scope=scope) for scope in ("trainable", "all")
    )
    losses = recorded_losses(noisy, other, noisy_rows, whole, Window((2, 3)))
    expected = plain_retrain(noisy, other, read_examples(noisy_rows), Window((2, 3)), whole)
    assert np.abs(np.array(losses) - np.array(expected)).max() < 1e-5
    assert np.abs(np.array(losses) - recorded_losses(noisy, other, noisy_rows, own, Window((2, 3)))).max() > 1e-4


@pytest.mark.slow
def test_micro_batches_change_nothing(tiny: Tiny, noisy_rows: Path) -> None:
    noisy, other = (tiny("bert", seed, dropout=False) for seed in (1, 2))
    whole, cut = (
        recorded_losses(
            noisy,
            other,
            noisy_rows,
            bare(RetrainSettings, epochs=1, learning_rate=1e-3, micro_batch=size),
            Window((2,)),
        )
        for size in (None, 3)
    )
    assert whole == pytest.approx(cut, abs=1e-5)


# -- the command --------------------------------------------------------------------------------------


def arguments(tiny: Tiny, rows: Path) -> tuple[object, ...]:
    return ("retrain", tiny("bert", 1), tiny("bert", 2), rows, "--epochs", 1, "--lr", "3e-3", "--tag", "seed=1")


WHOLE: list[Result] = []


@pytest.fixture
def whole(cli: Cli, tiny: Tiny, noisy_rows: Path) -> Result:
    """The sweep of all windows, made once for all tests."""
    if not WHOLE:
        WHOLE.append(cli(*arguments(tiny, noisy_rows)))
        assert WHOLE[0].code == 0, WHOLE[0].err
    return WHOLE[0]


def test_command_and_resuming(cli: Cli, whole: Result, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """An interrupted sweep resumed equals an unbroken one; test_shards.py interrupts it after every item."""
    command = arguments(tiny, noisy_rows)
    assert len(whole.records) == 10
    for record in whole.records:
        assert record["n_noisy"] == record["n_clean"] == 10 and record["n_train"] == 28
        assert record["memorisation_error"] == pytest.approx(1 - record["noisy_accuracy"])
        assert record["train_head"] is True and record["tool"] == "retrain"
    lines = whole.out.splitlines(keepends=True)
    done = tmp_path / "done.jsonl"
    other_runs = json.dumps({**whole.records[8], "seed": 2}) + "\n" + json.dumps({"tool": "swap"}) + "\n"
    done.write_text(other_runs + "".join(lines[:6]))
    rest = cli(*command, "--resume", done)
    assert rest.code == 0, rest.err
    assert rest.out == "".join(lines[6:])
    done.write_text(whole.out)
    nothing = cli(*command, "--resume", done)
    assert (nothing.code, nothing.out) == (0, "")
    m_cog = cli("mcog", done).records[0]
    assert 1 <= m_cog["m_cog"] <= 4


def test_the_spread_plan_is_some_windows_of_the_whole_sweep(
    cli: Cli, whole: Result, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """The same errors for a part of the work; enough for m_cog_solved, and what is missing can be run later."""
    command = arguments(tiny, noisy_rows)
    spread = cli(*command, "--plan", "spread")
    assert spread.code == 0, spread.err
    errors = {record["window"]: record["memorisation_error"] for record in whole.records}
    assert [record["window"] for record in spread.records] == ["1", "1-2", "1-3", "2", "2-3", "2-4", "3", "3-4", "4"]
    for record in spread.records:
        assert record["memorisation_error"] == errors[record["window"]]
        assert record["memorisation_error_scaled"] is None and record["run"] == whole.records[0]["run"]
    (some := tmp_path / "spread.jsonl").write_text(spread.out)
    (m_cog,) = cli("mcog", some, "--value", "memorisation_error").records
    assert m_cog["m_cog_solved"] is not None or m_cog["solved_reason"] == "all weights are zero"
    rest = cli(*command, "--resume", some)
    assert [record["window"] for record in rest.records] == ["1-4"]


def test_the_spread_plan_is_planned_and_goes_with_no_other_windows(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    command = (*arguments(tiny, noisy_rows), "--plan", "spread")
    assert len(cli(*command, "--dry-run").records) == 9
    result = cli(*command, "--layers", "2")
    assert result.code == 2 and "--plan and --layers both say which windows" in result.err


def test_resuming_another_sweep_is_refused(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    done = tmp_path / "done.jsonl"
    done.write_text(cli(*arguments(tiny, noisy_rows), "--layers", "3").out)
    for change in (("--lr", "1e-4"), ("--no-train-head",), ("--seed", "2")):
        result = cli(*arguments(tiny, noisy_rows), *change, "--layers", "3", "--layers", "4", "--resume", done)
        assert (result.code, result.out) == (3, "")
        assert f"{done}:1: " in result.err and "made with other settings or inputs" in result.err


def test_released_preset(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    """Dropout everywhere and the norm over all parameters: other numbers, and every block run in every step."""
    command = (*arguments(tiny, noisy_rows), "--layers", "3-4")
    ours, released = cli(*command), cli(*command, "--preset", "released-code")
    assert released.code == 0, released.err
    assert ours.records[0]["run"] != released.records[0]["run"]
    assert f"applications={48 * 2 + (48 + 28 + 48) * 2} " in ours.err  # below the window once, then above it only
    assert f"applications={(48 + 28 + 48) * 4} " in released.err


def test_layers_outside_the_model(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    result = cli(*arguments(tiny, noisy_rows), "--layers", "5")
    assert result.code == 2 and 'layers "5" outside 1-4' in result.err


def test_rows_that_cannot_be_used(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", marked(toy_rows(12), lambda i: i % 2 == 0))
    result = cli(*arguments(tiny, rows))
    assert (result.code, result.out) == (3, "")
    assert "6 noisy and 6 clean rows; retraining needs more clean rows" in result.err
    with pytest.raises(RowsError, match="no noisy rows"):
        split_rows(read_examples(write_jsonl(tmp_path / "clean.jsonl", [{"text": "a", "label": "x"}])), 1)


def test_checkpoints_that_do_not_fit(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    result = cli("retrain", tiny("bert", 1), tiny("electra", 2), noisy_rows)
    assert result.code == 4 and "differ in" in result.err


def test_a_loss_that_is_not_finite_names_the_rows(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    result = cli("retrain", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--lr", "1e30", "--layers", "2")
    assert (result.code, result.out) == (1, "")
    message = r"mltools: window 2: loss is nan at step \d \(epoch 1, row ids \[[\d, ]+\]\); lower --lr\n"
    assert re.fullmatch(message, result.err.splitlines(keepends=True)[-1])


def test_pretrained_without_a_head(cli: Cli) -> None:
    """The pre-trained body has no classifier; NOISY's is the head that all windows start from."""
    folder = CONFORMANCE / "neox-questions"
    result = cli(
        *("retrain", folder / "noisy", folder / "pretrained", folder / "noisy.jsonl", "--layers", "1-4"),
        *("--epochs", 1, "--lr", "1e-3"),
    )
    assert result.code == 0, result.err
    record = result.records[0]
    assert record["n_noisy"] == 16 and record["n_train"] == 88
    assert record["noisy_accuracy"] < 0.7  # NOISY knows all 16 by heart


def test_windows_that_all_start_at_a_layer_share_the_states(tiny: Tiny, noisy_rows: Path) -> None:
    """Applications of a sweep: the states below each start once, then what is above it, trained on and measured."""
    base, fresh = pair(tiny("bert", 1), tiny("bert", 2))
    config = bare(RetrainSettings, epochs=1)
    list(retrain(base, fresh, read_examples(noisy_rows), settings=config))
    below = sum(48 * (start - 1) for start in range(1, 5))
    above = sum((28 + 48) * (4 - window.start + 1) for window in all_windows(4))
    assert base.runner.applications == 48 * 4 + below + above  # NOISY as it is once
