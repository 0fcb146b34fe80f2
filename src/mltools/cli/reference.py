"""What each command takes, read from its declaration: the one source of help, completions, man pages and docs.

Nothing here knows typer's own command objects.
"""

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mltools.cli.registry import command_spec, headed_commands
from mltools.options import MessageOptions
from mltools.spec import CommandSpec, Field, Flag, flatten

ABOUT = """Find out in which layers a fine-tuned transformer memorises mislabelled examples.

Each command reads and writes plain files: rows and records (JSONL, CSV, Parquet), checkpoints (folders that
transformers loads). Data goes to stdout, everything else to stderr. `mltools help COMMAND` tells more."""
EXIT_STATUS = (
    ("0", "done; or the reader closed the pipe, or nothing was left to do"),
    ("1", "failed while running"),
    ("2", "wrong usage, or the output exists"),
    ("3", "rows or records invalid"),
    ("4", "checkpoint unusable"),
    ("5", "not found, or offline"),
    ("6", "out of memory or disk"),
    ("75", "stopped at an item's edge by --time-left: start it again"),
    ("130", "stopped by Ctrl-C"),
    ("143", "terminated"),
)
WIDTH = 100
COLUMN = 26
OWN = "Options"
GROUPS: Mapping[str, tuple[str, ...]] = {
    OWN: ("--layers", "--part", "--by", "--seed", "--preset"),
    "Rows": (
        "--text",
        "--label",
        "--original-label",
        "--noisy",
        "--id",
        "--classes",
        "--separator",
        "--label-type",
        "--max-length",
    ),
    "Running": (
        "--batch-size",
        "--micro-batch",
        "--precision",
        "--device",
        "--threads",
        "--blocks",
        "--offload",
        "--resume",
        "--shard",
        "--time-left",
        "-n",
    ),
    "Output": ("--tag", "-o", "--per-row", "--force", "--provenance"),
    "Messages": ("-q", "-v", "--progress", "--no-color", "--debug", "-h"),
}
"""Headings of the options that several commands have, in the order of every help; all others come first, under OWN."""
FILES = ("FILE", "DIR", "FIG", "ROWS", "RECORDS", "STATES", "CHECKPOINT", "NOISY", "CLEAN", "PRETRAINED", "FROZEN")
"""What is completed with file names."""


@dataclass(frozen=True)
class Parameter:
    """An argument (no flags) or an option of a command."""

    name: str
    flags: tuple[str, ...]
    metavar: str
    help: str
    required: bool = False
    repeats: bool = False
    choices: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The heading that it stands under."""
        return next((name for name, flags in GROUPS.items() if self.flags[0] in flags), OWN)

    @property
    def spellings(self) -> tuple[str, ...]:
        """What can be typed for it: `--a/--no-a` are two."""
        return tuple(each for flag in self.flags for each in flag.split("/"))

    @property
    def bare(self) -> str:
        """The metavar without the signs for optional and repeated."""
        return re.sub(r"^\[(.*)\](\.\.\.)?$", r"\1", self.metavar).removesuffix("...")

    @property
    def takes_file(self) -> bool:
        """Whether its value is the name of a file or folder."""
        return any(word in FILES for word in self.bare.rstrip("0123456789").split("|"))

    def __str__(self) -> str:
        return " ".join(filter(None, (", ".join(self.flags), self.metavar)))


HELP = Parameter("help", ("-h", "--help"), "", "Show this message and exit.")
PROGRAM_OPTIONS = (Parameter("version", ("--version",), "", "Print the version and exit."), HELP)
"""What the program takes in place of a command."""


@dataclass(frozen=True)
class Command:
    """A command: its name and its declaration."""

    name: str
    spec: CommandSpec

    @classmethod
    def of(cls, name: str) -> "Command":
        """Find a command by its name."""
        return cls(name, command_spec(name))

    @property
    def paragraphs(self) -> list[str]:
        """The settings' docstring, paragraph by paragraph; the first is the one imperative line."""
        return [" ".join(part.split()) for part in (inspect.getdoc(self.spec.settings) or "").split("\n\n")]

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return self.paragraphs[0]

    @property
    def parameters(self) -> list[Parameter]:
        """Everything it takes, in the order of its settings; then what every command takes."""
        own = (each for each in flatten(self.spec.settings) if not each.hidden)
        return [*map(_parameter, own), *map(_parameter, flatten(MessageOptions)), HELP]

    @property
    def arguments(self) -> list[Parameter]:
        """What it takes by position."""
        return [p for p in self.parameters if not p.flags]

    @property
    def options(self) -> list[Parameter]:
        """Its options, group by group."""
        return [option for _, options in self.groups() for option in options]

    def groups(self) -> Iterator[tuple[str, list[Parameter]]]:
        """Yield each heading with its options: this command's own as declared, then the common ones in fixed order."""
        for name, order in GROUPS.items():
            members = [p for p in self.parameters if p.flags and p.group == name]
            own = [p for p in members if p.flags[0] not in order]
            common = sorted((p for p in members if p.flags[0] in order), key=lambda p: order.index(p.flags[0]))
            if members:
                yield name, own + common

    @property
    def usage(self) -> str:
        """How it is called."""
        return " ".join(["mltools", self.name, "[OPTIONS]", *(p.metavar for p in self.arguments)])


