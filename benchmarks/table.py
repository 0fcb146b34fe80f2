"""Write docs/performance.md from the figures that bench.py and growth.py kept.

python benchmarks/table.py [--check]
"""

import json
import sys
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
over pairs of runs, and the first pair is not counted. Compare ratios, not seconds: the machine was shared.

*Applications* counts one block applied to one row as 1. *Share of the rate* is the work in matrix products, every block
counted whole, over our seconds and the matrix-product rate of one thread measured in the same run. It can come near 1
because the last block is computed for the pooled position only.
"""


def cells(values: list[object]) -> str:
    return "| " + " | ".join("" if value is None else str(value) for value in values) + " |"


def number(value: float | None, digits: int = 3) -> str | None:
    return None if value is None else f"{value:.{digits}g}"


def tools_table(report: dict[str, Any]) -> list[str]:
    head = [
        "tool",
        "rows",
        "ours, s",
        "plain, s",
        "times faster",
        "lowest-highest",
        "applications a row",
        "share of the rate",
        "what",
    ]
    lines = [cells([*head]), cells(["---"] * len(head))]
    for timing in report["timings"]:
        spread = f"{min(timing['ratios']):.3g}-{max(timing['ratios']):.3g}"
        share = None if timing["rate_share"] is None else f"{100 * timing['rate_share']:.0f} %"
        lines.append(
            cells(
                [
                    f"`{timing['tool']}`",
                    timing["rows"],
                    number(timing["ours"]),
                    number(timing["plain"]),
                    f"**{timing['ratio']:.3g}**",
                    spread,
                    number(timing["applications_per_row"], 4),
                    share,
                    timing["notes"],
                ]
            )
        )
    return lines


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
        machine = report["machine"]
        parts.append(f"## {report['model']}, {path.stem.removeprefix('bench-')}\n")
        parts.append("\n".join(tools_table(report)) + "\n")
        rate = report["timings"][-1]["matrix_rate"] / 1e9
        parts.append(
            f"torch {machine['torch']}, Python {machine['python']}, {machine['processor']}, one of "
            f"{machine['cores']} cores; matrix products {rate:.0f} GFLOP/s; highest memory of the process "
            f"{report['peak_mib']} MiB.\n"
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
