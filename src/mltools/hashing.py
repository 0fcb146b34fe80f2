"""Choosing rows by a keyed hash of (seed, id): the same choice for any order of the rows. Needs no torch."""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mltools.io.columns import RowId
from mltools.io.examples import Examples

WORD = 0xFFFFFFFFFFFFFFFF
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
Word = TypeVar("Word", int, NDArray[Any])


def keyed_hash(purpose: str, seed: int) -> Callable[[RowId], int]:
    """Build the function id -> uniform 64-bit number, keyed by purpose and seed."""
    key = _key(purpose, seed)
    return lambda row_id: _mix(key + _word(row_id) & WORD)


def keyed_hashes(ids: Sequence[RowId], purpose: str, seed: int) -> NDArray[np.uint64]:
    """Give the `keyed_hash` of each id, (ids,)."""
    return _mix(_words(ids) + np.uint64(_key(purpose, seed)))


def ranked(ids: Sequence[RowId], purpose: str, seed: int) -> list[int]:
    """Give the positions of the ids in a random order that depends on (purpose, seed, id) only."""
    order: list[int] = keyed_hashes(ids, purpose, seed).argsort(kind="stable").tolist()
    return order


def draw_clean(examples: Examples, most: int | None) -> Examples:
    """Give all noisy rows and at most so many clean ones (None: all), in their order.

    Clean rows are drawn by a hash of their ids: the same in any order of the rows, and of fewer a part of more.
    """
    clean = [place for place, noisy in enumerate(examples.noisy) if not noisy]
    if most is None or len(clean) <= most:
        return examples
    drawn = {clean[place] for place in ranked([examples.ids[place] for place in clean], "clean rows", 0)[:most]}
    kept = [place for place, noisy in enumerate(examples.noisy) if noisy or place in drawn]
    return examples.take(kept, len(clean) - most)


def _key(purpose: str, seed: int) -> int:
    return _digest(f"mltools {purpose} {seed}")


def _words(ids: Sequence[RowId]) -> NDArray[np.uint64]:
    if set(map(type, ids)) == {int}:
        with contextlib.suppress(OverflowError):  # wider than 64 bits
            return np.fromiter(cast(Sequence[int], ids), np.int64, len(ids)).astype(np.uint64)
    integers = {row_id for row_id in ids if type(row_id) is int}
    return np.fromiter((_word(row_id, integers) for row_id in ids), np.uint64, len(ids))


def _word(row_id: RowId, others: Collection[RowId] = ()) -> int:
    """Give an integer as it is, be it written as text, as a table may do; and other text by its digest.

    So text whose integer is another row's id: the two would draw alike, and the order of the rows decide between them.
    """
    if isinstance(row_id, str) and INTEGER.fullmatch(row_id) and int(row_id) not in others:
        row_id = int(row_id)
    return row_id & WORD if isinstance(row_id, int) else _digest(json.dumps(row_id))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _mix(word: Word) -> Word:
    """Scatter 64-bit words (an integer or an array), one to one, as the SplitMix64 generator does its counter."""
    word = word * 0x9E3779B97F4A7C15 & WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31