def _parameter(each: Field) -> Parameter:
    return Parameter(
        name=each.name,
        flags=each.mark.names if isinstance(each.mark, Flag) else (),
        metavar=each.mark.metavar,
        help=each.help,
        required=each.required,
        repeats=each.repeats,
        choices=each.choices,
    )


def headed() -> dict[str, list[Command]]:
    """Give the commands by heading, in order."""
    return {heading: list(map(Command.of, names)) for heading, names in headed_commands().items()}


def all_commands() -> list[Command]:
    """Give every command, in the order of the help."""
    return [command for commands in headed().values() for command in commands]


def command_help(command: Command, width: int | None = None) -> str:
    """Lay out the help of a command as plain text."""
    width = width or _width()
    parts = [f"Usage: {command.usage}", *_paragraphs(command.paragraphs, width)]
    tables = [("Arguments", [(p.bare, p.help) for p in command.arguments])]
    tables += [(name, [(str(p), p.help) for p in options]) for name, options in command.groups()]
    column = min(COLUMN, 2 + max(len(term) for _, rows in tables for term, _ in rows))
    parts += [_table(name, rows, width, column) for name, rows in tables if rows]
    if command.spec.examples:
        parts.append("\n".join(["Examples:", *(f"  {example}" for example in command.spec.examples)]))
    if command.spec.written:
        parts.append(
            "\n".join(["Columns of the records:", *(f"  mltools schema {kind}" for kind in command.spec.written)])
        )
    return "\n\n".join(parts) + "\n"


def root_help(width: int | None = None) -> str:
    """Lay out the help of the program: what it is, its commands by heading, options, exit status."""
    width = width or _width()
    parts = ["Usage: mltools COMMAND [OPTIONS] [ARGUMENTS]", *_paragraphs(ABOUT.split("\n\n"), width)]
    tables = [(name, [(c.name, c.summary) for c in members]) for name, members in headed().items()]
    parts += [_table(name, rows, width, 12) for name, rows in tables if rows]
    parts.append(_table("Options", ((str(p), p.help) for p in PROGRAM_OPTIONS), width, 12))
    parts.append(_table("Exit status", EXIT_STATUS, width, 12))
    return "\n\n".join(parts) + "\n"


def _width() -> int:
    return max(40, min(WIDTH, shutil.get_terminal_size((80, 24)).columns))


def _paragraphs(texts: Iterable[str], width: int) -> list[str]:
    return [_fill(" ".join(text.split()), width, "  ", "  ") for text in texts]


def _table(title: str, rows: Iterable[tuple[str, str]], width: int, column: int) -> str:
    lines = [f"{title}:"]
    for term, text in rows:
        start = f"  {term:<{column}}"
        if len(term) > column - 2:
            lines.append(f"  {term}")
            start = " " * (column + 2)
        lines.append(_fill(text, width, start, " " * (column + 2)))
    return "\n".join(lines)


def _fill(text: str, width: int, first: str, rest: str) -> str:
    """Wrap text, keeping `[default: x]` whole."""
    glued = re.sub(r"\[default: [^\]]*\]", lambda m: m[0].replace(" ", "\0"), text)
    wrapped = textwrap.fill(
        glued, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )
    return wrapped.replace("\0", " ")
