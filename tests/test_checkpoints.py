"""Checkpoints from anywhere: what cannot be trusted is refused with a reason, and what we save, stock classes load."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from conftest import LABELS, Cli, save_tiny, toy_rows, write_jsonl
from mltools.errors import CheckpointError, MltoolsError, NotFoundError
from mltools.io.provenance import Provenance
from mltools.model.checkpoint_faults import is_finite
from mltools.model.checkpoint_files import locate
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checkpoint_pairs import check_same
from mltools.model.checkpoint_saving import save_checkpoint

Tiny = Callable[..., Path]
Change = Callable[[Path], object]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(tiny("bert", 1), tmp_path / "copy"))


@pytest.fixture
def shards(tiny: Tiny, tmp_path: Path) -> Path:
    """The same in shards, with an index."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(tiny("bert", 1))
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    AutoTokenizer.from_pretrained(tiny("bert", 1)).save_pretrained(tmp_path / "shards")
    return tmp_path / "shards"


def refusal(folder: Path | str, **options: Any) -> str:
    """Open a checkpoint that must be refused as unusable; give the reason without its name."""
    with pytest.raises(MltoolsError) as caught:
        open_checkpoint(str(folder), **options)
    assert caught.value.exit_code == 4, caught.value
    message = str(caught.value)
    assert message.startswith(f"{folder}: ")
    assert "\n" not in message
    return message.removeprefix(f"{folder}: ")


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def rename(folder: Path, name: Callable[[str], str]) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name(key): tensor for key, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})


def rewrite(folder: Path, key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, key: change(tensors[key]).contiguous()}, folder / WEIGHTS, {"format": "pt"})


def reindex(folder: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**index, "weight_map": change(index["weight_map"])}))


# -- weights ------------------------------------------------------------------------------------------
def test_b04_another_prefix(copy: Path) -> None:
    rename(copy, lambda key: f"model.{key}")
    message = refusal(copy)
    assert " weights are missing (bert." in message
    assert message.endswith('; the file has them with "model." in front: rename them')


def test_another_prefix_is_refused_under_a_fresh_head_too(copy: Path) -> None:
    rename(copy, lambda key: f"model.{key}")
    assert " weights are missing (bert." in refusal(copy, fresh_head=["a", "b"])


def test_no_head(copy: Path, tiny: Tiny) -> None:
    tensors = {k: t for k, t in load_file(copy / WEIGHTS).items() if not k.startswith("classifier")}
    save_file(tensors, copy / WEIGHTS, {"format": "pt"})
    assert refusal(copy) == "2 weights are missing (classifier.bias, classifier.weight)"
    assert open_checkpoint(str(copy), fresh_head=["a", "b", "c"]).labels == ["a", "b", "c"]


def test_fresh_head_replaces_one_of_another_size(copy: Path) -> None:
    checkpoint = open_checkpoint(str(copy), fresh_head=[f"c{i}" for i in range(7)])
    assert checkpoint.model.classifier.weight.shape == (7, 32)
    stored = load_file(copy / WEIGHTS)
    state = checkpoint.model.state_dict()
    assert all(torch.equal(state[key], stored[key]) for key in stored if not key.startswith("classifier"))


@pytest.mark.parametrize("fresh", [None, ["a", "b"]])
def test_weights_of_another_shape(copy: Path, fresh: list[str] | None) -> None:
    rewrite(copy, "bert.embeddings.word_embeddings.weight", lambda tensor: tensor[:20])
    message = "1 weights are of another shape (bert.embeddings.word_embeddings.weight is (20, 32), not (28, 32))"
    assert refusal(copy, fresh_head=fresh) == message


@pytest.mark.parametrize("fresh", [None, ["a", "b"]])
@pytest.mark.parametrize("base", [False, True])
def test_more_layers_than_the_configuration_says(copy: Path, fresh: list[str] | None, base: bool) -> None:
    if base:
        rename(copy, lambda key: key.removeprefix("bert."))
    configure(copy, num_hidden_layers=3)
    assert refusal(copy, fresh_head=fresh).startswith("16 weights are not expected (")


