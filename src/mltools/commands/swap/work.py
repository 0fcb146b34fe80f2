"""Put windows of CLEAN's blocks into NOISY and measure how much memorisation that undoes (§3.1, §4.1).

No weight is copied. All windows are walked as one tree: windows that agree up to a layer share the states up
to it, so every window of L layers costs L(L+1)(L+2)/6 + L layer applications a row instead of L·L(L+1)/2. The full
window is always measured (L more where it is not asked for), and CLEAN whole (L): see `model.validity`.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mltools import console
from mltools.commands.swap import Settings
from mltools.io.columns import table_ids
from mltools.io.examples import Examples
from mltools.io.kinds import WindowRecord
from mltools.io.provenance import Provenance
from mltools.io.records import Record
from mltools.layers import Window, all_windows, parse_windows
from mltools.model.anatomy import BlockStack, select_part
from mltools.model.batches import Batch, Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_pairs import check_same
from mltools.model.checkpoint_saving import save_checkpoint
from mltools.model.checks import check_mixture, self_check
from mltools.model.cost import Shape, WorkItem
from mltools.model.inference import TIE
from mltools.model.runner import Recording
from mltools.model.validity import Labels, PairValidity, judge_pair, read_labels, reverted, twins
from mltools.run import Run
from mltools.shards import item_digest
from mltools.spec import bare
from mltools.sweep import finished_errors, scaled

DEFAULTS = bare(Settings)

Progress = Callable[[Iterator[int], int], Iterator[int]]
UNCHANGED = Window(())
BREAKS = 0.2
"""By how much the full window may lower the accuracy on clean rows before the mixture is said to break the model."""


@dataclass
class SwapResult:
    """Predictions of every row under every window, and what they cost.

    `predicted` is (windows, rows), class indices; `margin` the gap between the two best logits. `further` and `donor`
    are the predictions (rows,) of windows measured besides (NOISY unchanged, the full window), and of CLEAN whole.
    """

    windows: list[Window]
    predicted: NDArray[np.int16]
    margin: NDArray[np.float32]
    applications: int = 0
    layers: int = 0
    rows: int = 0
    labels: list[str] = field(default_factory=list)
    further: dict[Window, NDArray[np.int16]] = field(default_factory=dict)
    donor: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    validity: PairValidity | None = None

    def start(self, noisy: Checkpoint, windows: Sequence[Window], further: Sequence[Window], rows: int) -> None:
        """Make room for the predictions of `rows` rows under each window, and count from 0."""
        self.further = {window: np.zeros(rows, np.int16) for window in further}
        self.donor = np.zeros(rows, np.int16)
        self.windows, self.labels, self.layers, self.rows = list(windows), noisy.labels, noisy.n_layers, rows
        self.predicted = np.zeros((len(windows), rows), np.int16)
        self.margin = np.zeros((len(windows), rows), np.float32)
        noisy.runner.applications = 0

    @classmethod
    def empty(cls) -> "SwapResult":
        """Give a result for `swap` to fill."""
        return cls([], np.empty((0, 0), np.int16), np.empty((0, 0), np.float32))


def swap(
    noisy: Checkpoint,
    clean: Checkpoint,
    examples: Examples,
    windows: Sequence[Window] = (),
    settings: Settings = DEFAULTS,
    progress: Progress | None = None,
    result: SwapResult | None = None,
    *,
    done: Sequence[Record] = (),
    run: str | None = None,
) -> Iterator[WindowRecord]:
    """Measure each window: blocks of the window from `clean`, all else from `noisy`.

    Args:
        noisy: θ_M2, trained on the perturbed labels.
        clean: θ_O, of the same shape, classes and tokenizer.
        examples: the training rows, with noisy ones among them.
        windows: which windows; none means all.
        settings: batch size, longest row, which part of the blocks.
        progress: wraps the rows as they are done, to show progress.
        result: filled with per-row predictions and the cost.
        done: records of this sweep made earlier (`sweep.finished`), whose windows are left out.
        run: digest of settings and inputs, put into the records.

    Yields:
        One record a window, in the given order. Accuracies are against `label`.

    Raises:
        CheckpointError: the checkpoints do not fit each other.
        RowsError: no noisy or no clean rows, a label that is no class of the checkpoints, or another sweep in `done`.
    """
    check_same(noisy, clean)
    examples.require_noisy()
    full = Window(tuple(range(1, noisy.n_layers + 1)))
    errors = finished_errors(done, noisy.n_layers, {"n_noisy": sum(examples.noisy), "run": run})
    windows = [window for window in windows or all_windows(noisy.n_layers) if window not in errors]
    if not windows:
        return
    labels = read_labels(noisy, examples)
    encoded = noisy.encode(examples, settings.max_length)
    self_check(noisy.runner, encoded)
    donor = take_part(noisy, clean, settings.part)
    check_mixture(noisy, donor, encoded, window_logits)
    result = result if result is not None else SwapResult.empty()
    further = [UNCHANGED] if full in windows or full in errors else [UNCHANGED, full]
    result.start(noisy, windows, further, len(encoded))
    clean.runner.applications = 0
    rows = _predict(noisy, clean, donor, encoded, settings.batch_size, result)
    with noisy.unchanged(), clean.unchanged():
        for _ in progress(rows, len(encoded)) if progress else rows:
            pass
    result.applications = sum(runner.applications for runner in {noisy.runner, clean.runner})
    result.validity = _judge(noisy, clean, examples, labels, encoded.n_cut, settings, result)
    yield from _records(labels, full, result, settings.part, errors, run)


def take_part(noisy: Checkpoint, clean: Checkpoint, part: str) -> Checkpoint:
    """Give CLEAN with blocks in which only the tensors of `part` are its own, the others NOISY's.

    Raises:
        CheckpointError: the architecture does not show which tensors these are.
    """
    if part == "all":
        return clean
    names, path = select_part(clean.stack, part), clean.stack.path
    modules = copy.deepcopy(clean.stack.modules)
    others = dict(noisy.stack.modules.named_parameters())
    with torch.no_grad():
        for name, parameter in modules.named_parameters():
            if f"{path}.{name}" not in names:
                parameter.copy_(others[name])
    return replace(clean, stack=BlockStack(path, modules))


def plan(shape: Shape, windows: Sequence[Window]) -> Iterator[WorkItem]:
    """List windows with the cost of each alone.

    NOISY and CLEAN once each, the full window, and from the window's first layer on once more, less what it shares
    with the full window. In one run they share more: L(L+1)(L+2)/6 + 2L applications a row for all windows of L layers.
    """
    rows = len(shape.lengths)
    for window in windows:
        shared = next((i for i, layer in enumerate(window.layers) if layer != i + 1), window.width)
        layers = 3 * shape.n_layers + shape.n_layers - (shared or window.start - 1)
        yield WorkItem(f"--layers {window}", rows, applications=rows * layers, models=2)


def _predict(
    noisy: Checkpoint,
    clean: Checkpoint,
    donor: Checkpoint,
    encoded: Encoded,
    batch_size: int | None,
    result: SwapResult,
) -> Iterator[int]:
    """Fill in every row's prediction under every window, and by CLEAN; yields each row once it is done."""
    measured, further = [*result.windows, *result.further], list(result.further)
    for batch in encoded.batches(np.arange(len(encoded)), batch_size, noisy.runner.device):
        with torch.inference_mode():
            result.donor[batch.rows] = clean.runner.forward(batch).argmax(dim=1).cpu().numpy()
        for index, logits in window_logits(noisy, donor, batch, measured):
            if index >= len(result.windows):
                window = further[index - len(result.windows)]
                result.further[window][batch.rows] = logits.argmax(dim=1).cpu().numpy()
                continue
            best = logits.topk(min(2, logits.shape[1]), dim=1)
            result.predicted[index, batch.rows] = best.indices[:, 0].cpu().numpy()
            result.margin[index, batch.rows] = (best.values[:, 0] - best.values[:, -1]).cpu().numpy()
        yield from (int(row) for row in batch.rows)


