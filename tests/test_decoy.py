"""Known answers: `finetune --train` changes these layers alone, and `decoy` changes others by what holds no memory."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel

from conftest import LABELS, Cli, Shell, keyword_rows, make_tokenizer, write_jsonl

Tiny = Callable[..., Path]
BENCH = Path(__file__).parents[1] / "examples" / "bench.sh"
LAYER = "bert.encoder.layer.{}."


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def changes(one: Path, other: Path) -> dict[str, float]:
    """L2 norm of each tensor's change, of those that changed."""
    a, b = weights(one), weights(other)
    norms = {name: float((a[name].double() - b[name].double()).norm()) for name in a}
    return {name: norm for name, norm in norms.items() if norm}


@pytest.fixture(scope="module")
def planted(tiny: Tiny, noisy_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny clean model of four layers, with layer 2 trained on."""
    from mltools.cli import main

    folder = tmp_path_factory.mktemp("planted") / "planted"
    words = ["finetune", tiny(), noisy_rows, "-o", folder, "--train", 2, "--epochs", 1, "--lr", 1e-2, "-q"]
    assert main([str(word) for word in words]) == 0
    return folder


def test_train_changes_these_layers_alone(tiny: Tiny, planted: Path) -> None:
    changed = changes(tiny(), planted)
    assert len(changed) > 10 and all(name.startswith(LAYER.format(1)) for name in changed)


def test_train_goes_on_from_the_head_as_it_is(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    headless = tmp_path / "headless"
    AutoModel.from_pretrained(tiny()).save_pretrained(headless)
    make_tokenizer().save_pretrained(headless)
    assert cli("finetune", headless, noisy_rows, "-o", tmp_path / "m", "--train", 2).code == 4
    result = cli("finetune", tiny(labels=LABELS[:3]), noisy_rows, "-o", tmp_path / "m", "--train", 2)
    assert result.code == 3 and "NUM" in result.err
    for words in (("2", "--freeze", "none"), ("5",), ("2", "--aux", noisy_rows)):
        assert cli("finetune", tiny(), noisy_rows, "-o", tmp_path / "m", "--train", *words).code == 2


@pytest.mark.parametrize("kind", ["random", "drift"])
def test_decoy_changes_its_layers_as_far_as_memory_did(
    kind: str, cli: Cli, tiny: Tiny, planted: Path, tmp_path: Path
) -> None:
    start = tiny("bert", 5)
    drift = ("--kind", "drift", "--from", start) if kind == "drift" else ()
    result = cli("decoy", tiny(), "--layers", "1,4", "--like", planted, "-o", tmp_path / "decoy", *drift)
    assert result.code == 0, result.err
    memory, decoy = changes(tiny(), planted), changes(tiny(), tmp_path / "decoy")
    assert {name.split(".")[3] for name in decoy} == {"0", "3"}
    for name, norm in memory.items():
        for layer in (0, 3):
            other = name.replace(LAYER.format(1), LAYER.format(layer))
            if kind == "random" or other in decoy:
                assert decoy[other] == pytest.approx(norm, rel=1e-4)
    if kind == "drift":
        name = LAYER.format(3) + "output.dense.weight"
        ways = [weights(tiny())[name] - weights(start)[name], weights(tmp_path / "decoy")[name] - weights(tiny())[name]]
        assert float((ways[0] * ways[1]).sum() / ways[0].norm() / ways[1].norm()) == pytest.approx(1, abs=1e-4)


def test_decoy_of_the_head(cli: Cli, tiny: Tiny, planted: Path, tmp_path: Path) -> None:
    assert cli("decoy", tiny(), "--like", planted, "--kind", "head", "-o", tmp_path / "decoy").code == 0
    changed = changes(tiny(), tmp_path / "decoy")
    assert changed and not any(".layer." in name or "embeddings" in name for name in changed)


def test_decoy_is_refused_where_there_is_no_change(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    result = cli("decoy", tiny(), "--layers", "1", "--like", tiny(), "-o", tmp_path / "decoy")
    assert result.code == 4 and "there is no change to be like" in result.err
    for words in (("--layers", "1", "--kind", "drift"), ("--kind", "head", "--layers", "1"), ()):
        assert cli("decoy", tiny(), "--like", tiny("bert", 1), "-o", tmp_path / "decoy", *words).code == 2


@pytest.mark.slow
def test_bench(shell: Shell, tiny: Tiny, tmp_path: Path) -> None:
    """The recipe plants, adds decoys, judges and makes its table; a second start does nothing again."""
    rows = [{"text": row["text"], "label": row["original_label"]} for row in keyword_rows()]
    words = f"{BENCH} {write_jsonl(tmp_path / 'rows.jsonl', rows)} {tiny()}"
    settings: dict[str, Any] = {
        "LAYERS": "2",
        "PAIRS": "1,4",
        "EPOCHS": "2",
        "PLANT_EPOCHS": "2",
        "BATCH": "8",
        "TECHNIQUES": "swap attribute shapley inspect grads centroid retrain",
    }
    first = shell(words, tmp_path, timeout=600, **settings)
    assert first.code == 0, first.err
    table = first.out.splitlines()
    headings = [line for line in table if line.startswith("4 layers, ")]
    assert [re.split("[,:] ", line)[1] for line in headings] == ["single", "pairs"]
    assert table[2] == "| technique | cost | decoy: none | decoy: random | decoy: drift | decoy: head |"
    techniques = [line.split("|")[1].strip() for line in table[4:] if line.startswith("|")]
    swaps = ("swap, window mean", "swap, solved", "single swaps")
    states = ("grads", "centroid, crossing", "centroid, initiation")
    retrained = ("retrain, window mean", "retrain, solved")
    one = [*swaps, "shapley", "attribute", "weight change", *states, *retrained]
    assert techniques == [*one, "technique", "---", *one]
    assert sum(line.startswith("- Decoy ") for line in table) == 8
    again = shell(words, tmp_path, **settings)
    assert again.out == first.out and "$ mltools" not in again.err
