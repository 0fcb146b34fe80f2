"""The faults that were found from outside, each as a script that shows it: what it must print now. Slow tier."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SHARED

CASES = SHARED / "cases"
PRINTS: dict[str, tuple[str, ...]] = {
    "01": (r"window 2: 0 of 40 predictions", r"window 1: 0 of 40 predictions", r"window 1-4: 0 of 40 predictions"),
    "05": (r"stock loads; missing", r"finetune: status 0", r"states: status 0"),
    "06": (r"swap: status [04]\b", r"finetune: status [04]\b"),
    "07": (r"RANK=1: status 0, 1 records, checkpoint: ft", r"(?s)status 0.*status 0.*status 0"),
    "09": (
        r"cl\.parquet ClassLabel\(names=\['neg', 'pos'\]\)",
        r"out\.parquet ClassLabel\(names=\['neg', 'pos'\]\)",
        r"(?s)pd\.parquet index: (\[.*?\]).*pdout\.parquet index: \1",
    ),
    "10": (r"(?s)(--tag lr=\S+: not a finite number.*){4}",),
    "11": (r"status [04]\b",),
    "12": (r'(?s)"id": 1180591620717411303424.*"id": ?"?1180591620717411303424',),
    "13": (r"lie head: .*float32 -> .*float32 largest change 0\.0", r"mixed head: .*float32 -> .*float32 .* 0\.0"),
    "14": (),
    "17": (),
    "18": (r"0 of \d+ noisy rows only changed by a blank",),
}
"""What each script prints; none of them a fault of ours."""
OR_REFUSES = {"01": r"mltools: noisy \(\w+\): .*passes between blocks", "18": "blank", "12": "at most 64 bits"}
"""What it may say instead: the true reason, before any work."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", PRINTS)
def test_case_from_outside(number: str, tmp_path: Path) -> None:
    if not CASES.is_dir():
        pytest.skip("the cases lie in a folder beside the project, which is not here")
    shutil.copy(CASES / "lib.py", tmp_path)
    folder = Path(shutil.copytree(CASES / number, tmp_path / number))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    environment = {**os.environ, "PY": sys.executable}
    done = subprocess.run(["sh", folder / "run.sh"], capture_output=True, text=True, env=environment)
    said = done.stdout + done.stderr
    print(f"\n{number}:\n{said}")
    assert "a fault in mltools" not in said and said.strip()
    if number in OR_REFUSES and re.search(OR_REFUSES[number], said):
        return
    for pattern in PRINTS[number]:
        assert re.search(pattern, said), (pattern, said)


def test_every_case_is_run_and_listed() -> None:
    text = (Path(__file__).parents[1] / "docs" / "reliability.md").read_text()
    assert re.findall(r"^\| (\d\d) \|", text, re.MULTILINE) == sorted(PRINTS) and f"all {len(PRINTS)} print" in text
    assert not CASES.is_dir() or {path.name for path in CASES.iterdir() if path.is_dir()} == PRINTS.keys()
