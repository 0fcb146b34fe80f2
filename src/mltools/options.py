"""Settings that several commands share, each with its flag, default, range and help: declared here and nowhere else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mltools.errors import UsageError
from mltools.io.endings import PARQUET, RECORDS
from mltools.layers import Plan
from mltools.ranges import THREADS, Range, whole
from mltools.shards import parse_duration, parse_shard
from mltools.spec import Flag, Operand, Parse, Writes

Part = Literal["all", "attn", "mlp", "norm"]
Preset = Literal["paper", "released-code"]
LabelType = Literal["auto", "str"]
ClipScope = Literal["trainable", "all"]
Shown = Literal["auto", "json", "none"]
COUNTS = whole(1, (1 << 31) - 1)
LENGTHS = whole(2, 1_000_000)
EPOCHS = whole(1, 1_000_000)
SHARE = Range(0, 1)


def parse_names(text: str) -> tuple[str, ...]:
    """Read a list of names by commas.

    Raises:
        UsageError: an empty name.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f'"{text}" has an empty name in it')
    return names


def parse_batch_size(text: str) -> int | None:
    """Read `--batch-size`: a number, or None for `auto`.

    Raises:
        UsageError: neither.
    """
    if text == "auto":
        return None
    if not text.isdecimal() or not COUNTS.holds(int(text)):
        raise UsageError(f'--batch-size "{text}": write a number from 1, or auto')
    return int(text)


def columns_flag(name: str, help: str, *, parse: Parse = parse_names, default: str = "", steers: bool = True) -> Flag:
    """Declare a flag that names columns."""
    return Flag(name, metavar="COL[,COL]", parse=parse, default=default, steers=steers, help=help)


def per_row_flag(help: str, writes: Writes = Writes(PARQUET, plain=False)) -> Flag:
    """Declare the flag of what is known of each row."""
    return Flag("--per-row", metavar="FILE", steers=False, writes=writes, help=help)


def out_flag(help: str, writes: Writes, *, metavar: str = "FILE", default: str = "stdout") -> Flag:
    """Declare the flag of where results go."""
    return Flag("-o", "--out", metavar=metavar, steers=False, default=default, writes=writes, help=help)


def batch_size_flag(*, steers: bool = True) -> Flag:
    """Declare the flag of the rows in a batch of forward passes."""
    return Flag(
        "--batch-size",
        metavar="N|auto",
        parse=parse_batch_size,
        neutral=True,
        steers=steers,
        default="auto",
        help="Rows in a batch; results do not depend on it.",
    )


def max_length_flag(*, steers: bool = True, default: str = "") -> Flag:
    """Declare the flag of the longest row."""
    return Flag(
        "--max-length", metavar="N", numbers=LENGTHS, steers=steers, default=default, help="Longest row in tokens."
    )


def resume_flag(help: str) -> Flag:
    """Declare the flag of records that are there already."""
    return Flag("--resume", metavar="RECORDS", steers=False, opens="records", help=help)


Seed = Annotated[int, Flag("--seed", metavar="N", numbers=whole(0), help="Seed of everything random.")]
PresetName = Annotated[
    Preset,
    Flag("--preset", metavar="NAME", help="paper (the text), or released-code (what its authors ran)."),
]
PartName = Annotated[Part, Flag("--part", metavar="PART", help="Tensors of a block that count: all, attn, mlp, norm.")]
MaxLength = Annotated[int, max_length_flag()]
MinNoisyAccuracy = Annotated[
    float,
    Flag(
        "--min-noisy-accuracy",
        metavar="R",
        numbers=SHARE,
        help="NOISY's accuracy on noisy rows below which records are invalid; 0: any.",
    ),
]
Draw = Annotated[
    Literal["hash", "python"], Flag("--draw", metavar="HOW", help="hash (by seed and id), or python (as released).")
]
Strict = Annotated[bool, Flag("--strict", steers=False, help="End with status 1 if the experiment is invalid.")]


DonorIs = Annotated[
    Literal["clean", "other"],
    Flag("--donor-is", metavar="WHAT", help="CLEAN is clean (NOISY's twin), or other: then it is not judged."),
]


@dataclass(frozen=True)
class ValidityOptions:
    """What the experiment behind a number must show (`model.validity`): it decides the records' `valid`."""

    min_noisy_accuracy: MinNoisyAccuracy = 0.9
    strict: Strict = False


