"""Judge a bench and write its tables: `bench_table.py FOLDER|RECORDS...`, of what bench.sh wrote or docs/bench keeps.

One table for each depth, of the single layers and then of the pairs. All judging is that of `mltools score`.
"""

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import mltools

MOST_EXACT = 10
"""Layers up to which `shapley` measures all sets of layers."""

Record = dict[str, Any]
DECOYS = ("none", "random", "drift", "head")

TECHNIQUES: dict[str, tuple[str, dict[str, Any]]] = {
    "swap, window mean": ("swap", {}),
    "swap, solved": ("swap", {"solved": True}),
    "single swaps": ("swap", {"value": ["label_margin_drop"]}),
    "shapley": ("shapley", {}),
    "attribute": ("attribute", {}),
    "weight change": ("inspect", {}),
    "grads": ("grads", {}),
    "centroid, crossing": ("centroid", {}),
    "centroid, initiation": ("centroid", {}),
    "retrain, window mean": ("retrain", {}),
    "retrain, solved": ("retrain", {"solved": True}),
    "probe": ("probe", {}),
}
"""The tool and the settings of `score` that each technique stands for."""

COSTS: dict[str, Callable[[int], int]] = {
    "swap, window mean": lambda n: n * (n + 1) * (n + 2) // 6 + n,
    "swap, solved": lambda n: n * (n + 1) * (n + 2) // 6 + n,
    "single swaps": lambda n: n * (n + 3) // 2,
    "shapley": lambda n: 2 ** (n + 1) - 2,
    "attribute": lambda n: 16 * 3 * n,
    "weight change": lambda _: 0,
    "grads": lambda n: 3 * n,
    "centroid, crossing": lambda n: n,
    "centroid, initiation": lambda n: n,
    "probe": lambda n: n,
}
"""Layer applications a noisy row, of L layers; a backward pass counts as two. Of `attribute`, if no row is refined."""


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a bench: of a file, or of all in a folder; those of other files there have no `planted`."""
    if path.is_dir():
        for file in sorted(path.glob("*.jsonl")):
            yield from read(file)
    else:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
        yield from (record for record in map(json.loads, lines) if "planted" in record)


def seen_by(technique: str, records: Iterable[Record]) -> list[Record]:
    """Choose what a technique is judged by."""
    tool, _ = TECHNIQUES[technique]
    own = [record for record in records if record["tool"] == tool and record.get("sweep") != "truth"]
    if technique == "single swaps":
        return [record for record in own if record["width"] == 1]
    if tool == "centroid":
        return [guess for event in own if event["event"] in technique for guess in guesses(event)]
    return [record for record in own if record.get("layer", 1)]  # neither embeddings nor head


def guesses(event: Record) -> Iterator[Record]:
    """Turn an event of all pairs of classes together into a guess: 1 for its layer, 0 for all others."""
    if event["assigned_label"] is None and event["original_label"] is None:
        tags = {name: event[name] for name in ("dataset", "seed", "planted", "decoy")}
        for layer in range(1, event["layers"] + 1):
            score = float(layer == event["layer"])
            yield {"tool": "centroid", "layer": layer, "layers": event["layers"], "score": score, **tags}


def judge(technique: str, records: Sequence[Record]) -> dict[str, Record]:
    """Judge a technique: a record of `score` by decoy."""
    seen = seen_by(technique, records)
    if not seen:
        return {}
    frame = pl.DataFrame(seen, infer_schema_length=None)
    found = mltools.score(frame, truth="planted", per=["decoy"], k=[1], **TECHNIQUES[technique][1])
    return {record["decoy"]: record for record in found.rows()}


def table(records: Sequence[Record]) -> str:
    """Give a table: a line a technique, and under each decoy accuracy@1, share on the planted, centre error."""
    judged = {technique: found for technique in TECHNIQUES if (found := judge(technique, records))}
    decoys = [decoy for decoy in DECOYS if any(decoy in found for found in judged.values())]
    lines = [
        "| technique | cost | " + " | ".join(f"decoy: {decoy}" for decoy in decoys) + " |",
        "|---" * (len(decoys) + 2) + "|",
    ]
    for technique, found in judged.items():
        cells = [cell(found[decoy]) if decoy in found else "" for decoy in decoys]
        lines.append(f"| {technique} | {cost(technique, records[0]['layers'])} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *truth(records, decoys)])


def cost(technique: str, n_layers: int) -> str:
    """Say what a technique costs; nothing of those whose cost is trainings, or up to how much is drawn."""
    known = technique in COSTS and (technique != "shapley" or n_layers <= MOST_EXACT)
    return f"{COSTS[technique](n_layers):,}" if known else ""


def cell(record: Record) -> str:
    """Show one judgement: accuracy@1, share, centre error, and over how many plants."""
    numbers = (record["accuracy"], record["share"], record["centre_error"])
    shown = ", ".join("-" if number is None else f"{number:.2f}" for number in numbers)
    return f"{shown} ({record['n_groups']})"


def truth(records: Iterable[Record], decoys: Iterable[str]) -> Iterator[str]:
    """Say what swapping only the planted layers, and only the others, reverts."""
    sweeps = [record for record in records if record.get("sweep") == "truth"]
    for decoy in decoys:
        both: tuple[list[float], list[float]] = ([], [])
        for record in sweeps:
            if record["decoy"] == decoy:
                both[record["window"] != str(record["planted"])].append(record["reverted"])
        own, other = both
        if own and other:
            yield (
                f"- Decoy {decoy}: swapping only the planted layers reverts {min(own):.2f} to {max(own):.2f} of the "
                f"noisy rows, only the others {min(other):.2f} to {max(other):.2f}."
            )


def case(record: Record) -> tuple[Any, ...]:
    """Name the plant, by its model's depth too, and the donor that a record compares it with."""
    return record["layers"], record["dataset"], record["seed"], record["planted"], record["decoy"]


def tables(records: Sequence[Record]) -> str:
    """Give all tables, each with its heading; cases whose records are invalid have tables of their own."""
    invalid = {case(record): f", {record['valid_reason']}" for record in records if record.get("valid") is False}
    kinds: dict[tuple[int, str, str], list[Record]] = {}
    for record in records:
        kind = "pairs" if "," in str(record["planted"]) else "single"
        kinds.setdefault((record["layers"], invalid.get(case(record), ""), kind), []).append(record)
    shown = []
    for (depth, why, kind), chosen in sorted(
        kinds.items(), key=lambda item: (item[0][0], item[0][1], item[0][2] < "s")
    ):
        tasks = sorted({f"{record['dataset']} (seed {record['seed']})" for record in chosen})
        shown.append(f"{depth} layers, {kind}{why}: {', '.join(tasks)}.\n\n{table(chosen)}")
    return "\n\n".join(shown)


if __name__ == "__main__":
    sys.stdout.write(tables([record for name in sys.argv[1:] for record in read(Path(name))]) + "\n")
