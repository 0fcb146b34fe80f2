"""How often a sweep goes over the rows, so that the records of its first windows need not wait for the last ones."""

import os
from collections.abc import Sequence
from itertools import pairwise

import torch

from mltools.layers import Window
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint

BYTES = 5
"""Memory that a kept number takes: in float32, and what tells how blocks were called besides."""
MOST_KEPT = 1 << 32


def can_keep(checkpoint: Checkpoint, encoded: Encoded) -> bool:
    """Whether the recorded passes of all rows take less than a quarter of the memory, and 4 GiB of the machine's."""
    device = checkpoint.runner.device
    if device.type == "cuda":
        room = int(torch.cuda.mem_get_info(device)[0]) // 4
    else:
        room = min(MOST_KEPT, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    return BYTES * int(encoded.lengths.sum()) * checkpoint.width * (checkpoint.n_layers + 1) < room


def passes(windows: Sequence[Window], n_layers: int, *, keeps: bool) -> list[list[int]]:
    """Sort the windows, by their places, into passes over the rows.

    A pass for each first layer, if what NOISY gives is kept between them (`Runner.keeping`). Else each takes L
    applications a row more, and there are no more passes than cost about a tenth more in all.
    """
    starts = [min(window.layers, default=1) for window in windows]
    found = [[place for place, own in enumerate(starts) if own == start] for start in sorted(set(starts))]
    most = len(found) if keeps else 1 + sum(n_layers - start + 1 for start in starts) // (20 * n_layers)
    cuts = [len(found) * number // most for number in range(most + 1)]
    merged = [[place for group in found[low:high] for place in group] for low, high in pairwise(cuts)]
    return [group for group in merged if group]
