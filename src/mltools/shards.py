"""Items of work as parts of a whole: what an item is known by, which items a shard does, how much time there is."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from itertools import accumulate
from math import fsum
from typing import TypeVar

from mltools.errors import UsageError

T = TypeVar("T")


def item_digest(run: str | None, options: str) -> str | None:
    """Give what an item of work is known by, wherever it is done: of the run's digest and the item's own options.

    Args:
        run: digest of the settings and inputs that the items share (`Run.digest`); None where that is not known.
        options: those that make the command do this item alone, as `--layers 2-4`.
    """
    return hashlib.sha256(f"{run} {options}".encode()).hexdigest()[:12] if run is not None else None


def parse_shard(text: str) -> tuple[int, int]:
    """Read `--shard`: I/N, the I-th of N parts, from 1.

    Raises:
        UsageError: it is none.
    """
    if not re.fullmatch(r"[0-9]{1,6}/[0-9]{1,6}", text, re.ASCII):
        raise UsageError(f'--shard "{text}": write I/N, as 2/8 for the second of 8 parts')
    place, total = map(int, text.split("/"))
    if not 1 <= place <= total:
        raise UsageError(f'--shard "{text}": the first number lies in 1-{total}')
    return place, total


def in_shard(items: Sequence[T], costs: Sequence[float], shard: tuple[int, int] | None) -> list[T]:
    """Take a shard's items: N runs of neighbours, which share states, cut where their costs add up to I/N of all.

    Every item is in one shard, whichever is asked for; a shard is empty where one item costs more than a share.
    """
    if shard is None:
        return list(items)
    place, total = shard
    whole = fsum(costs) or 1.0
    middles = (after - cost / 2 for after, cost in zip(accumulate(costs), costs, strict=True))
    places = (min(int(total * middle / whole), total - 1) for middle in middles)
    return [item for item, its in zip(items, places, strict=True) if its == place - 1]


UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Read a length of time in seconds: `90`, `90s`, `10m`, `1h30m`, `1d`.

    Raises:
        UsageError: it is none, or 0.
    """
    parts = re.findall(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if (
        "".join(number + unit for number, unit in parts) != text
        or not seconds
        or (len(parts) > 1 and not all(unit for _, unit in parts))
    ):
        raise UsageError(f'--time-left "{text}": write a length of time, as 10m, 1h30m or 90s')
    return seconds


CHOICES = ("--layers", "--run", "--shard", "--resume", "--time-left")
PLANS = ("-n", "--dry-run")
"""What says which items of work a call does, and that it only lists them."""


def item_line(command: Sequence[str]) -> str:
    """Give a command line as provenance keeps it, without what chooses items: an item's own options go behind it."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word in CHOICES:
            next(words, None)
        elif word not in PLANS and word.partition("=")[0] not in CHOICES:
            kept.append(word)
    return shlex.join(kept)
