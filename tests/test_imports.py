"""What starts at once stays so: heavy packages are imported by the commands that need them, when they need them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import toy_rows, write_jsonl
from mltools.cli.app import COMMANDS

HEAVY = frozenset({"torch", "transformers", "datasets", "sklearn", "accelerate", "safetensors", "huggingface_hub"})
FOR_WORK = frozenset({"scipy", "polars", "rich", "numpy", "matplotlib"})
PROGRAM = """
import json, sys
sys.argv[0] = "mltools"
from mltools.cli import main
status = main()
print(json.dumps([status, sorted(name for name in sys.modules if "." not in name)]), file=sys.stderr)
"""


def imported(*words: object, stdin: bytes = b"") -> tuple[int, set[str]]:
    """Run the program alone in a process: its status, and the top-level modules that it imported."""
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    done = subprocess.run(command, input=stdin, capture_output=True, check=True)
    status, modules = json.loads(done.stderr.splitlines()[-1])
    return status, set(modules)


@pytest.mark.parametrize("words", [(), ("--version",), ("help",), *((name, "--help") for name in COMMANDS)], ids=str)
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    status, modules = imported(*words)
    assert status == 0
    assert not modules & (HEAVY | FOR_WORK)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nonsense",), 2),
        (("swap",), 2),
        (("swap", "a", "b", "rows", "--nonsense"), 2),
        (("swap", "a", "b", "rows", "--batch-size", "0"), 2),
        (("finetune", "a", "rows"), 2),
        (("retrain", "a", "b", "rows", "--preset", "nonsense"), 2),
        (("perturb", "no-such-file"), 5),
    ],
    ids=str,
)
def test_wrong_usage_imports_nothing_heavy(words: tuple[str, ...], expected: int) -> None:
    status, modules = imported(*words)
    assert status == expected
    assert not modules & (HEAVY | (FOR_WORK - {"numpy"}))


def test_whole_runs_of_the_light_commands(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"label": row["original_label"]} for row in toy_rows(40)])
    windows = [
        {"tool": "swap", "layers": 2, "start": a, "end": b, "width": b - a + 1, "memorisation_error": 0.5}
        for a, b in ((1, 1), (1, 2), (2, 2))
    ]
    records = write_jsonl(tmp_path / "swap.jsonl", windows)
    for words in (
        ("perturb", rows),
        ("perturb", rows, "--preset", "released-code"),
        ("perturb", rows, "-o", tmp_path / "noisy.jsonl", "--provenance", tmp_path / "how.json"),
        ("mcog", records),
        ("mcog", records, "--by-layer"),
        ("windows", "12", "--width", "3"),
    ):
        status, modules = imported(*words)
        assert status == 0
        assert not modules & HEAVY, (words, modules & HEAVY)
        assert not modules & (FOR_WORK - {"numpy"}), (words, modules & FOR_WORK)
    status, modules = imported("perturb", "-", stdin=rows.read_bytes())
    assert status == 0 and not modules & (HEAVY | (FOR_WORK - {"numpy"}))


def test_parquet_needs_polars_alone(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"label": row["original_label"]} for row in toy_rows(40)])
    status, modules = imported("perturb", rows, "-o", tmp_path / "noisy.parquet")
    assert status == 0 and "polars" in modules
    assert not modules & (HEAVY | {"scipy", "rich", "matplotlib", "pandas", "pyarrow"})
