"""Rows as token ids, cut into batches that are padded on the right by ourselves and chosen to waste nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mltools.errors import CheckpointError

CPU_TOKENS = 512
"""Tokens in an automatic batch on a CPU: twice what full speed takes, so that a batch can end with its length."""
CPU_ENOUGH = 256
"""Tokens from which a batch runs at full speed on one CPU core."""
ACCELERATOR_TOKENS = 32768


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right: `ids` and `mask` are (batch, length); `rows` are positions in the input."""

    rows: NDArray[np.int64]
    ids: Tensor
    mask: Tensor

    @property
    def last(self) -> Tensor:
        """Position of each row's last real token, (batch,)."""
        return last_real(self.mask)

    def __len__(self) -> int:
        return len(self.rows)

    def by_length(self) -> "list[tuple[Tensor, Batch]]":
        """Cut into batches of rows of one length, unpadded: where in this batch their rows are, and the batch."""
        lengths = self.last + 1
        found = []
        for length in sorted(set(lengths.tolist())):
            place = (lengths == length).nonzero()[:, 0]
            cut = Batch(self.rows[place.cpu().numpy()], self.ids[place, :length], self.mask[place, :length])
            found.append((place, cut))
        return found


def last_real(mask: Tensor) -> Tensor:
    """Give the position of the last 1 in each row of a mask (batch, length), whichever side is padded."""
    length = mask.shape[1]
    return length - 1 - mask.flip(1).to(torch.int8).argmax(dim=1)


class Encoded:
    """Token ids of all rows, and how to cut them into batches.

    A row without a token gets one (beginning-of-sequence, else the first special token there is), so that no
    row is lost.
    """

    def __init__(self, ids: list[list[int]], pad_id: int, vocabulary: int, empty_id: int, n_cut: int = 0) -> None:
        """Keep the ids of each row; `pad_id` is the tokenizer's padding token, `n_cut` how many rows were longer."""
        self.n_cut = n_cut
        self.n_empty = sum(not row for row in ids)
        self.ids = [row or [empty_id] for row in ids]
        self.lengths = np.array([len(row) for row in self.ids], dtype=np.int64)
        self._vocabulary = vocabulary
        self._pad_id = pad_id
        self._pad_is_text = any(pad_id in row for row in self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def with_ids(self, ids: list[list[int]]) -> "Encoded":
        """Give other rows of the same tokenizer."""
        return Encoded(ids, self._pad_id, self._vocabulary, 0)

    def batch(self, rows: Sequence[int] | NDArray[np.int64], device: torch.device) -> Batch:
        """Pad the given rows on the right into one batch."""
        chosen = [self.ids[i] for i in rows]
        length = max(map(len, chosen))
        pad = self.pad_for(chosen)
        ids = torch.full((len(chosen), length), pad, dtype=torch.long)
        mask = torch.zeros((len(chosen), length), dtype=torch.long)
        for i, row in enumerate(chosen):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        return Batch(np.asarray(rows, dtype=np.int64), ids.to(device), mask.to(device))

    def pad_for(self, chosen: Sequence[Sequence[int]]) -> int:
        """Choose a padding id that no real token of these rows has, since decoder heads look for it."""
        if not self._pad_is_text:
            return self._pad_id
        used = {token for row in chosen for token in row}
        if self._pad_id not in used:
            return self._pad_id
        free = next((token for token in range(self._vocabulary) if token not in used), None)
        if free is None:
            raise CheckpointError("a batch uses every token of the vocabulary; use a smaller --batch-size")
        return free

    def batches(
        self, rows: NDArray[np.int64], batch_size: int | None, device: torch.device, tokens: int | None = None
    ) -> Iterator[Batch]:
        """Yield batches of rows of like length, those with most tokens first.

        So each batch fits into the memory that the one before it gave back, and what does not fit shows at once.

        Args:
            rows: positions of the rows wanted.
            batch_size: rows in a batch; None fills batches by tokens.
            device: where the batches go.
            tokens: tokens in an automatic batch; by default what is fast on the device.
        """
        order = rows[np.argsort(-self.lengths[rows], kind="stable")]
        lengths = self.lengths[order]
        most = tokens or token_budget(device)
        enough = min(most, CPU_ENOUGH) if device.type == "cpu" else most
        left = lengths[::-1].cumsum()[::-1]  # tokens of a row and of all after it
        cuts, start = [], 0
        while start < len(order):
            size = batch_size or automatic_size(lengths[start:], most, balanced_batch_tokens(int(left[start]), enough))
            end = min(start + size, len(order))
            cuts.append((-(end - start) * int(lengths[start]), start, end))
            start = end
        for _, start, end in sorted(cuts):
            yield self.batch(order[start:end], device)


def automatic_size(lengths: NDArray[np.int64], most: int, enough: int) -> int:
    """Choose how many rows make a batch: `enough` tokens, then all rows as long as the last, but never over `most`.

    Rows of one length need no padding and no mask, so a batch rather ends at a change of length than be full.

    Args:
        lengths: of the rows that are left, longest first.
        most: tokens that a batch may hold, padding included (one row is always let in).
        enough: tokens from which a batch is computed at full speed.
    """
    room = lengths[: max(1, most // int(lengths[0]))]
    needed = min(len(room), -(-enough // int(lengths[0])))
    return int(np.searchsorted(-room, -room[needed - 1], side="right"))


def balanced_batch_tokens(total: int, enough: int) -> int:
    """Lower the tokens of a batch so that a total is cut into batches of like size, with no small one at the end."""
    return -(-total // max(1, -(-total // enough)))


def token_budget(device: torch.device) -> int:
    """Tokens in an automatic batch on a device."""
    return CPU_TOKENS if device.type == "cpu" else ACCELERATOR_TOKENS
