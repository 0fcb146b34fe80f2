"""Compare what the tools gave on a device with what they gave on the CPU, and the time that was estimated.

python benchmarks/gpu_results.py FOLDER DEVICE

FOLDER is what gpu.sh filled. Ends with an assertion error where results differ by more than rounding explains.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

DRIFT = 0.1
"""By how much a retrained window's error may differ, and a row: rounding grows from step to step."""
SCORE, STATES = 1e-3, 1e-2


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare(folder: Path, device: str) -> None:
    """Check swap, retrain, grads and states of a model."""
    pairs = {
        tool: zip(*(records(folder / f"{tool}-{place}.jsonl") for place in (device, "cpu")), strict=True)
        for tool in ("swap", "retrain", "grads")
    }
    for one, other in pairs["swap"]:
        allowed = (one["n_ties"] + other["n_ties"] + 1) / one["n_noisy"]
        assert abs(one["memorisation_error"] - other["memorisation_error"]) <= allowed, (one, other)
    for one, other in pairs["retrain"]:
        assert abs(one["memorisation_error"] - other["memorisation_error"]) <= DRIFT + 1 / one["n_noisy"], (one, other)
    for one, other in pairs["grads"]:
        assert abs(one["score"] - other["score"]) < SCORE, (one, other)
    states = [load_file(folder / f"states-{place}.safetensors")["hidden_states"] for place in (device, "cpu")]
    gap = abs(states[0] - states[1]).max()
    assert gap < STATES, gap
    print(f"{folder}: results agree with the CPU's (largest difference of states {gap:.2g})")


def tell_estimate(folder: Path, device: str) -> None:
    """Print what retraining all windows was estimated to take, and how far the estimate of a few was off."""
    all_windows, few = (
        float(re.findall(r"estimated_seconds=(\S+)", (folder / f"{name}.plan").read_text())[-1])
        for name in ("all", "few")
    )
    took = float((folder / f"retrain-{device}.seconds").read_text())
    print(
        f"{folder}: retraining all windows takes {all_windows:.0f} s by the dry run; a few took {took:.1f} of {few:.1f}"
    )


if __name__ == "__main__":
    compare(Path(sys.argv[1]), sys.argv[2])
    tell_estimate(Path(sys.argv[1]), sys.argv[2])
