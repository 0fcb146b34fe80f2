"""`mltools probe`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from mltools.errors import UsageError
from mltools.options import (
    COUNTS,
    EPOCHS,
    DeviceOptions,
    DryRun,
    OutputOptions,
    PresetName,
    Seed,
    StatesInput,
    ValidityOptions,
    parse_names,
)
from mltools.ranges import Range, whole
from mltools.spec import CommandSpec, Flag, one_of

TargetName = Literal["noise", "label", "original_label"]


def _parse_targets(text: str) -> tuple[str, ...]:
    names = parse_names(text)
    for name in names:
        one_of("--target", name, get_args(TargetName))
    if len(set(names)) < len(names):
        raise UsageError(f'--target "{text}" names one twice')
    return names


@dataclass(frozen=True)
class Settings:
    """Train probes that tell noisy rows from clean ones, layer by layer.

    Reads states (or takes them from CHECKPOINT and ROWS), trains a small classifier on each layer for each of 5 seeds,
    all at once, and writes a record a layer: F1 on all, noisy and clean test rows, and the score, which is the gain in
    F1 over the layer below. Layer 1 is compared with layer 1 of --baseline, else with the embeddings, layer 0.
    """

    given: StatesInput = StatesInput()
    targets: Annotated[
        tuple[TargetName, ...],
        Flag("--target", metavar="NAME[,NAME]", parse=_parse_targets, help="noise, label, original_label."),
    ] = ("noise",)
    baseline: Annotated[
        str | None,
        Flag(
            "--baseline",
            metavar="STATES",
            steers=False,
            opens="states",
            help="States of the same rows by the pre-trained model.",
        ),
    ] = None
    events: Annotated[
        bool,
        Flag("--events", help="Write the layers where labels win over original ones, and of 90 % F1."),
    ] = False
    probe: Annotated[
        Literal["mlp", "linear"], Flag("--probe", metavar="KIND", help="mlp, or linear (scikit-learn).")
    ] = "mlp"
    hidden_layers: Annotated[
        int, Flag("--hidden-layers", metavar="N", numbers=whole(1, 100), help="Hidden layers of a probe.")
    ] = 1
    epochs: Annotated[int, Flag("--epochs", metavar="N", numbers=EPOCHS, help="Epochs.")] = 100
    select_after: Annotated[
        int,
        Flag(
            "--select-after", metavar="N", numbers=whole(0), help="Choose the best epoch after N, else take the last."
        ),
    ] = 26
    learning_rate: Annotated[
        float, Flag("--lr", metavar="R", numbers=Range(), default="2e-4", help="AdamW's learning rate.")
    ] = 2e-4
    n_seeds: Annotated[
        int, Flag("--seeds", metavar="N", numbers=whole(1, 10_000), help="Probe seeds, from --seed up.")
    ] = 5
    hidden_width: Annotated[int, Flag(numbers=whole(1, 100_000), help="Width of the hidden layers.")] = 128
    dropout: Annotated[
        float, Flag(numbers=Range(0, 1, below=True), help="Share of the states that training drops.")
    ] = 0.1
    step_rows: Annotated[int, Flag(numbers=COUNTS, help="Rows in a training step.")] = 32
    weight_decay: Annotated[float, Flag(numbers=Range(), help="AdamW's weight decay.")] = 1e-5
    noisy_weight: Annotated[
        float, Flag(numbers=Range(0, 1, above=True, below=True), help="Weight of the noisy rows in the noise probe.")
    ] = 0.67
    allow_absent: Annotated[
        bool, Flag("--allow-absent", help="Let classes be absent from a split; F1 is that of the others.")
    ] = False
    seed: Seed = 1
    validity: ValidityOptions = ValidityOptions()
    preset: PresetName = "paper"
    device: DeviceOptions = DeviceOptions()
    dry_run: DryRun = False
    output: OutputOptions = OutputOptions()


def _check(settings: Settings, given: Collection[str]) -> None:
    if settings.events and ("targets" in given or settings.baseline):
        raise UsageError("--events compares label with original_label: leave --target and --baseline out")


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    rank=50,
    examples=(
        "mltools probe states.safetensors --epochs 30 > probe.jsonl",
        "mltools probe states.safetensors --target noise,label --probe linear --allow-absent > linear.jsonl",
    ),
    check=_check,
    writes=("probe", "event", "work"),
    released={"hidden_layers": 2, "allow_absent": True},
)
