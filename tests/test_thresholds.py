"""benchmarks/thresholds.py: a ratio that fell by more than a third is named, and ends with status 1."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "thresholds.py"


def figures(folder: Path, **ratios: float) -> None:
    """Write the figures of some tools."""
    timings = [{"model": "m", "data": "d", "tool": tool, "ratio": ratio} for tool, ratio in ratios.items()]
    (folder / "bench-m.json").write_text(json.dumps({"machine": {}, "timings": timings}))


def test_a_ratio_that_falls_by_a_third_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    run = script["main"]
    for name, path in (("FIGURES", tmp_path), ("KEPT", tmp_path / "thresholds.json")):
        monkeypatch.setitem(run.__globals__, name, path)
    monkeypatch.setattr(sys, "argv", ["thresholds.py", "--write"])
    figures(tmp_path, swap=4.5, grads=3.0)
    assert run() == 0
    monkeypatch.setattr(sys, "argv", ["thresholds.py"])
    figures(tmp_path, swap=3.1, grads=2.1, new=0.1)
    assert run() == 0 and capsys.readouterr().err == ""
    figures(tmp_path, swap=2.9, grads=2.1)
    assert run() == 1
    assert capsys.readouterr().err == "m, d: swap is 2.9 times as fast as the plain way, less than 3\n"


def test_the_kept_figures_are_not_below_their_thresholds() -> None:
    script = runpy.run_path(str(SCRIPT))
    least = script["thresholds"]()
    assert least.keys() == {script["name_of"](timing) for timing in script["kept_timings"]()}
    assert script["fallen"](script["kept_timings"](), least) == []
