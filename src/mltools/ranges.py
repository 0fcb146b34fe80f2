"""The range that a number must lie in, written in its flag: `Flag("--gap", numbers=Range(0, 1), …)`."""

import math
import sys
from dataclasses import dataclass
from numbers import Integral, Real

from mltools.errors import UsageError

LARGEST = (1 << 63) - 1
"""The largest whole number that Parquet and every library here can hold."""
EXACT = 1 << 53
"""Floating-point numbers from here on may stand for several whole ones, which lose digits where a float holds them."""


@dataclass(frozen=True)
class Range:
    """Where a finite number may lie: both ends included, unless it must be `above` the low or `below` the high one."""

    low: float = 0
    high: float = math.inf
    above: bool = False
    below: bool = False
    whole: bool = False

    def holds(self, value: object) -> bool:
        """Say whether a value is a finite number in the range, and a whole one where it must be."""
        if not isinstance(value, Integral if self.whole else Real) or isinstance(value, bool):
            return False
        number: float = value  # type: ignore[assignment]
        low = self.low < number if self.above else self.low <= number
        high = number < self.high if self.below else number <= self.high
        return low and high and abs(number) <= sys.float_info.max

    def check(self, flag: str, value: object) -> None:
        """Check what a flag is given: None, a number, or several.

        Raises:
            UsageError: a number that the range does not hold.
        """
        for item in value if isinstance(value, tuple | list) else (value,):
            if item is not None and not self.holds(item):
                raise UsageError(f"{flag} {item}: write {self}")

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = f"above {self.low:.15g}" if self.above else f"from {self.low:.15g}"
        if self.high in (LARGEST, math.inf):
            return f"{kind} {low}" + (" up" if not self.above else "")
        join = " and below" if self.below else " and at most" if self.above else " to"
        return f"{kind} {low}{join} {self.high:.15g}"


def whole(low: int, high: int = LARGEST) -> Range:
    """Give the range of whole numbers from `low` to `high`."""
    return Range(low, high, whole=True)


def read_whole(text: str) -> int | None:
    """Read a whole number from 0 up, of ASCII digits; None if it is none, or longer than any that is used."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


THREADS = whole(1, 1024)
SPLITS = whole(1, 100_000)
