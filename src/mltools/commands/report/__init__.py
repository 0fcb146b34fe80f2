"""`mltools report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mltools.io.endings import PAGES
from mltools.options import By, RecordsOperand, Strict, WritingOptions
from mltools.spec import CommandSpec, Flag, Writes


@dataclass(frozen=True)
class Settings:
    """Put records into one page: pictures, tables, provenance, what is not valid.

    Reads records of any kind and writes one HTML file that needs nothing beside it (pictures need matplotlib): the
    picture that `plot` draws of each kind, centres of gravity of what can be weighed, the records as tables, and the
    digests of the inputs. What cannot be drawn is said, with the reason; records with valid=false stay marked.
    """

    records: RecordsOperand = ()
    by: By = None
    out: Annotated[
        Path | None,
        Flag(
            "-o",
            "--out",
            metavar="PAGE",
            default="stdout",
            steers=False,
            writes=Writes(PAGES, plain=False),
            help="Page to write, .html.",
        ),
    ] = None
    strict: Strict = False
    writing: WritingOptions = WritingOptions()


SPEC = CommandSpec(
    Settings,
    heading="Summarise",
    rank=50,
    examples=(
        "mltools report swap.jsonl retrain.jsonl grads.jsonl -o report.html",
        "mltools report swap-*.jsonl --by dataset,model -o report.html",
    ),
)
