"""What starts at once stays so: heavy packages are imported by the commands that need them, when they need them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from conftest import toy_rows, write_jsonl
from mltools.cli.registry import command_names

HEAVY = frozenset({"torch", "transformers", "datasets", "sklearn", "accelerate", "safetensors", "huggingface_hub"})
FOR_WORK = frozenset({"scipy", "polars", "rich", "numpy", "matplotlib"})
HEAVY_BUT_NUMPY = HEAVY | (FOR_WORK - {"numpy"})
PROGRAM = """
import json, os, sys
from mltools.cli import main
told = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
for words in json.loads(sys.argv[1]):
    sys.argv = ["mltools", *words]
    status = main(words)
    line = json.dumps([status, sorted(name for name in sys.modules if "." not in name)])
    os.write(told, line.encode() + b"\\n")
"""
Words = tuple[object, ...]


def imported(*runs: Words, stdin: bytes = b"") -> Iterator[tuple[Words, int, set[str]]]:
    """Run the program several times in a fresh process: each run's status, and the modules imported until its end."""
    words = json.dumps([[str(word) for word in words] for words in runs])
    done = subprocess.run([sys.executable, "-c", PROGRAM, words], input=stdin, capture_output=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(runs)
    for run, line in zip(runs, lines, strict=True):
        status, modules = json.loads(line)
        yield run, status, set(modules)


def test_b48_help_imports_nothing_heavy() -> None:
    runs: list[Words] = [(), ("--version",), ("help",), *((name, "--help") for name in command_names())]
    for run, status, modules in imported(*runs):
        assert (status, modules & (HEAVY | FOR_WORK)) == (0, set()), run


def test_wrong_usage_imports_nothing_heavy() -> None:
    runs: dict[Words, int] = {
        ("nonsense",): 2,
        ("swap",): 2,
        ("swap", "a", "b", "rows", "--nonsense"): 2,
        ("swap", "a", "b", "rows", "--batch-size", "0"): 2,
        ("finetune", "a", "rows"): 2,
        ("retrain", "a", "b", "rows", "--preset", "nonsense"): 2,
        ("perturb", "no-such-file"): 5,
    }
    for run, status, modules in imported(*runs):
        assert (status, modules & HEAVY_BUT_NUMPY) == (runs[run], set()), run


def test_whole_runs_of_the_light_commands(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"label": row["original_label"]} for row in toy_rows(40)])
    windows = [
        {"tool": "swap", "layers": 2, "start": a, "end": b, "width": b - a + 1, "memorisation_error": 0.5}
        for a, b in ((1, 1), (1, 2), (2, 2))
    ]
    records = write_jsonl(tmp_path / "swap.jsonl", windows)
    runs: list[Words] = [
        ("perturb", rows),
        ("perturb", rows, "--preset", "released-code"),
        ("perturb", rows, "-o", tmp_path / "noisy.jsonl", "--provenance", tmp_path / "how.json"),
        ("perturb", "-"),
        ("mcog", records),
        ("mcog", records, "--by-layer"),
        ("windows", "12", "--width", "3"),
    ]
    for run, status, modules in imported(*runs, stdin=rows.read_bytes()):
        assert (status, modules & HEAVY_BUT_NUMPY) == (0, set()), run


def test_parquet_needs_its_libraries_alone(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"label": row["original_label"]} for row in toy_rows(40)])
    ((_, status, modules),) = imported(("perturb", rows, "-o", tmp_path / "noisy.parquet"))
    assert status == 0 and "polars" in modules
    assert not modules & (HEAVY | {"scipy", "rich", "matplotlib", "pandas"})
