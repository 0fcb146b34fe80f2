"""`mltools centroid`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.options import DeviceOptions, OutputOptions, PresetName, StatesInput, per_row_flag
from mltools.spec import CommandSpec, Flag

CrossingName = Literal["first", "last", "stable"]


@dataclass(frozen=True)
class Settings:
    """Show how noisy rows move from their class to the one they were given.

    Reads states (or takes them from CHECKPOINT and ROWS) and projects rows on the line between the centroids of two
    classes: 0 is the class they were given, 1 the one they had. Writes a record for each layer and ordered pair of
    classes, and one for all pairs together. --events writes two layers of each instead: crossing, where the noisy
    rows' mean falls below 0.5, and initiation, from where on the classes stay apart.
    """

    given: StatesInput = StatesInput()
    events: Annotated[
        bool, Flag("--events", steers=False, help="Write the layers of crossing and initiation instead of projections.")
    ] = False
    crossing: Annotated[
        CrossingName,
        Flag("--crossing", metavar="WHICH", help="Layer below 0.5: first, last or stable."),
    ] = "first"
    preset: PresetName = "paper"
    device: DeviceOptions = DeviceOptions()
    output: OutputOptions = OutputOptions()
    per_row: Annotated[
        Path | None,
        per_row_flag("Write every row's projections too, as Parquet."),
    ] = None


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    rank=60,
    examples=("mltools centroid states.safetensors > centroid.jsonl", "mltools centroid noisy/ noisy.jsonl --events"),
    counted="records",
    writes=("centroid", "event"),
    released={"crossing": "last"},
)
