"""Every command with a small command line that works, and more that make its other outputs: one table for all checks.

Names in the lines are those of the folder that the `place` fixture of test_commands.py makes.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A command's lines, without the command.

    Attributes:
        line: a whole small run, which writes to stdout what goes there.
        needs: the output that it cannot do without; OUT is a name without an ending.
        files: what makes a file or folder OUT… of it, put behind the line.
        more: other lines, for kinds of records that the first does not write.
        instead: a line for each output option that the first line cannot have.
        quiet: whether it writes nothing to stdout.
    """

    line: str
    needs: str = ""
    files: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    instead: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False


TRAIN = "--epochs 2 --lr 1e-3"

CASES: dict[str, Case] = {
    "prepare": Case("sst2 --from sst2.jsonl"),
    "perturb": Case("rows.jsonl"),
    "finetune": Case(
        f"model noisy.jsonl {TRAIN}",
        needs="-o OUT",
        files=("--epochs 3 --lr 3e-3 --memorised-at 0.3 -o OUT",),
        more=("model noisy.jsonl --epochs 1 --aux noisy.jsonl --validation noisy.jsonl",),
    ),
    "generalise": Case(
        f"model noisy.jsonl --run 1 --run 2 --runs 3 {TRAIN}",
        more=("--merge halves.jsonl",),
        instead={"--per-row": "--merge halves.jsonl"},
    ),
    "decoy": Case("clean --layers 2 --like noisy", needs="-o OUT", files=("-o OUT",), quiet=True),
    "swap": Case(
        "noisy clean noisy.jsonl",
        files=(
            "--tag model=bert --out=OUT.parquet",
            "--layers 1 --write OUT",
            "-q --layers 1-2 --layers 2 --per-row OUT.parquet",
        ),
        instead={"--write": "noisy clean noisy.jsonl --layers 1"},
    ),
    "attribute": Case(
        "noisy clean noisy.jsonl --nodes 4 --gap 1",
        files=("--nodes 2 --gap 1 --per-row OUT.parquet",),
        more=("noisy clean noisy.jsonl --nodes 2 --gap 1 --by tensor",),
    ),
    "shapley": Case("noisy clean noisy.jsonl", more=("noisy clean noisy.jsonl --samples 2",)),
    "retrain": Case(f"noisy model noisy.jsonl --layers 2 --layers 1-2 {TRAIN}"),
    "grads": Case(
        "noisy noisy.jsonl --frozen model",
        files=("--save OUT.safetensors",),
        more=("noisy noisy.jsonl --noisy-only",),
    ),
    "states": Case("noisy noisy.jsonl", needs="-o OUT.safetensors", files=("-o OUT.safetensors",), quiet=True),
    "probe": Case(
        "states.safetensors --epochs 30 --seeds 2 --allow-absent",
        more=("states.safetensors --epochs 27 --seeds 1 --events --allow-absent",),
    ),
    "centroid": Case(
        "states.safetensors",
        files=("--events --per-row OUT.parquet",),
        more=("states.safetensors --events",),
    ),
    "merge": Case("swap.jsonl"),
    "mcog": Case("swap.jsonl grads.jsonl", more=("grads.jsonl --by-layer",)),
    "correlate": Case("swap.jsonl grads.jsonl --value score --on layer"),
    "score": Case("grads.jsonl --truth 2"),
    "plot": Case("layers grads.jsonl", files=("-o OUT.svg", "-o OUT.png")),
    "report": Case("swap.jsonl grads.jsonl", files=("-o OUT.html",)),
    "windows": Case("6"),
    "inspect": Case(
        "noisy.jsonl --json",
        more=("noisy --json", "noisy clean --json", "noisy/model.safetensors --json", "swap.jsonl --json"),
    ),
    "schema": Case("window"),
    "completion": Case("bash"),
    "help": Case("swap"),
}


def line(name: str, out: str, *more: str) -> list[str]:
    """The words of a command's line, with what it needs written to `out`."""
    case = CASES[name]
    return [name, *shlex.split(f"{case.line} {case.needs.replace('OUT', out)}"), *more]


def without_out(name: str, option: str = "") -> list[str]:
    """The words of the line that goes with an output option, without one."""
    case = CASES[name]
    return [name, *shlex.split(case.instead.get(option, case.line))]
