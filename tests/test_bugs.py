"""Bug reports of other tools (docs/reliability.md): the entries whose test has no better home.

A function `test_b07_…`, here or elsewhere, is the regression test of entry B07; the table in docs/reliability.md names
one for each.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import Cli, Shell, save_tiny, tiny_of, toy_rows, write_jsonl
from mltools.errors import CheckpointError
from mltools.io.examples import read_examples
from mltools.model.batches import Encoded, last_real
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checks import self_check
from mltools.model.device import find_device
from mltools.model.inference import predict

Tiny = Callable[..., Path]
tiny = tiny_of(2)
DOCS = Path(__file__).parents[1] / "docs" / "reliability.md"


def test_every_entry_of_the_table_has_its_test() -> None:
    """Each row `| B07 … | … | test_file::test_b07_… |` names functions that are there."""
    text = DOCS.read_text()
    entries = re.findall(r"^\| (B\d\d) .*\| ([^|]*) \|$", text, re.MULTILINE)
    given = {f"B{n:02}" for n in range(1, 53)} - {f"B{n:02}" for n in (5, 19, 24, 34, 36, 38, 39, 41, 43, 44)}
    assert {entry for entry, _ in entries} == given and f"\n{len(given)} kinds of fault" in text
    for entry, tests in entries:
        named = re.findall(r"`(test_\w+)::(test_\w+)`", tests)
        assert any(name.startswith(f"test_{entry.lower()}_") for _, name in named) or "_b23_b30_" in tests, entry
        assert_there(named)


def assert_there(named: list[tuple[str, str]]) -> None:
    for file, name in named:
        assert f"def {name}(" in (Path(__file__).parent / f"{file}.py").read_text(), (file, name)


def test_every_kind_of_fault_has_its_tests() -> None:
    """Each row `| K1 … | rule | the one place | test_file::test_… |` names files and functions that are there."""
    rows = re.findall(r"^\| (K\d+) .*\| ([^|]*) \| ([^|]*) \|$", DOCS.read_text(), re.MULTILINE)
    assert [kind for kind, _, _ in rows] == [f"K{n}" for n in range(1, 12)]
    for kind, places, tests in rows:
        named = re.findall(r"`(test_\w+)::(test_\w+)`", tests)
        assert named, kind
        assert_there(named)
        for place in re.findall(r"`([^`]+)`", places):
            assert (DOCS.parents[1] / "src" / "mltools" / place).exists(), (kind, place)


def test_b02_last_real_token_of_any_mask() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]])
    assert last_real(mask).tolist() == [3, 3, 3, 1, 2, 0]


@pytest.mark.parametrize("architecture", ["bert", "opt", "llama"])
def test_b01_self_check_notices_a_model_that_mixes_the_rows_of_a_batch(
    architecture: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check at load is what tells of a fault that nobody has thought of."""
    checkpoint = open_checkpoint(str(tiny(architecture)))
    encoded = checkpoint.encode(read_examples(write_jsonl(tiny(architecture).parent / "rows.jsonl", toy_rows(9))), 64)
    self_check(checkpoint.runner, encoded)
    forward = checkpoint.runner.model.forward

    def mixing(*arguments: Any, **named: Any) -> Any:
        output = forward(*arguments, **named)
        output.logits = output.logits + 0.1 * output.logits.mean(dim=0, keepdim=True)
        return output

    monkeypatch.setattr(checkpoint.runner.model, "forward", mixing)
    with pytest.raises(CheckpointError, match="self-check failed: a row's logits alone and in a batch: they differ by"):
        self_check(checkpoint.runner, encoded)
    assert checkpoint.runner.walks and checkpoint.runner.pads
    monkeypatch.setattr(checkpoint.runner.model, "forward", forward)
    tail = checkpoint.runner.tail
    monkeypatch.setattr(checkpoint.runner, "tail", lambda *arguments: 1.1 * tail(*arguments))
    self_check(checkpoint.runner, encoded)
    assert not checkpoint.runner.walks and checkpoint.runner.pads
    assert "cannot be run block by block (they differ by" in capsys.readouterr().err


def test_b11_auto_is_never_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto").type == "cpu" and find_device("mps").type == "mps"


def test_b12_ties_are_counted(cli: Cli, tmp_path: Path) -> None:
    """Two equal rows of the head: no prediction between these classes can be trusted, and the record says so."""
    from safetensors.torch import save_file

    model = save_tiny(tmp_path / "model", "bert")
    tensors = load_file(model / "model.safetensors")
    tensors["classifier.weight"][:] = tensors["classifier.weight"][0]
    tensors["classifier.bias"][:] = 0
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    rows = write_jsonl(tmp_path / "rows.jsonl", toy_rows(20))
    record = cli("swap", model, model, rows, "--layers", "1").records[0]
    assert record["n_ties"] == 20


