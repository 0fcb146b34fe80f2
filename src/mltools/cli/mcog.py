"""`mltools mcog`."""

from typing import Annotated

import typer

from mltools import options
from mltools.cli import job
from mltools.cli.app import command
from mltools.errors import RowsError


@command(
    "mcog",
    "mltools mcog swap.jsonl",
    "cat swap-*.jsonl | mltools mcog --by dataset,model",
    "mltools mcog --by-layer swap.jsonl",
    writes=("cog", "layer"),
)
def mcog(
    records: options.Records = None,
    by: options.By = None,
    by_layer: Annotated[
        bool, typer.Option("--by-layer", help="Write each layer's score instead of the centre of gravity.")
    ] = False,
    tag: options.Tag = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Compute the memorisation centre of gravity of layer scores.

    Reads window records (swap, retrain) or layer records (grads, probe, …) and writes one record a group: the sum
    of layer x weight over the sum of weights, layers from 1. A layer's weight is its score; for windows, the mean
    over widths of the mean error of the windows of that width that hold it. Groups are the tools and their tags.
    A group whose weights are all zero gives null and, once all groups are written, exit status 3.
    """
    from mltools.tools.mcog import layers
    from mltools.tools.mcog import mcog as tool

    settings = {"by": by, "by_layer": by_layer}
    task = job.Job("mcog", settings, inputs=records or (), out=out, force=force, tag=tag, provenance=provenance)
    results = (layers if by_layer else tool)(task.read_records(records), options.parse_names(by))
    undefined = 0
    with job.no_collector(), task.records() as writer:
        for record, group in results:
            writer.write({**vars(record), **group})
            undefined += getattr(record, "reason", None) is not None
    task.finish(records=writer.n)
    if undefined:  # said at the end, so that one group does not keep the others from being weighed
        raise RowsError(f"{undefined} of {writer.n} groups have no centre of gravity: all weights are zero")