def test_fewer_layers_than_the_configuration_says(copy: Path) -> None:
    configure(copy, num_hidden_layers=5)
    assert refusal(copy).startswith("16 weights are missing (bert.encoder.layer.4.")
    assert refusal(copy, fresh_head=["a", "b"]).startswith("16 weights are missing (bert.encoder.layer.4.")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(copy: Path, value: float) -> None:
    rewrite(copy, "bert.encoder.layer.2.output.dense.bias", lambda tensor: tensor.index_fill(0, torch.tensor(3), value))
    assert refusal(copy) == "1 weights hold NaN or infinity (first: bert.encoder.layer.2.output.dense.bias)"


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [((3e38, 3e38), True), ((1.0, -2.0), True), ((float("inf"), float("-inf")), False), ((float("nan"), 0.0), False)],
)
def test_weights_whose_sum_is_too_large_are_finite_all_the_same(numbers: tuple[float, ...], finite: bool) -> None:
    assert is_finite(torch.tensor(numbers)) is finite


# -- files --------------------------------------------------------------------------------------------
def test_shards_equal_one_file(shards: Path, tiny: Tiny) -> None:
    assert (shards / INDEX).exists()
    mine, other = open_checkpoint(str(shards)), open_checkpoint(str(tiny("bert", 1)))
    assert all(map(torch.equal, mine.model.parameters(), other.model.parameters()))


def test_b22_missing_shard(shards: Path) -> None:
    (shards / "model-00002-of-00004.safetensors").unlink()
    assert refusal(shards) == "1 of 4 shards are missing (first: model-00002-of-00004.safetensors)"


def test_b22_stale_file_beside_an_index(shards: Path, tiny: Tiny) -> None:
    shutil.copy(tiny("bert", 2) / WEIGHTS, shards)
    assert refusal(shards) == f"has {WEIGHTS} and {INDEX}; one of them is stale: remove it"


def test_shard_that_the_index_does_not_name(shards: Path, tiny: Tiny) -> None:
    shutil.copy(tiny("bert", 2) / WEIGHTS, shards / "model-00005-of-00004.safetensors")
    mine, other = open_checkpoint(str(shards)), open_checkpoint(str(tiny("bert", 1)))
    assert all(map(torch.equal, mine.model.parameters(), other.model.parameters()))


def test_index_that_names_weights_elsewhere(shards: Path) -> None:
    reindex(shards, lambda shards_of: {**shards_of, "classifier.bias": "model-00001-of-00004.safetensors"})
    assert open_checkpoint(str(shards)).labels
    (shards / INDEX).write_text('{"weight_map": {}}')
    assert refusal(shards) == "config.json says 4 layers, but the files hold 0 weights"


@pytest.mark.parametrize("escape", ["../other/model.safetensors", "/etc/passwd", "..", ".", "a/../../x"])
def test_index_that_leads_out_of_the_folder(shards: Path, tiny: Tiny, escape: str) -> None:
    shutil.copytree(tiny("bert", 2), shards.parent / "other")
    reindex(shards, lambda shards_of: {**shards_of, "classifier.bias": escape})
    assert refusal(shards) == f"{INDEX} names a file outside the folder ({escape}); refused"


@pytest.mark.parametrize("text", ["[]", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "{", ""])
def test_broken_index(shards: Path, text: str) -> None:
    (shards / INDEX).write_text(text)
    assert INDEX in refusal(shards)


def test_link_out_of_the_folder(copy: Path, tiny: Tiny) -> None:
    (copy / WEIGHTS).unlink()
    (copy / WEIGHTS).symlink_to(tiny("bert", 1) / WEIGHTS)
    assert f"{WEIGHTS} is a link out of the folder" in refusal(copy)


