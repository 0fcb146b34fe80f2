"""What must not matter does not: batch size, padding side, order of rows, shards, threads, format of the rows.

Each tool runs on tiny models of every architecture as `Setting()` says; whatever else a setting says, the results stay
the same to rounding. The fast tier changes all of it at once, each tool on an architecture of its own; the slow tier
tries every setting alone, of every tool on every architecture.
"""

import functools
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from conftest import BY_ARCHITECTURE, save_tiny, toy_rows, write_jsonl
from mltools.commands.finetune import Settings as FinetuneSettings
from mltools.commands.finetune.work import finetune
from mltools.commands.grads import Settings as GradsSettings
from mltools.commands.grads.work import grads
from mltools.commands.retrain import Settings as RetrainSettings
from mltools.commands.retrain.work import retrain
from mltools.commands.swap import Settings as SwapSettings
from mltools.commands.swap.predictions import SwapResult
from mltools.commands.swap.work import swap
from mltools.io.examples import read_examples
from mltools.io.inputs import Rows
from mltools.layers import Window
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.classes import target_indices
from mltools.model.inference import predict
from mltools.model.states import Extraction, read_table, states
from mltools.spec import bare

TOLERANCE = 1e-5
"""Of a number, relative to the largest of its kind."""
N_ROWS = 20
Result = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Setting:
    """How a tool is run, in what must not matter."""

    batch_size: int | None = 8
    left_padding: bool = False
    shuffled: bool = False
    shards: bool = False
    threads: int = 1
    parquet: bool = False


SETTINGS = {
    "batches of 1": Setting(batch_size=1),
    "batches of 3": Setting(batch_size=3),
    "automatic batches": Setting(batch_size=None),
    "left padding": Setting(left_padding=True),
    "shuffled rows": Setting(shuffled=True),
    "shards": Setting(shards=True),
    "two threads": Setting(threads=2),
    "Parquet": Setting(parquet=True),
    "all at once": Setting(3, True, True, True, 2, True),
}


