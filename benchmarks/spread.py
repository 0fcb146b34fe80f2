"""How near `--plan spread` comes to the centre that all windows give, and what it costs; seconds, and no model.

    python benchmarks/spread.py

Errors are drawn: layers have shares of the memory, a bump of some width and place on a little everywhere; a window's
error is the share of 60 noisy rows that lose theirs, each with the chance of the window's sum, which may saturate, or
of its square, third or fourth power: memory kept several times, that only wide windows undo. In real sweeps bumps were
broad, and single layers undid nothing: so half of the bumps are as wide as that. Each plan's centre of the
additive solution is compared with that of all windows. The cost of a window is L - start + 1
trained layers, as retrain counts them.
"""

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence

from mltools.analysis.additive import solve_additive
from mltools.layers import Span, Window, all_windows, planned_windows

ROWS, SWEEPS, SATURATION, POWERS = 60, 240, 1.3, (1, 2, 3, 4)
BUMPS = (0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
"""Widths of bumps, as shares of all layers."""
Plans = Mapping[str, Sequence[Window]]


def plans(n_layers: int) -> Plans:
    """Give the plans that are compared, all windows first."""

    def widths(*chosen: int) -> list[Window]:
        return sorted({window for width in chosen for window in all_windows(n_layers, width)})

    third, half, two_thirds = round(n_layers / 3), n_layers // 2, round(2 * n_layers / 3)
    chosen = [
        (1, third, two_thirds),
        (1, third),
        (1, half),
        (1, half, n_layers),
        (third, third + 1),
        (third, two_thirds + 1),
    ]
    return {
        "all": all_windows(n_layers),
        "spread": planned_windows(n_layers, "spread"),
        **{", ".join(map(str, each)): widths(*each) for each in chosen},
    }


def cost(windows: Sequence[Window], n_layers: int) -> int:
    """Count trained layers."""
    return sum(n_layers - window.start + 1 for window in windows)


def drawn_errors(n_layers: int, rng: random.Random) -> dict[Span, float]:
    """Draw the errors of all windows of one sweep."""
    centre, width = rng.uniform(1, n_layers), rng.choice(BUMPS) * n_layers
    bump = [math.exp(-(((layer - centre) / width) ** 2)) + 0.05 * rng.random() for layer in range(1, n_layers + 1)]
    gain, power = rng.uniform(1.0, SATURATION) / sum(bump), rng.choice(POWERS)
    return {
        (window.start, window.end): _lost(min(1.0, gain * sum(bump[window.start - 1 : window.end])) ** power, rng)
        for window in all_windows(n_layers)
    }


def _lost(chance: float, rng: random.Random) -> float:
    return sum(rng.random() < chance for _ in range(ROWS)) / ROWS


def distances(n_layers: int, compared: Plans) -> dict[str, list[float]]:
    """Give each plan's distances of its centre from that of all windows, in layers, one a sweep."""
    rng = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(SWEEPS):
        errors = drawn_errors(n_layers, rng)
        whole = solve_additive(errors, n_layers).centre
        for name, windows in compared.items():
            own = solve_additive({(w.start, w.end): errors[w.start, w.end] for w in windows}, n_layers).centre
            if whole is not None and own is not None:
                found[name].append(abs(own - whole))
    return found


def table(n_layers: int) -> Iterator[str]:
    """Yield the lines of the table of a model of so many layers."""
    compared = plans(n_layers)
    full = cost(compared["all"], n_layers)
    for name, values in distances(n_layers, compared).items():
        windows = compared[name]
        ratio = full / cost(windows, n_layers)
        median, ninth = statistics.median(values), statistics.quantiles(values, n=10)[-1]
        yield f"| {n_layers} | {name} | {len(windows)} | {ratio:.1f} | {median:.2f} | {ninth:.2f} |"


if __name__ == "__main__":
    print("| layers | widths | windows | times cheaper | median distance | 9 of 10 below |")
    print("|---|---|---|---|---|---|")
    for size in (6, 12, 24):
        print("\n".join(table(size)))
