"""attribute: its parts sum to what all blocks undo, are those of plain gradients, and depend on no batch."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ARCHITECTURES, LABELS, Cli, tiny_of, toy_rows, write_jsonl
from mltools.commands.attribute import parts as module
from mltools.commands.attribute.parts import BlockPath, can_be_by_row, parts_by_row, parts_of_row
from mltools.io.examples import read_examples
from mltools.layers import Window
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checks import check_batches, mixed_logits

Tiny = Callable[..., Path]
tiny = tiny_of(2)
FEW = ("bert", "gpt2", "llama")
"""One of each kind of module: linear layers and norms, transposed linear layers, norms of other classes."""


SHARED = ("deberta-v2",)
"""Weights of its blocks are also used on relative positions, which are no row's; so rows are taken one by one."""


@pytest.fixture(scope="module")
def few_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("few") / "rows.jsonl", toy_rows(20))


def near(tiny: Tiny, folder: Path, architecture: str) -> list[Path]:
    """Two models whose blocks are not far apart, and whose heads and embeddings differ too."""
    paths = [folder / f"{architecture}-{i}" for i in range(2)]
    noisy = open_checkpoint(str(tiny(architecture, 1)))
    for path, scale in zip(paths, (0.0, 0.05), strict=True):
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in noisy.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=scale)
        noisy.model.save_pretrained(path)
        noisy.tokenizer.save_pretrained(path)
    return paths


@pytest.mark.parametrize(
    "architecture", [pytest.param(a, marks=[] if a in FEW else pytest.mark.slow) for a in ARCHITECTURES]
)
def test_parts_are_those_of_plain_gradients_row_by_row(architecture: str, tiny: Tiny, few_rows: Path) -> None:
    """Rows together, padded, give for every tensor what a row alone gives by the gradient of each weight."""
    noisy, donor = (open_checkpoint(str(tiny(architecture, seed))) for seed in (1, 2))
    encoded = noisy.encode(read_examples(few_rows), 512)
    path = BlockPath(noisy, donor)
    rows = list(range(6))
    singles, batch = (
        [encoded.batch([row], noisy.runner.device) for row in rows],
        encoded.batch(rows, torch.device("cpu")),
    )

    def margins(_: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits[:, 0] - logits[:, 1]

    few, both = check_batches(encoded, noisy.runner)
    by_row = can_be_by_row(noisy, path, both, few)
    assert by_row is (architecture not in SHARED)
    if not by_row:
        return
    with path.restored():
        path.go(0.3)
        together = parts_by_row(noisy, path, batch, margins)
        alone = torch.cat([parts_of_row(noisy, path, single, margins) for single in singles])
    assert together.shape == (6, len(path.weights))
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)
    assert float(alone.abs().max()) > 0.01


def test_the_path_leaves_no_trace(tiny: Tiny) -> None:
    noisy, donor = (open_checkpoint(str(tiny("bert", seed))) for seed in (1, 2))
    before = {name: tensor.clone() for name, tensor in noisy.model.state_dict().items()}
    path = BlockPath(noisy, donor)
    with path.restored():
        path.go(0.0)
        blocks = donor.stack.modules.state_dict()
        assert all(torch.equal(tensor, blocks[name]) for name, tensor in noisy.stack.modules.state_dict().items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in noisy.model.state_dict().items())


