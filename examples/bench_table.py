"""The table of a bench: `bench_table.py FOLDER` reads what bench.sh wrote there."""

import json
import sys
from pathlib import Path
from typing import Any

DECOYS = ("none", "random", "drift", "head")


def read(path: Path) -> list[dict[str, Any]]:
    """Read a file of records."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(folder: Path) -> str:
    """Give the table: a line a technique, and under each decoy accuracy@1, share on the planted, centre error."""
    scores = {(record["technique"], record["decoy"]): record for record in read(folder / "score.jsonl")}
    decoys = [decoy for decoy in DECOYS if any(found == decoy for _, found in scores)]
    lines = [
        "| technique | " + " | ".join(f"decoy: {decoy}" for decoy in decoys) + " |",
        "|---" * (len(decoys) + 1) + "|",
    ]
    for technique in dict.fromkeys(name for name, _ in scores):
        cells = [cell(scores.get((technique, decoy))) for decoy in decoys]
        lines.append(f"| {technique} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *truth(folder, decoys)])


def cell(record: dict[str, Any] | None) -> str:
    """Show one judgement: accuracy@1, share, centre error, and over how many plants."""
    if record is None:
        return ""
    numbers = (record["accuracy"], record["share"], record["centre_error"])
    shown = ", ".join("-" if number is None else f"{number:.2f}" for number in numbers)
    return f"{shown} ({record['n_groups']}{'' if record['valid'] is not False else ', not valid'})"


def truth(folder: Path, decoys: list[str]) -> list[str]:
    """Say what swapping only the planted layers, and only the others, reverts."""
    lines = []
    for decoy in decoys:
        pairs = [read(path) for path in sorted(folder.glob(f"*-{decoy}-truth.jsonl"))]
        own, other = ([pair[place]["reverted"] for pair in pairs] for place in (0, 1))
        lines.append(
            f"Decoy {decoy}: swapping only the planted layers reverts {min(own):.2f} to {max(own):.2f} of the noisy "
            f"rows, only the others {min(other):.2f} to {max(other):.2f}."
        )
    return lines


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1])) + "\n")
