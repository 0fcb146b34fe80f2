"""Keep the hidden states that probe and centroid look at: one pass, the pooled position only, streamed to a file.

Rows are read twice: once for what is not text, so that the shape of the file is known, then in parts. So neither
texts nor states of all rows are ever in memory.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from mltools.console import Track, untracked
from mltools.errors import CheckpointError, RowsError
from mltools.io.columns import Label, RowId
from mltools.io.examples import Examples, iter_examples
from mltools.io.inputs import Rows
from mltools.io.provenance import Provenance
from mltools.io.states import RowTable, StatesWriter
from mltools.model.batches import Batch, Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checks import check_pooled_states, self_check
from mltools.model.classes import target_indices
from mltools.model.cost import Shape, WorkItem
from mltools.model.pooled import Pooling
from mltools.processes import ALONE, Team

PART_ROWS = 4096


@dataclass(frozen=True)
class Extraction:
    """Which states of rows are kept, and how.

    `position` is auto (where the head reads), first or last; `raw_last` takes layer L before the final norm.
    """

    dtype: Literal["float32", "float16"] = "float32"
    position: Literal["auto", "first", "last"] = "auto"
    raw_last: bool = False
    batch_size: int | None = None
    max_length: int = 512


def read_table(source: Rows) -> RowTable:
    """Read everything but the text of labelled rows. Classes are those that occur, sorted.

    Raises:
        RowsError: as `read_examples`.
    """
    ids: list[RowId] = []
    labels: list[Label] = []
    originals: list[Label] = []
    noisy: list[bool] = []
    same: dict[Label, Label] = {}
    part = None
    for part in iter_examples(source, PART_ROWS):
        ids += part.ids
        labels += (same.setdefault(label, label) for label in part.labels)
        originals += (same.setdefault(label, label) for label in part.original_labels)
        noisy += part.noisy
    assert part is not None
    index, names = _classes(sorted(same), part.names)
    label, original = (np.array([index[value] for value in column], dtype=np.int64) for column in (labels, originals))
    return RowTable(ids, label, original, np.array(noisy), names)


def _classes(labels: Sequence[Label], names: Sequence[str] | None) -> tuple[dict[Label, int], list[str]]:
    """Number the classes, and name them: in the order of the names that came with them, where there are such."""
    if names is not None and {*labels} <= {*names}:
        return {label: index for index, label in enumerate(names)}, list(names)
    return {label: index for index, label in enumerate(labels)}, [str(label) for label in labels]


def states(
    checkpoint: Checkpoint,
    source: Rows,
    rows: RowTable,
    out: Path,
    extraction: Extraction = Extraction(),
    provenance: Provenance | None = None,
    progress: Track = untracked,
    team: Team = ALONE,
) -> None:
    """Write the states of all rows to a safetensors file (see `io.states`).

    Args:
        checkpoint: the model, in eval mode.
        source: the rows, which can be read again.
        rows: what `read_table` found in the source.
        out: the file, which is written in place.
        extraction: number type, position, batch size.
        provenance: for the file.
        progress: wraps the rows as they are done, to show progress.
        team: the processes that share the batches; each writes all.

    Raises:
        CheckpointError: weights that the states depend on are missing, or there is no pooled position.
        RowsError: a state that is not finite, or rows that changed since they were first read.
    """
    runner = checkpoint.runner
    position: Pooling = runner.pooling if extraction.position == "auto" else extraction.position
    if position == "all":
        raise CheckpointError(
            f"{checkpoint.name}: the head reads all positions, so there is no pooled one; "
            "choose --position first or last"
        )
    _check_own(checkpoint, position, extraction.raw_last)
    provenance = provenance or Provenance("states", {})
    facts = {"position": position, "raw_last": extraction.raw_last, "rows": len(rows)}
    size = checkpoint.n_layers, checkpoint.width
    with (
        StatesWriter(out, rows, *size, extraction.dtype, replace(provenance, facts=facts)) as writer,
        checkpoint.unchanged(),
    ):
        predicted = _Predicted(checkpoint)
        done = _Pass(checkpoint, writer, extraction, position, predicted, team).write(source, rows)
        for _ in progress(done, len(rows), "rows", "states"):
            pass
        writer.write_baseline(predicted.accuracies(rows))


def plan(shape: Shape) -> WorkItem:
    """Count the work: one forward pass over all rows."""
    rows = len(shape.lengths)
    return WorkItem(rows=rows, applications=rows * shape.n_layers)


@dataclass(frozen=True)
class _Pass:
    """The pass over all rows: by which model, to which file, which states."""

    checkpoint: Checkpoint
    writer: StatesWriter
    extraction: Extraction
    position: Pooling
    predicted: "_Predicted"
    team: Team

    def write(self, source: Rows, rows: RowTable) -> Iterator[int]:
        """Write the states of all rows; yields each row once it is done."""
        start, before = 0, source.digest
        for part in iter_examples(source, PART_ROWS, again=True):
            if part.ids != rows.ids[start : start + len(part)]:
                raise RowsError(f"{source.name}: the rows changed while they were read")
            yield from (start + int(row) for row in self._write_part(part, start))
            start += len(part)
        if start != len(rows) or source.digest != before:
            raise RowsError(f"{source.name}: the rows changed while they were read")

    @torch.inference_mode()
    def _write_part(self, part: Examples, start: int) -> Iterator[int]:
        checkpoint, runner, raw_last = self.checkpoint, self.checkpoint.runner, self.extraction.raw_last
        encoded = checkpoint.encode(part, self.extraction.max_length)
        if start == 0:
            self_check(runner, encoded)
            check_pooled_states(checkpoint, encoded, self.position, raw_last=raw_last)
        batches = encoded.batches(np.arange(len(encoded)), self.extraction.batch_size, runner.device)

        def taken(batch: Batch) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
            with _logits(checkpoint) as logits:
                values = runner.pooled_states(batch, self.position, raw_last=raw_last)
            return values.float().cpu().numpy(), logits[0].argmax(dim=1).cpu().numpy()

        parts = (part for whole in batches for part in runner.parts(whole))
        for batch, (values, guesses) in self.team.dealt(parts, taken):
            self.predicted.count(part, batch.rows, guesses)
            self.writer.write(start + batch.rows, values)
            yield from batch.rows


@contextlib.contextmanager
def _logits(checkpoint: Checkpoint) -> Iterator[list[torch.Tensor]]:
    """Give the logits of the passes inside."""
    logits: list[torch.Tensor] = []
    handle = checkpoint.model.register_forward_hook(lambda _, __, output: logits.append(output.logits))
    try:
        yield logits
    finally:
        handle.remove()


class _Predicted:
    """Counts what the head of the passes that states are taken from gets right, if it is the checkpoint's own."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.known = not checkpoint.fresh
        self.hits = {True: 0, False: 0}

    def count(self, part: Examples, rows: NDArray[np.int64], guesses: NDArray[np.int64]) -> None:
        """Count the classes that the head gives these rows of a part."""
        try:
            label = target_indices([part.labels[row] for row in rows], self.checkpoint.labels, part)
        except RowsError:  # states need no head that knows the labels
            self.known = False
            return
        for row, hit in zip(rows, guesses == label, strict=True):
            self.hits[part.noisy[row]] += bool(hit)

    def accuracies(self, rows: RowTable) -> tuple[float | None, float | None]:
        """Give the accuracy on noisy and on clean rows; None without a head for these labels, or without such rows."""
        n_noisy = int(rows.noisy.sum())
        counts = ((True, n_noisy), (False, len(rows) - n_noisy))
        noisy, clean = (self.hits[group] / n if self.known and n else None for group, n in counts)
        return noisy, clean


def _check_own(checkpoint: Checkpoint, position: Pooling, raw_last: bool) -> None:
    """Raise if the states depend on weights that the checkpoint lacks; a missing head does not matter."""
    fresh = {name: p for name, p in checkpoint.model.named_parameters() if name in checkpoint.fresh}
    if not fresh:
        return
    runner = checkpoint.runner
    batch = Encoded([[1, 1]], pad_id=0, vocabulary=2, empty_id=1).batch([0], runner.device)
    values = runner.pooled_states(batch, position, raw_last=raw_last)
    gradients = torch.autograd.grad(values.sum(), list(fresh.values()), allow_unused=True)
    runner.applications = 0
    used = [name for name, gradient in zip(fresh, gradients, strict=True) if gradient is not None]
    if used:
        raise CheckpointError(
            f"{checkpoint.name}: {len(used)} weights that the states depend on are missing ({', '.join(used[:3])})"
        )
