"""Waiting: what is being opened is said at once, one count goes over the whole run, and programs can read it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Cli
from mltools import console

Tiny = Callable[..., Path]


def told(cli: Cli, *words: object) -> list[dict[str, Any]]:
    """What --progress json says of a run, which says nothing else with -q."""
    result = cli(*words, "-q", "--progress", "json")
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.err.splitlines()]


def check_one_count(lines: list[dict[str, Any]], total: int, pieces: list[str]) -> None:
    """All lines are of one count from 0 to `total`, over all pieces."""
    assert {line["total"] for line in lines} == {total}
    done = [line["done"] for line in lines]
    assert done == sorted(done) and (done[0], done[-1]) == (0, total)
    assert list(dict.fromkeys(line["what"] for line in lines)) == pieces
    assert lines[0]["eta"] is None and lines[-1]["eta"] == 0
    assert all(line["seconds"] >= 0 and line["unit"] for line in lines)


def test_one_count_over_all_windows(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    words = ("retrain", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--epochs", 1, "--batch-size", 16)
    lines = told(cli, *words, "--layers", "1", "--layers", "1-2")
    check_one_count(lines, 4, ["window 1 (1/2)", "window 1-2 (2/2)"])


def test_one_count_over_all_epochs(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    words = ("finetune", tiny("bert", 1), noisy_rows, "--epochs", 3, "--batch-size", 16, "-o", tmp_path / "out")
    check_one_count(told(cli, *words), 9, ["epoch 1/3", "epoch 2/3", "epoch 3/3"])


def test_one_count_over_all_passes(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    words = ("grads", tiny("bert", 1), noisy_rows, "--frozen", tiny("bert", 2), "--min-noisy-accuracy", 0)
    check_one_count(told(cli, *words), 40, ["grads"])


def test_eta_and_lines_that_are_a_minute_apart(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """2 of 3 pieces of 4 items, 30 s each: the time left is that of all pieces that are left."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    console.configure(verbosity=0, progress="auto")
    progress = console.Progress()
    for piece in (1, 2):
        for _ in progress.track(range(4), 4, f"piece {piece}", "steps", pieces=4 - piece):
            now[0] += 30
    assert capfd.readouterr().err.splitlines() == [
        f"piece {piece}: {done}/12 steps (0.0333/s, {(12 - done) * 30} s left)"
        for piece, done in ((1, 2), (1, 4), (2, 6), (2, 8))
    ]
    console.configure(progress="none")
    assert list(progress.track(range(2), 2, "piece 3", "steps")) == [0, 1]
    assert capfd.readouterr().err == ""


def test_wrong_word(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    result = cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--progress", "jsn")
    assert result.code == 2 and '--progress "jsn": choose auto, json or none; did you mean json?' in result.err


def test_what_is_opened_is_said_first(tiny: Tiny, noisy_rows: Path) -> None:
    """On a terminal, before anything slow is imported; not on anything else."""
    code = (
        "import sys; from mltools.cli import main; from mltools import cli, console\n"
        "console.terminal = lambda stream=None: sys.argv[-1] == 'yes'\n"
        "slow = {'torch', 'polars', 'transformers', 'mltools.cli.driver'}\n"
        "say = cli.say_opening\n"
        "cli.say_opening = lambda *given: (say(*given), sys.exit(10 + len(slow & sys.modules.keys())))\n"
        "sys.exit(main(sys.argv[1:-1]))"
    )
    first, second = str(tiny("bert", 1)), str(tiny("bert", 2))
    swap = ["swap", first, second, str(noisy_rows)]
    for *words, terminal, said in (
        [*swap, "yes", f"swap: opening {', '.join(swap[1:])}\n"],
        [*swap, "no", ""],
        ["inspect", first, "yes", f"inspect: opening {first}\n"],
        ["decoy", first, "--like", second, "-o", "d", "yes", f"decoy: opening {first}\n"],
        ["plot", "heatmap", "swap.jsonl", "-o", "a.png", "yes", "plot: opening swap.jsonl\n"],
        ["report", "swap.jsonl", "-o", "a.html", "yes", "report: opening swap.jsonl\n"],
        ["mcog", "swap.jsonl", "yes", ""],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words, terminal], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (10, said)
