"""Keep the hidden states that probe and centroid look at: one pass, the pooled position only, streamed to a file.

Rows are read twice: once for what is not text, so that the shape of the file is known, then in parts. So neither
texts nor states of all rows are ever in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mltools.config import StatesConfig
from mltools.errors import CheckpointError, RowsError
from mltools.io.columns import Columns, Label, RowId
from mltools.io.examples import Examples, iter_examples
from mltools.io.provenance import Provenance
from mltools.io.source import Source
from mltools.io.states import RowTable, StatesWriter
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.cost import Shape, WorkItem
from mltools.model.inference import self_check
from mltools.model.runner import Pooling

PART_ROWS = 4096
Progress = Callable[[Iterator[int], int], Iterator[int]]


def read_table(source: Source, columns: Columns = Columns()) -> RowTable:
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
    for part in iter_examples(source, columns, PART_ROWS):
        ids += part.ids
        labels += (same.setdefault(label, label) for label in part.labels)
        originals += (same.setdefault(label, label) for label in part.original_labels)
        noisy += part.noisy
    assert part is not None
    index, names = _classes(sorted(same), part.names)
    label, original = (np.array([index[value] for value in column], dtype=np.int64) for column in (labels, originals))
    return RowTable(ids, label, original, np.array(noisy), names)


def _classes(labels: Sequence[Label], names: Sequence[str] | None) -> tuple[dict[Label, int], list[str]]:
    """Number the classes, and name them: by the names that came with integer labels, where these fit."""
    if names is not None and all(isinstance(label, int) and 0 <= label < len(names) for label in labels):
        return {label: int(label) for label in labels}, list(names)
    return {label: index for index, label in enumerate(labels)}, [str(label) for label in labels]


def open_for_states(
    name: str, rows: RowTable, device: torch.device, blocks: str | None = None, offload: bool = False
) -> Checkpoint:
    """Open a checkpoint whose states are wanted; it needs no head, so θ_P will do.

    Raises:
        CheckpointError: as `open_checkpoint`.
    """
    return open_checkpoint(name, device=device, fresh_head=rows.names, blocks=blocks, offload=offload)


def states(
    checkpoint: Checkpoint,
    source: Source,
    columns: Columns,
    rows: RowTable,
    out: Path,
    config: StatesConfig = StatesConfig(),
    provenance: Provenance | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the states of all rows to a safetensors file (see `io.states`).

    Args:
        checkpoint: the model, in eval mode.
        source: the rows, which can be read again.
        columns: as they were read for `rows`.
        rows: what `read_table` found in the source.
        out: the file, which is written in place.
        config: number type, position, batch size.
        provenance: for the file.
        progress: wraps the rows as they are done, to show progress.

    Raises:
        CheckpointError: weights that the states depend on are missing, or there is no pooled position.
        RowsError: a state that is not finite, or rows that changed since they were first read.
    """
    runner = checkpoint.runner
    position: Pooling = runner.pooling if config.position == "auto" else config.position
    if position == "all":
        raise CheckpointError(
            f"{checkpoint.name}: the head reads all positions, so there is no pooled one; "
            "choose --position first or last"
        )
    _check_own(checkpoint, position, config.raw_last)
    provenance = provenance or Provenance("states", {})
    facts = {"position": position, "raw_last": config.raw_last, "rows": len(rows)}
    size = checkpoint.n_layers, checkpoint.width
    with (
        StatesWriter(out, rows, *size, config.dtype, replace(provenance, facts=facts)) as writer,
        checkpoint.unchanged(),
    ):
        done = _write(checkpoint, source, columns, rows, writer, config, position)
        for _ in progress(done, len(rows)) if progress else done:
            pass


def plan(shape: Shape) -> WorkItem:
    """Count the work: one forward pass over all rows."""
    rows = len(shape.lengths)
    return WorkItem(rows=rows, applications=rows * shape.n_layers)


def _write(
    checkpoint: Checkpoint,
    source: Source,
    columns: Columns,
    rows: RowTable,
    writer: StatesWriter,
    config: StatesConfig,
    position: Pooling,
) -> Iterator[int]:
    start, before = 0, source.digest
    for part in iter_examples(source, columns, PART_ROWS, again=True):
        if part.ids != rows.ids[start : start + len(part)]:
            raise RowsError(f"{source.name}: the rows changed while they were read")
        yield from (start + int(row) for row in _write_part(checkpoint, part, start, writer, config, position))
        start += len(part)
    if start != len(rows) or source.digest != before:
        raise RowsError(f"{source.name}: the rows changed while they were read")


@torch.inference_mode()
def _write_part(
    checkpoint: Checkpoint, part: Examples, start: int, writer: StatesWriter, config: StatesConfig, position: Pooling
) -> Iterator[int]:
    runner = checkpoint.runner
    encoded = checkpoint.encode(part, config.max_length)
    if start == 0:
        self_check(runner, encoded)
    for batch in encoded.batches(np.arange(len(encoded)), config.batch_size, runner.device):
        values = runner.pooled_states(batch, position, raw_last=config.raw_last)
        writer.write(start + batch.rows, values.float().cpu().numpy())
        yield from batch.rows


def _check_own(checkpoint: Checkpoint, position: Pooling, raw_last: bool) -> None:
    """Raise if the states depend on weights that the checkpoint lacks; a missing head does not matter."""
    fresh = {name: p for name, p in checkpoint.model.named_parameters() if name in checkpoint.fresh}
    if not fresh:
        return
    runner = checkpoint.runner
    batch = Encoded([[1, 1]], pad_id=0, vocabulary=2, empty_id=1).batch([0], runner.device)
    values = runner.pooled_states(batch, position, raw_last=raw_last)
    gradients = torch.autograd.grad(values.sum(), list(fresh.values()), allow_unused=True)
    runner.applications = runner.passes = 0
    used = [name for name, gradient in zip(fresh, gradients, strict=True) if gradient is not None]
    if used:
        raise CheckpointError(
            f"{checkpoint.name}: {len(used)} weights that the states depend on are missing ({', '.join(used[:3])})"
        )
