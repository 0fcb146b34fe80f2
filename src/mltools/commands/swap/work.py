"""Put windows of CLEAN's blocks into NOISY and measure how much memorisation that undoes (§3.1, §4.1).

No weight is copied. All windows are walked as one tree: windows that agree up to a layer share the states up
to it, so every window of L layers costs L(L+1)(L+2)/6 + L layer applications a row instead of L·L(L+1)/2. The full
window is always measured (L more where it is not asked for), and CLEAN whole (L): see `model.validity`.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from mltools import console
from mltools.analysis.statistics import wilson_of_drawn
from mltools.commands.swap import Settings
from mltools.commands.swap.predictions import UNCHANGED, Sides, SwapResult, sweep_of
from mltools.console import Track, untracked
from mltools.errors import CheckpointError, UsageError
from mltools.hashing import draw_clean
from mltools.io.columns import table_ids
from mltools.io.examples import Examples
from mltools.io.kinds import WindowRecord
from mltools.io.provenance import Provenance
from mltools.io.records import Record
from mltools.layers import Window, all_windows, parse_windows
from mltools.model.anatomy import BlockStack, select_part
from mltools.model.batches import Encoded
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_pairs import check_same
from mltools.model.checkpoint_saving import save_checkpoint
from mltools.model.checks import check_mixture, self_check
from mltools.model.cost import Shape, WorkItem
from mltools.model.inference import TIE
from mltools.model.passes import can_keep, passes
from mltools.model.validity import (
    Labels,
    PairValidity,
    judge_pair,
    margin_columns,
    read_labels,
    reverted,
    with_twins,
)
from mltools.model.window_tree import window_logits
from mltools.piped import PIPED, piped_windows
from mltools.processes import ALONE, Team
from mltools.run import Run
from mltools.spec import bare
from mltools.sweep import by_start, finished_errors, scaled, window_columns

if TYPE_CHECKING:
    import polars as pl

DEFAULTS = bare(Settings)

BREAKS = 0.2
"""By how much the full window may lower the accuracy on clean rows before the mixture is said to break the model."""


def swap(
    noisy: Checkpoint,
    clean: Checkpoint,
    examples: Examples,
    windows: Sequence[Window] = (),
    settings: Settings = DEFAULTS,
    progress: Track = untracked,
    result: SwapResult | None = None,
    *,
    done: Sequence[Record] = (),
    run: str | None = None,
    team: Team = ALONE,
) -> Iterator[WindowRecord]:
    """Measure each window: blocks of the window from `clean`, all else from `noisy`.

    Args:
        noisy: θ_M2, trained on the perturbed labels.
        clean: θ_O, of the same shape, classes and tokenizer.
        examples: the training rows, with noisy ones among them.
        windows: which windows; none means all.
        settings: batch size, longest row, which part of the blocks, how many of the clean rows, in which precision.
        progress: wraps the rows as they are done, to show progress.
        result: filled with per-row predictions and the cost.
        done: records of this sweep made earlier (`sweep.finished`), whose windows are left out.
        run: digest of settings and inputs, put into the records.
        team: the processes that share the batches of rows.

    Yields:
        One record a window, in the given order. Accuracies are against `label`.

    Raises:
        CheckpointError: the checkpoints do not fit each other.
        RowsError: no noisy or no clean rows, a label that is no class of the checkpoints, or another sweep in `done`.
    """
    check_same(noisy, clean)
    examples.require_noisy()
    examples = draw_clean(examples, settings.clean_rows)
    full = Window(tuple(range(1, noisy.n_layers + 1)))
    n_noisy = sum(examples.noisy)
    counts = {"n_noisy": n_noisy, "n_clean": len(examples) - n_noisy}
    errors = finished_errors(done, noisy.n_layers, {**counts, "run": run})
    if settings.positions != "all":
        windows = prefixes(windows, full, noisy)
    windows = [window for window in windows or all_windows(noisy.n_layers) if window not in errors]
    if not windows:
        return
    labels = read_labels(noisy, examples)
    encoded, donor = prepare(noisy, clean, examples, settings)
    result = result or SwapResult()
    further = [UNCHANGED] if full in windows or full in errors else [UNCHANGED, full]
    result.start(noisy, windows, further, len(encoded))
    noisy.runner.applications = clean.runner.applications = 0
    sweep = sweep_of(Sides(noisy, clean, donor), encoded, examples.ids, labels, settings, team)
    result.precision = sweep.precision
    keeps = all(team.gather(can_keep(noisy, encoded)))
    parts = passes(result.measured, noisy.n_layers, keeps=keeps)
    rows = sweep.predict(result, parts, keeps=keeps)

    def judge() -> PairValidity:
        noisy.check_files()
        clean.check_files()
        found = judge_pair(
            result.of(UNCHANGED),
            result.donor,
            labels,
            settings.validity.min_noisy_accuracy,
            (noisy.name, clean.name),
            twin=settings.donor_is == "clean",
            n_cut=encoded.n_cut,
            n_unlabelled=examples.n_unlabelled,
        )
        return with_twins(found, noisy, clean) if settings.donor_is == "clean" else found

    total = counts["n_clean"] + examples.n_left_out
    records, n_given = _records(judge, labels, total, full, result, settings, errors, run), 0
    with noisy.unchanged(), clean.unchanged():
        for _ in progress(rows, len(encoded) * len(parts)):
            yield from islice(records, result.n_measured - n_given)
            n_given = result.n_measured
    result.applications = sweep.applications
    yield from records


def prefixes(windows: Sequence[Window], full: Window, noisy: Checkpoint) -> Sequence[Window]:
    """Give the windows whose last states are exchanged at some positions: 1 to l, for every l or those asked for.

    Raises:
        UsageError: a window that does not start at layer 1.
        CheckpointError: the head reads all positions.
    """
    if noisy.runner.pooling == "all":
        raise CheckpointError(f"{noisy.name}: the head reads all positions, so --positions cannot tell one from others")
    own = [Window(full.layers[:end]) for end in full.layers]
    wrong = next((window for window in windows if window not in own), None)
    if wrong is not None:
        raise UsageError(f"--positions takes states after layers 1 to l: --layers 1-{wrong.end}, not {wrong}")
    return windows or own


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


def prepare(noisy: Checkpoint, clean: Checkpoint, examples: Examples, settings: Settings) -> tuple[Encoded, Checkpoint]:
    """Give the rows in tokens and what windows are taken from, once it is seen how windows can be measured rightly."""
    encoded = noisy.encode(examples, settings.reading.max_length)
    self_check(noisy.runner, encoded)
    donor = take_part(noisy, clean, settings.part)
    check_mixture(noisy, donor, encoded, window_logits)
    return encoded, donor


def plan(shape: Shape, windows: Sequence[Window], *, whole: bool) -> Iterator[WorkItem]:
    """List windows with the cost of each alone.

    NOISY and CLEAN once each, the full window, and from the window's first layer on once more, less what it shares
    with the full window; all of them, if models are run `whole`. In one run they share more: L(L+1)(L+2)/6 + 2L
    applications a row for all windows of L layers.
    """

    def applied(window: Window) -> set[tuple[int, tuple[int, ...]]]:
        """The blocks applied for a window, each by what makes the states after it those of no other window."""
        layers = range(window.start, shape.n_layers + 1)
        if whole and window.width < shape.n_layers:
            return {(layer, (0, *window.layers)) for layer in range(1, shape.n_layers + 1)}
        return {(layer, tuple(own for own in window.layers if own <= layer)) for layer in layers}

    rows, full = len(shape.lengths), applied(Window(tuple(range(1, shape.n_layers + 1))))
    seen = set(full)
    for window in windows:
        own = applied(window)
        alone, more = 3 * shape.n_layers + len(own - full), len(own - seen)
        seen |= own
        yield WorkItem(f"--layers {window}", rows, applications=rows * alone, shared=rows * (alone - more), models=2)


def _records(
    judge: Callable[[], PairValidity],
    labels: Labels,
    n_clean: int,
    full: Window,
    result: SwapResult,
    settings: Settings,
    earlier: Mapping[Window, float],
    run: str | None,
) -> Iterator[WindowRecord]:
    """Yield the windows' records in their order, each when it is measured; the first ones after the first pass.

    `n_clean` is how many clean rows there are, measured or not.
    """
    result.validity = judge()
    columns, is_noisy = result.validity.columns(), labels.noisy
    predicted = dict(zip(result.measured, result.predicted, strict=True))
    hits = {window: predicted[window] == labels.label for window in (full, UNCHANGED) if window in predicted}
    full_error = 1 - _share(hits[full][is_noisy]) if full in hits else earlier[full]
    margins = dict(zip(result.measured, result.label_margin, strict=True))
    if full in hits and _share(hits[full][~is_noisy]) < _share(hits[UNCHANGED][~is_noisy]) - BREAKS:
        console.warn(
            f"the full window has accuracy {_share(hits[full][~is_noisy]):.3g} on clean rows, NOISY "
            f"{_share(hits[UNCHANGED][~is_noisy]):.3g}: the mixture breaks the model"
        )
    for i, window in enumerate(result.windows):
        hit = predicted[window] == labels.label
        error = 1 - _share(hit[is_noisy])
        yield WindowRecord(
            tool="swap",
            **window_columns(window, result.layers, run),
            part=settings.part,
            positions=settings.positions,
            n_noisy=int(is_noisy.sum()),
            noisy_accuracy=_share(hit[is_noisy]),
            memorisation_error=error,
            memorisation_error_scaled=scaled(error, full_error),
            n_clean=int((~is_noisy).sum()),
            clean_accuracy=_share(hit[~is_noisy]),
            **_interval(hit[~is_noisy], n_clean),
            reverted=reverted(result.predicted[i], labels),
            n_ties=int((result.margin[i] < TIE).sum()),
            precision=result.precision,
            n_rerun=int(result.rerun[i]) if result.precision != "fp32" else None,
            **margin_columns(margins[window][is_noisy], margins[UNCHANGED][is_noisy]),
            **columns,
        )


def _interval(hits: NDArray[np.bool_], total: int) -> dict[str, Any]:
    """Give the columns that say how well the accuracy on all clean rows is known, where only some were measured."""
    low, high = wilson_of_drawn(_share(hits), len(hits), total)
    return {"clean_accuracy_ci_low": low, "clean_accuracy_ci_high": high} if len(hits) < total else {}


def _share(hits: NDArray[np.bool_]) -> float:
    return float(hits.sum()) / len(hits)


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


def per_row(result: SwapResult, examples: Examples) -> "pl.DataFrame":
    """Give a row for each (row, window): id, window, prediction, margin, and what it amounts to."""
    import polars as pl

    n = len(result.windows)
    names = np.array(result.labels)
    label, original = ([str(x) for x in column] for column in (examples.labels, examples.original_labels))
    return pl.DataFrame(
        {
            "id": np.repeat(np.array(table_ids(examples.ids), dtype=object), n).tolist(),
            "window": [str(w) for w in result.windows] * len(examples),
            "label": np.repeat(np.array(label, dtype=object), n).tolist(),
            "original_label": np.repeat(np.array(original, dtype=object), n).tolist(),
            "noisy": np.repeat(np.array(examples.noisy), n),
            "predicted": names[result.predicted[:n].T.reshape(-1)].tolist(),
            "margin": result.margin[:n].T.reshape(-1),
        }
    )


def items(run: Run) -> Iterator[WorkItem]:
    """List the windows asked for, with the cost of each alone, as the checkpoints can be run."""
    noisy, clean = run.model("noisy").open(), run.model("clean").open()
    return _items(run, noisy, clean)


def _items(run: Run, noisy: Checkpoint, clean: Checkpoint) -> Iterator[WorkItem]:
    check_same(noisy, clean)
    prepare(noisy, clean, run.measured, run.settings)
    return plan(run.shape, _asked(run.settings, noisy.n_layers), whole=not noisy.runner.walks)


def _asked(settings: Settings, n_layers: int) -> list[Window]:
    prefixes = [f"1-{end}" for end in range(1, n_layers + 1)] if settings.positions != "all" else ()
    return parse_windows(settings.layers or prefixes, n_layers)


def run(run: Run) -> Iterator[WindowRecord]:
    """Swap the windows asked for, and write what else is wanted of them."""
    settings: Settings = run.settings
    noisy, clean = run.model("noisy").open(), run.model("clean").open()
    result, applications = SwapResult(), 0
    for number, windows in enumerate(_groups(run, noisy, clean)):
        run.edge()
        yield from swap(
            noisy,
            clean,
            run.rows,
            windows,
            settings,
            run.track,
            result,
            done=run.earlier,
            run=run.digest,
            team=run.team,
        )
        applications += result.applications
        if result.validity is not None and not number:
            run.judged(result.validity, strict=settings.validity.strict)
    if settings.per_row is not None and not run.silent:
        run.write_frame("per_row", per_row(result, run.measured))
    if settings.write is not None and not run.silent:
        write_mixed(
            noisy, clean, result.windows[0], settings.write, run.made_by("write"), settings.part, replace=run.force
        )
    run.report(
        resumed=len(run.earlier) or None,
        rows=result.rows,
        layers=result.layers,
        applications=applications,
        applications_per_row=applications / result.rows if result.rows else None,
    )


def _groups(run: Run, noisy: Checkpoint, clean: Checkpoint) -> Iterator[list[Window]]:
    """Give the windows that are measured together: all, or with --time-left those of one start; from stdin one each."""
    if run.settings.layers == PIPED:
        yield from piped_windows(noisy.n_layers)
        return
    windows = run.chosen(_asked(run.settings, noisy.n_layers), lambda run: _items(run, noisy, clean))
    done = {record.values.get("window") for record in run.earlier}
    left = [window for window in windows if str(window) not in done]
    if run.settings.share.time_left is not None and left:
        yield from by_start(left)
    elif windows:
        yield windows
