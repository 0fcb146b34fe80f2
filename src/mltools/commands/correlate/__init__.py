"""`mltools correlate`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from mltools.options import OutputOptions, Per, PresetName, RecordsOperand, Seed, Strict, columns_flag, parse_names
from mltools.ranges import whole
from mltools.spec import CommandSpec, Flag


def _parse_values(text: str) -> tuple[str, ...]:
    return tuple("m_cog" if name == "mcog" else name for name in parse_names(text))


@dataclass(frozen=True)
class Settings:
    """Correlate tools, models, tasks or measures.

    Reads long records (of mcog, centroid --events, …; window and layer records are weighed first) and writes one
    record for each two values of --pivot, or each two --values: the rank correlation over the keys that both have,
    with p (exact up to 8), p adjusted for the number of records, a 95 % bootstrap interval, the mean difference, and
    how many keys were kept and dropped. Scores are matched layer by layer. Constant or short series give null and
    the reason. Of the records of finetune, those of the epoch that the checkpoint holds count.
    """

    records: RecordsOperand = ()
    pivot: Annotated[
        str | None,
        Flag("--pivot", metavar="COL", default="tool for one value", help="Compare the values of this column."),
    ] = None
    value: Annotated[
        tuple[str, ...],
        columns_flag(
            "--value",
            "What to compare: mcog, score, a column, or an event such as crossing.",
            parse=_parse_values,
            default="mcog",
        ),
    ] = ("m_cog",)
    on: Annotated[
        tuple[str, ...] | None,
        columns_flag("--on", "Columns that match records.", default="tool and tags, less the pivot"),
    ] = None
    per: Per = ()
    pool: Annotated[bool, Flag("--pool", help="Average several records of one key, instead of refusing them.")] = False
    allow_mixed: Annotated[
        bool, Flag("--allow-mixed", help="Compare numbers that windows of other widths gave, instead of refusing.")
    ] = False
    scale: Annotated[
        Literal["none", "minmax"],
        Flag("--scale", metavar="NAME", help="none, or minmax: each tool's numbers of a series to 0-1."),
    ] = "none"
    method: Annotated[
        Literal["spearman", "pearson", "kendall"],
        Flag("--method", metavar="NAME", help="spearman, pearson or kendall."),
    ] = "spearman"
    mean: Annotated[
        bool,
        Flag("--mean", help="One record a table: the mean correlation of every two series, over keys that all have."),
    ] = False
    cluster: Annotated[
        str | None,
        Flag(
            "--cluster",
            metavar="COL",
            help="Intervals draw whole groups of keys by this key column, e.g. dataset; p is null then.",
        ),
    ] = None
    resamples: Annotated[
        int, Flag("--resamples", metavar="N", numbers=whole(0, 10_000_000), help="Bootstrap resamples for intervals.")
    ] = 2000
    seed: Seed = 1
    preset: PresetName = "paper"
    strict: Strict = False
    output: OutputOptions = OutputOptions()

    @property
    def series(self) -> str | None:
        """The column whose values are the series; None where several `value`s are."""
        return self.pivot or ("tool" if len(self.value) == 1 else None)


def _released(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """As released, tools are compared by Pearson's coefficient, models by Spearman's."""
    several = "," in given.get("value", "")
    return {"method": "pearson"} if given.get("pivot", "" if several else "tool") == "tool" else {}


SPEC = CommandSpec(
    Settings,
    heading="Summarise",
    rank=20,
    examples=(
        "mltools mcog swap.jsonl retrain.jsonl | mltools correlate --on dataset,model",
        "mltools correlate swap.jsonl grads.jsonl --pivot model --value score --on tool,dataset --scale minmax",
        "mltools correlate swap.jsonl retrain.jsonl grads.jsonl --value score --per model -o table.parquet",
        "mltools correlate swap.jsonl --pivot model --on dataset --mean",
        "mltools correlate swap.jsonl retrain.jsonl --on dataset,model --cluster dataset",
    ),
    counted="records",
    released=_released,
    writes=("correlation",),
)