def test_link_to_the_folder_and_links_of_the_hub_cache(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tiny("bert", 1))
    assert open_checkpoint(str(tmp_path / "link")).labels
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, file in enumerate(sorted(tiny("bert", 1).iterdir())):
        shutil.copy(file, blobs / str(i))
        (snapshot / file.name).symlink_to(f"../../blobs/{i}")
    assert open_checkpoint(str(snapshot)).labels


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_cut_weights(copy: Path, keep: int) -> None:
    (copy / WEIGHTS).write_bytes((copy / WEIGHTS).read_bytes()[:keep])
    assert refusal(copy).startswith(f"{WEIGHTS} is not a whole safetensors file (")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt"])
def test_b25_pickles_are_never_opened(copy: Path, name: str) -> None:
    (copy / WEIGHTS).unlink()
    (copy / name).touch()
    assert refusal(copy).startswith(f"only {name}, which is never unpickled; convert it to safetensors")


def test_no_weights(copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    assert refusal(copy) == f"no {WEIGHTS} and no {INDEX}"


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[str]:
    """Python code that leaves a mark when it runs."""
    yield f"open({str(tmp_path / 'sprung')!r}, 'w')\n"
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_b26_code_in_a_checkpoint_is_never_run(
    copy: Path, trap: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "code.py").write_text(trap)
    names = {key: "code.Thing" for key in ("AutoConfig", "AutoModelForSequenceClassification")}
    config = json.loads((copy / where).read_text())
    config |= {"auto_map": {**names, "AutoTokenizer": ["code.Thing", "code.Thing"]}}
    (copy / where).write_text(json.dumps(config))
    assert type(open_checkpoint(str(copy)).model).__name__ == "BertForSequenceClassification"  # transformers' own
    assert f"{where} names code of its own (auto_map); it is never run" in capsys.readouterr().err


def test_adapters_and_quantised_weights(copy: Path) -> None:
    (copy / "adapter_config.json").write_text('{"base_model_name_or_path": "gpt2"}')
    assert refusal(copy).startswith('adapter_config.json says it is an adapter (LoRA or the like) of "gpt2"; merge it')
    (copy / "adapter_config.json").unlink()
    configure(copy, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert refusal(copy) == "its weights are quantised; save it dequantised first"


# -- configuration ------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["", "[]", "null", '{"model_type":', "\x00"])
def test_configuration_that_is_no_json_object(copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text)
    assert refusal(copy).startswith("config.json is not ")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "nonsense"}, "config.json cannot be used ("),
        ({"num_hidden_layers": "four"}, "config.json cannot be used ("),
        ({"num_hidden_layers": 0}, "no list of 0 blocks"),
        ({"num_attention_heads": 0}, "cannot be loaded as a sequence classifier ("),
        ({"hidden_act": "nonsense"}, "cannot be loaded as a sequence classifier ("),
        ({"pad_token_id": 999}, "cannot be loaded as a sequence classifier ("),
        ({"type_vocab_size": 0}, "the model cannot be run ("),
        ({"id2label": {"0": "a", "1": "b"}}, "2 weights are of another shape (classifier.bias is (4,), not (2,)"),
        ({"id2label": dict(zip("0234", "abcd", strict=True))}, "config.json cannot be used (id2label has the numbers"),
        ({"id2label": {"x": "a"}}, "config.json cannot be used ("),
        ({"id2label": dict(enumerate("abca"))}, 'config.json names two classes "a"'),
    ],
)
def test_configurations_that_cannot_be_meant(copy: Path, changes: dict[str, Any], reason: str) -> None:
    configure(copy, **changes)
    assert refusal(copy).startswith(reason)


def test_classes_that_are_not_numbered_in_a_row_are_refused_by_every_tool(copy: Path, cli: Cli) -> None:
    """`inspect` ended as a fault of ours where a class in the middle had no name."""
    configure(copy, id2label=dict(zip("0234", "abcd", strict=True)))
    result = cli("inspect", copy)
    assert result.code == 4 and result.err.endswith("(id2label has the numbers 0, 2, 3, 4, not 0 to 3)\n")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": 200_000}, "config.json says num_hidden_layers 200,000, but the files hold 73 weights"),
        ({"intermediate_size": 50_000_000}, "config.json says intermediate_size 50,"),
        ({"vocab_size": 10**10}, "config.json says vocab_size 10,000,"),
        ({"max_position_embeddings": 10**9}, "config.json says "),
        ({"hidden_size": 900_000}, "config.json says "),
    ],
)
def test_configurations_far_larger_than_the_files(copy: Path, changes: dict[str, Any], reason: str) -> None:
    """They would fill the memory, or take for ever, before anything could be compared."""
    configure(copy, **changes)
    for options in ({}, {"fresh_head": ["a", "b"]}):
        assert refusal(copy, **options).startswith(reason)


