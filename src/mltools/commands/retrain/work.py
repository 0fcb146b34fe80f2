"""Reset windows of blocks to PRETRAINED, retrain them on clean rows, and see whether the noise comes back (§3.1).

What is memorised outside the window is still there after retraining; what was memorised inside is gone. Windows that
start at one layer share the states below it, which are computed once: frozen blocks run in eval mode, so those states
never change. No gradient goes below the window, and nothing is evaluated that is not reported.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from mltools import console
from mltools.commands.retrain import Settings
from mltools.commands.retrain.window_trainer import WindowTrainer, keeps_states, prepare, split_rows
from mltools.console import Track, untracked
from mltools.io.examples import Examples
from mltools.io.kinds import WindowRecord
from mltools.io.records import Record
from mltools.layers import Window, full_first, parse_windows, planned_windows
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_pairs import check_same
from mltools.model.cost import Shape, WorkItem
from mltools.model.tasks import schedule_of
from mltools.piped import PIPED, piped_windows
from mltools.processes import ALONE, Team
from mltools.run import Run
from mltools.spec import bare

DEFAULTS = bare(Settings)


def retrain(
    noisy: Checkpoint,
    pretrained: Checkpoint,
    examples: Examples,
    windows: Sequence[Window] = (),
    settings: Settings = DEFAULTS,
    *,
    done: Sequence[Record] = (),
    run: str | None = None,
    progress: Track = untracked,
    edge: Callable[[], None] = lambda: None,
    team: Team = ALONE,
) -> Iterator[WindowRecord]:
    """Retrain each window from the same state and seed: blocks of the window from `pretrained`, all else from `noisy`.

    Args:
        noisy: θ_M2; it is trained in place and put back after each window.
        pretrained: θ_P, of the same shape and tokenizer, opened with a head like `noisy`'s, which is not used.
        examples: the training rows, with noisy ones among them.
        windows: which windows; none means those of the plan.
        settings: schedule, what is trained, and how.
        done: records of this sweep made earlier (`finished`), whose windows are left out.
        run: digest of settings and inputs, put into the records.
        progress: wraps the training steps of a window, to show progress.
        edge: called before each window; it may raise to stop there.
        team: the processes that share the windows: each retrains one, then the next ones follow.

    Yields:
        One record a window as it ends: the full window first if it is among them (the others' scaled errors need
        it), then by start and end.

    Raises:
        InvalidError: with `--strict`, a NOISY that has not memorised the noisy rows.
        CheckpointError: the checkpoints do not fit each other, or have no such part.
        RowsError: no noisy rows, too few clean ones, or `done` is of another sweep.
        TrainingError: a loss that is not finite.
    """
    check_same(noisy, pretrained)
    sweep = WindowTrainer(noisy, pretrained, examples, settings, run)
    errors = sweep.read(done)
    chosen = full_first(windows or planned_windows(noisy.n_layers, settings.plan), noisy.n_layers)
    chosen = [window for window in chosen if window not in errors]

    def begun() -> Iterator[tuple[int, Window]]:
        for number, window in enumerate(chosen):
            if number % team.n == 0:  # those that are retrained at once begin at one edge
                edge()
            if number == 0:
                sweep.enter(window.start)
                sweep.measure_baseline(team).tell(strict=settings.validity.strict)
            yield number, window

    def measured(item: tuple[int, Window]) -> WindowRecord:
        number, window = item
        title, left = f"window {window} ({number + 1}/{len(chosen)})", math.ceil((len(chosen) - number) / team.n)
        sweep.enter(window.start)
        return sweep.measure(window, progress, title, left)

    for (_, window), record in team.dealt(begun(), measured):
        yield sweep.noted(window, record)
    if sweep.not_learnt:
        console.warn(
            f"{len(sweep.not_learnt)} of {len(chosen)} windows did not learn (learnt=false; first {sweep.not_learnt[0]}"
            "): their errors are not of forgetting alone; raise --epochs or --lr, or take more rows"
        )


def plan(
    examples: Examples, shape: Shape, windows: Iterable[Window], settings: Settings = DEFAULTS, *, caching: bool
) -> Iterator[WorkItem]:
    """List windows in the order of the sweep, with the cost of each alone.

    In one run, windows that start at the same layer share the states that enter it, and NOISY is measured once.
    """
    split = split_rows(examples, settings.seed)
    measured = len(examples) + 2 * len(split.noisy) + len(split.measured)
    trained = settings.training.epochs * len(split.train)
    entered: set[int] = set()
    for window in full_first(windows, shape.n_layers):
        above = shape.n_layers - window.start + 1
        below = window.start - 1 if caching else 0
        baseline = len(examples) * (above if caching else shape.n_layers)
        shared = baseline + (len(examples) * below if window.start in entered else 0)
        entered.add(window.start)
        yield WorkItem(
            f"--layers {window}",
            rows=len(examples),
            steps=settings.training.epochs * schedule_of(settings.training).steps_per_epoch(len(split.train)),
            applications=(trained + measured) * (above if caching else shape.n_layers) + len(examples) * below,
            shared=shared,
            backward=trained * (above + window.width)
            if settings.training.clip_scope == "trainable"
            else trained * 2 * shape.n_layers,
            models=3,
            copies=3 * window.width,
            updated=window.width,
            batch=settings.training.batch_size,
            states=shape.tokens if below else 0,
        )


def items(run: Run) -> Iterator[WorkItem]:
    """List the windows asked for, with the cost of each alone, as the checkpoints can be run."""
    noisy = run.model("noisy").open()
    return _items(run, noisy, run.model("pretrained").open(fresh_head=noisy.labels))


def _items(run: Run, noisy: Checkpoint, pretrained: Checkpoint) -> Iterator[WorkItem]:
    check_same(noisy, pretrained)
    prepare(noisy, pretrained, run.rows, run.settings)
    windows = parse_windows(run.settings.layers, noisy.n_layers, run.settings.plan)
    return plan(run.rows, run.shape, windows, run.settings, caching=keeps_states(noisy, run.settings))


def run(run: Run) -> Iterator[WindowRecord]:
    """Retrain the windows asked for."""
    noisy = run.model("noisy").open()
    pretrained = run.model("pretrained").open(fresh_head=noisy.labels)

    applications = 0
    for windows in _groups(run, noisy, pretrained):
        yield from retrain(
            noisy,
            pretrained,
            run.rows,
            windows,
            run.settings,
            done=run.earlier,
            run=run.digest,
            progress=run.track,
            edge=run.edge,
            team=run.team,
        )
        applications += sum(run.team.gather(noisy.runner.applications))
    run.report(resumed=len(run.earlier) or None, rows=len(run.rows), layers=noisy.n_layers, applications=applications)


def _groups(run: Run, noisy: Checkpoint, pretrained: Checkpoint) -> Iterator[list[Window]]:
    """Give the windows of one sweep: all, or each alone where they come from stdin."""
    if run.settings.layers == PIPED:
        yield from piped_windows(noisy.n_layers)
        return
    asked = parse_windows(run.settings.layers, noisy.n_layers, run.settings.plan)
    if windows := run.chosen(full_first(asked, noisy.n_layers), lambda run: _items(run, noisy, pretrained)):
        yield windows