def window_logits(
    noisy: Checkpoint, clean: Checkpoint, batch: Batch, windows: Sequence[Window]
) -> Iterator[tuple[int, Tensor]]:
    """Yield (index of the window, logits (batch, classes) in float32) for each window, in the order of the walk."""
    with torch.inference_mode():
        recording = noisy.runner.record(batch)
        walk = _WindowTree(noisy, clean, recording)
        members = [(index, frozenset(window.layers)) for index, window in enumerate(windows)]
        for index, states in walk.visit(1, recording.states[0], members, unmodified=True):
            yield index, noisy.runner.tail(recording, states).float()


def _judge(
    noisy: Checkpoint,
    clean: Checkpoint,
    examples: Examples,
    labels: Labels,
    n_cut: int,
    settings: Settings,
    result: SwapResult,
) -> PairValidity:
    names = (noisy.name, clean.name)
    found = judge_pair(
        result.further[UNCHANGED],
        result.donor,
        labels,
        settings.validity.min_noisy_accuracy,
        names,
        twin=settings.donor_is == "clean",
        n_cut=n_cut,
        n_unlabelled=examples.n_unlabelled,
    )
    if settings.donor_is != "clean":
        return found
    are_twins, note = twins(noisy, clean)
    if note is not None:
        console.warn(f"no twins: {note}")
    return replace(found, twins=are_twins)


