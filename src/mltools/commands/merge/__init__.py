"""`mltools merge`: the records of a sweep's parts, checked and put together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mltools.options import FileOptions, RecordsOperand
from mltools.spec import CommandSpec, Flag


@dataclass(frozen=True)
class Settings:
    """Put the parts of a sweep together, once it is whole.

    Takes the records of swap, retrain or generalise: of runs with --shard, of loops over --layers and of stopped
    runs, in any order, and writes each once: the very records, in the order, of one run of the whole sweep. Refused
    (status 3) are records of two sweeps (other settings, inputs or tags), two records of one item that differ, and
    a sweep that lacks items: these are printed as command lines, on stdout if the records go to a file, else on
    stderr. --items, Parquet records or --made-by tell what they are of; else NOISY and the like stand there.
    """

    records: RecordsOperand = ()
    items: Annotated[
        Path | None,
        Flag(
            "--items",
            metavar="FILE",
            opens="records",
            default="every window of the model's layers",
            help="What the sweep is made of, as --dry-run lists it.",
        ),
    ] = None
    made_by: Annotated[
        Path | None,
        Flag(
            "--made-by",
            metavar="FILE",
            steers=False,
            opens="source",
            help="A part's --provenance: the command line of missing items.",
        ),
    ] = None
    file: FileOptions = FileOptions()


SPEC = CommandSpec(
    Settings,
    heading="Summarise",
    rank=5,
    counted="records",
    examples=(
        "mltools merge shard-*.jsonl > swap.jsonl",
        "mltools swap noisy/ clean/ noisy.jsonl -n -q > items.jsonl; mltools merge --items items.jsonl shard-*.jsonl",
    ),
)
