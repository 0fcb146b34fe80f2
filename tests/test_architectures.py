"""Every Hugging Face classifier with one block list works, and cached equals plain (DESIGN §5, §6)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conftest import BY_ARCHITECTURE, DECODERS
from mltools.io.examples import read_examples
from mltools.layers import Window, all_windows
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checks import self_check
from mltools.model.window_tree import window_logits

Tiny = Callable[..., Path]
Array = NDArray[np.float32]


def plain_logits(folder: Path, donor: Path, prefix: str, window: Window, texts: list[str]) -> Array:
    """Load, copy tensors, run stock forward one row at a time: the plain way."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    other = AutoModelForSequenceClassification.from_pretrained(donor).state_dict()
    state = model.state_dict()
    for name in state:
        number = name.removeprefix(prefix + ".").split(".")[0]
        if name.startswith(prefix + ".") and int(number) + 1 in window.layers:
            state[name] = other[name]
    model.load_state_dict(state)
    with torch.inference_mode():
        rows = [tokenizer(text, return_tensors="pt", return_token_type_ids=False) for text in texts]
        return np.concatenate([model(**row).logits.numpy() for row in rows])


@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
def test_swap_cached_equals_plain(architecture: str, tiny: Tiny, noisy_rows: Path) -> None:
    noisy, clean = tiny(architecture, 1), tiny(architecture, 2)
    examples = read_examples(noisy_rows)
    base, donor = open_checkpoint(str(noisy)), open_checkpoint(str(clean))
    assert base.runner.pooling == ("last" if architecture in DECODERS else "first")
    encoded = base.encode(examples, 64)
    self_check(base.runner, encoded)
    windows = [*all_windows(4, 1), Window((1, 2)), Window((2, 3)), Window((1, 4)), Window((1, 2, 3, 4))]
    logits = np.zeros((len(windows), len(examples), 4))
    for batch in encoded.batches(np.arange(len(examples)), 16, base.runner.device):
        for index, values in window_logits(base, donor, batch, windows):
            logits[index, batch.rows] = values.numpy()
    some = slice(None, None, 4)
    texts = examples.texts(" ")[some]
    for window, ours in zip(windows, logits, strict=True):
        assert np.abs(ours[some] - plain_logits(noisy, clean, base.stack.path, window, texts)).max() < 1e-5


@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
def test_blocks_that_stay_on_disk_give_the_same_logits(architecture: str, tiny: Tiny, noisy_rows: Path) -> None:
    """--offload: every logit of every window to the bit, and no weight of a block is left in memory afterwards."""
    examples = read_examples(noisy_rows)
    found = []
    for offload in (False, True):
        noisy, clean = (open_checkpoint(str(tiny(architecture, seed)), offload=offload) for seed in (1, 2))
        self_check(noisy.runner, noisy.encode(examples, 64))
        batch = noisy.encode(examples, 64).batch(range(16), noisy.runner.device)
        found.append(dict(window_logits(noisy, clean, batch, all_windows(4))))
        for checkpoint in (noisy, clean):
            assert {p.is_meta for p in checkpoint.stack.modules.parameters()} == {offload}
            outside = [p for name, p in checkpoint.model.named_parameters() if checkpoint.stack.layer_of(name) is None]
            assert not any(p.is_meta for p in outside)
    assert all(torch.equal(found[0][index], found[1][index]) for index in range(10))