def test_regression_head(tmp_path: Path, copy: Path) -> None:
    configure(copy, id2label={"0": "score"}, problem_type="regression")
    for key in ("classifier.weight", "classifier.bias"):
        rewrite(copy, key, lambda tensor: tensor[:1])
    assert refusal(copy).startswith("one output only")


@pytest.mark.parametrize("changes", [{"return_dict": False}, {"output_hidden_states": True}, {"torchscript": True}])
def test_settings_of_others_that_do_not_matter(copy: Path, tiny: Tiny, changes: dict[str, Any]) -> None:
    configure(copy, **changes)
    ids = torch.tensor([[2, 7, 9, 3]])
    logits = [open_checkpoint(str(folder)).model(ids).logits for folder in (copy, tiny("bert", 1))]
    assert torch.equal(*logits)


@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_no_tokenizer(tiny: Tiny, tmp_path: Path, architecture: str) -> None:
    folder = Path(shutil.copytree(tiny(architecture, 1), tmp_path / "copy"))
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert refusal(folder).startswith(
        ("no tokenizer (its vocabulary holds special tokens only)", "no usable tokenizer")
    )


def test_a_tokenizer_class_that_is_none(copy: Path) -> None:
    """Any class of transformers is taken for one; a model's ended as a fault of ours."""
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "BertModel"}))
    assert refusal(copy) == "no tokenizer, but BertModel (tokenizer_config.json says so)"


def test_a_tokenizer_whose_unknown_token_is_unknown(copy: Path) -> None:
    """transformers then looks for it without end."""
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "unk_token": ""}))
    assert refusal(copy).startswith("no usable tokenizer (maximum recursion depth exceeded")


@pytest.mark.parametrize(("said", "limit"), [(32.0, 32), (-1, 64), (None, 64), (1.5, None), ("32", None), (True, None)])
def test_how_long_a_row_the_tokenizer_takes(said: object, limit: int | None, copy: Path) -> None:
    """A number that is not whole ended as a fault of ours, at the first row."""
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": said}))
    if limit is not None:
        assert open_checkpoint(str(copy)).limit(100) == limit
    else:
        assert refusal(copy).endswith(
            f"tokenizer_config.json says model_max_length {json.dumps(said)}, not a whole number"
        )


def test_tokenizer_of_another_model(copy: Path, cli: Cli, noisy_rows: Path) -> None:
    for key in ("bert.embeddings.word_embeddings.weight",):
        rewrite(copy, key, lambda tensor: tensor[:20])
    configure(copy, vocab_size=20)
    result = cli("swap", copy, copy, noisy_rows)
    assert result.code == 4
    assert "the tokenizer gives token 27, but the model has embeddings for 0-19 only" in result.err


