"""Weigh layer scores: the centre of gravity of each group of records."""

from collections.abc import Iterator
from typing import Any

from mltools.analysis.layer_scores import layers, mcog
from mltools.errors import RowsError
from mltools.io.kinds import CogRecord, LayerRecord
from mltools.run import Run


def run(run: Run) -> Iterator[tuple[CogRecord | LayerRecord, dict[str, Any]]]:
    """Weigh the records given, or write each layer's score."""
    by = run.settings.by
    if run.settings.by_layer:
        yield from layers(run.records(), by)
        return
    n = undefined = 0
    for record, group in mcog(run.records(), by):
        yield record, group
        n += 1
        undefined += record.reason is not None
    if undefined:  # said at the end, so that one group does not keep the others from being weighed
        run.fail(RowsError(f"{undefined} of {n} groups have no centre of gravity: all weights are zero"))
