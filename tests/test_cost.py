"""--dry-run: what is counted is what is done, the items do the whole, and nothing is written."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Cli, Result, Shell, toy_rows, write_jsonl
from mltools.commands.retrain import Settings as RetrainSettings
from mltools.commands.retrain.work import plan as retrain_plan
from mltools.commands.swap.work import plan as swap_plan
from mltools.io.examples import read_examples
from mltools.layers import parse_windows
from mltools.model import speed
from mltools.model.checkpoint_loading import open_meta
from mltools.model.cost import WorkItem, estimate, in_one_run, read_shape
from mltools.model.speed import Speed
from mltools.spec import bare
from test_checks import CONVOLUTION

Tiny = Callable[..., Path]
N, LAYERS = 48, 4


def applications(done: Result) -> int:
    """What the summary says was done."""
    found = re.search(r" applications=(\d+)", done.err)
    assert done.code == 0 and found is not None, done.err
    return int(found[1])


def planned(cli: Cli, *words: object) -> list[dict[str, Any]]:
    done = cli(*words, "--dry-run")
    assert done.code == 0 and done.records, done.err
    assert re.fullmatch(
        rf"{words[0]} --dry-run: items={len(done.records)} estimated_seconds=.* gigaflops=.*\n", done.err
    )
    for record in done.records:
        assert record["tool"] == words[0] and record["layers"] == LAYERS
        assert record["seconds"] > 0 and record["operations"] > 0 and record["bytes"] > 0
    return done.records


def test_swap_counts_what_it_does(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows)
    items = planned(cli, *command)
    assert len(items) == 10
    for item in (items[0], items[4], items[5], items[9]):
        assert applications(cli(*command, *item["item"].split())) == item["applications"]
    lists = [record["item"] for record in planned(cli, *command, "--layers", "2-3", "--layers", "1,4")]
    assert lists == ["--layers 2-3", "--layers 1,4"]


@pytest.mark.parametrize("preset", ["paper", "released-code"])
def test_retrain_counts_what_it_does(cli: Cli, tiny: Tiny, noisy_rows: Path, preset: str) -> None:
    command = ("retrain", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--epochs", 2, "--preset", preset)
    items = planned(cli, *command)
    assert items[0]["item"] == "--layers 1-4" and len(items) == 10
    chosen = next(item for item in items if item["item"] == "--layers 3")
    assert applications(cli(*command, "--layers", 3)) == chosen["applications"]
    assert chosen["steps"] == 2 * -(-(N - 20) // 8)


@pytest.mark.parametrize("chosen", [pytest.param("", marks=pytest.mark.slow), "1-2 1-4 2-3 2 1,4 3"])
def test_one_run_shares_what_its_items_would_do_again(chosen: str, cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    options = [word for window in chosen.split() for word in ("--layers", window)]
    pair, rows = (tiny("bert", 1), tiny("bert", 2)), read_examples(noisy_rows)
    windows, shape = parse_windows(chosen.split(), LAYERS), read_shape(open_meta(str(pair[0])), rows, 512)
    settings = bare(RetrainSettings, epochs=1)
    for tool, items in (
        ("swap", list(swap_plan(shape, windows, whole=False))),
        ("retrain --epochs 1", list(retrain_plan(rows, shape, windows, settings, caching=True))),
    ):
        name, *more = tool.split()
        assert sum(i.applications for i in in_one_run(items)) == applications(
            cli(name, *pair, noisy_rows, *more, *options)
        )


@pytest.mark.parametrize(
    "words",
    [
        "swap --layers 3",
        *(pytest.param(words, marks=pytest.mark.slow) for words in ("retrain --epochs 1 --layers 3", "shapley")),
    ],
)
def test_what_runs_whole_is_priced_whole(words: str, cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    """Where something passes between blocks besides the states, here a convolution, there is no shortcut."""
    noisy, clean = (tiny("deberta-v2", seed, **CONVOLUTION) for seed in (1, 2))
    tool, *options = words.split()
    command = (tool, noisy, clean, noisy_rows, *options)
    done = cli(*command, "--dry-run")
    assert done.code == 0 and "cannot be run block by block" in done.err, done.err
    (item,) = done.records
    judging = 2 * N * LAYERS if tool == "shapley" else 0  # NOISY and CLEAN whole, which its summary leaves out
    assert applications(cli(*command)) + judging == item["applications"]


def test_other_commands(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    model, states, out = tiny("bert"), tmp_path / "states.safetensors", tmp_path / "out"
    assert cli("states", model, noisy_rows, "-o", states).code == 0
    (item,) = planned(cli, "states", model, noisy_rows, "-o", out)
    assert (item["item"], item["applications"], item["rows"]) == ("", N * LAYERS, N)
    (item,) = planned(cli, "grads", model, noisy_rows, "--frozen", model)
    assert item["applications"] == (2 * 20 + N) * LAYERS and item["rows"] == 20
    (item,) = planned(cli, "grads", model, noisy_rows, "--noisy-only")
    assert item["applications"] == (10 + N) * LAYERS
    (item,) = planned(cli, "finetune", model, noisy_rows, "-o", out, "--epochs", 3, "--evaluate", "last")
    assert (item["steps"], item["applications"]) == (18, (3 * N + N) * LAYERS)
    (frozen,) = planned(
        cli, "finetune", model, noisy_rows, "-o", out, "--epochs", 3, "--freeze", "all-layers,embeddings"
    )
    assert frozen["operations"] < item["operations"] and frozen["bytes"] < item["bytes"]
    (item,) = planned(cli, "finetune", model, noisy_rows, "-o", out, "--epochs", 3, "--aux", noisy_rows)
    assert item["steps"] == 36
    first, second = planned(cli, "probe", states, "--target", "noise,label")
    assert (first["item"], second["item"]) == ("--target noise", "--target label")
    assert first["applications"] == 0 and first["tokens_per_row"] is None
    (item,) = planned(cli, "probe", model, noisy_rows)
    assert item["applications"] == N * LAYERS and item["tokens_per_row"] > 1
    assert [item["item"] for item in planned(cli, "generalise", model, noisy_rows, "--runs", 2)] == [
        "--run 1",
        "--run 2",
    ]
    assert not out.exists()


def test_items_together_are_the_whole(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """The items, one call each, give the records of one sweep (but for what needs the whole)."""
    command = f"mltools swap {tiny('bert', 1)} {tiny('bert', 2)} {noisy_rows} -q"
    whole = shell(command, tmp_path)
    only_items = """sed 's|.*"item":"||; s|".*||'"""
    parts = shell(f"{command} -n --layers 1 --layers 2-3 --layers 1-4 | {only_items} | xargs -L1 {command}", tmp_path)
    of = {r["window"]: r["memorisation_error"] for r in whole.records}
    assert {r["window"]: r["memorisation_error"] for r in parts.records} == {w: of[w] for w in ("1", "2-3", "1-4")}


def test_shape_is_that_of_the_model(tiny: Tiny, tmp_path: Path) -> None:
    """Shapes without weights: as in the live model, for an encoder and decoders of other builds."""
    from mltools.model.checkpoint_loading import open_checkpoint

    rows = read_examples(write_jsonl(tmp_path / "rows.jsonl", toy_rows(8)))
    for architecture in ("bert", "gpt2", "llama"):
        folder = tiny(architecture)
        live = open_checkpoint(str(folder))
        shape = read_shape(open_meta(str(folder)), rows, 512)
        assert shape.weights == sum(p.numel() for p in live.model.parameters())
        blocks = [p for block in live.stack.modules for p in block.parameters()]
        assert shape.block_weights * shape.n_layers == sum(p.numel() for p in blocks)
        assert shape.lengths.tolist() == live.encode(rows, 512).lengths.tolist()


def test_estimate(tiny: Tiny, tmp_path: Path) -> None:
    """The formulae of the page on costs, in numbers."""
    rows = read_examples(write_jsonl(tmp_path / "rows.jsonl", toy_rows(8)))
    shape = read_shape(open_meta(str(tiny("bert"))), rows, 512)
    t, width = shape.lengths.astype(float), 32
    matrices = 4 * width * width + 2 * width * 48
    one = float(np.mean(2 * matrices * t + 4 * width * t**2))
    item = WorkItem("", 8, 10, applications=3, backward=2, models=2, copies=3, states=5, updated=2, operations=6.0)
    (record,) = estimate("x", shape, [item], Speed(forward=1e9, backward=5e8, products=3.0, update=1e-3))
    assert record.operations == pytest.approx(5 * one + 6)
    block = matrices + 5 * width + 48 + 4 * width
    assert shape.block_weights == block
    assert record.bytes == 4 * (2 * shape.weights + 3 * block + 5 * width)
    assert record.seconds == pytest.approx(3 * one / 1e9 + 2 * one / 5e8 + 6 / 3 + 10 * 2 * block * 1e-3)


@pytest.mark.parametrize("width", [32, 48, pytest.param(2 * speed.WIDEST, marks=pytest.mark.slow)])
def test_the_block_that_is_measured_has_the_models_shapes(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 1e-9)
    weights, own = 12 * width**2, min(width, speed.WIDEST)
    block = speed.Block(own, weights * (own / width) ** 2)
    assert sum(p.numel() for p in block.parameters() if p.dim() > 1) == 12 * own**2
    found = speed.measure_speed(width, weights, 5.4, torch.device("cpu"), batch=3)
    assert min(found.forward, found.backward, found.products) > 1e6 and 0 < found.update < 1e-4
    assert speed.measure_speed(width, weights, 5.4, torch.device("cpu")).update == 0


def test_items_are_json_lines_for_jq(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    done = cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "-n", "-q", "--tag", "dataset=toy")
    assert not done.err and {json.loads(line)["dataset"] for line in done.out.splitlines()} == {"toy"}