# -- block lists --------------------------------------------------------------------------------------
SMALL = {"vocab_size": 28, "num_labels": 4, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
WITHOUT_ONE_LIST = {
    "albert": {
        **{"num_hidden_layers": 4, "hidden_size": 32, "embedding_size": 16, "num_attention_heads": 4},
        "intermediate_size": 48,
    },
    "t5": {"num_layers": 4, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "decoder_start_token_id": 0},
    "bart": {
        **{"encoder_layers": 4, "decoder_layers": 4, "d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64},
    },
}


def save_other(folder: Path, architecture: str) -> Path:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from conftest import make_tokenizer

    config = AutoConfig.for_model(architecture, **SMALL, **WITHOUT_ONE_LIST[architecture])
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("architecture", "candidates"),
    [
        ("albert", ["albert.encoder.albert_layer_groups", "layers share weights"]),
        ("t5", ["transformer.encoder.block (4)", "transformer.decoder.block (4)", "--blocks PATH"]),
        ("bart", ["model.encoder.layers (4)", "model.decoder.layers (4)", "--blocks PATH"]),
    ],
)
def test_b15_models_without_one_block_list(tmp_path: Path, architecture: str, candidates: list[str]) -> None:
    message = refusal(save_other(tmp_path / architecture, architecture))
    assert all(candidate in message for candidate in candidates), message


def test_b16_model_type_without_a_sequence_classifier(copy: Path) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 4}))
    assert refusal(copy).startswith("cannot be loaded as a sequence classifier (")


# -- names --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["./typo", "/abs/typo", "../typo", "~/no-such-folder", "a/b/c", ""])
def test_b27_paths_are_never_asked_of_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: pytest.fail(f"asked for {name}"))
    with pytest.raises(NotFoundError, match="no such folder: "):
        locate(name)


def test_name_below_a_folder_that_exists_is_a_path(tmp_path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: pytest.fail(f"asked for {name}"))
    monkeypatch.chdir(tmp_path)
    assert locate("copy") == Path("copy")
    with pytest.raises(NotFoundError, match="no such folder: copy/typo"):
        locate("copy/typo")


@pytest.mark.parametrize("name", ["typo", "someone/typo", "~nobody-of-this-name", "typo/", "a b"])
def test_other_names_are_hub_repositories(name: str, cli: Cli, noisy_rows: Path, tmp_path: Path) -> None:
    result = cli("swap", name, name, noisy_rows)
    assert result.code == 5
    assert result.err.startswith(
        ("mltools: no such folder: ~", f"mltools: {name}: no such folder here, and not available")
    )
    assert result.err.count("\n") == 1


def test_plain_file_and_folder_without_configuration(tmp_path: Path, cli: Cli, noisy_rows: Path) -> None:
    result = cli("swap", noisy_rows, noisy_rows, noisy_rows)
    assert (result.code, "is a file; a checkpoint is a folder" in result.err) == (4, True)
    result = cli("swap", tmp_path, tmp_path, noisy_rows)
    assert (result.code, result.err) == (4, f"mltools: {tmp_path}: no config.json; is it a checkpoint folder?\n")


