"""--part: which tensors of a block are attention, norms and the rest, and what swapping only those does."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from conftest import BY_ARCHITECTURE, Cli
from mltools.commands.swap.work import take_part
from mltools.errors import CheckpointError
from mltools.io.examples import read_examples
from mltools.layers import Window, all_windows
from mltools.model.anatomy import BLOCK_PARTS, EMBEDDINGS, HEAD, BlockStack, block_parts, select_part
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.window_tree import window_logits

Tiny = Callable[..., Path]
ATTENTION = ("query", "key", "value", "q_lin", "q_proj", "c_attn", "Wqkv", "query_key_value", "out_proj", "o_proj")


@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
def test_parts_of_every_architecture(architecture: str, tiny: Tiny) -> None:
    """Each tensor is of one part; projections of attention are `attn`, norms are vectors, matrices of `mlp` remain."""
    checkpoint = open_checkpoint(str(tiny(architecture, 1)))
    parts = block_parts(checkpoint.stack)
    assert parts is not None
    tensors = {name: p for name, p in checkpoint.model.named_parameters() if checkpoint.stack.layer_of(name)}
    assert parts.keys() == tensors.keys() == select_part(checkpoint.stack, "all")
    assert sum(len(select_part(checkpoint.stack, part)) for part in BLOCK_PARTS) == len(tensors)
    for name, part in parts.items():
        owner = name.split(".")[-2]
        assert (part == "norm") == ("norm" in owner.lower() or owner in ("ln_1", "ln_2")), name
        if owner in ATTENTION:
            assert part == "attn", name
        if part == "norm":
            assert tensors[name].dim() == 1
    for layer in range(1, 5):
        own = {part for name, part in parts.items() if checkpoint.stack.layer_of(name) == layer}
        assert own == set(BLOCK_PARTS)


def test_what_blocks_are_handed_is_no_head(tiny: Tiny) -> None:
    """DeBERTa's relative positions go into every block, though they are registered after the blocks."""
    parts = open_checkpoint(str(tiny("deberta-v2", 1))).parts
    assert parts["deberta.encoder.rel_embeddings.weight"] == EMBEDDINGS
    assert {name for name, part in parts.items() if part == HEAD} == {
        *("pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias")
    }


class Plain(nn.Module):
    """A block in which nothing is called attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(2, 2), nn.LayerNorm(2)


def test_blocks_that_do_not_show_their_parts() -> None:
    stack = BlockStack("encoder.layers", nn.ModuleList([Plain(), Plain()]))
    assert block_parts(stack) is None
    assert len(select_part(stack, "all")) == 8
    with pytest.raises(CheckpointError, match=r"--part attn: the blocks \(Plain\) do not show .* only --part all"):
        select_part(stack, "attn")


def plain_logits(folder: Path, donor: Path, names: set[str], texts: list[str]) -> np.ndarray:
    """Stock model with the named tensors from another, run a row at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    other = AutoModelForSequenceClassification.from_pretrained(donor).state_dict()
    state = model.state_dict()
    model.load_state_dict({name: other[name] if name in names else tensor for name, tensor in state.items()})
    with torch.inference_mode():
        rows = [tokenizer(text, return_tensors="pt", return_token_type_ids=False) for text in texts]
        return np.concatenate([model(**row).logits.numpy() for row in rows])


@pytest.mark.parametrize(
    "architecture", ["bert", *(pytest.param(a, marks=pytest.mark.slow) for a in ("opt", "gpt_neox")), "modernbert"]
)
@pytest.mark.parametrize("part", BLOCK_PARTS)
def test_swapping_a_part_equals_copying_its_tensors(architecture: str, part: str, tiny: Tiny, noisy_rows: Path) -> None:
    noisy, clean = tiny(architecture, 1), tiny(architecture, 2)
    base, donor = open_checkpoint(str(noisy)), open_checkpoint(str(clean))
    before = {name: p.clone() for name, p in donor.model.named_parameters()}
    examples = read_examples(noisy_rows)
    batch = base.encode(examples, 64).batch(range(12), base.runner.device)
    windows = [Window((2,)), Window((2, 3)), Window((1, 4))]
    mixed = take_part(base, donor, part)
    for index, logits in window_logits(base, mixed, batch, windows):
        names = {name for name in select_part(base.stack, part) if base.stack.layer_of(name) in windows[index].layers}
        expected = plain_logits(noisy, clean, names, examples.texts(" ")[:12])
        assert np.abs(logits.numpy() - expected).max() < 1e-5
    assert all(torch.equal(p, before[name]) for name, p in donor.model.named_parameters())


def test_all_parts_one_after_the_other_are_the_whole_block(tiny: Tiny, noisy_rows: Path) -> None:
    base, donor = open_checkpoint(str(tiny("bert", 1))), open_checkpoint(str(tiny("bert", 2)))
    step = base
    for part in BLOCK_PARTS:
        step = take_part(step, donor, part)
    for (name, own), other in zip(step.stack.modules.named_parameters(), donor.stack.modules.parameters(), strict=True):
        assert torch.equal(own, other), name


def test_command(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """The records say the part, and --write writes what was measured."""
    noisy, clean = tiny("bert", 1), tiny("bert", 2)
    by_part = {part: cli("swap", noisy, clean, noisy_rows, "--part", part).records for part in ("mlp", "all")}
    for part, records in by_part.items():
        assert {record["part"] for record in records} == {part}
        assert len(records) == len(all_windows(4))
    assert len({str([record["noisy_accuracy"] for record in records]) for records in by_part.values()}) > 1
    written = cli("swap", noisy, clean, noisy_rows, "--part", "mlp", "--layers", "1-4", "--write", tmp_path / "mixed")
    assert written.code == 0, written.err
    whole = cli("swap", tmp_path / "mixed", noisy, noisy_rows, "--part", "norm", "--layers", "1-4")
    copied = AutoModelForSequenceClassification.from_pretrained(tmp_path / "mixed").state_dict()
    first, second = (
        AutoModelForSequenceClassification.from_pretrained(folder).state_dict() for folder in (noisy, clean)
    )
    mlp = select_part(open_checkpoint(str(noisy)).stack, "mlp")
    assert whole.code == 0
    assert all(torch.equal(tensor, (second if name in mlp else first)[name]) for name, tensor in copied.items())


@pytest.mark.parametrize("command", ["swap", "retrain", "grads"])
def test_unknown_part(command: str, cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    models = (tiny("bert", 1),) if command == "grads" else (tiny("bert", 1), tiny("bert", 2))
    result = cli(command, *models, noisy_rows, "--part", "head")
    assert result.code == 2
    assert result.err == 'mltools: --part "head": choose all, attn, mlp or norm\n'