def _records(
    labels: Labels, full: Window, result: SwapResult, part: str, earlier: Mapping[Window, float], run: str | None
) -> Iterator[WindowRecord]:
    assert result.validity is not None
    columns, is_noisy = result.validity.columns(), labels.noisy
    predicted = {**dict(zip(result.windows, result.predicted, strict=True)), **result.further}
    hits = {window: found == labels.label for window, found in predicted.items()}
    errors = {**earlier, **{window: 1 - _share(found[is_noisy]) for window, found in hits.items()}}
    if full in hits and _share(hits[full][~is_noisy]) < _share(hits[UNCHANGED][~is_noisy]) - BREAKS:
        console.warn(
            f"the full window has accuracy {_share(hits[full][~is_noisy]):.3g} on clean rows, NOISY "
            f"{_share(hits[UNCHANGED][~is_noisy]):.3g}: the mixture breaks the model"
        )
    for i, window in enumerate(result.windows):
        yield WindowRecord(
            tool="swap",
            start=window.start,
            end=window.end,
            width=window.width,
            layers=result.layers,
            window=str(window),
            part=part,
            n_noisy=int(is_noisy.sum()),
            noisy_accuracy=_share(hits[window][is_noisy]),
            memorisation_error=errors[window],
            memorisation_error_scaled=scaled(errors[window], errors[full]),
            n_clean=int((~is_noisy).sum()),
            clean_accuracy=_share(hits[window][~is_noisy]),
            reverted=reverted(result.predicted[i], labels),
            run=run,
            item_digest=item_digest(run, f"--layers {window}"),
            n_ties=int((result.margin[i] < TIE).sum()),
            **columns,
        )


def _share(hits: NDArray[np.bool_]) -> float:
    return float(hits.sum()) / len(hits)