BatchSize = Annotated[int | None, batch_size_flag()]
LearningRate = Annotated[float, Flag("--lr", metavar="R", numbers=Range(), help="Peak learning rate.")]
Epochs = Annotated[int, Flag("--epochs", metavar="N", numbers=EPOCHS, help="Epochs.")]
By = Annotated[
    tuple[str, ...] | None,
    columns_flag("--by", "Group by these columns and average runs in a group. Default: all tags."),
]
LayerValues = Annotated[
    tuple[str, ...],
    columns_flag(
        "--value",
        "Columns to read instead, each of which makes groups with a column value, e.g. score_l2_noisy.",
        default="memorisation_error of windows, score of layers",
    ),
]
Per = Annotated[tuple[str, ...], columns_flag("--per", "Separate results for each combination of these columns.")]
PerRow = Annotated[Path | None, per_row_flag("Write a Parquet row for each row and window too.")]
Layers = Annotated[
    tuple[str, ...],
    Flag(
        "--layers",
        metavar="LIST",
        steers=False,
        help="Window as a layer list, e.g. 2-4; repeatable; - reads them from stdin. Default: every window.",
    ),
]
PlanName = Annotated[
    Plan,
    Flag(
        "--plan",
        metavar="PLAN",
        steers=False,
        help="Every window (all), or of widths L/3, 7L/12, 5L/6 for m_cog_solved (spread).",
    ),
]
Resume = Annotated[str | None, resume_flag("Leave out windows that are in RECORDS; append the others.")]
ShardOf = Annotated[
    tuple[int, int] | None,
    Flag(
        "--shard",
        metavar="I/N",
        parse=parse_shard,
        neutral=True,
        steers=False,
        help="Do only the I-th of N parts of like cost; put them together with merge.",
    ),
]
TimeLeft = Annotated[
    float | None,
    Flag(
        "--time-left",
        metavar="TIME",
        parse=parse_duration,
        steers=False,
        help="Stop in time at an item's edge, with status 75: start again with --resume. As 10m or 1h30m.",
    ),
]
DryRun = Annotated[
    bool, Flag("-n", "--dry-run", steers=False, help="Print the work items and their cost; run nothing.")
]
Blocks = Annotated[
    str | None,
    Flag("--blocks", metavar="PATH", steers=False, help="Module path of the blocks, if the model has several lists."),
]
Classes = Annotated[
    tuple[str, ...],
    Flag(
        "--classes",
        metavar="A,B",
        parse=parse_names,
        help="Names of the classes, in the order of the logits, where the checkpoint has none.",
    ),
]
Offload = Annotated[
    bool,
    Flag(
        "--offload",
        steers=False,
        help="Leave blocks on disk and read each as it runs, for models larger than memory.",
    ),
]

# -- operands -----------------------------------------------------------------------------------------
ROWS_HELP = "Rows: JSONL, JSON, CSV, TSV or Parquet files, packed too; a folder of them; hf://NAME; - is stdin."
RowsOperand = Annotated[tuple[str, ...], Operand("[ROWS]...", ROWS_HELP, opens="rows")]
RowsStream = Annotated[tuple[str, ...], Operand("[ROWS]...", ROWS_HELP, opens="source")]
Noisy = Annotated[str, Operand("NOISY", "Checkpoint trained on the perturbed labels.", opens="checkpoint")]
Clean = Annotated[
    str, Operand("CLEAN", "Checkpoint of the same seed trained on the original labels.", opens="checkpoint")
]
Pretrained = Annotated[str, Operand("PRETRAINED", "Pre-trained model: a folder or hub repository.", opens="checkpoint")]
CheckpointOperand = Annotated[
    str, Operand("CHECKPOINT", "Fine-tuned checkpoint: a folder or hub repository.", opens="checkpoint")
]
RecordsOperand = Annotated[
    tuple[str, ...], Operand("[RECORDS]...", "Files of records; - or none is stdin.", opens="records")
]

StatesOperand = Annotated[
    str | None,
    Operand("[STATES]", "States file; - or none is stdin. Or a CHECKPOINT to take them from.", opens="states"),
]
RowsOfStates = Annotated[
    tuple[str, ...], Operand("[ROWS]...", "The rows, with a CHECKPOINT in place of STATES.", opens="source")
]

# -- outputs ------------------------------------------------------------------------------------------
Tag = Annotated[
    tuple[str, ...],
    Flag("--tag", metavar="KEY=VALUE", steers=False, help="Constant column in every record; repeatable."),
]
Out = Annotated[Path | None, out_flag("Output file: .jsonl (.gz, .zst), .parquet or .csv.", Writes(RECORDS))]
Force = Annotated[bool, Flag("--force", steers=False, help="Overwrite outputs that exist.")]
ProvenanceFile = Annotated[
    Path | None,
    Flag(
        "--provenance",
        metavar="FILE",
        steers=False,
        writes=Writes(),
        help="Write how this was made (settings, inputs' digests) as JSON.",
    ),
]


@dataclass(frozen=True)
class LabelOptions:
    """How labels are read."""

    label: Annotated[str, Flag("--label", metavar="COL", steers=False, help="Label column.")] = "label"
    label_type: Annotated[
        LabelType,
        Flag(
            "--label-type",
            metavar="TYPE",
            steers=False,
            help="auto (as they are, never mixed), or str (all as text).",
        ),
    ] = "auto"
    id_column: Annotated[
        str, Flag("--id", metavar="COL", steers=False, help="Id column; without one, rows are numbered from 0.")
    ] = "id"
    original_column: Annotated[
        str, Flag("--original-label", metavar="COL", steers=False, help="Column of the right label.")
    ] = "original_label"
    noisy_column: Annotated[
        str,
        Flag(
            "--noisy",
            metavar="COL",
            steers=False,
            default="noisy, else where the two labels differ",
            help="Column that says which rows are mislabelled.",
        ),
    ] = "noisy"


