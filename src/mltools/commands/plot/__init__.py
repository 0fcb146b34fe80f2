"""`mltools plot`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mltools.errors import UsageError
from mltools.io.endings import FIGURES
from mltools.options import By, Force, ProvenanceFile, RecordsOperand, Strict
from mltools.spec import CommandSpec, Flag, Operand, Writes

KINDS = ("heatmap", "layers", "probe", "centroid", "events", "matrix")


@dataclass(frozen=True)
class Settings:
    """Draw records: as text on stdout, or as a picture with -o (needs matplotlib).

    heatmap is the window matrix of swap or retrain: in row w, column l stands the mean error over the windows of w
    layers that hold layer l. layers is a bar a layer, from window or layer records of any tool. probe and centroid
    are curves over layers. events marks the layers that centroid --events, probe --events and mcog give, a row a
    group. matrix is a table of correlate. Each group of records (tool and tags) becomes a panel.
    """

    kind: Annotated[str, Operand("KIND", f"What to draw: {', '.join(KINDS)}.", choices=KINDS, steers=True)]
    records: RecordsOperand = ()
    by: By = None
    value: Annotated[
        str | None,
        Flag("--value", metavar="COL", default="memorisation_error", help="heatmap: the column to show."),
    ] = None
    overlay: Annotated[
        str | None,
        Flag("--overlay", metavar="COL", help="layers: groups that differ only in this tag share a panel."),
    ] = None
    out: Annotated[
        Path | None,
        Flag(
            "-o",
            "--out",
            metavar="FIG",
            default="text on stdout",
            steers=False,
            writes=Writes(FIGURES, plain=False),
            help="Picture, .pdf, .png or .svg.",
        ),
    ] = None
    strict: Strict = False
    force: Force = False
    provenance: ProvenanceFile = None


def _check(settings: Settings, given: Collection[str]) -> None:
    owners = (("--value", settings.value, "heatmap"), ("--overlay", settings.overlay, "layers"))
    for option, value, owner in owners:
        if value is not None and settings.kind != owner:
            raise UsageError(f"{option} is for {owner}, not for {settings.kind}")


SPEC = CommandSpec(
    Settings,
    heading="Summarise",
    rank=40,
    examples=(
        "mltools plot heatmap swap.jsonl",
        "mltools plot layers swap.jsonl grads.jsonl --overlay dataset -o layers.pdf",
    ),
    check=_check,
)
