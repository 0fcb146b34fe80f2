"""Choosing rows by a keyed hash of (seed, id): the same choice for any order of the rows. Needs no torch."""

import hashlib
import json
from collections.abc import Callable, Sequence

from mltools.io.rows import RowId


def keyed_hash(purpose: str, seed: int) -> Callable[[RowId], int]:
    """Build the function id -> uniform 128-bit number: BLAKE2b keyed by purpose and seed."""
    blank = hashlib.blake2b(digest_size=16, key=f"mltools {purpose} {seed}".encode())

    def digest(row_id: RowId) -> int:
        state = blank.copy()
        state.update(b"%d" % row_id if isinstance(row_id, int) else json.dumps(row_id).encode())
        return int.from_bytes(state.digest(), "big")

    return digest


def ranked(ids: Sequence[RowId], purpose: str, seed: int) -> list[int]:
    """Give the positions of the ids in a random order that depends on (purpose, seed, id) only."""
    digest = keyed_hash(purpose, seed)
    return sorted(range(len(ids)), key=lambda position: digest(ids[position]))