@dataclass(frozen=True)
class ColumnOptions:
    """Which columns of rows are meant."""

    text: Annotated[
        tuple[str, ...],
        columns_flag("--text", "Text columns, joined in this order.", steers=False),
    ] = ("text",)
    labels: LabelOptions = LabelOptions()
    separator: Annotated[
        str | None,
        Flag(
            "--separator",
            metavar="STR",
            steers=False,
            default="the tokenizer's separator",
            help="Joins text columns.",
        ),
    ] = None


@dataclass(frozen=True)
class ReadingOptions:
    """How rows become what a checkpoint reads."""

    columns: ColumnOptions = ColumnOptions()
    classes: Classes = ()
    max_length: MaxLength = 512


@dataclass(frozen=True)
class Twins:
    """Two checkpoints of one seed that differ by the labels they were trained on."""

    noisy: Noisy
    clean: Clean


@dataclass(frozen=True)
class PairOptions:
    """How two checkpoints and rows are read and judged, where margins are explained."""

    validity: ValidityOptions = ValidityOptions()
    donor_is: DonorIs = "clean"
    reading: ReadingOptions = ReadingOptions()


@dataclass(frozen=True)
class ShareOptions:
    """How much of the work is done now."""

    shard: ShardOf = None
    time_left: TimeLeft = None
    dry_run: DryRun = False


@dataclass(frozen=True)
class StatesInput:
    """States, or a checkpoint and rows to take them from."""

    states: StatesOperand = None
    rows: RowsOfStates = ()
    columns: ColumnOptions = ColumnOptions()
    max_length: Annotated[int | None, max_length_flag(steers=False, default="512")] = None
    batch_size: Annotated[int | None, batch_size_flag(steers=False)] = None


@dataclass(frozen=True)
class DeviceOptions:
    """Where it runs."""

    device: Annotated[
        str,
        Flag("--device", metavar="NAME", steers=False, help="auto, cpu, cuda[:i] or mps (auto never picks mps)."),
    ] = "auto"
    threads: Annotated[
        int | None,
        Flag(
            "--threads",
            metavar="N",
            numbers=THREADS,
            steers=False,
            default="OMP_NUM_THREADS, else by model width",
            help="CPU threads.",
        ),
    ] = None
    blocks: Blocks = None


@dataclass(frozen=True)
class TrainingOptions:
    """How weights are trained (released-code §1.4)."""

    learning_rate: LearningRate = 1e-5
    epochs: Epochs = 50
    batch_size: Annotated[int, Flag("--batch-size", metavar="N", numbers=COUNTS, help="Rows in a step.")] = 8
    micro_batch: Annotated[
        int | None, Flag("--micro-batch", metavar="N", numbers=COUNTS, help="Rows at once, to save memory; same steps.")
    ] = None
    warmup: Annotated[float, Flag("--warmup", metavar="R", numbers=SHARE, help="Share of steps with rising rate.")] = (
        0.1
    )
    weight_decay: Annotated[
        float, Flag("--weight-decay", metavar="R", numbers=Range(), help="AdamW's weight decay.")
    ] = 0.01
    clip: Annotated[
        float, Flag("--clip", metavar="R", numbers=Range(0, above=True), help="Largest gradient norm.", default="1")
    ] = 1.0
    clip_scope: Annotated[
        ClipScope, Flag("--clip-scope", metavar="WHAT", help="Norm over trainable or all parameters.")
    ] = "trainable"
    frozen_dropout: Annotated[bool, Flag("--frozen-dropout", help="Keep dropout on in frozen blocks.")] = False


@dataclass(frozen=True)
class WritingOptions:
    """How outputs are written, whatever they are."""

    force: Force = False
    provenance: ProvenanceFile = None


@dataclass(frozen=True)
class FileOptions:
    """Where results go."""

    out: Out = None
    writing: WritingOptions = WritingOptions()


@dataclass(frozen=True)
class OutputOptions:
    """Where records go, and what stands in each of them."""

    tag: Tag = ()
    file: FileOptions = FileOptions()


@dataclass(frozen=True)
class MessageOptions:
    """How much is said, and how: what every command takes."""

    quiet: Annotated[bool, Flag("-q", "--quiet", steers=False, help="Print only errors on stderr.")] = False
    verbose: Annotated[int, Flag("-v", "--verbose", steers=False, counts=True, help="Say more on stderr.")] = 0
    progress: Annotated[
        Shown,
        Flag(
            "--progress",
            metavar="HOW",
            steers=False,
            help="auto (a bar on a terminal, else a line a minute), json (lines on stderr), none.",
        ),
    ] = "auto"
    no_color: Annotated[bool, Flag("--no-color", steers=False, help="No colour on the terminal.")] = False
    debug: Annotated[bool, Flag("--debug", steers=False, help="Show the traceback of an error.")] = False
