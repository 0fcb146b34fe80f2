"""Memory does not grow with what was done: no pass leaves tensors behind, and the collector of cycles is not off."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import BY_ARCHITECTURE, toy_rows, write_jsonl
from mltools.cli.driver import resting_collector
from mltools.commands.finetune import Settings as FinetuneSettings
from mltools.commands.finetune.work import finetune
from mltools.commands.grads.work import grads
from mltools.commands.retrain import Settings as RetrainSettings
from mltools.commands.retrain.work import retrain
from mltools.commands.swap.work import swap
from mltools.io.examples import read_examples
from mltools.layers import Window
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.inference import predict
from mltools.model.window_tree import window_logits
from mltools.spec import bare

Tiny = Callable[..., Path]
FULL = Window((1, 2, 3, 4))


@contextmanager
def kept_in_cycles() -> Iterator[list[Tensor]]:
    """Fill a list with the tensors that only the collector of cycles would free."""
    found: list[Tensor] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.extend(each for each in gc.garbage if isinstance(each, Tensor))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def pair(tiny: Tiny, architecture: str, rows: Path) -> tuple[Checkpoint, Checkpoint, Encoded]:
    first, second = (open_checkpoint(str(tiny(architecture, seed))) for seed in (1, 2))
    return first, second, first.encode(read_examples(rows), 64)


def training_step(checkpoint: Checkpoint, encoded: Encoded) -> None:
    checkpoint.model.train()
    checkpoint.runner.forward(encoded.batch([0, 1], torch.device("cpu"))).sum().backward()  # type: ignore[no-untyped-call]
    checkpoint.model.zero_grad()


@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
def test_passes_leave_no_tensors_in_cycles(architecture: str, tiny: Tiny, noisy_rows: Path) -> None:
    """Every pass left the states that entered the last block in a cycle, and the collector was off: 72 KB a row."""
    noisy, clean, encoded = pair(tiny, architecture, noisy_rows)
    batch = encoded.batch([0, 1, 2], torch.device("cpu"))
    for _ in range(2):  # what is made once stays
        with kept_in_cycles() as found:
            training_step(noisy, encoded)
            predict(noisy.runner, encoded, np.arange(8), None)
            dict(window_logits(noisy, clean, batch, [FULL, Window((2,))]))
            with torch.inference_mode():
                noisy.runner.pooled_states(batch)
    assert not found, [tuple(each.shape) for each in found]


@pytest.mark.parametrize("tool", ["swap", "grads", "finetune", "retrain"])
def test_commands_leave_no_tensors_in_cycles_for_each_batch(tool: str, tiny: Tiny, tmp_path: Path) -> None:
    """What a whole run leaves is the same after twice the rows."""
    left = []
    for n in (24, 48):
        examples = read_examples(write_jsonl(tmp_path / f"{n}.jsonl", toy_rows(n)))
        noisy, other = (open_checkpoint(str(tiny("bert", seed))) for seed in (1, 2))
        with kept_in_cycles() as found:
            if tool == "swap":
                list(swap(noisy, other, examples))
            elif tool == "grads":
                assert list(grads(str(tiny("bert")), examples))
            elif tool == "finetune":
                settings = bare(FinetuneSettings, epochs=1)
                list(finetune(str(tiny("bert")), examples, tmp_path / f"out-{n}", settings))
            else:
                list(retrain(noisy, other, examples, [FULL], bare(RetrainSettings, epochs=1)))
        left.append(len(found))
    assert left[0] == left[1], left


def test_the_collector_is_on_while_a_model_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off, it would leave every batch's tensors in cycles, were any made; a stream of rows makes none."""
    assert gc.isenabled() and "torch" in sys.modules
    with resting_collector():
        assert gc.isenabled() and gc.get_freeze_count() > 0
    assert gc.isenabled() and gc.get_freeze_count() == 0
    monkeypatch.delitem(sys.modules, "torch")
    with resting_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
