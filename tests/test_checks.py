"""Checks at load, what they leave behind, and what of a checkpoint's files steers loading (DESIGN §5)."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import BY_ARCHITECTURE, Cli, tiny_of, toy_rows, write_jsonl
from families import save_family
from mltools.errors import CheckpointError
from mltools.io.examples import read_examples
from mltools.io.provenance import folder_digest
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checks import check_kept_states, check_mixture, check_pooled_states, self_check
from mltools.model.window_tree import window_logits

Tiny = Callable[..., Path]
tiny = tiny_of(2)
CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu", "norm_rel_ebd": "layer_norm"}


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny("bert", 1), tmp_path / "copy"))


def configure(folder: Path, file: str = "config.json", **changes: Any) -> None:
    values = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**values, **changes}))


def traces(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything that a trial could change, by name."""
    model: Any = checkpoint.model
    found: dict[str, Any] = {"config": repr(vars(model.config)), "attention": model.config._attn_implementation}
    for name, module in model.named_modules():
        hooks = [len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks)]
        found[name] = (id(module), module.training, hooks, sorted(vars(module)))
    found |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    found |= {f"weight {n}": (p.detach().clone(), p.requires_grad, p.grad) for n, p in model.named_parameters()}
    return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
def test_checks_pass_and_leave_no_trace(architecture: str, tiny: Tiny, noisy_rows: Path) -> None:
    noisy, clean = (open_checkpoint(str(tiny(architecture, seed))) for seed in (1, 2))
    encoded = noisy.encode(read_examples(noisy_rows), 64)
    pools = noisy.runner.pools_last_block
    noisy.model.train()
    before, counted, state = traces(noisy), noisy.runner.applications, torch.get_rng_state()
    self_check(noisy.runner, encoded)
    check_mixture(noisy, clean, encoded, window_logits)
    check_kept_states(noisy, clean, encoded)
    check_pooled_states(noisy, encoded, noisy.runner.pooling, raw_last=False)
    after = traces(noisy)
    assert before.keys() == after.keys()
    assert [key for key in before if not same(before[key], after[key])] == []
    assert noisy.runner.applications == counted and torch.equal(torch.get_rng_state(), state)
    assert noisy.runner.pools_last_block == pools  # the checks found nothing wrong with it


def test_k3_with_a_convolution_between_blocks_windows_are_run_whole(tiny: Tiny, noisy_rows: Path, cli: Cli) -> None:
    """DeBERTa v2's larger models; that the results are right is test_families' to see."""
    noisy, clean = (tiny("deberta-v2", seed, num_hidden_layers=4, **CONVOLUTION) for seed in (1, 2))
    result = cli("swap", noisy, clean, noisy_rows, "--layers", 2, "--layers", 3, "--min-noisy-accuracy", 0)
    assert (result.code, len(result.records)) == (0, 2)
    assert "DebertaV2ForSequenceClassification cannot be run block by block (they differ by" in result.err
    opened, donor = open_checkpoint(str(noisy)), open_checkpoint(str(clean))
    encoded = opened.encode(read_examples(noisy_rows), 64)
    check_pooled_states(opened, encoded, "first", raw_last=False)
    assert opened.runner.walks
    check_kept_states(opened, donor, encoded)
    assert not opened.runner.walks


