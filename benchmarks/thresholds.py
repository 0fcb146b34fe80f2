"""Write what ratios must not fall below, or say which have: two thirds of those that were kept.

python benchmarks/thresholds.py [--write]

`make bench` ends with this. Only `--write` changes benchmarks/figures/thresholds.json, so that figures which are
measured anew do not lower what they are held against.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parent / "figures"
KEPT = FIGURES / "thresholds.json"
SHARE = 2 / 3


def name_of(timing: Mapping[str, Any]) -> str:
    """What was timed: model, data, tool."""
    return f"{timing['model']}, {timing['data']}: {timing['tool']}"


def fallen(timings: Iterable[Mapping[str, Any]], least: Mapping[str, float]) -> list[str]:
    """Say which ratios lie below their threshold; those that have none are passed over."""
    ratios = {name_of(timing): timing["ratio"] for timing in timings}
    return [
        f"{name} is {ratio:.3g} times as fast as the plain way, less than {least[name]:.3g}"
        for name, ratio in ratios.items()
        if ratio < least.get(name, 0)
    ]


def kept_timings() -> list[dict[str, Any]]:
    """All timings among the figures."""
    return [each for path in sorted(FIGURES.glob("bench-*.json")) for each in json.loads(path.read_text())["timings"]]


def thresholds() -> dict[str, float]:
    """The thresholds that were written."""
    found: dict[str, float] = json.loads(KEPT.read_text())
    return found


def main() -> int:
    """Write the thresholds, or compare the figures with them."""
    if "--write" in sys.argv:
        least = {name_of(timing): round(SHARE * timing["ratio"], 3) for timing in kept_timings()}
        KEPT.write_text(json.dumps(least, indent=1, sort_keys=True) + "\n")
        return 0
    found = fallen(kept_timings(), thresholds())
    print("\n".join(found), end="\n" * bool(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
