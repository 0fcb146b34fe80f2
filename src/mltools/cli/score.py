"""`mltools score`."""

from typing import Annotated

import typer

from mltools import options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import ScoreConfig
from mltools.errors import UsageError
from mltools.ranges import read_whole
from mltools.windows import parse_layers


@command(
    "score",
    "mltools score swap.jsonl grads.jsonl --truth 3-4",
    "cat control-*.jsonl | mltools score --truth planted --per model -k 1,2,3",
    writes=("score",),
)
def score(
    records: options.Records = None,
    truth: Annotated[
        str | None,
        typer.Option("--truth", metavar="LIST|COL", help="The known layers, e.g. 6-7, or the tag that holds them."),
    ] = None,
    k: Annotated[
        str | None, typer.Option("-k", metavar="N[,N]", help="How many of the best layers to look at. [default: 1,2]")
    ] = None,
    per: options.Per = None,
    tag: options.Tag = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Judge layer scores where the layers of memorisation are known.

    Reads window or layer records, scores the layers of each group (tool and tags) as mcog does, and writes one
    record for each tool and k: the mean share of the k best layers that are known ones (accuracy@k) with its 95 %
    interval over groups and its chance level, and the mean reciprocal rank. Equal scores share their places.
    """
    from mltools.tools.score import score as tool

    if not truth:
        raise UsageError("which layers are right? give --truth, e.g. --truth 6-7")
    if truth[:1].isdigit():
        parse_layers(truth)
    config = ScoreConfig(truth=truth, k=_numbers(k), per=options.parse_names(per) or ())
    task = job.Job("score", config, inputs=records or (), out=out, force=force, tag=tag, provenance=provenance)
    with task.records() as writer:
        for record, group in tool(task.read_records(records), config):
            writer.write({**vars(record), **group})
    task.finish(records=writer.n)


def _numbers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ScoreConfig.k
    numbers = [read_whole(name) for name in options.parse_names(text) or ()]
    found = tuple(dict.fromkeys(number for number in numbers if number))
    if not all(numbers):
        raise UsageError(f'-k "{text}": write numbers from 1, e.g. 1,2')
    return found
