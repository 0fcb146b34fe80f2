"""Fine-tune a pre-trained model on rows and write checkpoints (§3, released-code §1.4).

`target` "label" gives θ_M2, and θ_M1 in `memorised/`; "original_label" gives θ_O with the same batches and the
same fresh head. With auxiliary rows it is the control set-up of §3.2: they change every layer, the rows only the
layers that `freeze` leaves. A run can be stopped or killed at any moment and resumed to the same bytes.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from mltools import console
from mltools.commands.finetune import Settings
from mltools.commands.finetune.state import finished_facts
from mltools.commands.finetune.training_run import TrainingRun, frozen_parts
from mltools.console import Track, untracked
from mltools.errors import UsageError
from mltools.io.columns import Columns
from mltools.io.examples import Examples
from mltools.io.inputs import Rows
from mltools.io.kinds import EpochRecord
from mltools.io.outputs import is_taken
from mltools.io.provenance import Provenance
from mltools.model.cost import Shape, WorkItem, training_layers
from mltools.run import Run
from mltools.spec import bare, plain_settings

DEFAULTS = bare(Settings)


def finetune(
    pretrained: str,
    examples: Examples,
    out: Path,
    settings: Settings = DEFAULTS,
    *,
    aux: Examples | None = None,
    validation: Examples | None = None,
    device: torch.device | None = None,
    resume: bool = False,
    force: bool = False,
    provenance: Provenance | None = None,
    progress: Track = untracked,
    edge: Callable[[], None] = lambda: None,
) -> Iterator[EpochRecord]:
    """Train, and write the final checkpoint to `out` with `memorised/` in it, if it was reached.

    Args:
        pretrained: θ_P, a folder or hub repository.
        examples: training rows.
        out: the checkpoint folder to write.
        settings: target, schedule, what is frozen.
        aux: rows of an auxiliary task, trained towards their `label` through a second head that is not saved.
        validation: rows to measure after each epoch.
        device: CPU by default; under torchrun, the process's own.
        resume: go on with a run that was stopped; a finished one is only reported again.
        force: replace a checkpoint, and throw away an unfinished run, that is in the way.
        provenance: written into the checkpoints.
        progress: wraps the batches of an epoch, to show progress.
        edge: called before each epoch; if it raises TimeLeftError, the run ends there and can be gone on with.

    Yields:
        One record an epoch, also those of the epochs before a resumed stop, and of attempts that were too slow.

    Raises:
        TrainingError: a loss that is not finite, or a state to resume that is of another run.
        UsageError: an unfinished run is in the way, or one that is going on, or a checkpoint of another run.
        CheckpointError: the pre-trained model cannot be used, or changed during the run.
        KeyboardInterrupt, Terminated: after saving what resuming needs.
    """
    provenance = provenance or Provenance("finetune", plain_settings(settings), settings.seed)
    run = TrainingRun(pretrained, examples, out, settings, aux, validation, device, provenance, force)
    facts = finished_facts(out, run.fingerprint) if resume else None
    if facts is not None:
        console.warn(f"{out} is finished already; nothing left to do")
        run.state.discard_finished()
        records = [EpochRecord(**record) for record in facts.get("epochs", [])]
        yield from records
        run.say_outcome(records[-1])
        return
    if resume and is_taken(out) and not force:
        raise UsageError(f"{out} is there, of a run with other settings or rows; replace it with --force")
    try:
        run.start(resume=resume, force=force)
        try:
            yield from run.train(progress, edge)
        finally:
            run.accelerator.end_training()
    finally:
        run.state.release()


def plan(
    shape: Shape,
    examples: Examples,
    settings: Settings = DEFAULTS,
    aux: Examples | None = None,
    validation: Examples | None = None,
) -> WorkItem:
    """Count the work of one attempt, training rows measured after every epoch unless after the last only."""
    backward, trained = training_layers(shape, frozen_parts(settings, shape.n_layers), settings.training.clip_scope)
    n, n_aux, n_held_out = (len(rows) if rows is not None else 0 for rows in (examples, aux, validation))
    measured = (
        n * (1 if settings.evaluate == "last" else settings.training.epochs)
        + n_aux
        + n_held_out * settings.training.epochs
    )
    return WorkItem(
        rows=n + n_aux,
        steps=settings.training.epochs
        * (math.ceil(n / settings.training.batch_size) + math.ceil(n_aux / settings.training.batch_size)),
        applications=(settings.training.epochs * (n + n_aux) + measured) * shape.n_layers,
        backward=settings.training.epochs * (n * backward + n_aux * 2 * shape.n_layers),
        copies=3 * (shape.n_layers if n_aux else trained),
        updated=shape.n_layers if n_aux else trained,
        batch=settings.training.batch_size,
    )


def items(run: Run) -> list[WorkItem]:
    """Count the work, which is one item."""
    return [plan(run.shape, run.rows, run.settings, _others(run, "aux"), _others(run, "validation"))]


def run(run: Run) -> Iterator[EpochRecord]:
    """Train, and write the checkpoint."""
    settings: Settings = run.settings
    aux, validation = _others(run, "aux"), _others(run, "validation")
    if run.model("pretrained").is_lent:  # it is opened anew for each attempt
        raise UsageError("pretrained: name a folder; this command takes no open one here")

    attempts = 0
    for last in finetune(
        settings.pretrained,
        run.rows,
        settings.folder,
        settings,
        aux=aux,
        validation=validation,
        device=run.device,
        resume=settings.resume,
        force=run.force,
        provenance=run.provenance,
        progress=run.track,
        edge=run.edge,
    ):
        attempts = max(attempts, last.attempt)
        yield last
    run.report(
        checkpoint=str(settings.folder),
        rows=len(run.rows),
        epochs=settings.training.epochs,
        target=settings.target,
        noisy_accuracy=last.noisy_accuracy,
        clean_accuracy=last.clean_accuracy,
        train_accuracy=last.train_accuracy,
        memorised_epoch=last.memorised_epoch or "never",
        aux_accuracy=last.aux_accuracy,
        attempts=attempts if attempts > 1 else None,
        kept_attempt=last.attempt if attempts > 1 else None,
    )


def _others(run: Run, role: str) -> Examples | None:
    """Read auxiliary or validation rows, if there are some."""
    path, columns = run.get(role), run.columns
    if path is None:
        return None
    if role == "aux":
        settings: Settings = run.settings
        columns = Columns(settings.aux_text, settings.aux_label, columns.separator, columns.label_type)
    return run.examples(role, Rows(path, columns))
