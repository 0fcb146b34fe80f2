"""The bench's judge, on records that are known; and the page's tables, which are what the records kept give."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

import mltools

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/techniques.md").read_text()
KEPT = sorted((ROOT / "docs/bench").glob("*.jsonl.gz"))


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_table", ROOT / "examples/bench_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tags(planted: str, decoy: str) -> dict[str, Any]:
    return {"layers": 3, "dataset": "t", "seed": 1, "planted": planted, "decoy": decoy}


def window(name: str, reverted: float, drop: float, **of: Any) -> dict[str, Any]:
    start, end = name[0], name[-1]
    known = {"window": name, "start": int(start), "end": int(end), "width": int(end) - int(start) + 1}
    return {
        "tool": "swap",
        **known,
        "memorisation_error": reverted,
        "reverted": reverted,
        "label_margin_drop": drop,
        **of,
    }


def event(name: str, layer: int | None, label: str | None = None) -> dict[str, Any]:
    return {"tool": "centroid", "event": name, "layer": layer, "assigned_label": label, "original_label": label}


def test_each_technique_is_judged_by_its_own_records(bench: ModuleType) -> None:
    """Layer 2 of 3 holds the memory; swapping layer 3 lowers margins more, but undoes nothing."""
    of = tags("2", "none")
    spans = [(1, 1), (2, 2), (3, 3), (1, 2), (2, 3), (1, 3)]
    sweep = [window(f"{a}-{b}" if a < b else str(a), float(a <= 2 <= b), 3.0 * (b == 3) + a, **of) for a, b in spans]
    truth = [window("2", 1.0, 1.0, sweep="truth", **of), window("1-3", 0.25, 1.0, sweep="truth", **of)]
    states = [
        {**event("crossing", 3), **of},
        {**event("crossing", 2, "a"), **of},
        {**event("initiation", None), **of},
    ]
    change = [{"tool": "inspect", "layer": layer, "score": score, **of} for layer, score in enumerate([9.0, 0, 1, 1])]
    unlearnt = {"valid": False, "valid_reason": "noisy_not_memorised", **tags("1", "none")}
    failed = [window(name, 1.0, 1.0, **unlearnt) for name in ("1", "2", "3", "1-2", "2-3", "1-3")]
    lines = bench.tables([*sweep, *truth, *states, *change, *failed]).splitlines()
    assert lines[0] == "3 layers, single: t (seed 1)."
    assert {line.split("|")[1].strip(): line.split("|")[3].strip() for line in lines[4:10]} == {
        "swap, window mean": "1.00, 0.43, 0.00 (1)",
        "swap, solved": "1.00, 1.00, 0.00 (1)",
        "single swaps": "0.00, 0.22, 0.56 (1)",
        "weight change": "0.50, 0.50, 0.50 (1)",
        "centroid, crossing": "0.00, 0.00, 1.00 (1)",
        "centroid, initiation": "0.33, -, - (1)",
    }
    assert lines[13] == "3 layers, single, noisy_not_memorised: t (seed 1)."
    assert lines[11].endswith("reverts 1.00 to 1.00 of the noisy rows, only the others 0.25 to 0.25.")


def test_a_plant_that_failed_says_nothing_of_a_model_of_another_depth(bench: ModuleType) -> None:
    shallow, deep = tags("2", "none"), tags("2", "none") | {"layers": 4}
    sweep = [window(f"{a}-{b}", float(a <= 2 <= b), 1.0, **shallow) for a in (1, 2, 3) for b in range(a, 4)]
    why = {"valid": False, "valid_reason": "noisy_not_memorised"}
    unlearnt = [window(f"{a}-{b}", 1.0, 1.0, **deep, **why) for a in (1, 2, 3, 4) for b in range(a, 5)]
    found = bench.tables([*sweep, *unlearnt])
    headings = [line for line in found.splitlines() if line.endswith(".") and not line.startswith("-")]
    assert headings == ["3 layers, single: t (seed 1).", "4 layers, single, noisy_not_memorised: t (seed 1)."]


@pytest.mark.skipif(not KEPT, reason="no records here: not a checkout")
def test_the_pages_tables_are_what_the_records_give(bench: ModuleType) -> None:
    found = bench.tables([record for path in KEPT for record in bench.read(path)])
    assert found in PAGE, f"the page needs what examples/bench_table.py docs/bench/*.gz prints:\n{found}"


@pytest.mark.skipif(not KEPT, reason="no records here: not a checkout")
def test_the_pages_picture_is_what_plot_draws_of_a_plant(bench: ModuleType) -> None:
    (drawn,) = re.findall(r"^```text\n(.*?)^```", PAGE, flags=re.M | re.S)
    plant = {"layers": 6, "dataset": "trec", "seed": 1, "planted": "3", "decoy": "random"}
    records = [record for path in KEPT for record in bench.read(path) if plant.items() <= record.items()]
    for technique in ("swap, window mean", "shapley", "weight change"):
        frame = pl.DataFrame(bench.seen_by(technique, records), infer_schema_length=None)
        assert mltools.plot("layers", frame).strip() in drawn


def test_the_pages_costs_are_those_of_the_tables(bench: ModuleType) -> None:
    said = dict(re.findall(r"^\| (.+?) \|.*\| ([\d, ]+?)(?:; .*)? \|$", PAGE.split("\n## ")[0], flags=re.M))
    for line, technique in (
        ("`swap`, all windows", "swap, window mean"),
        ("single swaps by margin", "single swaps"),
        ("`attribute`", "attribute"),
        ("`grads`", "grads"),
        ("`probe`, `centroid`", "probe"),
    ):
        assert said[line] == ", ".join(f"{bench.COSTS[technique](n):,}" for n in (6, 12, 24))
