"""How the cost of tools grows with rows, layers, classes and the length of rows; CPU seconds of single runs.

    python benchmarks/growth.py > benchmarks/figures/growth.json

Random small models are enough: what is asked is the shape of growth, not the speed.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch

from conftest import WORDS, save_tiny, write_jsonl
from mltools import console
from mltools.commands.centroid.work import centroid
from mltools.commands.grads.work import grads
from mltools.commands.probe import Settings as ProbeSettings
from mltools.commands.probe.work import probe
from mltools.commands.swap.work import swap
from mltools.io.examples import read_examples
from mltools.io.inputs import Rows
from mltools.io.source import Source
from mltools.io.states import open_states
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.states import read_table, states
from mltools.spec import bare

ROWS, LAYERS, CLASSES, LENGTH = 256, 6, 6, 16


class Case:
    """Rows and two random models of a given size."""

    def __init__(self, folder: Path, rows: int, layers: int, classes: int, length: int) -> None:
        self.folder = folder
        names = [f"C{i:02d}" for i in range(classes)]
        generator = random.Random(0)
        table = []
        for i in range(rows):
            original = names[i % classes]
            noisy = i % 7 == 0
            label = generator.choice([n for n in names if n != original]) if noisy else original
            text = " ".join(generator.choices(WORDS, k=length - 2))
            table.append({"id": i, "text": text, "label": label, "original_label": original, "noisy": noisy})
        self.rows = write_jsonl(folder / "rows.jsonl", table)
        sizes: dict[str, Any] = {"num_hidden_layers": layers, "max_position_embeddings": 512}
        self.models = [str(save_tiny(folder / f"m{seed}", "bert", seed, names, **sizes)) for seed in (1, 2)]
        self.examples = read_examples(self.rows)

    def swap(self) -> None:
        list(swap(open_checkpoint(self.models[0]), open_checkpoint(self.models[1]), self.examples))

    def grads(self) -> None:
        list(grads(self.models[0], self.examples))

    def states(self) -> None:
        source = Rows(self.rows)
        table = read_table(source)
        opened = open_checkpoint(self.models[0], fresh_head=table.names)
        states(opened, source, table, self.folder / "states.safetensors")

    def centroid(self) -> None:
        with open_states(Source(self.folder / "states.safetensors")) as opened:
            list(centroid(opened))

    def probe(self) -> None:
        with open_states(Source(self.folder / "states.safetensors")) as opened:
            list(probe(opened, bare(ProbeSettings, epochs=30)))


def timed(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    console.configure(verbosity=-1)
    sizes = {
        "rows": [{"rows": n * ROWS} for n in (1, 2, 4)],
        "layers": [{"layers": n} for n in (6, 12, 24)],
        "classes": [{"classes": n} for n in (2, 6, 50)],
        "tokens a row": [{"length": n} for n in (16, 64, 256)],
    }
    found: list[dict[str, Any]] = []
    for what, changes in sizes.items():
        spent: dict[str, dict[str, float]] = {}
        for change in changes:
            with tempfile.TemporaryDirectory() as folder:
                size = {"rows": ROWS, "layers": LAYERS, "classes": CLASSES, "length": LENGTH, **change}
                case = Case(Path(folder), **size)
                if what == "tokens a row":  # the tokenizer of the tiny models stops at 64 tokens
                    for model in case.models:
                        settings = Path(model, "tokenizer_config.json")
                        settings.write_text(
                            settings.read_text().replace('"model_max_length": 64', '"model_max_length": 512')
                        )
                case.states()  # warms up
                for tool in ("swap", "grads", "states", "probe", "centroid"):
                    value = str(next(iter(change.values())))
                    spent.setdefault(tool, {})[value] = timed(getattr(case, tool))
        found += [{"tool": tool, "what": what, "seconds": seconds} for tool, seconds in spent.items()]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
