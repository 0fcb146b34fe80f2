"""`mltools correlate`."""

from typing import Annotated

import typer

from mltools import options
from mltools.cli import job
from mltools.cli.app import command
from mltools.config import CorrelateConfig, choices, resolve

METHODS = ("spearman", "pearson", "kendall")
SCALES = ("none", "minmax")


@command(
    "correlate",
    "mltools mcog swap.jsonl retrain.jsonl | mltools correlate --on dataset,model",
    "mltools correlate swap.jsonl grads.jsonl --pivot model --value score --on tool,dataset --scale minmax",
    "mltools correlate swap.jsonl retrain.jsonl grads.jsonl --value score --per model -o table.parquet",
    writes=("correlation",),
)
def correlate(
    records: options.Records = None,
    pivot: Annotated[
        str | None,
        typer.Option("--pivot", metavar="COL", help="Compare the values of this column. [default: tool for one value]"),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="COL[,COL]",
            help="What to compare: mcog, score, a column, or an event such as crossing. [default: mcog]",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="COL[,COL]", help="Columns that match records. [default: tool and tags, less the pivot]"
        ),
    ] = None,
    per: options.Per = None,
    pool: Annotated[
        bool, typer.Option("--pool", help="Average several records of one key, instead of refusing them.")
    ] = False,
    scale: Annotated[
        str | None,
        options.choice(
            "--scale",
            choices(CorrelateConfig, "scale"),
            metavar="NAME",
            help="none, or minmax: each tool's numbers of a series to 0-1.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        options.choice(
            "--method",
            choices(CorrelateConfig, "method"),
            metavar="NAME",
            help="spearman, pearson or kendall. [default: spearman]",
        ),
    ] = None,
    resamples: Annotated[
        int | None,
        typer.Option("--resamples", metavar="N", help="Bootstrap resamples for intervals. [default: 2000]"),
    ] = None,
    seed: options.Seed = None,
    preset: options.PresetOpt = "paper",
    tag: options.Tag = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Correlate tools, models, tasks or measures.

    Reads long records (of mcog, centroid --events, …; window and layer records are weighed first) and writes one
    record for each two values of --pivot, or each two --values: the rank correlation over the keys that both have,
    with p (exact up to 8), p adjusted for the number of records, a 95 % bootstrap interval, and how many keys were
    kept and dropped. Scores are matched layer by layer. Constant or short series give null and the reason.
    """
    from mltools.tools.correlate import correlate as tool

    values = _values(value)
    between_tools = CorrelateConfig(value=values, pivot=pivot).series == "tool"
    config = resolve(
        CorrelateConfig,
        preset,
        value=values,
        pivot=pivot,
        on=options.parse_names(on),
        per=options.parse_names(per),
        pool=pool,
        scale=scale,
        method=_method(method, between_tools and preset == "released-code"),
        resamples=resamples,
        seed=seed,
    )
    task = job.Job("correlate", config, inputs=records or (), out=out, force=force, tag=tag, provenance=provenance)
    with job.no_collector(), task.records() as writer:
        for record, group in tool(task.read_records(records), config):
            writer.write({**vars(record), **group})
    task.finish(records=writer.n)


def _values(text: str | None) -> tuple[str, ...]:
    return tuple("m_cog" if name == "mcog" else name for name in options.parse_names(text) or ("m_cog",))


def _method(name: str | None, pearson: bool) -> str | None:
    """Choose the coefficient: as released, tools are compared by Pearson's, models by Spearman's."""
    if name is None:
        return "pearson" if pearson else None
    return name
