"""inspect: what it finds in checkpoints, in two of them, and in files; and the command that makes an output again."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conftest import CONFORMANCE, Cli, Shell, save_tiny, toy_rows, write_jsonl

Tiny = Callable[..., Path]


def test_checkpoint(cli: Cli, tiny: Tiny) -> None:
    folder = tiny("bert", 1)
    result = cli("inspect", folder, "--json")
    assert result.code == 0, result.err
    (record,) = result.records
    weights = load_file(folder / "model.safetensors")
    assert record["model_class"] == "BertForSequenceClassification"
    assert (record["block_path"], record["block_class"]) == ("bert.encoder.layer", "BertLayer")
    assert (record["layers"], record["width"], record["longest"]) == (4, 32, 64)
    assert (record["head"], record["pooled_position"]) == (True, "first")
    assert record["class_names"] == ["ABBR", "HUM", "LOC", "NUM"]
    assert record["weights"] == sum(tensor.numel() for tensor in weights.values())
    assert (record["weights_type"], record["faults"], record["provenance"]) == ("float32", [], None)
    assert [part["layer"] for part in record["parts"]] == [0, 1, 2, 3, 4, None]
    for part in record["parts"]:
        layer = part["layer"]
        names = [n for n in weights if n.startswith("bert.encoder.layer." + str((layer or 0) - 1) + ".")]
        if layer:
            assert part["weights"] == sum(weights[n].numel() for n in names)
            assert part["attn"] + part["mlp"] + part["norm"] == part["weights"]
            assert part["l2"] == pytest.approx(sum(float((weights[n].double() ** 2).sum()) for n in names) ** 0.5)
            assert part["largest"] == pytest.approx(max(float(weights[n].abs().max()) for n in names))
        else:
            assert part["attn"] is None
    assert sum(part["weights"] for part in record["parts"]) == record["weights"]


def test_checkpoint_text(cli: Cli, tiny: Tiny) -> None:
    result = cli("inspect", tiny("opt", 1))
    assert result.code == 0 and result.err == ""
    lines = result.out.splitlines()
    assert lines[0] == f"{tiny('opt', 1)}: OPTForSequenceClassification, 4 layers of width 32"
    assert "  blocks     model.decoder.layers (OPTDecoderLayer)" in lines
    assert "  head       classes ABBR, HUM, LOC, NUM; reads the last position" in lines
    assert "  made by    not said" in lines
    header = next(line for line in lines if line.split()[:1] == ["layer"])
    assert header.split() == ["layer", "weights", "attn", "mlp", "norm", "L2", "norm", "largest", "NaN/inf"]
    assert [line.split()[0] for line in lines[lines.index(header) + 1 :]] == ["embeddings", "1", "2", "3", "4", "head"]


def test_weights_that_are_not_finite(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """A broken checkpoint is what one wants to look at: it is reported, not refused."""
    shutil.copytree(tiny("bert", 1), tmp_path / "broken")
    weights = load_file(tmp_path / "broken" / "model.safetensors")
    weights["bert.encoder.layer.2.output.dense.weight"][0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    save_file(weights, tmp_path / "broken" / "model.safetensors", {"format": "pt"})
    (record,) = cli("inspect", tmp_path / "broken", "--json").records
    assert record["faults"] == ["1 weights hold NaN or infinity (first: bert.encoder.layer.2.output.dense.weight)"]
    assert [part["not_finite"] for part in record["parts"]] == [0, 0, 0, 3, 0, 0]
    assert record["parts"][3]["l2"] is record["pooled_position"] is None
    assert "fault 1    1 weights hold NaN" in cli("inspect", tmp_path / "broken").out
    assert cli("swap", tmp_path / "broken", tiny("bert", 1), noisy_rows).code == 4


def test_weights_that_are_missing(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny("bert", 1), tmp_path / "broken")
    weights = load_file(tmp_path / "broken" / "model.safetensors")
    del weights["bert.encoder.layer.0.output.dense.bias"]
    save_file(weights, tmp_path / "broken" / "model.safetensors", {"format": "pt"})
    (record,) = cli("inspect", tmp_path / "broken", "--json").records
    assert record["faults"] == ["1 weights are missing (bert.encoder.layer.0.output.dense.bias)"]


def test_body_without_a_head(cli: Cli) -> None:
    (record,) = cli("inspect", CONFORMANCE / "bert-questions" / "pretrained", "--json").records
    assert record["head"] is False and record["class_names"] == [] and record["faults"] == []
    assert "no classification head" in cli("inspect", CONFORMANCE / "bert-questions" / "pretrained").out


def test_two_checkpoints(cli: Cli, tiny: Tiny) -> None:
    first, second = tiny("bert", 1), tiny("bert", 2)
    same = cli("inspect", first, first, "--json").records
    assert [record["layer"] for record in same] == [0, 1, 2, 3, 4, None]
    for record in same:
        assert record["distance"] == 0 and record["cosine"] == pytest.approx(1)
        assert record["equal"] and not record["different"] and not record["unmatched"]
    a, b = (load_file(folder / "model.safetensors") for folder in (first, second))
    for record in cli("inspect", first, second, "--json").records:
        names = record["equal"] + record["different"]
        left, right = (torch.cat([weights[name].double().flatten() for name in names]) for weights in (a, b))
        assert record["distance"] == pytest.approx(float((right - left).norm() / left.norm()))
        assert record["cosine"] == pytest.approx(float(left @ right / left.norm() / right.norm()))
        assert record["equal"] == [name for name in names if torch.equal(a[name], b[name])]
    table = cli("inspect", first, second).out.splitlines()[2:]
    assert table[0].split() == ["layer", "distance", "cosine", "equal", "tensors", "unmatched", "NaN/inf"]
    assert [line.split()[0] for line in table[1:]] == ["embeddings", "1", "2", "3", "4", "head"]


def test_two_checkpoints_as_layer_scores(cli: Cli, tiny: Tiny) -> None:
    """How far each layer moved is a score like any tool's: |B - A| weighs the layers."""
    records = cli("inspect", tiny("bert", 1), tiny("bert", 2), "--json").records
    a, b = (load_file(tiny("bert", seed) / "model.safetensors") for seed in (1, 2))
    moved = []
    for layer in range(4):
        names = [name for name in a if name.startswith(f"bert.encoder.layer.{layer}.")]
        moved.append(sum(float((b[name].double() - a[name].double()).square().sum()) for name in names) ** 0.5)
    assert [record["score"] for record in records] == [None, *map(pytest.approx, moved), None]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (cog,) = cli("mcog", stdin=lines).records
    assert cog["tool"] == "inspect" and cog["weights"] == pytest.approx(moved)
    assert cli("score", "--truth", "2", stdin=lines).records[0]["n_groups"] == 1
    some = cli("inspect", tiny("bert", 1), tiny("bert", 2), "--layers", "2-3", "--json").records
    assert some == records[2:4]
    (record,) = cli("inspect", tiny("bert", 1), "--layers", "4", "--json").records
    assert [part["layer"] for part in record["parts"]] == [4]


