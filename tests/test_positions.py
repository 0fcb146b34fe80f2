"""swap --positions: states of some tokens from CLEAN, against hooks in a stock model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import Cli
from mltools.io.examples import read_examples
from mltools.layers import Window
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checks import exchanged
from mltools.model.window_tree import patched_logits

Tiny = Callable[..., Path]


@pytest.mark.parametrize(("architecture", "side"), [("bert", "first"), ("gpt2", "last")])
@pytest.mark.parametrize("pooled", [True, False])
def test_patched_states_are_those_of_hooks(
    architecture: str, side: str, pooled: bool, tiny: Tiny, noisy_rows: Path
) -> None:
    """Each row alone, by the stock model: block l's output is exchanged for what CLEAN's blocks 1 to l give."""
    noisy, clean = (open_checkpoint(str(tiny(architecture, seed))) for seed in (1, 2))
    encoded = noisy.encode(read_examples(noisy_rows), 512)
    windows = [Window(()), *(Window(tuple(range(1, end + 1))) for end in range(1, 5))]
    batch = encoded.batch(range(8), noisy.runner.device)
    found = dict(patched_logits(noisy, clean, batch, windows, pooled=pooled))
    for place, row in enumerate(range(8)):
        single = encoded.batch([row], noisy.runner.device)
        at = 0 if side == "first" else single.ids.shape[1] - 1
        for index, window in enumerate(windows):
            wanted = hooked(noisy, clean, single, window, at, pooled)
            torch.testing.assert_close(found[index][place], wanted, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def hooked(noisy: object, clean: object, batch: object, window: Window, at: int, pooled: bool) -> Tensor:
    model, runner, stack = noisy.model, noisy.runner, noisy.stack  # type: ignore[attr-defined]
    if not window.layers:
        return runner.stock_logits(batch)[0]  # type: ignore[no-any-return]
    kept: list[Tensor] = []
    block = stack.modules[window.end - 1]
    with exchanged(noisy, clean, window):  # type: ignore[arg-type]
        donor = stack.modules[window.end - 1]
        handle = donor.register_forward_hook(lambda _, __, output: kept.append(first(output)))
        runner.stock_logits(batch)
        handle.remove()

    def patch(_: nn.Module, __: object, output: object) -> object:
        own = first(output).clone()
        chosen = torch.arange(own.shape[1]) == at
        own[:, chosen if pooled else ~chosen] = kept[0][:, chosen if pooled else ~chosen]
        return (own, *output[1:]) if isinstance(output, tuple) else own

    handle = block.register_forward_hook(patch)
    logits = model(input_ids=batch.ids, attention_mask=batch.mask).logits[0]  # type: ignore[attr-defined]
    handle.remove()
    return logits  # type: ignore[no-any-return]


def first(output: object) -> Tensor:
    found = output[0] if isinstance(output, tuple) else output
    assert isinstance(found, Tensor)
    return found


def test_the_last_layer_is_read_at_the_pooled_position_alone(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    pair = (tiny("bert", 1), tiny("bert", 2), noisy_rows)
    pooled, others = (cli("swap", *pair, "--positions", which).records for which in ("pooled", "others"))
    assert [record["window"] for record in pooled] == ["1", "1-2", "1-3", "1-4"]
    assert {record["positions"] for record in others} == {"others"}
    whole = cli("swap", *pair, "--layers", "1-4").records[0]
    assert pooled[-1]["label_margin"] == whole["label_margin"]
    assert pooled[-1]["memorisation_error"] == whole["memorisation_error"]
    assert others[-1]["label_margin_drop"] == 0
    assert len(cli("swap", *pair, "--positions", "pooled", "--dry-run").records) == 4


def test_what_has_no_meaning_is_refused(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    pair = (tiny("bert", 1), tiny("bert", 2), noisy_rows)
    result = cli("swap", *pair, "--positions", "pooled", "--layers", "2-3")
    assert (result.code, result.err.splitlines()[-1]) == (
        2,
        "mltools: --positions takes states after layers 1 to l: --layers 1-3, not 2-3",
    )
    assert cli("swap", *pair, "--positions", "pooled", "--layers", "1", "--write", tmp_path / "mixed").code == 2