@pytest.fixture(scope="module")
def pair(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return near(tiny, tmp_path_factory.mktemp("pair"), "bert")


def test_sums_are_complete(cli: Cli, pair: list[Path], few_rows: Path, tmp_path: Path) -> None:
    """A row's parts sum to its margin less that of NOISY with all of CLEAN's blocks, each to --gap or better."""
    result = cli("attribute", *pair, few_rows, "--nodes", 4, "--gap", 0.01, "--per-row", tmp_path / "rows.parquet")
    assert result.code == 0, result.err
    noisy, clean = (open_checkpoint(str(folder)) for folder in pair)
    examples = read_examples(few_rows)
    encoded = noisy.encode(examples, 512)
    frame = pl.read_parquet(tmp_path / "rows.parquet")
    assert frame["id"].n_unique() == 4 and len(frame) == 4 * 2
    drops = []
    mean = float(np.abs(frame.unique("id")["label_margin_drop"].to_numpy()).mean())
    for (row,), group in frame.group_by("id"):
        assert isinstance(row, int)
        batch = encoded.batch([row], noisy.runner.device)
        label, original = (LABELS.index(str(column[row])) for column in (examples.labels, examples.original_labels))
        windows = [mixed_logits(noisy, clean, batch, Window(layers))[0].detach() for layers in ((), (1, 2))]
        own, full = (float(logits[label] - logits[original]) for logits in windows)
        assert group["label_margin_drop"][0] == pytest.approx(own - full, abs=1e-4)
        assert (
            abs(float(group["contribution"].to_numpy().sum()) - (own - full))
            <= 0.01 * max(abs(own - full), mean) + 1e-4
        )
        assert group["nodes"][0] in (4, 8, 16, 32, 64)
        drops.append(own - full)
    parts = [record["contribution"] for record in result.records]
    assert sum(parts) == pytest.approx(np.mean(drops), abs=0.01 * float(np.abs(drops).mean()) + 1e-4)
    assert result.records[0]["label_margin_drop"] == pytest.approx(np.mean(drops), abs=1e-4)
    assert result.records[0]["nodes_max"] == frame["nodes"].max()
    swapped = cli("swap", *pair, few_rows, "--layers", "1-2").records[0]
    assert result.records[0]["label_margin_drop"] == pytest.approx(swapped["label_margin_drop"], abs=2e-4)


def test_rows_whose_parts_miss_their_drop_get_more_nodes_until_they_do_not(
    cli: Cli, pair: list[Path], few_rows: Path, tmp_path: Path
) -> None:
    found = []
    for gap in (9, 0.05):
        file = tmp_path / f"{gap}.parquet"
        (record, *_) = cli("attribute", *pair, few_rows, "--nodes", 1, "--gap", gap, "--per-row", file).records
        rows = pl.read_parquet(file).unique("id", maintain_order=True)
        gaps, nodes = rows["gap"].to_numpy(), rows["nodes"].to_numpy()
        assert (record["gap_max"], record["nodes"], record["n_refined"]) == (gaps.max(), 1, (nodes > 1).sum())
        found.append((gaps, nodes))
    (once, single), (left, nodes) = found
    assert set(single) == {1} and once.max() > 0.05 >= left.max()
    assert ((nodes > 1) == (once > 0.05)).all()


def test_batch_size_does_not_matter_and_tensors_sum_to_layers(cli: Cli, pair: list[Path], few_rows: Path) -> None:
    runs = [
        cli("attribute", *pair, few_rows, "--nodes", 3, "--gap", 9, *more).records
        for more in ((), ("--batch-size", 1), ("--batch-size", 3, "--by", "tensor"))
    ]
    layers, alone, tensors = runs
    assert [record["contribution"] for record in alone] == pytest.approx(
        [record["contribution"] for record in layers], rel=1e-3, abs=1e-5
    )
    for record in layers:
        own = [other for other in tensors if other["layer"] == record["layer"]]
        assert len(own) == 16 and sum(o["contribution"] for o in own) == pytest.approx(record["contribution"], abs=1e-5)
        assert record["score"] == max(record["contribution"], 0)


def test_a_model_that_shows_no_rows_is_measured_row_by_row(
    cli: Cli, pair: list[Path], few_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = cli("attribute", *pair, few_rows, "--nodes", 3, "--gap", 9).records
    monkeypatch.setattr(module, "TOLERANCE", -1)
    found = cli("attribute", *pair, few_rows, "--nodes", 3, "--gap", 9).records
    assert [record["contribution"] for record in found] == pytest.approx(
        [record["contribution"] for record in expected], rel=1e-3, abs=1e-5
    )


def test_donor_without_a_head(cli: Cli, pair: list[Path], few_rows: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    from conftest import make_tokenizer

    AutoModel.from_pretrained(pair[1]).save_pretrained(tmp_path / "pretrained")
    make_tokenizer().save_pretrained(tmp_path / "pretrained")
    words = (pair[0], tmp_path / "pretrained", few_rows, "--nodes", 3, "--gap", 9)
    found = cli("attribute", *words, "--donor-is", "other")
    assert found.code == 0, found.err
    with_head = cli("attribute", pair[0], pair[1], few_rows, "--nodes", 3, "--gap", 9)
    assert [r["contribution"] for r in found.records] == [r["contribution"] for r in with_head.records]
    assert found.records[0]["donor_clean_accuracy"] is None


def test_refusals(cli: Cli, pair: list[Path], few_rows: Path, tmp_path: Path) -> None:
    assert cli("attribute", *pair, few_rows, "--strict").code == 1
    unknown = [{key: row[key] for key in row if key != "original_label"} for row in toy_rows(20)]
    result = cli("attribute", *pair, write_jsonl(tmp_path / "unknown.jsonl", unknown))
    assert result.code == 3 and "margins need the original_label of every noisy row" in result.err


def test_equal_blocks_have_no_part(cli: Cli, pair: list[Path], few_rows: Path) -> None:
    records = cli("attribute", pair[0], pair[0], few_rows, "--nodes", 2).records
    assert {(record["contribution"], record["gap"]) for record in records} == {(0.0, 0.0)}


def test_a_gradient_that_overflows_is_named(cli: Cli, pair: list[Path], few_rows: Path, tmp_path: Path) -> None:
    """It ended as a fault of ours, when its infinity was to be written."""
    folder = Path(shutil.copytree(pair[0], tmp_path / "huge"))
    name = "bert.encoder.layer.0.attention.self.query.weight"
    tensors = load_file(folder / "model.safetensors")
    tensors[name][23, 8] = -1e30
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    result = cli("attribute", folder, pair[1], few_rows, "--nodes", 2, "--min-noisy-accuracy", 0)
    assert (result.code, result.out) == (1, "")
    assert f"mltools: the gradient of {name} is not finite on the way from {pair[1]}\n" in result.err
