"""swap --precision bf16: the labels of float32, near ties run again, and float32 with a note where it is no gain."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

from conftest import Cli
from mltools.commands.swap import predictions
from mltools.io.examples import read_examples
from mltools.model import reduced
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.window_tree import window_logits

Tiny = Callable[..., Path]
PRECISE = {"run", "item_digest", "precision", "n_rerun", "label_margin", "label_margin_drop"}


@pytest.fixture
def gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bfloat16 be faster, whatever the processor."""
    monkeypatch.setattr(predictions, "gain", lambda *_: 2.0)


def others(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All columns but those that say what was computed with."""
    return [{name: value for name, value in record.items() if name not in PRECISE} for record in records]


@pytest.mark.usefixtures("gain")
@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        pytest.param("bert", (), marks=pytest.mark.slow),
        pytest.param("llama", (), marks=pytest.mark.slow),
        pytest.param("gpt2", ("--batch-size", 3), marks=pytest.mark.slow),
        pytest.param("bert", ("--part", "attn"), marks=pytest.mark.slow),
        pytest.param("bert", ("--positions", "others"), marks=pytest.mark.slow),
        pytest.param("bert", ("--layers", "2-3", "--clean-rows", 9), marks=pytest.mark.slow),
    ],
)
def test_labels_are_float32s(
    architecture: str, options: tuple[Any, ...], cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """Every prediction of every row, and all that is counted from them; margins are null, and it says what was run."""
    files = tmp_path / "full.parquet", tmp_path / "low.parquet"
    command = ("swap", tiny(architecture, 1), tiny(architecture, 2), noisy_rows, *options)
    full = cli(*command, "--per-row", files[0])
    low = cli(*command, "--per-row", files[1], "--precision", "bf16")
    assert low.code == 0, low.err
    assert others(low.records) == others(full.records)
    first, second = map(read_rows, files)
    assert (first["predicted"] == second["predicted"]).all()
    assert 0 < np.abs(first["margin"] - second["margin"]).max() < 0.5
    for record, other in zip(low.records, full.records, strict=True):
        assert (record["precision"], other["precision"], other["n_rerun"]) == ("bf16", "fp32", None)
        assert record["label_margin"] is record["label_margin_drop"] is None and other["label_margin"] is not None
        assert 0 <= record["n_rerun"] <= record["n_noisy"] + record["n_clean"]


@pytest.fixture
def coarse(gain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reduced weights be off by some percent, so that labels do differ."""

    def made(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        generator = torch.Generator().manual_seed(0)
        copies = reduced.reduced(checkpoints)
        with torch.no_grad():
            for parameter in (p for each in copies[:2] for p in each.model.parameters()):
                parameter *= 1 + 0.01 * torch.randn(parameter.shape, generator=generator)
        return copies

    monkeypatch.setattr(predictions, "reduced", made)


@pytest.mark.usefixtures("coarse")
def test_rows_near_a_tie_are_those_run_again(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a second run labels differ, with it none does; run again is what lies within twice the error."""
    path = tmp_path / "rows.parquet"
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--per-row", path, "--force")
    cli(*command)
    full = read_rows(path)
    measured = reduced.largest_error
    found = list[float]()

    def largest(*given: Any, **named: Any) -> float:
        found.append(measured(*given, **named))
        return found[-1]

    monkeypatch.setattr(predictions, "largest_error", lambda *_: 0.0)
    once = cli(*command, "--precision", "bf16")
    low = read_rows(path)
    assert {record["n_rerun"] for record in once.records} == {0}
    assert (full["predicted"] != low["predicted"]).any()
    monkeypatch.setattr(predictions, "largest_error", largest)
    twice = cli(*command, "--precision", "bf16")
    mended = read_rows(path)
    assert (mended["predicted"] == full["predicted"]).all()
    error = np.abs(low["margin"] - np.where(low["predicted"] == full["predicted"], 1, -1) * full["margin"])
    again = np.zeros(480, bool)
    for place in range(10):  # rows by windows
        own, limit = slice(place, None, 10), 4 * found[0]
        while (near := low["margin"][own] < limit).any() and 2 * error[own][near].max() > limit:
            limit = 2 * error[own][near].max()
        again[own] = near
        assert twice.records[place]["n_rerun"] == near.sum()
    assert np.allclose(mended["margin"], np.where(again, full["margin"], low["margin"]), atol=1e-4)
    assert 0 < again.sum() < 480


def read_rows(path: Path) -> dict[str, NDArray[Any]]:
    """Read what --per-row wrote."""
    return {name: column.to_numpy() for name, column in pl.read_parquet(path).to_dict().items()}


@pytest.mark.parametrize("times", [1.0])
def test_where_it_is_not_faster_float32_is_used(
    times: float, cli: Cli, tiny: Tiny, noisy_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "gain", lambda *_: times)
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows)
    low, full = cli(*command, "--precision", "bf16"), cli(*command)
    assert f"--precision bf16: matrix products are {times:.2g} times as fast in bfloat16 here, 1.25 are" in low.err
    own = {"run": None, "item_digest": None}
    assert [{**record, **own} for record in low.records] == [{**record, **own} for record in full.records]


@pytest.mark.usefixtures("gain")
@pytest.mark.parametrize("error", [RuntimeError('"triu" not implemented for BFloat16'), float("nan")])
def test_what_cannot_be_had_in_bfloat16_is_run_in_float32(
    error: Any, cli: Cli, tiny: Tiny, noisy_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def largest(*_: object) -> float:
        if isinstance(error, Exception):
            raise error
        return float(error)

    monkeypatch.setattr(predictions, "largest_error", largest)
    done = cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--precision", "bf16")
    assert done.code == 0 and {record["precision"] for record in done.records} == {"fp32"}
    assert ("not implemented" if isinstance(error, Exception) else "no finite numbers") in done.err
    assert "the sweep runs in float32" in done.err


@pytest.mark.slow
def test_the_gain_is_measured() -> None:
    assert 0 < reduced.gain(64, torch.device("cpu")) < 100


def test_copies_are_of_their_own_and_share_what_the_originals_share(tiny: Tiny) -> None:
    """The donor is CLEAN, so its copy is CLEAN's; weights are bfloat16, buffers as they were, originals untouched."""
    noisy, clean = (open_checkpoint(str(tiny("llama", seed))) for seed in (1, 2))
    before = [p.clone() for p in noisy.model.parameters()]
    low = reduced.reduced([noisy, clean, clean])
    assert low[1].stack.modules is low[2].stack.modules and low[0].runner.model is low[0].model
    assert low[0].stack.modules is low[0].model.get_submodule(low[0].stack.path)
    assert {p.dtype for p in low[0].model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in low[0].model.buffers()} == {b.dtype for b in noisy.model.buffers()}
    assert all(torch.equal(*pair) for pair in zip(before, noisy.model.parameters(), strict=True))
    for copied, own in zip(low[1].model.parameters(), clean.model.parameters(), strict=True):
        assert torch.equal(copied, own.to(torch.bfloat16)) and copied.data_ptr() != own.data_ptr()


@pytest.mark.usefixtures("gain")
@pytest.mark.slow
def test_the_error_is_that_of_the_worst_logit(tiny: Tiny, noisy_rows: Path) -> None:
    """Equal models err nowhere; a head of CLEAN that favours a class by .5 more shows as .5."""
    noisy, clean = (open_checkpoint(str(tiny("bert", seed))) for seed in (1, 2))
    examples = read_examples(noisy_rows)
    encoded = noisy.encode(examples, 64)
    sides = [noisy, clean, clean]
    assert reduced.largest_error(sides, sides, encoded, examples.ids, window_logits) == 0
    other = open_checkpoint(str(tiny("bert", 2)))
    with torch.no_grad():
        other.model.classifier.bias[1] += 0.5
    found = reduced.largest_error(sides, [noisy, other, clean], encoded, examples.ids, window_logits)
    assert found == pytest.approx(0.5, abs=1e-5)
    with torch.no_grad():
        other.model.classifier.bias[1] = float("nan")
    assert np.isnan(reduced.largest_error(sides, [noisy, other, clean], encoded, examples.ids, window_logits))


@pytest.mark.usefixtures("gain")
def test_logits_that_are_no_numbers_are_run_again(
    cli: Cli, tiny: Tiny, noisy_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap that is no number is certain of nothing, wherever outside the sample it occurs."""
    walked = predictions.Walker.walked

    def broken(self: predictions.Walker, *arguments: Any, **options: Any) -> Any:
        found = walked(self, *arguments, **options)
        if next(self.sides.noisy.model.parameters()).dtype == torch.bfloat16:
            found.predicted[:, 0], found.margin[:, 0] = 9, np.nan
            if found.donor is not None and found.donor_margin is not None:
                found.donor[0], found.donor_margin[0] = 9, np.nan
        return found

    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", "2-3")
    full = cli(*command)
    monkeypatch.setattr(predictions.Walker, "walked", broken)
    low = cli(*command, "--precision", "bf16")
    assert low.records[0]["precision"] == "bf16"
    assert others(low.records) == others(full.records)


def test_errors_of_gaps() -> None:
    """Of the class that the reduced logits choose: less far ahead, ahead of another class, behind."""
    logits = torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 2.5], [3.0, 3.5, 0.0], [1.0, 0.0, 0.0]])
    low = torch.tensor([[2.5, 1.0, 0.0], [3.0, 1.0, 0.0], [3.0, 2.5, 0.0], [1.0, 0.0, 0.0]])
    assert reduced.gap_errors(logits, low).tolist() == pytest.approx([0.5, 1.5, 1.0, 0.0])


@pytest.mark.slow
def test_another_precision_is_another_sweep(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "-q")
    (tmp_path / "half.jsonl").write_text(cli(*command, "--shard", "1/2").out)
    assert cli(*command, "--precision", "bf16", "--resume", tmp_path / "half.jsonl").code == 3
    assert cli(*command, "--precision", "bf16", "--offload").code == 2