class Laboratory:
    """Checkpoints and rows in the forms that the settings ask for, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cache  # noqa: B019  lives as long as the tests
    def checkpoint(self, architecture: str, seed: int, left_padding: bool, shards: bool) -> str:
        from transformers import AutoModelForSequenceClassification

        path = self._folder / f"{architecture}-{seed}-{left_padding}-{shards}"
        save_tiny(path, architecture, seed, padding_side="left" if left_padding else "right", dropout=False)
        if shards:
            model = AutoModelForSequenceClassification.from_pretrained(path)
            (path / "model.safetensors").unlink()
            model.save_pretrained(path, max_shard_size="40KB")
            assert len(list(path.glob("model-*.safetensors"))) > 1
        return str(path)

    @functools.cache  # noqa: B019
    def rows(self, shuffled: bool, parquet: bool) -> Path:
        import polars as pl

        rows = toy_rows(N_ROWS, noise_every=3)
        if shuffled:
            random.Random(1).shuffle(rows)
        path = self._folder / f"rows-{shuffled}-{parquet}.{'parquet' if parquet else 'jsonl'}"
        if parquet:
            pl.DataFrame(rows).write_parquet(path)
            return path
        return write_jsonl(path, rows)

    def run(self, tool: str, architecture: str, setting: Setting) -> Result:
        noisy, other = (self.checkpoint(architecture, s, setting.left_padding, setting.shards) for s in (1, 2))
        before = torch.get_num_threads()
        torch.set_num_threads(setting.threads)
        try:
            return TOOLS[tool](noisy, other, self.rows(setting.shuffled, setting.parquet), setting, self._folder)
        finally:
            torch.set_num_threads(before)

    @functools.cache  # noqa: B019
    def usual(self, tool: str, architecture: str) -> Result:
        return self.run(tool, architecture, Setting())


def numbers(records: list[Any]) -> Result:
    """Take every number out of records, one array a column; but for that of the threads, which is a setting."""
    rows = [asdict(record) for record in records]
    kept = [key for key, value in rows[0].items() if isinstance(value, int | float) and key != "threads"]
    return {key: np.array([row[key] for row in rows], dtype=np.float64) for key in kept}


def by_id(ids: list[Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """Put rows into the order of their ids."""
    return values[np.argsort(ids)].astype(np.float64)


def run_swap(noisy: str, clean: str, rows: Path, setting: Setting, _: Path) -> Result:
    examples, result = read_examples(rows), SwapResult()
    config = bare(SwapSettings, batch_size=setting.batch_size)
    records = list(swap(open_checkpoint(noisy), open_checkpoint(clean), examples, (), config, result=result))
    assert min(result.margin.flat) > 1e-4, "a tie, which rounding decides"
    per_row: dict[str, NDArray[Any]] = {"predicted": result.predicted.T, "margin": result.margin.T}
    return numbers(records) | {key: by_id(examples.ids, values) for key, values in per_row.items()}


def run_grads(noisy: str, other: str, rows: Path, setting: Setting, _: Path) -> Result:
    config = bare(GradsSettings, batch_size=setting.batch_size)
    return numbers(list(grads(noisy, read_examples(rows), config, frozen=other, threads=setting.threads)))


def run_states(noisy: str, _: str, rows: Path, setting: Setting, folder: Path) -> Result:
    source, out = Rows(rows), folder / "states.safetensors"
    table = read_table(source)
    checkpoint = open_checkpoint(noisy, fresh_head=table.names)
    states(checkpoint, source, table, out, Extraction(batch_size=setting.batch_size))
    found = load_file(out)
    columns = ("hidden_states", "label", "original_label", "noisy")
    return {name: by_id(list(table.ids), found[name]) for name in columns}


def run_retrain(noisy: str, other: str, rows: Path, setting: Setting, _: Path) -> Result:
    """The batch size of training is a setting that matters; what must not is how its batches are cut up."""
    config = bare(RetrainSettings, epochs=2, learning_rate=1e-3, micro_batch=setting.batch_size)
    windows = [Window((2, 3)), Window((4,))]
    return numbers(list(retrain(open_checkpoint(noisy), open_checkpoint(other), read_examples(rows), windows, config)))


def run_finetune(noisy: str, _: str, rows: Path, setting: Setting, folder: Path) -> Result:
    """Train one epoch and measure; then measure as the batch size says."""
    out, examples = folder / "finetuned", read_examples(rows)
    shutil.rmtree(out, ignore_errors=True)
    config = bare(
        FinetuneSettings,
        epochs=1,
        learning_rate=1e-3,
        micro_batch=setting.batch_size,
        evaluate="always",
        threads=setting.threads,
    )
    records = list(finetune(noisy, examples, out, config, validation=examples))
    trained = open_checkpoint(str(out))
    targets = target_indices(examples.labels, trained.labels, examples)
    encoded = trained.encode(examples, 64)
    logits = predict(trained.runner, encoded, np.arange(len(targets)), setting.batch_size)
    return numbers(records) | {"logits": by_id(examples.ids, logits)}


TOOLS: Mapping[str, Callable[[str, str, Path, Setting, Path], Result]] = {
    "swap": run_swap,
    "grads": run_grads,
    "states": run_states,
    "retrain": run_retrain,
    "finetune": run_finetune,
}
TRAINS = ("retrain", "finetune")


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return Laboratory(tmp_path_factory.mktemp("laboratory"))


def check(laboratory: Laboratory, tool: str, architecture: str, setting: Setting) -> None:
    expected, found = laboratory.usual(tool, architecture), laboratory.run(tool, architecture, setting)
    assert expected.keys() == found.keys()
    # after AdamW's first steps, which divide by the gradient's size, rounding is larger
    tolerance = 30 * TOLERANCE if tool in TRAINS else TOLERANCE
    for key, values in expected.items():
        gap = np.abs(found[key] - values).max() / max(1.0, np.abs(values).max())
        assert gap <= tolerance, (tool, architecture, setting, key, gap)


ONE_EACH = {"swap": "gpt2", "grads": "modernbert", "states": "llama", "retrain": "bert", "finetune": "opt"}
"""An architecture for each tool: encoders and decoders, absolute positions and rotary ones."""


@pytest.mark.parametrize("tool", TOOLS)
def test_what_must_not_matter_does_not(laboratory: Laboratory, tool: str) -> None:
    check(laboratory, tool, ONE_EACH[tool], SETTINGS["all at once"])


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("architecture", BY_ARCHITECTURE)
@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_architecture_and_setting(
    laboratory: Laboratory, tool: str, architecture: str, setting: str
) -> None:
    check(laboratory, tool, architecture, SETTINGS[setting])
