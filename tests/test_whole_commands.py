"""Whole commands with odd options, damaged checkpoints and damaged records: each ends in a way that DESIGN knows.

What is drawn follows from a seed; WHOLE_COMMANDS=N runs N times as many. A run that fails prints its command line.
"""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cases import CASES
from conftest import Shell
from mltools.cli.registry import command_spec
from mltools.spec import Flag, flatten

RUNS = 150 * int(os.environ.get("WHOLE_COMMANDS", "1"))
STATUSES = {0, 1, 2, 3, 4, 5, 75}
WORDS = (
    *("nan", "inf", "-1", "0", "1", "2", ".5", "1e400", "99999999999999999999", "", "a", "a,b", "é\u202e", "\x1b[31m"),
    *("1-2", "2-1", "1-99", "1/2", "3/2", "-", "/dev/null", "/dev/full", "..", "~", "no such", "x" * 300, "%s", "{0}"),
    *("rows.jsonl", "noisy.jsonl", "noisy", "clean", "swap.jsonl", "states.safetensors", "noisy/model.safetensors"),
    *("x.csv", "x.parquet", "x.pdf", "x.svg", "x.safetensors", "k=v", "=v", "tool=a", "layer=3", "loss", "l2", "noise"),
    *("label", "text", "id", "cpu", "cuda:9", "auto", "10s", "null", "{}", "score", "layer", "tool", "released-code"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 99, 0.5, -0.0, 1e308, 5e-324, 1e-9, 2**53, 2**63, 10**30, "", "a", "1", "1-2"),
    *("NaN", "tool", "é\u202e", "../x", "float16", "bert", "gpt2", "BertModel", "regression", [], [1], {}, {"a": 1}),
)
RECORDS = (
    *("mcog R", "mcog R --by-layer", "mcog R --value label_margin_drop", "mcog R S", "mcog R -o x.parquet"),
    *("correlate R --value score --on layer", "correlate R S --value memorisation_error --on window --pivot part"),
    *("score R --truth 2", "score R --truth 1,2 --solved", "plot layers R", "plot heatmap R", "report R"),
    *("merge R", "merge R S", "generalise --merge R", "inspect R --json"),
)
MODELS = (
    *(
        "inspect M",
        "inspect M --json",
        "inspect M clean",
        "grads M noisy.jsonl",
        "states M noisy.jsonl -o s.safetensors",
    ),
    *(
        "swap M clean noisy.jsonl --layers 1",
        "swap noisy M noisy.jsonl --layers 1",
        "decoy M --layers 1 --like noisy -o o",
    ),
    *("finetune M noisy.jsonl --epochs 1 -o o", "retrain noisy M noisy.jsonl --layers 1 --epochs 1"),
    "attribute M clean noisy.jsonl --nodes 2 --gap 1",
)
NOT_FINITE = re.compile(r"\bNaN\b|\bInfinity\b")


@pytest.fixture
def attempt(shell: Shell, place: Path) -> Callable[[list[str]], None]:
    """Run a command line, and see that it ends as it may."""

    def run(words: list[str]) -> None:
        done = subprocess.run(
            [shell.program, *words], cwd=place, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
        )
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        errors = [line for line in err.splitlines() if re.match("mltools: (?!note: )", line)]
        why = f"{shlex.join(words)}\n{err}"
        assert done.returncode in STATUSES and "a fault in mltools" not in err and "Traceback" not in err, why
        assert len(errors) == (done.returncode not in (0, 75)), why
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", err), why
        if out.startswith("{"):  # records
            assert not NOT_FINITE.search(re.sub(r'"[^"]*"', "", out)), why

    return run


def damage(values: Any, draw: random.Random) -> None:
    """Change one value somewhere inside, leave it out, or put one in."""
    key = draw.choice(list(values) if isinstance(values, dict) else range(len(values)))
    inside, chance = values[key], draw.random()
    if isinstance(inside, dict | list) and inside and chance < 0.5:
        damage(inside, draw)
    elif chance < 0.8 or isinstance(values, list):
        values[key] = draw.choice(VALUES)
    elif chance < 0.9:
        del values[key]
    else:
        values[draw.choice(["x", "num_labels", "layer", "m_cog", "seed"])] = draw.choice(VALUES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_options_of_any_kind(attempt: Callable[[list[str]], None]) -> None:
    draw = random.Random(1)
    for _ in range(RUNS):
        name = draw.choice(sorted(CASES))
        case = CASES[name]
        words = shlex.split(f"{draw.choice([case.line, *case.more])} {case.needs.replace('OUT', 'out')} --force")
        marks = [each.mark for each in flatten(command_spec(name).settings)]
        flags = [mark for mark in marks if isinstance(mark, Flag) and mark.names]
        for flag in draw.sample(flags, min(len(flags), draw.randint(0, 3))):
            words += [draw.choice(flag.names), *([draw.choice(WORDS)] if flag.metavar else [])]
        if draw.random() < 0.4:
            words[draw.randrange(len(words))] = draw.choice(WORDS)
        attempt([name, *words])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_records_that_somebody_damaged(attempt: Callable[[list[str]], None], place: Path) -> None:
    draw = random.Random(2)
    kept = [(place / f"{name}.jsonl").read_text().splitlines() for name in ("swap", "grads", "halves")]
    for _ in range(RUNS):
        for name in ("R.jsonl", "S.jsonl"):
            rows = [json.loads(line) for line in draw.choice(kept)]
            for row in draw.choices(rows, k=draw.randint(1, 3)):
                damage(row, draw)
            rows += draw.choices(rows, k=draw.randint(0, 1))
            (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        attempt([f"{word}.jsonl" if word in ("R", "S") else word for word in draw.choice(RECORDS).split()])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_checkpoints_that_somebody_damaged(attempt: Callable[[list[str]], None], place: Path) -> None:
    draw = random.Random(3)
    for _ in range(RUNS):
        shutil.rmtree(place / "M", ignore_errors=True)
        shutil.copytree(place / "noisy", place / "M")
        path = place / "M" / draw.choice(["config.json", "tokenizer_config.json", "tokenizer.json"])
        values = json.loads(path.read_text())
        damage(values, draw)
        path.write_text(json.dumps(values))
        shutil.rmtree(place / "o", ignore_errors=True)
        (place / "s.safetensors").unlink(missing_ok=True)
        attempt(draw.choice(MODELS).split())