@dataclass
class _WindowTree:
    """Walks the tree of windows for one batch, depth first, holding one state a layer at most."""

    noisy: Checkpoint
    clean: Checkpoint
    recording: Recording

    def visit(
        self, layer: int, states: Tensor, members: list[tuple[int, frozenset[int]]], *, unmodified: bool
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (index of the window, states after the last block) of each member.

        Args:
            layer: the next block to apply.
            states: what goes into it, the same for all members.
            members: windows that agree below `layer`, as (index, layers).
            unmodified: whether all blocks so far were NOISY's, so that the recorded states serve.
        """
        if layer > self.noisy.n_layers:
            yield from ((index, states) for index, _ in members)
            return
        swapped = [member for member in members if layer in member[1]]
        kept = [member for member in members if layer not in member[1]]
        if kept:
            after = self.recording.states[layer] if unmodified else self._apply(layer, states, self.noisy)
            yield from self.visit(layer + 1, after, kept, unmodified=unmodified)
        if swapped:
            after = self._apply(layer, states, self.clean)
            yield from self.visit(layer + 1, after, swapped, unmodified=False)

    def _apply(self, layer: int, states: Tensor, source: Checkpoint) -> Tensor:
        return self.noisy.runner.apply(self.recording, layer, states, source.stack.modules[layer - 1])


def write_mixed(
    noisy: Checkpoint,
    clean: Checkpoint,
    window: Window,
    path: Path,
    provenance: Provenance,
    part: str = "all",
    *,
    replace: bool = False,
) -> None:
    """Write NOISY with the window's blocks (or the part of them) from CLEAN as a checkpoint that stock classes load.

    Weights keep NOISY's stored type. `noisy` holds CLEAN's blocks afterwards.
    """
    donor = take_part(noisy, clean, part)
    with torch.no_grad():
        for layer in window.layers:
            target, source = noisy.stack.modules[layer - 1], donor.stack.modules[layer - 1]
            target.load_state_dict(source.state_dict())
    save_checkpoint(noisy, path, provenance, replace=replace)


def write_per_row(
    path: Path, result: SwapResult, examples: Examples, provenance: Provenance, *, replace: bool = False
) -> None:
    """Write one Parquet row for each (row, window): id, window, prediction, margin, and what it amounts to."""
    import polars as pl

    from mltools.io.atomic import atomic_file
    from mltools.io.provenance import KEY

    n = len(result.windows)
    names = np.array(result.labels)
    label, original = ([str(x) for x in column] for column in (examples.labels, examples.original_labels))
    frame = pl.DataFrame(
        {
            "id": np.repeat(np.array(table_ids(examples.ids), dtype=object), n).tolist(),
            "window": [str(w) for w in result.windows] * len(examples),
            "label": np.repeat(np.array(label, dtype=object), n).tolist(),
            "original_label": np.repeat(np.array(original, dtype=object), n).tolist(),
            "noisy": np.repeat(np.array(examples.noisy), n),
            "predicted": names[result.predicted.T.reshape(-1)].tolist(),
            "margin": result.margin.T.reshape(-1),
        }
    )
    with atomic_file(path, replace=replace) as temporary:
        frame.write_parquet(temporary, metadata={KEY: provenance.as_json()})


def items(run: Run) -> Iterator[WorkItem]:
    """List the windows asked for, with the cost of each alone."""
    return plan(run.shape, parse_windows(run.settings.layers, run.shape.n_layers))


def run(run: Run) -> Iterator[WindowRecord]:
    """Swap the windows asked for, and write what else is wanted of them."""
    settings: Settings = run.settings
    noisy, clean = run.model("noisy").open(), run.model("clean").open()
    windows = run.chosen(parse_windows(settings.layers, noisy.n_layers), items)
    if not windows:
        return
    result = SwapResult.empty()
    yield from swap(noisy, clean, run.rows, windows, settings, run.track, result, done=run.earlier, run=run.digest)
    if settings.per_row is not None:
        write_per_row(settings.per_row, result, run.rows, run.made_by("per_row"), replace=run.force)
    if settings.write is not None:
        write_mixed(noisy, clean, windows[0], settings.write, run.made_by("write"), settings.part, replace=run.force)
    if result.validity is not None:
        run.judged(result.validity, strict=settings.validity.strict)
    run.report(
        resumed=len(run.earlier) or None,
        rows=result.rows,
        layers=result.layers,
        applications=result.applications,
        applications_per_row=result.applications / result.rows if result.rows else None,
    )
