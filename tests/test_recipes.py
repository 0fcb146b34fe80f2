"""The scripts in examples/ run as printed, on a tiny model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from conftest import Shell

EXAMPLES = Path(__file__).parents[1] / "examples"
Tiny = Callable[..., Path]


def test_quickstart(shell: Shell, tiny: Tiny, tmp_path: Path) -> None:
    """The demo's script on another model and fewer epochs: ends with the heat map, the layers and M-CoG."""
    rows = EXAMPLES / "questions.jsonl"
    done = shell(f"{EXAMPLES}/quickstart.sh {rows} {tiny('bert')}", tmp_path, EPOCHS="1", LR="1e-3")
    assert done.code == 0, done.err
    assert "width    1    2    3    4" in done.out
    assert json.loads(done.out.splitlines()[-1])["tool"] == "swap"
    assert {p.name for p in (tmp_path / "demo").iterdir()} >= {
        "noisy.jsonl",
        "noisy",
        "clean",
        "swap.jsonl",
        "mcog.jsonl",
    }


def test_shell_reports_the_exit_status(shell: Shell, tmp_path: Path) -> None:
    done = shell("mltools swap nowhere/ nowhere/ nofile.jsonl", tmp_path)
    assert done.code == 5 and done.err == "mltools: no such file: nofile.jsonl\n"


def test_questions_are_what_they_should_be() -> None:
    lines = (EXAMPLES / "questions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    labels = [row["label"] for row in rows]
    assert len(rows) >= 360 and len({row["text"].lower() for row in rows}) == len(rows)
    assert {labels.count(x) for x in ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")} == {len(rows) // 6}
    assert shutil.which("bash")
