"""Write docs/performance.md from the figures that bench.py and growth.py kept.

python benchmarks/table.py [--check]
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "benchmarks" / "figures"

INTRODUCTION = """# Performance

*Made by `benchmarks/table.py` from the figures in `benchmarks/figures/`; `make bench` measures them anew.*

Each tool is timed beside the plain way of doing the same work after the paper's protocol: batches of 8 unsorted rows,
a window at a time, a probe at a time, a row at a time, one pass for each class pair and layer
(`benchmarks/plain.py`). Both run in one process, in turn, on one thread; seconds are CPU seconds, ratios are medians
over pairs of runs (their number in brackets); where runs take seconds, the first pair is not counted. Compare ratios,
not seconds: the machine was shared.

*Applications* counts one block applied to one row as 1. *Share of the rate* is the work in matrix products, every block
counted whole, over our seconds and the matrix-product rate of one thread measured in the same run. It can come near 1
because the last block is computed for the pooled position only. *Memory* is the most that the work took above the
models and rows that stood there before.
"""


def cells(values: list[object]) -> str:
    return "| " + " | ".join("" if value is None else str(value) for value in values) + " |"


def number(value: float | None, digits: int = 3) -> str | None:
    return None if value is None else f"{value:.{digits}g}"


def tools_table(timings: list[dict[str, Any]]) -> list[str]:
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "tool": lambda t: f"`{t['tool']}`",
        "rows": lambda t: t["rows"],
        "ours, s": lambda t: number(t["ours"]),
        "plain, s": lambda t: number(t["plain"]),
        "times faster": lambda t: f"**{t['ratio']:.3g}**",
        "lowest-highest": lambda t: f"{min(t['ratios']):.3g}-{max(t['ratios']):.3g} ({len(t['ratios'])})",
        "memory, MiB: ours, plain": lambda t: None if t["ours_mib"] is None else f"{t['ours_mib']}, {t['plain_mib']}",
        "applications a row": lambda t: number(t["applications_per_row"], 4),
        "share of the rate": lambda t: None if t["rate_share"] is None else f"{100 * t['rate_share']:.0f} %",
        "what": lambda t: t["notes"],
    }
    body = [cells([show(timing) for show in columns.values()]) for timing in timings]
    return [cells([*columns]), cells(["---"] * len(columns)), *body]


def growth_table(growth: list[dict[str, Any]]) -> list[str]:
    lines = [cells(["tool", "what grows", "seconds of CPU"]), cells(["---"] * 3)]
    for row in growth:
        seconds = ", ".join(f"{value}: {number(spent)}" for value, spent in row["seconds"].items())
        lines.append(cells([f"`{row['tool']}`", row["what"], seconds]))
    return lines


def page() -> str:
    parts = [INTRODUCTION]
    for path in sorted(FIGURES.glob("bench-*.json")):
        report = json.loads(path.read_text())
        machine, timings = report["machine"], report["timings"]
        parts.append(f"## {timings[0]['model']}, {timings[0]['data']}\n")
        parts.append("\n".join(tools_table(timings)) + "\n")
        rates = [timing["matrix_rate"] / 1e9 for timing in timings]
        parts.append(
            f"torch {machine['torch']}, Python {machine['python']}, {machine['processor']}, one of "
            f"{machine['cores']} cores; matrix products {min(rates):.0f}-{max(rates):.0f} GFLOP/s.\n"
        )
    growth = FIGURES / "growth.json"
    if growth.exists():
        parts.append("## How cost grows\n\nTiny or packaged models, one run each, CPU seconds.\n")
        parts.append("\n".join(growth_table(json.loads(growth.read_text()))) + "\n")
    notes = FIGURES / "notes.md"
    if notes.exists():
        parts.append(notes.read_text())
    return "\n".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
