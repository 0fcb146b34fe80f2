"""A test fails for each change of meaning in mutants.toml: ten are tried in the slow tier, all by `make mutants`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def mutants(*options: str) -> str:
    words = [sys.executable, "scripts/mutants.py", *options]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_can_be_tried() -> None:
    assert int(mutants("--check").split()[-6]) >= 60


@pytest.mark.slow
def test_the_fixed_ones_die() -> None:
    """Ten, less those out of date."""
    killed, tried = mutants("--fixed", "--verbose", "--jobs", "2").split()[-3::2]
    assert killed == tried and int(tried) >= 8
