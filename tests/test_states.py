"""states: what transformers calls hidden states, at the token that the head reads, in one file that is checked."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from conftest import BY_ARCHITECTURE, CONFORMANCE, DECODERS, Cli, Shell, save_tiny, toy_rows, write_jsonl
from mltools.errors import RowsError
from mltools.io.examples import read_examples
from mltools.io.inputs import Rows
from mltools.io.provenance import Provenance
from mltools.io.source import Source
from mltools.io.states import RowTable, States, StatesWriter, open_states
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.states import Extraction, read_table, states

Tiny = Callable[..., Path]
BERT = CONFORMANCE / "bert-questions"


def extract(checkpoint: Path, rows: Path, out: Path, **settings: Any) -> dict[str, NDArray[Any]]:
    """Write a states file and give its tensors."""
    source = Rows(rows)
    table = read_table(source)
    opened = open_checkpoint(str(checkpoint), fresh_head=table.names)
    states(opened, source, table, out, Extraction(**settings))
    return load_file(out)


@contextmanager
def opened_states(path: Path) -> Iterator[States]:
    with open_states(Source(path)) as opened:
        yield opened


def small_table(n: int = 3) -> RowTable:
    zeros = np.zeros(n, dtype=np.int64)
    return RowTable(list(range(n)), zeros, zeros, np.zeros(n, dtype=bool), ["a", "b"])


@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
def test_b03_states_are_transformers_hidden_states(
    architecture: str, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """Each row alone, unpadded, through stock transformers gives the same states at the head's position."""
    found = extract(tiny(architecture), noisy_rows, tmp_path / "s.safetensors")["hidden_states"]
    raw = extract(tiny(architecture), noisy_rows, tmp_path / "r.safetensors", raw_last=True)["hidden_states"]
    checkpoint = open_checkpoint(str(tiny(architecture)))
    encoded = checkpoint.encode(read_examples(noisy_rows), 64)
    position = -1 if architecture in DECODERS else 0
    assert found.shape == (48, checkpoint.n_layers + 1, 32)
    for row in (0, 7, 21, 47):
        batch = encoded.batch([row], torch.device("cpu"))
        with torch.inference_mode():
            last: list[Any] = []
            handle = checkpoint.stack.modules[-1].register_forward_hook(lambda _, __, out, keep=last: keep.append(out))
            output = checkpoint.model(input_ids=batch.ids, output_hidden_states=True)
            handle.remove()
        expected = torch.stack([state[0, position] for state in output.hidden_states])
        assert np.abs(found[row] - expected.numpy()).max() < 2e-5
        block = last[0][0] if isinstance(last[0], tuple) else last[0]
        assert np.abs(raw[row, -1] - block[0, position].numpy()).max() < 2e-5
    assert np.abs(raw[:, :-1] - found[:, :-1]).max() == 0
    normed = float((expected[-1] - block[0, position]).abs().max()) > 0.1  # ModernBERT: not in transformers 5.0
    assert (np.abs(raw[:, -1] - found[:, -1]).max() > 0.1) == normed
    assert normed or architecture not in DECODERS


@pytest.mark.parametrize("architecture", [pytest.param("bert", marks=pytest.mark.slow), "llama"])
def test_states_do_not_depend_on_batches_or_order(architecture: str, tiny: Tiny, tmp_path: Path) -> None:
    rows = toy_rows()
    written = write_jsonl(tmp_path / "rows.jsonl", rows)
    expected = extract(tiny(architecture), written, tmp_path / "s.safetensors")
    for size in (1, 3):
        found = extract(tiny(architecture), written, tmp_path / f"{size}.safetensors", batch_size=size)
        assert np.abs(found["hidden_states"] - expected["hidden_states"]).max() < 2e-5
    left = extract(tiny(architecture, padding_side="left"), written, tmp_path / "left.safetensors")
    assert np.abs(left["hidden_states"] - expected["hidden_states"]).max() < 2e-5
    order = list(range(len(rows)))
    random.Random(1).shuffle(order)
    mixed = write_jsonl(tmp_path / "mixed.jsonl", [rows[i] for i in order])
    found = extract(tiny(architecture), mixed, tmp_path / "m.safetensors")
    assert json.loads(found["ids"].tobytes()) == order
    for name in ("label", "original_label", "noisy"):
        assert (found[name] == expected[name][order]).all()
    assert np.abs(found["hidden_states"] - expected["hidden_states"][order]).max() < 2e-5


