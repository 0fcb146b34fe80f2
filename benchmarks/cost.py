"""What --dry-run estimates against what the work takes: seconds of CPU, one thread, start left out.

    python benchmarks/cost.py PRETRAINED ROWS [REPEAT]

ROWS are as perturb writes them. The estimate is the mean of one before the run and one after it, so that both see the
machine as it is then. The start (opening, checks, tokenising) is what ten of the rows take beyond their own estimate.
Prints a JSON line for each tool and repeat.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import mltools
from mltools import console

FEW = {True: 3, False: 7}
"""Noisy and clean rows of which the start is told."""


def estimate(tool: Callable[..., Any], *operands: str, **settings: Any) -> float:
    """Give the seconds that the dry run of one item says."""
    (item,) = tool(*operands, dry_run=True, **settings)
    return float(item.seconds)


def measure(tool: Callable[..., Any], *operands: str, **settings: Any) -> float:
    """Give the seconds of CPU that a run takes."""
    start = time.process_time()
    tool(*operands, **settings)
    return time.process_time() - start


def few_of(rows: Path, folder: Path) -> Path:
    """Write the first few of the noisy and of the clean rows."""
    lines = rows.read_text(encoding="utf-8").splitlines()
    groups = ([line for line in lines if json.loads(line)["noisy"] is noisy][:n] for noisy, n in FEW.items())
    path = folder / "few.jsonl"
    path.write_text("".join(f"{line}\n" for group in groups for line in group), encoding="utf-8")
    return path


def main(pretrained: str, rows: str, repeat: int = 3) -> None:
    """Compare each tool so many times."""
    console.configure(verbosity=-1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, numbers = few_of(Path(rows), folder), itertools.count()
        noisy = str(folder / "noisy")
        mltools.finetune(pretrained, rows, folder=noisy, epochs=1, learning_rate=3e-4)

        def new() -> str:
            return str(folder / f"out-{next(numbers)}.safetensors")

        tools: dict[str, Callable[[str], tuple[tuple[str, ...], dict[str, Any]]]] = {
            "finetune": lambda rows: ((pretrained, rows), {"folder": new(), "epochs": 2, "evaluate": "always"}),
            "swap": lambda rows: ((noisy, noisy, rows), {"layers": ["1-4"]}),
            "retrain": lambda rows: ((noisy, noisy, rows), {"layers": ["1-4"], "epochs": 2}),
            "grads": lambda rows: ((noisy, rows), {}),
            "states": lambda rows: ((noisy, rows), {"out": new()}),
        }
        for _, (tool, words) in itertools.product(range(repeat), tools.items()):
            run = getattr(mltools, tool)
            found = []
            for own in (str(few), rows):
                operands, settings = words(own)
                before, took = estimate(run, *operands, **settings), measure(run, *operands, **settings)
                operands, settings = words(own)
                found.append(((before + estimate(run, *operands, **settings)) / 2, took))
            (few_estimated, few_measured), (estimated, measured) = found
            start = few_measured - few_estimated
            took = measured - start
            record = {"estimated": estimated, "measured": took, "start": start, "ratio": estimated / took}
            rounded = {key: round(value, 3) for key, value in record.items()}
            sys.stdout.write(json.dumps({"tool": tool, **rounded}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