# -- two checkpoints ----------------------------------------------------------------------------------
def difference(one: Path, other: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        check_same(open_checkpoint(str(one)), open_checkpoint(str(other)))
    return str(caught.value)


def test_b07_classes_in_another_order(copy: Path, tiny: Tiny, cli: Cli, noisy_rows: Path) -> None:
    configure(copy, id2label=dict(enumerate(["HUM", "ABBR", "LOC", "NUM"])))
    result = cli("swap", tiny("bert", 1), copy, noisy_rows)
    assert (result.code, result.out) == (4, "")
    assert "['ABBR', 'HUM', 'LOC', 'NUM'] and ['HUM', 'ABBR', 'LOC', 'NUM']" in result.err


def test_other_shapes(tiny: Tiny) -> None:
    message = difference(tiny("bert", 1), tiny("bert", 1, intermediate_size=40))
    assert "bert.encoder.layer.0.intermediate.dense.bias is (48,) and (40,)" in message
    message = difference(tiny("bert", 1), tiny("bert", 1, num_hidden_layers=3))
    assert "differ in 16 weights: bert.encoder.layer.3." in message and "and absent" in message


def test_another_architecture(tiny: Tiny) -> None:
    assert "differ in" in difference(tiny("bert", 1), tiny("roberta", 1))


def test_other_tokenizers(copy: Path, tiny: Tiny) -> None:
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["king"], vocabulary["tall"] = vocabulary["tall"], vocabulary["king"]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = difference(tiny("bert", 1), copy)
    assert f'have other tokenizers: "king" is token {vocabulary["tall"]} and {vocabulary["king"]}' in message


def test_tokenizers_that_cut_in_other_places(copy: Path, tiny: Tiny) -> None:
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert difference(tiny("bert", 1), copy).endswith("have tokenizers that cut text in other places")


def test_same_checkpoints_fit(tiny: Tiny) -> None:
    check_same(open_checkpoint(str(tiny("bert", 1))), open_checkpoint(str(tiny("bert", 2))))


# -- what we save -------------------------------------------------------------------------------------
def stored_types(folder: Path) -> set[str]:
    with safe_open(folder / WEIGHTS, "pt") as file:
        return {file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118  not a dict


def test_bfloat16_is_opened_in_float32_and_written_back_as_it_was(
    tiny: Tiny, tmp_path: Path, cli: Cli, noisy_rows: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    half = Path(shutil.copytree(tiny("bert", 1), tmp_path / "half"))
    AutoModelForSequenceClassification.from_pretrained(half).bfloat16().save_pretrained(half)
    assert stored_types(half) == {"BF16"}
    assert {p.dtype for p in open_checkpoint(str(half)).model.parameters()} == {torch.float32}
    result = cli("swap", half, tiny("bert", 2), noisy_rows, "--layers", "2", "--write", tmp_path / "mixed")
    assert result.code == 0, result.err
    assert stored_types(tmp_path / "mixed") == {"BF16"}
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "mixed").dtype == torch.bfloat16
    mixed, donor = load_file(tmp_path / "mixed" / WEIGHTS), load_file(tiny("bert", 2) / WEIGHTS)
    key = "bert.encoder.layer.1.output.dense.weight"
    assert torch.equal(mixed[key], donor[key].bfloat16())


def restate(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


def test_k5_each_weight_goes_out_in_the_type_that_it_came_in(
    copy: Path, tiny: Tiny, tmp_path: Path, cli: Cli, noisy_rows: Path
) -> None:
    """Whatever config.json says, nothing is rounded."""
    configure(copy, dtype="float16")
    restate(copy, lambda state: {k: v if k.startswith("classifier") else v.bfloat16() for k, v in state.items()})
    before = load_file(copy / WEIGHTS)
    result = cli("swap", copy, tiny("bert", 2), noisy_rows, "--layers", "2", "--write", tmp_path / "mixed")
    assert result.code == 0, result.err
    after = load_file(tmp_path / "mixed" / WEIGHTS)
    assert {name: tensor.dtype for name, tensor in after.items()} == {n: t.dtype for n, t in before.items()}
    assert all(torch.equal(after[n], before[n]) for n in before if "encoder.layer.1." not in n)
    assert json.loads((tmp_path / "mixed" / "config.json").read_text())["dtype"] == "float32"  # holds them all


@pytest.mark.parametrize(("kind", "name"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.int64, "I64")])
def test_k5_weights_in_a_type_that_holds_no_such_numbers(copy: Path, kind: torch.dtype, name: str) -> None:
    key = "bert.encoder.layer.1.output.dense.weight"
    restate(copy, lambda state: {**state, key: state[key].to(kind)})
    assert refusal(copy).startswith(f"1 weights are stored as {name} (first: {key}): they are quantised or converted")


def test_k5_buffers_of_old_releases_and_stale_poolers_are_passed_over(copy: Path, cli: Cli, noisy_rows: Path) -> None:
    stale = {
        "bert.embeddings.position_ids": torch.arange(64)[None],
        "bert.encoder.layer.0.attention.bias": torch.ones(1, 1, 64, 64),
        "bert.encoder.layer.0.attention.masked_bias": torch.tensor(-1e9),
        "roberta.pooler.dense.weight": torch.ones(32, 32),
    }
    restate(copy, lambda state: {**state, **stale})
    open_checkpoint(str(copy))
    open_checkpoint(str(copy), fresh_head=["a", "b"])
    restate(copy, lambda state: {**state, "bert.encoder.layer.9.output.dense.weight": torch.ones(32, 48)})
    assert "1 weights are not expected (bert.encoder.layer.9." in refusal(copy)


def test_k5_class_names_that_count_from_1(copy: Path) -> None:
    configure(copy, id2label={"1": "ABBR", "2": "HUM", "3": "LOC", "4": "NUM"})
    config = open_checkpoint(str(copy)).model.config
    assert config.id2label == {0: "ABBR", 1: "HUM", 2: "LOC", 3: "NUM"} and config.label2id["NUM"] == 3


@pytest.mark.timeout(20)
@pytest.mark.parametrize("key", ["hidden_size", "num_labels", "num_hidden_layers", "num_attention_heads"])
def test_k10_sizes_beyond_the_files_are_refused_before_anything_is_built(copy: Path, key: str) -> None:
    configure(copy, **{key: 1_000_000_000})
    assert refusal(copy).startswith(f"config.json says {key} 1,000,000,000, but ")


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "opt", "llama", "modernbert"])
def test_b21_stock_classes_load_what_we_save(tiny: Tiny, tmp_path: Path, architecture: str) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = tiny(architecture, 1)
    checkpoint = open_checkpoint(str(source))
    before = os.umask(0o022)
    try:
        save_checkpoint(checkpoint, tmp_path / "saved", Provenance("test", {}))
    finally:
        os.umask(before)
    model, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    original = AutoModelForSequenceClassification.from_pretrained(source)
    assert all(torch.equal(a, b) for a, b in zip(original.parameters(), model.parameters(), strict=True))
    for name in ("id2label", "problem_type", "pad_token_id", "use_cache", "num_labels"):
        assert getattr(model.config, name, None) == getattr(original.config, name, None), name
    text = "tall king of a river"
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (source, tmp_path / "saved")]
    assert tokenizers[0](text) == tokenizers[1](text)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "saved").iterdir()} == {0o644}
    assert json.loads((tmp_path / "saved" / "mltools.json").read_text())["tool"] == "test"