def test_parts_join_without_a_seam(
    tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = extract(tiny(), noisy_rows, tmp_path / "s.safetensors")
    monkeypatch.setattr("mltools.model.states.PART_ROWS", 7)
    parts = extract(tiny(), noisy_rows, tmp_path / "p.safetensors")
    assert whole.keys() == parts.keys()
    for name, values in whole.items():
        assert np.abs(values.astype(float) - parts[name].astype(float)).max() < 2e-5, name


def test_file_holds_rows_names_and_provenance(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows = [{**row, "id": f"row {row['id']} é"} for row in toy_rows(20)]
    rows.insert(3, {"id": "unlabelled", "text": "who", "label": None})
    written = write_jsonl(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "s.safetensors"
    result = cli("states", tiny(), written, "-o", out, "--dtype", "float16")
    assert result.code == 0 and "rows=20 layers=4 width=32 dtype=float16" in result.err
    assert "1 rows without a label are left out" in result.err
    with opened_states(out) as found:
        labelled = [row for row in rows if row["label"] is not None]
        assert found.rows.ids == [row["id"] for row in labelled]
        assert found.rows.names == ["ABBR", "HUM", "LOC", "NUM"]
        assert [found.rows.names[i] for i in found.rows.label] == [row["label"] for row in labelled]
        assert [found.rows.names[i] for i in found.rows.original_label] == [row["original_label"] for row in labelled]
        assert found.rows.noisy.tolist() == [row["noisy"] for row in labelled]
        assert (found.layers, found.width, len(found)) == (4, 32, 20)
        assert found.layer(4).dtype == np.float32
        assert found.provenance["inputs"].keys() == {"checkpoint", "rows"}
        assert found.provenance["facts"]["position"] == "first"
    assert load_file(out)["hidden_states"].dtype == np.float16
    assert cli("states", tiny(), written, "-o", out).code == 2
    assert cli("states", tiny(), written, "-o", written, "--force").code == 2


def test_pipe_equals_file(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """A pipe, a named pipe, and CHECKPOINT ROWS give what the file gives; a reader that goes does no harm."""
    script = f"""
        mltools states {tiny()} {noisy_rows} -o s.safetensors -q
        mltools centroid s.safetensors -q > file.jsonl
        mltools states {tiny()} -o - -q < {noisy_rows} | mltools centroid -q > pipe.jsonl
        mltools centroid {tiny()} -q < {noisy_rows} > direct.jsonl
        mkfifo fifo; cat s.safetensors > fifo & mltools centroid fifo -q > fifo.jsonl
        cmp file.jsonl pipe.jsonl && cmp file.jsonl direct.jsonl && cmp file.jsonl fifo.jsonl
        mltools states {tiny()} {noisy_rows} -q -o /dev/stdout | head -c 1 > /dev/null
    """
    result = shell(script, tmp_path)
    assert result.code == 0, result.err
    assert (tmp_path / "file.jsonl").stat().st_size > 1000


def test_devices(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    assert cli("states", tiny(), noisy_rows, "-o", "/dev/null").code == 0
    result = cli("states", tiny(), noisy_rows, "-o", "/dev/full")
    assert result.code == 6 and "No space left on device" in result.err


def test_pretrained_without_head_will_do(tmp_path: Path) -> None:
    """The frozen model's blocks are θ_P's, so are its states: what makes θ_P a baseline for probe."""
    pretrained = extract(BERT / "pretrained", BERT / "noisy.jsonl", tmp_path / "p.safetensors")["hidden_states"]
    frozen = extract(BERT / "frozen", BERT / "noisy.jsonl", tmp_path / "f.safetensors")["hidden_states"]
    noisy = extract(BERT / "noisy", BERT / "noisy.jsonl", tmp_path / "n.safetensors")["hidden_states"]
    assert np.abs(pretrained - frozen).max() < 1e-6
    assert np.abs(pretrained[:, 0] - noisy[:, 0]).max() < 1e-6  # embeddings are not trained
    assert np.abs(pretrained[:, 1] - noisy[:, 1]).max() > 1e-3


def test_a_missing_final_norm_is_refused(cli: Cli, noisy_rows: Path, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "gpt2", "gpt2")
    tensors = load_file(folder / "model.safetensors")
    (norm,) = (name for name in tensors if name.endswith("ln_f.weight"))
    tensors.pop(norm)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    result = cli("states", folder, noisy_rows, "-o", tmp_path / "s.safetensors")
    assert result.code == 4 and f"weights that the states depend on are missing ({norm})" in result.err
    assert not (tmp_path / "s.safetensors").exists()
    assert cli("states", folder, noisy_rows, "-o", tmp_path / "s.safetensors", "--raw-last").code == 0


def test_position_where_the_head_reads_all(cli: Cli, noisy_rows: Path, tiny: Tiny, tmp_path: Path) -> None:
    mean = save_tiny(tmp_path / "mean", "modernbert", classifier_pooling="mean")
    result = cli("states", mean, noisy_rows, "-o", tmp_path / "s.safetensors")
    assert result.code == 4 and "--position first or last" in result.err
    assert cli("states", mean, noisy_rows, "-o", tmp_path / "s.safetensors", "--position", "first").code == 0
    first = extract(tiny("modernbert"), noisy_rows, tmp_path / "f.safetensors")
    assert np.abs(load_file(tmp_path / "s.safetensors")["hidden_states"] - first["hidden_states"]).max() < 2e-5
    assert cli("states", tiny(), noisy_rows, "--position", "middle").code == 2


def test_rows_that_change_are_noticed(tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    table = read_table(Rows(noisy_rows))
    checkpoint = open_checkpoint(str(tiny()), fresh_head=table.names)
    for name, rows in (("shorter", toy_rows()[:-1]), ("longer", toy_rows(49)), ("other", toy_rows()[::-1])):
        changed = Rows(write_jsonl(tmp_path / name, rows))
        with pytest.raises(RowsError, match="changed while they were read"):
            states(checkpoint, changed, table, tmp_path / "s.safetensors")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_writing_checks_for_nan(dtype: str, tmp_path: Path) -> None:
    values = np.zeros((2, 3, 4), dtype=np.float32)
    values[1, 2, 3] = np.nan
    with StatesWriter(tmp_path / "s", small_table(), 2, 4, dtype, Provenance("test", {})) as writer:
        with pytest.raises(RowsError, match="row id 2 at layer 2 is NaN or infinite"):
            writer.write(np.array([0, 2]), values)
        values[1, 2, 3] = 1e6
        if dtype == "float32":
            writer.write(np.array([0, 2]), values)
        else:
            with pytest.raises(RowsError, match="row id 2 at layer 2 does not fit float16; use --dtype float32"):
                writer.write(np.array([0, 2]), values)


def whole_file(path: Path, **changes: Any) -> Path:
    """A small states file as any safetensors writer makes it; None leaves a tensor out."""
    tensors: dict[str, Any] = {
        "hidden_states": np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32),
        "label": np.array([0, 1, 0, 1, 0, 1]),
        "original_label": np.array([0, 1, 0, 1, 1, 0]),
        **changes,
    }
    save_file({name: value for name, value in tensors.items() if value is not None}, path)
    return path


def test_states_of_another_maker(tmp_path: Path) -> None:
    """Only hidden_states and labels are needed; ids, names and noise follow, as they do for rows."""
    with opened_states(whole_file(tmp_path / "s")) as found:
        assert found.rows.ids == [0, 1, 2, 3, 4, 5] and found.rows.names == ["0", "1"]
        assert found.rows.noisy.tolist() == [False] * 4 + [True] * 2


BAD_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no states": ({"hidden_states": None}, 'no tensor "hidden_states" (found: label, original_label)'),
    "no label": ({"label": None}, 'no tensor "label"'),
    "two axes": ({"hidden_states": np.zeros((6, 4), np.float32)}, "not floating-point (rows, layers + 1, width)"),
    "whole numbers": ({"hidden_states": np.zeros((6, 3, 4), np.int32)}, "not floating-point"),
    "fewer labels": ({"label": np.zeros(5, np.int64)}, "label is int64 [5], not 6 whole numbers"),
    "labels below 0": ({"label": np.full(6, -1)}, "labels -1-1 of 2 classes"),
    "repeated ids": ({"ids": np.frombuffer(b"[1,1,2,3,4,5]", np.uint8)}, "6 rows with 5 ids"),
    "ids cut short": ({"ids": np.frombuffer(b"[1,1,2", np.uint8)}, "ids are not JSON"),
    "ids of another kind": ({"ids": np.frombuffer(b'{"a":[]}', np.uint8)}, "not a JSON array of integers and text"),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_bad_files(fault: str, cli: Cli, tmp_path: Path) -> None:
    changes, message = BAD_FILES[fault]
    result = cli("centroid", whole_file(tmp_path / "s.safetensors", **changes))
    assert result.code == 3 and message in result.err and result.out == ""


def test_broken_files(cli: Cli, tmp_path: Path) -> None:
    data = whole_file(tmp_path / "s.safetensors").read_bytes()
    for n in (0, 5, 40, len(data) - 1):
        short = tmp_path / "short.safetensors"
        short.write_bytes(data[:n])
        for command in ("centroid", "probe"):
            result = cli(command, short)
            assert result.code == 3 and "not a whole safetensors file of states" in result.err
        assert cli("centroid", stdin=data[:n]).code == 3
    assert cli("centroid", tmp_path / "none").code == 5
    values = np.ones((6, 3, 4), np.float32)
    values[4, 1, 2] = np.inf
    result = cli("centroid", whole_file(tmp_path / "nan.safetensors", hidden_states=values))
    assert result.code == 3 and "the state of row id 4 at layer 1 is NaN or infinite" in result.err


def test_options_for_rows_need_rows(cli: Cli, tmp_path: Path) -> None:
    result = cli("centroid", whole_file(tmp_path / "s.safetensors"), "--label", "other")
    assert result.code == 2 and "need CHECKPOINT ROWS" in result.err
