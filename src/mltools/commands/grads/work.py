"""Forgetting gradients: which layers must change most for the noisy rows to be forgotten (§3.1, Appendix E).

One batched backward pass per group of rows (`model.gradients`); of the mean gradients only two sums a tensor are kept,
and all norms and scores are made of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from mltools.commands.grads import Settings
from mltools.commands.grads.gradients import Gradients, Progress, Rows, Sums, mean_gradients
from mltools.errors import CheckpointError, RowsError
from mltools.hashing import ranked
from mltools.io.columns import RowId
from mltools.io.examples import Examples
from mltools.io.kinds import GradRecord
from mltools.io.provenance import Provenance
from mltools.io.rows import json_preview as in_json
from mltools.model.anatomy import BLOCK_PARTS, block_parts, select_part
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_pairs import check_same
from mltools.model.checks import self_check
from mltools.model.cost import Shape, WorkItem
from mltools.model.opened import Model
from mltools.model.validity import Validity, measure, read_labels
from mltools.processes import ALONE, Team
from mltools.run import Run
from mltools.spec import bare

DEFAULTS = bare(Settings)
CPU = torch.device("cpu")

NORMS = ("l1", "l2")
GROUPS = ("noisy", "clean", "difference")


@dataclass(frozen=True)
class Tensors:
    """Which layer each tensor of the blocks is of, and the names that each part counts (`all` and those shown)."""

    layers: Mapping[str, int]
    parts: Mapping[str, Sequence[str]]
    n_layers: int

    def norms(self, sums: Sums, norm: str, part: str) -> list[float]:
        """Take the L1 or L2 norm of each layer 1..L over the tensors of a part."""
        totals = [0.0] * self.n_layers
        for name in self.parts[part]:
            totals[self.layers[name] - 1] += sums[name][NORMS.index(norm)]
        return totals if norm == "l1" else [math.sqrt(total) for total in totals]


def grads(
    checkpoint: str | Model,
    examples: Examples,
    settings: Settings = DEFAULTS,
    *,
    frozen: str | Model | None = None,
    clean_ids: Sequence[RowId] | None = None,
    save: Path | None = None,
    replace: bool = False,
    provenance: Provenance | None = None,
    device: torch.device | None = None,
    threads: int | None = None,
    blocks: str | None = None,
    progress: Progress | None = None,
    strict: bool = False,
    team: Team = ALONE,
) -> Iterator[GradRecord]:
    """Score each layer by the gradient that forgets the noisy rows.

    Memory: the model, one gradient of its blocks, and the activations of one batch; the second gradient waits in a
    temporary file, and the frozen checkpoint is opened when the first is done with.

    Args:
        checkpoint: θ_M1 (or any other), a folder or hub repository.
        examples: the training rows, with noisy ones among them.
        settings: objective, norm, which tensors count.
        frozen: the checkpoint whose norms divide those of `checkpoint`.
        clean_ids: the clean rows to use; by default as many as there are noisy ones, drawn by (seed, id).
        save: a safetensors file for the mean gradients of `checkpoint`, named `noisy/…` and `clean/…`.
        replace: whether it replaces a file that is there.
        provenance: written into that file.
        device: CPU by default.
        threads: CPU threads; see `set_threads`.
        blocks: module path of the block list, where the model does not decide.
        progress: wraps the rows of each pass as they are done.
        strict: take no gradient of a checkpoint that has not memorised the noisy rows.
        team: the processes that share the rows: two of them take the gradients, of noisy and of clean rows.

    Yields:
        One record a layer.

    Raises:
        InvalidError: with `strict`, such a checkpoint.
        CheckpointError: a checkpoint that cannot be used, or does not fit the other; a part the model does not show.
        RowsError: no noisy rows, or too few clean ones.
        TrainingError: a gradient that is not finite.
    """
    model = checkpoint if isinstance(checkpoint, Model) else Model(checkpoint, device or CPU, blocks, threads)
    opened = model.open()
    tensors = find_tensors(opened, settings)
    rows = choose_rows(examples, settings, clean_ids)
    encoded = opened.encode(examples, settings.reading.max_length)
    self_check(opened.runner, encoded)
    labels = read_labels(opened, examples)
    targets = labels.label
    validity = measure(opened, encoded, labels, settings.validity.min_noisy_accuracy, examples.n_unlabelled, team)
    validity.tell(strict=strict)
    own = mean_gradients(
        opened,
        encoded,
        targets,
        rows,
        settings,
        save=save,
        replace=replace,
        provenance=provenance,
        progress=progress,
        team=team,
    )
    if not model.is_lent:
        opened.model.to("meta")  # only its shapes are still needed
    other = None
    if frozen is not None:
        divisor = (frozen if isinstance(frozen, Model) else Model(frozen, device or CPU, blocks, threads)).open()
        check_same(opened, divisor)
        other = mean_gradients(divisor, encoded, targets, rows, settings, progress=progress, team=team)
    yield from records(tensors, own, other, rows, settings, validity)


def plan(shape: Shape, examples: Examples, settings: Settings = DEFAULTS, *, models: int = 1) -> WorkItem:
    """Count the work: a forward and a backward pass of each of `models` checkpoints over the rows of both groups.

    One more forward pass goes over all rows, to see whether the noisy ones are memorised.
    """
    noisy, clean = choose_rows(examples, settings)
    rows = len(noisy) + (len(clean) if clean is not None else 0)
    applications = models * rows * shape.n_layers
    whole = applications + len(examples) * shape.n_layers
    return WorkItem(rows=rows, applications=whole, backward=2 * applications, copies=2 * shape.n_layers)


def find_tensors(checkpoint: Checkpoint, settings: Settings) -> Tensors:
    """Find which tensors of the blocks count, by part.

    Raises:
        CheckpointError: the architecture does not show `settings.part`, or a layer has no tensor that counts.
    """
    stack = checkpoint.stack
    shown = BLOCK_PARTS if block_parts(stack) is not None else ()
    kept: dict[str, Sequence[str]] = {
        part: sorted(n for n in select_part(stack, part) if not any(word in n for word in settings.leave_out))
        for part in (settings.part, *shown)
    }
    layers = {name: layer for name in select_part(stack, "all") if (layer := stack.layer_of(name)) is not None}
    empty = set(range(1, len(stack) + 1)) - {layers[name] for name in kept[settings.part]}
    if empty:
        raise CheckpointError(
            f"{checkpoint.name}: no tensor of layer {min(empty)} is left (--part {settings.part}, "
            f"--leave-out {','.join(settings.leave_out)})"
        )
    return Tensors(layers, kept, len(stack))


def choose_rows(examples: Examples, settings: Settings, clean_ids: Sequence[RowId] | None = None) -> Rows:
    """Give the positions of the noisy rows and of as many clean ones, drawn by (seed, id), or of those named.

    Raises:
        RowsError: no noisy rows, fewer clean than noisy ones, or an id that is no clean row's.
    """
    examples.require_noisy()
    is_noisy = np.array(examples.noisy)
    noisy, clean = np.flatnonzero(is_noisy), np.flatnonzero(~is_noisy)
    if settings.noisy_only:
        return noisy, None
    if clean_ids is not None:
        place = {examples.ids[i]: i for i in clean}
        missing = next((row_id for row_id in clean_ids if row_id not in place), None)
        if missing is not None:
            raise RowsError(f"{examples.source.name}: no clean row has the id {in_json(missing)}")
        return noisy, np.array([place[row_id] for row_id in clean_ids], dtype=np.int64)
    if len(clean) < len(noisy):
        raise RowsError(
            f"{examples.source.name}: {len(clean)} clean rows are fewer than the {len(noisy)} noisy ones that they "
            "are compared with; score noisy rows alone with --noisy-only"
        )
    order = ranked([examples.ids[i] for i in clean], "grads clean", settings.seed)
    return noisy, np.sort(clean[order[: len(noisy)]])


def scores(norms: Sequence[float] | None, divisors: Sequence[float] | None = None) -> list[float] | None:
    """Scale norms (or their quotients by the frozen norms) to sum 1; None where something is missing or 0.

    Args:
        norms: one a layer, 0 or more.
        divisors: one a layer; None divides by nothing.
    """
    if norms is None or (divisors is not None and not all(divisors)):
        return None
    values = [norm / by for norm, by in zip(norms, divisors, strict=True)] if divisors is not None else list(norms)
    total = sum(values)
    return [value / total for value in values] if total else None


def records(
    tensors: Tensors,
    own: Gradients,
    frozen: Gradients | None,
    rows: Rows,
    settings: Settings,
    validity: Validity,
) -> Iterator[GradRecord]:
    """Turn the sums into one record a layer, with the norms and all scores."""
    columns = _norm_columns(tensors, own, frozen, settings.part)
    group = "noisy" if settings.noisy_only else "difference"
    columns["score"] = columns[_score_name(settings.norm, group, frozen is not None)]
    for part in BLOCK_PARTS:
        known = part in tensors.parts
        mine = _norm_columns(tensors, own, frozen, part) if known else {}
        columns[f"norm_{part}"] = mine.get(f"{settings.norm}_{group}")
        columns[f"score_{part}"] = mine.get(_score_name(settings.norm, group, frozen is not None))
    noisy, clean = rows
    for layer in range(1, tensors.n_layers + 1):
        yield GradRecord(
            tool="grads",
            layer=layer,
            layers=tensors.n_layers,
            part=settings.part,
            objective=settings.objective,
            norm=settings.norm,
            n_noisy=len(noisy),
            n_clean=len(clean) if clean is not None else None,
            **{name: values[layer - 1] if values is not None else None for name, values in columns.items()},  # type: ignore[arg-type]
            **validity.columns(),
        )


def _score_name(norm: str, group: str, over_frozen: bool) -> str:
    return f"score_{norm}_{group}" + ("_over_frozen" if over_frozen else "")


def _norm_columns(
    tensors: Tensors, own: Gradients, frozen: Gradients | None, part: str
) -> dict[str, list[float] | None]:
    """Build the columns of norms and scores over a part's tensors; None where a group was not measured."""
    columns: dict[str, list[float] | None] = {}
    for norm, group in product(NORMS, GROUPS):
        for prefix, gradients in (("", own), ("frozen_", frozen)):
            sums = gradients.group(group) if gradients is not None else None
            columns[f"{norm}_{prefix}{group}"] = tensors.norms(sums, norm, part) if sums is not None else None
        if group != "clean":
            mine, by = columns[f"{norm}_{group}"], columns[f"{norm}_frozen_{group}"]
            columns[_score_name(norm, group, False)] = scores(mine)
            columns[_score_name(norm, group, True)] = scores(mine, by) if by is not None else None
    return columns


def items(run: Run) -> list[WorkItem]:
    """Count the work, which is one item."""
    return [plan(run.shape, run.rows, run.settings, models=2 if run.settings.frozen else 1)]


def run(run: Run) -> Iterator[GradRecord]:
    """Score the layers, and keep the gradients if that is wanted."""
    settings: Settings = run.settings
    record = None
    groups = 1 if settings.noisy_only or run.team.n > 1 else 2
    passes = groups * (1 if settings.frozen is None else 2)
    left = iter(range(passes, 0, -1))
    for record in grads(
        run.model("checkpoint"),
        run.rows,
        settings,
        frozen=run.model("frozen") if settings.frozen is not None else None,
        save=settings.save if not run.silent else None,
        replace=run.force,
        provenance=run.provenance.by("--save"),
        device=run.device,
        threads=settings.device.threads,
        blocks=settings.device.blocks,
        progress=lambda rows, total: run.track(rows, total, pieces=next(left)),
        strict=settings.validity.strict,
        team=run.team,
    ):
        yield record
    assert record is not None
    run.report(
        layers=record.layers,
        noisy=record.n_noisy,
        clean=record.n_clean,
        objective=settings.objective,
        norm=settings.norm,
    )