def test_a_last_block_that_cannot_be_pooled_is_computed_whole(
    tiny: Tiny, noisy_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy, clean = (open_checkpoint(str(tiny("bert", seed))) for seed in (1, 2))
    encoded = noisy.encode(read_examples(noisy_rows), 64)
    monkeypatch.setattr("mltools.model.runner.forward_at_positions", lambda _, states, *__: torch.zeros_like(states))
    assert noisy.runner.pools_last_block
    check_mixture(noisy, clean, encoded, window_logits)
    assert not noisy.runner.pools_last_block


def test_k4_a_model_that_changes_itself_by_the_length_of_a_row(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """BigBird's attention is full for good after a short batch: each row has what it has as a fresh model's first."""
    folder = save_family(tmp_path / "model", "big_bird", 1, block_size=2, num_random_blocks=1)
    texts = [" ".join([row["text"]] * times) for row, times in zip(toy_rows(2), (1, 5), strict=True)]
    rows = [{**row, "text": text} for row, text in zip(toy_rows(2), texts, strict=True)]
    opened = open_checkpoint(str(folder))
    encoded = opened.encode(read_examples(write_jsonl(tmp_path / "rows.jsonl", rows)), 64)
    self_check(opened.runner, encoded)
    assert "changes itself by the length of its rows (bert.attention_type)" in capfd.readouterr().err
    with torch.no_grad():
        found = opened.runner.forward(encoded.batch(range(2), opened.runner.device))
        fresh = [open_checkpoint(opened.name).model(input_ids=torch.tensor([ids])).logits for ids in encoded.ids]
    assert torch.allclose(found, torch.cat(fresh), atol=1e-5)


def test_a_donor_runs_as_its_like(tmp_path: Path, noisy_rows: Path) -> None:
    """Where padding counts it counts for both, or the donor's accuracies would depend on the batch."""
    opened, donor = (open_checkpoint(str(save_family(tmp_path / str(seed), "fnet", seed))) for seed in (1, 2))
    encoded = opened.encode(read_examples(noisy_rows), 64)
    self_check(opened.runner, encoded)
    check_mixture(opened, donor, encoded, window_logits)
    assert not donor.runner.pads


# -- keys that steer ----------------------------------------------------------------------------------
def test_weights_of_another_name_are_never_opened(copy: Path) -> None:
    """A pickle that leaves a mark: transformers would open it in place of the safetensors file."""
    mark = copy / "sprung"
    (copy / "adapter_model.bin").write_bytes(f"cos\nsystem\n(S'touch {mark}'\ntR.".encode())
    configure(copy, transformers_weights="adapter_model.bin")
    with pytest.raises(CheckpointError, match="takes the weights from "):
        open_checkpoint(str(copy))
    assert not mark.exists()


@pytest.mark.parametrize(
    "key", ["_attn_implementation", "attn_implementation", "experts_implementation", "_name_or_path", "kernel_config"]
)
def test_kernels_and_other_names_do_not_get_through(copy: Path, key: str) -> None:
    changes: dict[str, Any] = {key: "someone/kernel", "quantization_config": None, "of_a_newer_release": 3}
    configure(copy, "config.json", **changes)
    config = open_checkpoint(str(copy)).model.config
    assert config._attn_implementation == "sdpa"
    assert "someone/kernel" not in repr(vars(config)) and not hasattr(config, "of_a_newer_release")


def test_keys_that_only_the_code_of_the_model_names_get_through(tiny: Tiny) -> None:
    config = open_checkpoint(str(tiny("deberta-v2", 1, **CONVOLUTION))).model.config
    assert (config.conv_kernel_size, config.norm_rel_ebd) == (3, "layer_norm")


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config.json", "configuration_files", ["config.4.0.0.json"]),
        ("tokenizer_config.json", "fast_tokenizer_files", ["tokenizer.4.0.json"]),
        ("tokenizer_config.json", "init_inputs", ["/etc/passwd"]),
    ],
)
def test_files_by_other_names(copy: Path, file: str, key: str, value: object) -> None:
    configure(copy, file, **{key: value})
    with pytest.raises(CheckpointError, match=f"{file} names other files to open \\({key}\\)"):
        open_checkpoint(str(copy))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "special_tokens_map.json", "spiece.model"])
def test_pipes_and_links_out_of_the_folder(copy: Path, file: str, tmp_path: Path) -> None:
    (copy / file).unlink(missing_ok=True)
    os.mkfifo(copy / file)
    with pytest.raises(CheckpointError, match=f"{file} is not a plain file"):
        open_checkpoint(str(copy))
    (copy / file).unlink()
    (tmp_path / "elsewhere").write_text("{}")
    (copy / file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"{file} is a link out of the folder"):
        open_checkpoint(str(copy))


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_heads_of_another_kind(copy: Path, kind: str, cli: Cli, noisy_rows: Path) -> None:
    configure(copy, problem_type=kind)
    result = cli("swap", copy, copy, noisy_rows)
    assert result.code == 4 and f'config.json says problem_type "{kind}"' in result.err
    assert open_checkpoint(str(copy), fresh_head=["a", "b"]).labels == ["a", "b"]


@pytest.mark.parametrize(
    "file",
    [
        *("spiece.model", "special_tokens_map.json", "added_tokens.json", "bpe.codes", "a.tiktoken", "vocab.txt"),
        *("chat_template.jinja", "additional_chat_templates/a.jinja", "source.spm"),
    ],
)
def test_digests_cover_every_file_that_is_read(copy: Path, file: str) -> None:
    before = folder_digest(copy)
    (copy / file).parent.mkdir(exist_ok=True)
    (copy / file).write_text("{}")
    assert folder_digest(copy) != before