def test_saving_twice_gives_the_same_bytes(tiny: Tiny, tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_checkpoint(open_checkpoint(str(tiny("bert", 1))), tmp_path / name, Provenance("test", {}))
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}


def test_saving_over_what_is_no_checkpoint(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").touch()
    checkpoint = open_checkpoint(str(tiny("bert", 1)))
    for replace in (False, True):
        with pytest.raises(MltoolsError, match="is there by now; what this run made is kept as"):
            save_checkpoint(checkpoint, tmp_path / "precious", Provenance("test", {}), replace=replace)
    assert (tmp_path / "precious" / "thesis.tex").exists()


def test_opening_writes_nothing(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", "bert")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path == folder else 0o444)
    open_checkpoint(str(folder))
    folder.chmod(0o755)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_classes_name_those_of_a_checkpoint_that_knows_label_k(cli: Cli, tmp_path: Path) -> None:
    """Results are those of the checkpoint with names; names that are there, or too few, are refused."""
    rows = write_jsonl(tmp_path / "rows.jsonl", toy_rows(24))
    folders = {}
    for name, labels in (("named", LABELS), ("bare", [f"LABEL_{i}" for i in range(len(LABELS))])):
        folders[name] = [save_tiny(tmp_path / f"{name}{seed}", "bert", seed, labels=tuple(labels)) for seed in (1, 2)]
    words = ("--layers", "1-2", "-q")
    named = cli("swap", *folders["named"], rows, *words)
    bare = cli("swap", *folders["bare"], rows, *words, "--classes", ",".join(LABELS))
    digests = dict.fromkeys(("run", "item_digest"))
    assert bare.code == 0, bare.err
    assert [{**r, **digests} for r in bare.records] == [{**r, **digests} for r in named.records]
    without = cli("swap", *folders["bare"], rows, *words)
    assert without.code == 3 and "; name them with --classes" in without.err
    again = cli("swap", *folders["named"], rows, *words, "--classes", ",".join(reversed(LABELS)))
    assert again.code == 2 and "names its classes already" in again.err
    few = cli("swap", *folders["bare"], rows, *words, "--classes", "a,b")
    assert few.code == 2 and f"has {len(LABELS)} classes" in few.err
