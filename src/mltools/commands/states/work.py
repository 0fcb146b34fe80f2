"""Save the hidden states of rows, for probe and centroid."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mltools.commands.states import Settings
from mltools.io.states import states_output
from mltools.model.cost import WorkItem
from mltools.model.states import Extraction, plan
from mltools.run import Run
from mltools.sinks import NoSink

sink = NoSink


def items(run: Run) -> list[WorkItem]:
    """Count the work, which is one item."""
    return [plan(run.shape)]


def run(run: Run) -> Iterator[None]:
    """Write the states file; there are no records."""
    settings: Settings = run.settings
    kept = Extraction(
        settings.dtype, settings.position, settings.raw_last, settings.batch_size, settings.reading.max_length
    )
    run.input("rows")  # is there, before stdout is looked at
    nowhere = contextlib.nullcontext(Path(os.devnull))
    with nowhere if run.silent else states_output(settings.out, replace=run.force) as path:
        run.write_states("checkpoint", path, kept)
    yield from ()
