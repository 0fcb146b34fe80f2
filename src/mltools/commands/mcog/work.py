"""Weigh layer scores: the centre of gravity of each group of records."""

from collections.abc import Iterator
from typing import Any

from mltools import console
from mltools.analysis.centre_of_gravity import average, layers, mcog
from mltools.errors import RowsError
from mltools.io.kinds import CogRecord, LayerRecord
from mltools.run import Run


def run(run: Run) -> Iterator[tuple[CogRecord | LayerRecord, dict[str, Any]]]:
    """Weigh the records given, or write each layer's score."""
    settings = run.settings
    if settings.by_layer:
        yield from run.carried(layers(run.records(), settings.by, settings.value, solved=settings.solved))
    else:
        yield from run.carried(_centres(run))


def _centres(run: Run) -> Iterator[tuple[CogRecord, dict[str, Any]]]:
    """Weigh the records, and say at the end how many groups have no centre, so that one does not keep the others."""
    n = 0
    reasons: list[str] = []
    centres = mcog(run.records(), run.settings.by, run.settings.value)
    for record, group in average(centres, run.settings.over) if run.settings.over else centres:
        yield record, group
        n += 1
        reasons += [record.reason] if record.reason is not None else []
    if not reasons:
        return
    message = f"{len(reasons)} of {n} groups have no centre of gravity: {reasons[0]}"
    if len(reasons) == n:
        run.fail(RowsError(message))
    else:
        console.warn(message)
