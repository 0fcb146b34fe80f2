"""A guard on speed that counts, not times: how often each tool applies a block to a row (DESIGN §6).

Counted by a hook inside the blocks themselves, independently of what the tools say of their work.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import Cli
from mltools.model.batches import Encoded

Tiny = Callable[..., Path]
ROWS, NOISY, LAYERS = 48, 10, 4
SELF_CHECK = 16 * LAYERS
"""The check at the start runs four rows (two until 0.1) alone, together and replayed; opening runs a few rows too."""
OPENING = 8 * LAYERS
MIXTURE = 14 * LAYERS
"""swap's check on two rows: one pass recorded, three windows walked, and three models that really hold them."""
KEPT = 8 * LAYERS
"""retrain's check on two rows, at two layers: the states below, going on from them, and the whole model."""


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Count rows that pass the output projection of BERT's attention: once for each block applied to a row."""
    from transformers.models.bert.modeling_bert import BertSelfOutput

    counted = {"applications": 0}
    forward = BertSelfOutput.forward

    def count(self: object, states: torch.Tensor, *rest: object) -> torch.Tensor:
        counted["applications"] += len(states)
        result: torch.Tensor = forward(self, states, *rest)
        return result

    BertSelfOutput.forward = count
    try:
        yield counted
    finally:
        BertSelfOutput.forward = forward


def applied(cli: Cli, *arguments: object) -> int:
    with counting() as counted:
        done = cli(*arguments)
    assert done.code == 0, done.err
    return counted["applications"]


def check(counted: int, expected: int, models: int, checks: int = 0) -> None:
    """No less than the work itself, and no more than it with the opening of models and the check at the start."""
    assert expected <= counted <= expected + SELF_CHECK + checks + models * OPENING, (counted, expected)


def test_swap(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    counted = applied(cli, "swap", tiny("bert", 1), tiny("bert", 2), noisy_rows)
    check(counted, ROWS * (LAYERS * (LAYERS + 1) * (LAYERS + 2) // 6 + 2 * LAYERS), models=2, checks=MIXTURE)


def test_swap_of_one_window(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    counted = applied(cli, "swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", "4")
    check(counted, ROWS * (3 * LAYERS + 1), models=2, checks=MIXTURE)


def test_the_last_block_computes_the_pooled_position_alone(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    """NOISY, the window, the full window and CLEAN: in each the last block's output is of one position a row."""
    from transformers.models.bert.modeling_bert import BertIntermediate

    forward, rows = BertIntermediate.forward, {"one position": 0, "all": 0}

    def count(self: object, states: torch.Tensor) -> torch.Tensor:
        rows["one position" if states.shape[1] == 1 else "all"] += len(states)
        result: torch.Tensor = forward(self, states)
        return result

    BertIntermediate.forward = count
    try:
        assert cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", "2").code == 0
    finally:
        BertIntermediate.forward = forward
    least = 4 * ROWS
    assert least <= rows["one position"] <= least + SELF_CHECK + MIXTURE + 2 * OPENING, rows


@pytest.mark.parametrize(("evaluate", "measured"), [("always", 3), ("last", 1)])
def test_finetune(evaluate: str, measured: int, cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    counted = applied(cli, "finetune", tiny("bert"), noisy_rows, "-o", out, "--epochs", 3, "--evaluate", evaluate)
    check(counted, ROWS * LAYERS * (3 + measured), models=1)


def test_grads(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    check(applied(cli, "grads", tiny("bert", 1), noisy_rows), (2 * NOISY + ROWS) * LAYERS, models=1)


def test_states_then_nothing(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """The model runs once for the states; probe and centroid never run it."""
    states = tmp_path / "states.safetensors"
    counted = applied(cli, "states", tiny("bert", 1), noisy_rows, "-o", states)
    check(counted, ROWS * LAYERS, models=1)
    assert applied(cli, "centroid", states) == 0
    assert applied(cli, "probe", states, "--epochs", 27, "--allow-absent") == 0


def test_retrain(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    """Two epochs of layer 3: only layers 3-4 run while training, and in NOISY's own pass; those below once a row."""
    counted = applied(cli, "retrain", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", 3, "--epochs", 2)
    trained = ROWS - 2 * NOISY
    check(counted, 2 * trained * 2 + ROWS * 2 + 2 * ROWS * 2, models=2, checks=KEPT)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=80), st.sampled_from([None, 1, 3, 8]))
def test_batches_hold_each_row_once_and_those_with_most_tokens_come_first(
    lengths: list[int], batch_size: int | None
) -> None:
    """So that each fits where the one before it was: with any other order the heap grows from batch to batch."""
    encoded = Encoded([[1] * length for length in lengths], pad_id=0, vocabulary=2, empty_id=1)
    found = list(encoded.batches(np.arange(len(lengths)), batch_size, torch.device("cpu"), tokens=64))
    assert sorted(row for batch in found for row in batch.rows) == list(range(len(lengths)))
    sizes = [batch.ids.numel() for batch in found]
    assert sizes == sorted(sizes, reverse=True)
    if batch_size is None:
        assert max(sizes) <= 64
