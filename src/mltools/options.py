"""One Annotated alias for every option and argument: flag names and help text live here and nowhere else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from mltools import console
from mltools.config import PARTS, Preset, SwapConfig, TrainingConfig, choices
from mltools.errors import UsageError
from mltools.io.columns import LabelType


def _quiet(value: bool) -> bool:
    if value:
        console.configure(verbosity=-1)
    return value


def _verbose(value: int) -> int:
    if value:
        console.configure(verbosity=value)
    return value


def _no_color(value: bool) -> bool:
    if value:
        console.configure(color=False)
    return value


def choice(flag: str, choices: Sequence[str], *, metavar: str, help: str) -> Any:
    """Declare an option that takes one of some words, which completions know; another word is a usage error."""

    def check(value: str | None) -> str | None:
        return value if value is None else one_of(flag, value, choices)

    return typer.Option(flag, metavar=metavar, help=help, callback=check, autocompletion=lambda: list(choices))


# -- arguments ----------------------------------------------------------------------------------------
Rows = Annotated[
    str | None, typer.Argument(metavar="[ROWS]", help="Rows: JSONL or Parquet, .gz or .zst too; - is stdin.")
]
NoisyArg = Annotated[str, typer.Argument(metavar="NOISY", help="Checkpoint trained on the perturbed labels.")]
CleanArg = Annotated[
    str, typer.Argument(metavar="CLEAN", help="Checkpoint of the same seed trained on the original labels.")
]
PretrainedArg = Annotated[
    str, typer.Argument(metavar="PRETRAINED", help="Pre-trained model: a folder or hub repository.")
]
CheckpointArg = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="Fine-tuned checkpoint: a folder or hub repository.")
]
StatesArg = Annotated[
    str | None,
    typer.Argument(metavar="[STATES]", help="States file; - or none is stdin. Or a CHECKPOINT to take them from."),
]
RowsOfStates = Annotated[
    str | None, typer.Argument(metavar="[ROWS]", help="The rows, with a CHECKPOINT in place of STATES.")
]
Records = Annotated[
    list[str] | None, typer.Argument(metavar="[RECORDS]...", help="Files of records; - or none is stdin.")
]
LayersArg = Annotated[int, typer.Argument(metavar="LAYERS", help="Number of layers of the model.")]

# -- what to do ---------------------------------------------------------------------------------------
Layers = Annotated[
    list[str] | None,
    typer.Option(
        "--layers", metavar="LIST", help="Window as a layer list, e.g. 2-4; repeatable. Default: every window."
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of everything random. [default: 1]")]
PresetOpt = Annotated[
    str,
    choice(
        "--preset",
        get_args(Preset),
        metavar="NAME",
        help="paper (the text), or released-code (what its authors ran).",
    ),
]
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="KEY=VALUE", help="Constant column in every record; repeatable."),
]
By = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="COL[,COL]", help="Group by these columns and average runs in a group. Default: all tags."
    ),
]
Per = Annotated[
    str | None,
    typer.Option("--per", metavar="COL[,COL]", help="Separate results for each combination of these columns."),
]

Part = Annotated[
    str | None,
    choice("--part", PARTS, metavar="PART", help="Tensors of a block that count: all, attn, mlp, norm. [default: all]"),
]

# -- whether the experiment took place -----------------------------------------------------------------
MinNoisyAccuracy = Annotated[
    float | None,
    typer.Option(
        "--min-noisy-accuracy",
        metavar="R",
        min=0,
        max=1,
        help="NOISY's accuracy on noisy rows below which records are invalid; 0: any. [default: 0.9]",
    ),
]
DonorIs = Annotated[
    str | None,
    choice(
        "--donor-is",
        choices(SwapConfig, "donor_is"),
        metavar="WHAT",
        help="CLEAN is clean (NOISY's twin), or other: then it is not judged. [default: clean]",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="End with status 1 if the experiment is invalid.")]

# -- how training goes ---------------------------------------------------------------------------------
TrainBatchSize = Annotated[
    int | None, typer.Option("--batch-size", metavar="N", min=1, help="Rows in a step. [default: 8]")
]
MicroBatch = Annotated[
    int | None, typer.Option("--micro-batch", metavar="N", min=1, help="Rows at once, to save memory; same steps.")
]
Warmup = Annotated[
    float | None, typer.Option("--warmup", metavar="R", help="Share of steps with rising rate. [default: 0.1]")
]
WeightDecay = Annotated[
    float | None, typer.Option("--weight-decay", metavar="R", help="AdamW's weight decay. [default: 0.01]")
]
Clip = Annotated[float | None, typer.Option("--clip", metavar="R", help="Largest gradient norm. [default: 1]")]
ClipScope = Annotated[
    str | None,
    choice(
        "--clip-scope",
        choices(TrainingConfig, "clip_scope"),
        metavar="WHAT",
        help="Norm over trainable or all parameters. [default: trainable]",
    ),
]
FrozenDropout = Annotated[bool | None, typer.Option("--frozen-dropout", help="Keep dropout on in frozen blocks.")]

# -- how rows are read --------------------------------------------------------------------------------
Text = Annotated[
    str | None,
    typer.Option("--text", metavar="COL[,COL]", help="Text columns, joined in this order. [default: text]"),
]
LabelOpt = Annotated[str | None, typer.Option("--label", metavar="COL", help="Label column. [default: label]")]
Separator = Annotated[
    str | None,
    typer.Option("--separator", metavar="STR", help="Joins text columns. [default: the tokenizer's separator]"),
]
LabelTypeOpt = Annotated[
    str,
    choice(
        "--label-type",
        get_args(LabelType),
        metavar="TYPE",
        help="auto (as they are, never mixed), or str (all as text).",
    ),
]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", metavar="N", min=2, help="Longest row in tokens. [default: 512]")
]

# -- how it runs --------------------------------------------------------------------------------------
BatchSize = Annotated[
    str, typer.Option("--batch-size", metavar="N|auto", help="Rows in a batch; results do not depend on it.")
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda[:i] or mps (auto never picks mps).")
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="CPU threads. [default: OMP_NUM_THREADS, else by model width]"),
]
Blocks = Annotated[
    str | None,
    typer.Option("--blocks", metavar="PATH", help="Module path of the blocks, if the model has several lists."),
]
Offload = Annotated[
    bool,
    typer.Option("--offload", help="Leave blocks on disk and read each as it runs, for models larger than memory."),
]
DryRun = Annotated[bool, typer.Option("-n", "--dry-run", help="Print the work items and their cost; run nothing.")]

Resume = Annotated[
    str | None,
    typer.Option("--resume", metavar="RECORDS", help="Leave out windows that are in RECORDS; append the others."),
]

# -- outputs ------------------------------------------------------------------------------------------
Out = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Output file, .jsonl or .parquet. [default: stdout]")
]
OutFolder = Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Checkpoint folder to write.")]
PerRow = Annotated[
    Path | None, typer.Option("--per-row", metavar="FILE", help="Write a Parquet row for each row and window too.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite outputs that exist.")]
ProvenanceFile = Annotated[
    Path | None,
    typer.Option("--provenance", metavar="FILE", help="Write how this was made (settings, inputs' digests) as JSON."),
]

# -- every command ------------------------------------------------------------------------------------
Quiet = Annotated[bool, typer.Option("-q", "--quiet", callback=_quiet, help="Say nothing on stderr but errors.")]
Verbose = Annotated[int, typer.Option("-v", "--verbose", count=True, callback=_verbose, help="Say more on stderr.")]
NoColor = Annotated[bool, typer.Option("--no-color", callback=_no_color, help="No colour on the terminal.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def parse_batch_size(text: str) -> int | None:
    """Read `--batch-size`: a number, or None for `auto`."""
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f'--batch-size "{text}": write a number from 1, or auto')
    return int(text)


def parse_names(text: str | None) -> tuple[str, ...] | None:
    """Read a list of names by commas; None stays None."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f'"{text}" has an empty name in it')
    return names


def parse_tags(tags: list[str] | None) -> dict[str, str | int | float | bool]:
    """Read `--tag KEY=VALUE`s; a value that is a JSON number, true or false is that, else text."""
    result: dict[str, str | int | float | bool] = {}
    for tag in tags or []:
        key, equals, value = tag.partition("=")
        if not equals or not key:
            raise UsageError(f'--tag "{tag}": write KEY=VALUE')
        result[key] = _tag_value(value)
    return result


def _tag_value(text: str) -> str | int | float | bool:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if str(value) == text:
            return value
    return text


def one_of(option: str, value: str, choices: Sequence[str]) -> str:
    """Check that a value is one of the choices, and suggest the nearest."""
    from difflib import get_close_matches

    if value in choices:
        return value
    close = get_close_matches(value, choices, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f'{option} "{value}": choose {", ".join(choices[:-1])} or {choices[-1]}{hint}')