def test_two_checkpoints_of_other_shapes(cli: Cli, tiny: Tiny) -> None:
    folder = CONFORMANCE / "bert-questions"
    records = cli("inspect", folder / "noisy", folder / "pretrained", "--json").records
    assert [record["unmatched"] for record in records[:-1]] == [[]] * 5
    assert records[-1]["layer"] is None and records[-1]["unmatched"] == ["classifier.bias", "classifier.weight"]
    wider = cli("inspect", tiny("bert", 1), tiny("bert", 1, hidden_size=16), "--json").records
    assert wider[1]["distance"] is None and wider[1]["different"] == [] and len(wider[1]["unmatched"]) > 10


# -- raw tensors --------------------------------------------------------------------------------------
TYPES = {
    "F32": torch.float32,
    "F64": torch.float64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give a function name, tensors -> a file of them."""
    folder = tmp_path_factory.mktemp("weights")

    def save(name: str, tensors: dict[str, Tensor]) -> Path:
        save_file(tensors, folder / name, {"format": "pt"})
        return folder / name

    return save


def test_every_type_is_read_as_torch_reads_it(cli: Cli, weights: Callable[..., Path]) -> None:
    """All 256 values of each byte type, and two chunks of the others; NaN and infinity are counted, not summed."""
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(40_000, generator=generator)
    codes = torch.arange(256, dtype=torch.uint8)
    tensors = {name: many.to(kind) for name, kind in TYPES.items() if kind.itemsize > 1}
    tensors |= {
        name: codes.clone().view(kind) for name, kind in TYPES.items() if kind.itemsize == 1 and kind != torch.bool
    }
    tensors |= {"BOOL": codes > 7}
    for name in ("F8_E4M3", "F8_E5M2"):
        tensors[f"finite {name}"] = tensors[name][tensors[name].float().isfinite()]
    records = {r["tensor"]: r for r in cli("inspect", weights("types.safetensors", tensors), "--json").records}
    assert records.keys() == tensors.keys()
    for name, tensor in tensors.items():
        record, values = records[name], tensor.double()
        assert record["dtype"] == name.removeprefix("finite ") and record["shape"] == list(tensor.shape)
        assert record["n_nan"] == int(values.isnan().sum())
        assert record["not_finite"] == int((~values.isfinite()).sum())
        assert record["l2"] == (None if record["not_finite"] else pytest.approx(float(values.norm()), rel=1e-12))
        assert record["largest"] == (None if record["not_finite"] else float(values.abs().max()))
    assert (records["F8_E4M3"]["not_finite"], records["F8_E5M2"]["not_finite"]) == (2, 8)


def test_tensors_of_two_files(cli: Cli, weights: Callable[..., Path]) -> None:
    a = {f"h.{i}.w": torch.full((2, 3), float(i + 1)) for i in range(12)} | {"emb.weight": torch.ones(4)}
    b = {**a, "h.1.w": a["h.1.w"] + 0.5, "h.2.w": torch.ones(3), "h.3.w": a["h.3.w"].bfloat16(), "new": torch.ones(1)}
    first, second = weights("a.safetensors", a), weights("b.safetensors", b)
    one = cli("inspect", first, "--json").records
    assert [record["layer"] for record in one] == [None, *range(1, 13)], "in the order of their numbers"
    assert {record["layers"] for record in one} == {12} and one[0]["equal"] is one[0]["unmatched"] is None
    records = {record["tensor"]: record for record in cli("inspect", first, second, "--json").records}
    moved = records["h.1.w"]
    assert (moved["equal"], moved["largest_difference"]) == (False, 0.5)
    assert moved["difference"] == pytest.approx(0.5 * 6**0.5) and moved["distance"] == pytest.approx(0.25)
    assert records["emb.weight"]["equal"] is True and records["emb.weight"]["difference"] == 0
    assert (records["h.3.w"]["equal"], records["h.3.w"]["difference"]) == (False, 0), "the same numbers, stored apart"
    assert [name for name, record in records.items() if record["unmatched"]] == ["h.2.w", "new"]
    assert records["new"]["l2"] is None and records["h.2.w"]["l2"] is not None
    some = cli("inspect", first, second, "--layers", "2,4").out.splitlines()
    assert [line.split()[0] for line in some[3:]] == ["h.1.w", "h.3.w"]
    assert some[3].split()[1:] == ["2", "F32", "2x3", "4.899", "2", "0", "1.225", "0.25", "0.5"]
    for words, message in {
        ("--layers", "13"): "has layers 1-12",
        ("--blocks", "layer"): "--blocks layer: no tensor is named so",
    }.items():
        result = cli("inspect", first, *words)
        assert result.code == 2 and message in result.err


def test_a_difference_that_is_null_says_whose_numbers_are_not_finite(cli: Cli, weights: Callable[..., Path]) -> None:
    """B's NaN made the difference null, beside a count of 0, which is A's; in two checkpoints there was none at all."""
    a = {"h.0.weight": torch.ones(40_000), "h.1.weight": torch.ones(3)}
    b = {"h.0.weight": torch.ones(40_000), "h.1.weight": torch.ones(3)}
    b["h.0.weight"][[5, 39_999]] = torch.nan
    first, second = weights("finite.safetensors", a), weights("nan.safetensors", b)
    record, other = cli("inspect", first, second, "--json").records
    assert record["difference"] is None and (record["not_finite"], record["other_not_finite"]) == (0, 2)
    assert other["difference"] == 0 and (other["not_finite"], other["other_not_finite"]) == (0, 0)
    assert cli("inspect", first, second).out.splitlines()[3].split()[6:8] == ["0,", "2"]
    (record, _) = cli("inspect", second, first, "--json").records
    assert (record["not_finite"], record["other_not_finite"]) == (2, 0)


def test_tensors_that_are_not_there(cli: Cli, weights: Callable[..., Path], tmp_path: Path) -> None:
    """A file without tensors gave no word; a missing second file was called a wrong kind of name."""
    empty, some = weights("empty.safetensors", {}), weights("some.safetensors", {"h.0.weight": torch.ones(2)})
    result = cli("inspect", empty)
    assert (result.code, result.err) == (3, f"mltools: {empty}: no tensors in it\n")
    result = cli("inspect", some, tmp_path / "none.safetensors")
    assert (result.code, result.err) == (5, f"mltools: no such file: {tmp_path / 'none.safetensors'}\n")


def test_two_checkpoints_one_not_finite(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny("bert", 1), tmp_path / "bad")
    tensors = load_file(tmp_path / "bad/model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.bias"][0] = torch.inf
    save_file(tensors, tmp_path / "bad/model.safetensors", {"format": "pt"})
    records = cli("inspect", tiny("bert", 1), tmp_path / "bad", "--json").records
    assert [record["distance"] is None for record in records] == [False, False, True, False, False, False]
    assert [(r["not_finite"], r["other_not_finite"]) for r in records] == [(0, int(r["layer"] == 2)) for r in records]


def test_raw_tensors_need_no_torch(weights: Callable[..., Path]) -> None:
    name = weights("few.safetensors", {"h.0.weight": torch.ones(2)})
    code = (
        f"import sys; from mltools.cli import main; main(['inspect', {str(name)!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


# -- checkpoints made by Trainer, adapters ------------------------------------------------------------
def test_checkpoints_of_trainer(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """Trainer's own output folder may hold its checkpoints only: they are named; one of them is a checkpoint."""
    for step in (50, 100):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        shutil.copytree(tiny("bert", 1), folder)
        state: dict[str, Any] = {"global_step": step, "best_metric": 0.75 if step == 100 else None, "log_history": []}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        (folder / "optimizer.pt").write_bytes(b"no weights")
    for words in (("inspect", tmp_path / "run"), ("states", tmp_path / "run", noisy_rows, "-o", tmp_path / "s")):
        result = cli(*words)
        assert result.code == 4 and "name one of them (checkpoint-50, checkpoint-100)" in result.err
    found = [cli("inspect", tmp_path / "run" / f"checkpoint-{step}", "--json").records[0] for step in (50, 100)]
    assert [(record["step"], record["best_metric"]) for record in found] == [(50, None), (100, 0.75)]
    assert "  trained    100 steps, best metric 0.75" in cli("inspect", tmp_path / "run/checkpoint-100").out
    (tmp_path / "run/checkpoint-50/trainer_state.json").write_text('{"global_step": "NaN", "best_metric": NaN}')
    (record,) = cli("inspect", tmp_path / "run/checkpoint-50", "--json").records
    assert record["step"] is record["best_metric"] is None


def test_an_adapter_says_how_to_merge_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora/adapter_config.json").write_text('{"base_model_name_or_path": "bert-base-uncased"}')
    (tmp_path / "lora/adapter_model.safetensors").write_bytes(b"")
    result = cli("inspect", tmp_path / "lora")
    assert result.code == 4 and 'an adapter (LoRA or the like) of "bert-base-uncased"' in result.err
    assert "merge_and_unload().save_pretrained(merged)" in result.err


def test_rows_and_records(cli: Cli, noisy_rows: Path, tmp_path: Path) -> None:
    (record,) = cli("inspect", noisy_rows, "--json").records
    assert (record["kind"], record["n"]) == ("rows", 48)
    assert record["contents"]["noisy"] == 10 and record["contents"]["classes"] == 4
    assert sum(record["contents"]["rows by label"].values()) == 48
    assert record["columns"]["noisy"] == "true/false" and record["columns"]["id"] == "integer"
    mixed = write_jsonl(tmp_path / "mixed.jsonl", [{"label": 1}, {"label": "a", "x": None}])
    assert cli("inspect", mixed, "--json").records[0]["columns"] == {"label": "integer or text", "x": "null"}
    score = {"tool": "grads", "layer": 1, "layers": 4, "score": 0.5, "seed": 1, "task": "trec"}
    lines = "".join(json.dumps({**score, "layer": layer}) + "\n" for layer in range(1, 5))
    (record,) = cli("inspect", "-", "--json", stdin=lines).records
    assert (record["kind"], record["n"]) == ("records", 4)
    assert record["contents"] == {
        "records by tool": {"grads": 4},
        "kinds": ["layer"],
        "tags": {"seed": ["1"], "task": ["trec"]},
    }
    assert cli("inspect", "-", stdin=lines).out.startswith("-: records, 4 records\n  records by tool  grads 4\n")
    (empty,) = cli("inspect", "-", "--json", stdin="").records
    assert (empty["kind"], empty["n"], empty["contents"]) == ("rows", 0, {})


def test_control_characters_are_shown_not_sent(cli: Cli, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a", "label": "x\x1b[31m", "\x1b]0;t\x07": 1}])
    result = cli("inspect", rows)
    assert "\x1b" not in result.out and "\\x1b]0;t\\x07" in result.out


def test_every_output_says_how_to_make_it_again(
    cli: Cli, shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """The printed command, run elsewhere, makes the same bytes."""
    noisy, clean = tiny("bert", 1), tiny("bert", 2)
    made = {
        "gradients.safetensors": ("grads", noisy, noisy_rows, "--save"),
        "states.safetensors": ("states", noisy, noisy_rows, "-o"),
        "rows.parquet": ("swap", noisy, clean, noisy_rows, "--layers", "2", "--per-row"),
        "windows.parquet": ("swap", noisy, clean, noisy_rows, "--layers", "2", "-o"),
        "mixed": ("swap", noisy, clean, noisy_rows, "--layers", "1-2", "--write"),
    }
    for name, words in made.items():
        assert cli(*words, tmp_path / name).code == 0
        first = content(tmp_path / name)
        command = cli("inspect", tmp_path / name, "--command")
        assert command.code == 0, command.err
        again = tmp_path / "again" / name
        again.parent.mkdir(exist_ok=True)
        run = shell(command.out.replace(str(tmp_path / name), str(again)), tmp_path)
        assert run.code == 0, run.err
        assert content(again) == first
    (record,) = cli("inspect", tmp_path / "gradients.safetensors", "--json").records
    assert record["kind"] == "gradients" and record["provenance"]["tool"] == "grads"
    assert record["contents"] == {"noisy tensors": 64, "clean tensors": 64}
    (record,) = cli("inspect", tmp_path / "states.safetensors", "--json").records
    assert record["kind"] == "states"
    assert record["contents"] == {"rows": 48, "noisy": 10, "layers": 4, "width": 32}
    (record,) = cli("inspect", tmp_path / "rows.parquet", "--json").records
    assert record["n"] == 48 and record["provenance"]["inputs"]["rows"]["path"] == str(noisy_rows)
    assert cli("inspect", tmp_path / "mixed", "--json").records[0]["provenance"]["tool"] == "swap"


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (sorted(path.iterdir()) if path.is_dir() else [path])}


def test_provenance_that_somebody_changed_is_shown_as_it_is(cli: Cli, tmp_path: Path) -> None:
    """A command that is no list of words ended as a fault of ours."""
    saved = tmp_path / "made.json"
    for command, inputs, shown in ((["b", {}], {"rows": 3}, "b '{}' (version 1)"), (7, [1], "mcog (version 1)")):
        made = {"tool": "mcog", "version": 1, "command": command, "inputs": inputs, "settings": 1}
        saved.write_text(json.dumps(made))
        result = cli("inspect", saved)
        assert (result.code, result.out.splitlines()[1]) == (0, f"  made by  {shown}"), result.err


def test_provenance_file(cli: Cli, noisy_rows: Path, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a", "label": i % 2} for i in range(20)])
    saved = tmp_path / "how.json"
    assert cli("perturb", rows, "--seed", "3", "--provenance", saved).code == 0
    text = cli("inspect", saved).out
    assert text.startswith(f"{saved}: provenance\n  made by    mltools perturb {rows} --seed 3 (version ")
    assert f"  from rows  {rows} (sha256 " in text
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}')
    result = cli("inspect", other)
    assert result.code == 3 and "no provenance that mltools wrote" in result.err


def test_what_cannot_be_looked_at(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    (tmp_path / "notes.txt").write_text("hello")
    cases: list[tuple[tuple[object, ...], int, str]] = [
        ((tmp_path / "cut.safetensors",), 3, "not a whole safetensors file"),
        ((tmp_path / "no.jsonl",), 5, f"no such file: {tmp_path / 'no.jsonl'}"),
        ((tmp_path / "nothing",), 5, f"no such folder: {tmp_path / 'nothing'}"),
        ((tmp_path / "notes.txt",), 2, "neither a checkpoint folder nor a file that ends in"),
        ((noisy_rows, tiny("bert", 1)), 2, "two names are two checkpoints or two files of weights"),
        ((noisy_rows, "--command"), 2, f"{noisy_rows} does not say which command made it"),
        ((tiny("bert", 1), "--command"), 2, "does not say which command made it"),
    ]
    for words, code, message in cases:
        result = cli("inspect", *words)
        assert (result.code, result.out) == (code, ""), words
        assert message in result.err and result.err.count("\n") == 1


def test_parquet_output(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "parts.parquet"
    assert cli("inspect", tiny("bert", 1), "-o", out).code == 0
    frame = pl.read_parquet(out)
    assert frame["parts"].explode().struct.field("layer").to_list() == [0, 1, 2, 3, 4, None]
    assert cli("inspect", tiny("bert", 1), tiny("bert", 2), "-o", tmp_path / "d.parquet", "--tag", "pair=ab").code == 0
    assert set(pl.read_parquet(tmp_path / "d.parquet")["pair"]) == {"ab"}


def test_half_precision_is_said(cli: Cli, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "half", "gpt_neox", 1)
    weights = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (record,) = cli("inspect", folder, "--json").records
    assert record["weights_type"] == "float16" and record["pooled_position"] == "last"


def test_label_that_is_not_called_label(cli: Cli, tmp_path: Path) -> None:
    rows = [{"text": row["text"], "gold": row["label"]} for row in toy_rows(8)]
    (record,) = cli("inspect", write_jsonl(tmp_path / "rows.jsonl", rows), "--json").records
    assert (record["kind"], record["n"], record["contents"]["classes"]) == ("rows", 8, 0)