@pytest.mark.parametrize("architecture", ["gpt2", "opt", "bert"])
def test_b21_tied_weights_are_swapped_with_none_of_their_blocks(
    architecture: str, cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """A mixed checkpoint has NOISY's embeddings, also where they are tied, and loads with no key missing."""
    noisy, clean = (tiny(architecture, seed, tie_word_embeddings=True) for seed in (1, 2))
    assert cli("swap", noisy, clean, noisy_rows, "--layers", "1-2", "--write", tmp_path / "mixed").code == 0
    mixed, own, other = (load_file(folder / "model.safetensors") for folder in (tmp_path / "mixed", noisy, clean))
    stack = open_checkpoint(str(noisy)).stack
    assert mixed.keys() == own.keys()
    for name, tensor in mixed.items():
        inside = stack.layer_of(name) or stack.layer_of(f"{open_checkpoint(str(noisy)).model.base_model_prefix}.{name}")
        assert torch.equal(tensor, (other if inside else own)[name]), name


def test_b27_mistyped_names(cli: Cli, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, status, message in (
        ("./typo", 5, "no such folder: ./typo"),
        ("/abs/typo", 5, "no such folder: /abs/typo"),
        ("empty", 4, "empty: no config.json; is it a checkpoint folder?"),
    ):
        result = cli("grads", name, noisy_rows)
        assert (result.code, result.err) == (status, f"mltools: {message}\n")


def test_b29_eight_runs_at_once_share_nothing(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """No cache, no lock: eight processes with one output end with one whole file and leave nothing behind."""
    for folder in ("home", "tmp", "out"):
        (tmp_path / folder).mkdir()
    script = (
        f"seq 8 | xargs -P 8 -I{{}} mltools states {tiny('bert')} {noisy_rows} -o out/states.safetensors --force -q"
    )
    done = shell(script, tmp_path, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path / "tmp"))
    assert (done.code, done.err) == (0, "")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "out/states.safetensors"
    ]
    shell(f"mltools states {tiny('bert')} {noisy_rows} -o alone.safetensors -q", tmp_path)
    assert (tmp_path / "alone.safetensors").read_bytes() == (tmp_path / "out/states.safetensors").read_bytes()


@pytest.mark.parametrize("architecture", ["bert", "llama", "opt"])
def test_b42_rows_without_a_token_are_kept(architecture: str, cli: Cli, tmp_path: Path) -> None:
    """Empty text, and a tokenizer that adds no special token: one token stands in, and a note says how many."""
    model = save_tiny(tmp_path / "model", architecture)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    rows = toy_rows(12)
    rows[3]["text"], rows[7]["text"] = "", "   "
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    for words in (("swap", model, model, path), ("states", model, path, "-o", tmp_path / "s.safetensors")):
        result = cli(*words)
        assert result.code == 0, result.err
        assert "2 rows without a token are kept, as one special token" in result.err
    from safetensors.numpy import load_file as load_numpy

    assert load_numpy(tmp_path / "s.safetensors")["hidden_states"].shape[0] == 12
    encoded = Encoded([[], [5, 6]], 0, 28, 2)
    assert encoded.n_empty == 1 and encoded.ids == [[2], [5, 6]]


def test_b46_brackets_and_long_lines_come_out_as_they_are(cli: Cli, tmp_path: Path) -> None:
    text = "[bold] [/red] :smile: " + "word " * 60
    rows = [{"text": text, "label": label} for label in ("[red]", "b") for _ in range(7)]
    result = cli("perturb", write_jsonl(tmp_path / "rows.jsonl", rows), "--rate", "0.2")
    assert [row["text"] for row in result.records] == [text] * 14
    assert {row["original_label"] for row in result.records} == {"[red]", "b"}


@pytest.mark.slow
def test_b50_parquet_then_torch_neither_hangs_nor_warns(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    """polars' threads, the tokenizer's and torch's in one real process: nothing forks, so nothing hangs or warns."""
    import subprocess
    import sys

    import polars as pl

    pl.DataFrame(toy_rows(24)).write_parquet(tmp_path / "rows.parquet")
    words = [sys.executable, "-m", "mltools", "finetune", str(tiny("bert")), "rows.parquet", "-o", "m", "--epochs", "1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(("mltools: note: ", "finetune: ")) for line in done.stderr.splitlines()), done.stderr


def test_b12_logits_of_a_row_do_not_depend_on_its_company(tiny: Tiny, tmp_path: Path) -> None:
    """Alone, in the middle of longer rows, and in automatic batches: the same to 1e-5."""
    checkpoint = open_checkpoint(str(tiny("bert")))
    encoded = checkpoint.encode(read_examples(write_jsonl(tmp_path / "rows.jsonl", toy_rows(30))), 64)
    rows = np.arange(30)
    alone = predict(checkpoint.runner, encoded, rows, 1)
    for size in (3, 30, None):
        assert np.abs(predict(checkpoint.runner, encoded, rows, size) - alone).max() < 1e-5
