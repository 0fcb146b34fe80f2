"""`mltools help`, and the help of the whole program."""

from typing import Annotated

import typer

from mltools import options
from mltools.cli.app import COMMANDS, EXIT_STATUS, command, headed_commands
from mltools.io.stdout import write_stdout
from mltools.reference import command_help, program_help

ABOUT = """Find out in which layers a fine-tuned transformer memorises mislabelled examples.

Each command reads and writes plain files: rows (JSONL, Parquet), checkpoints (folders that transformers loads),
records (JSONL, Parquet). Data goes to stdout, everything else to stderr. `mltools help COMMAND` tells more."""


def root_help(width: int | None = None) -> str:
    """Lay out the help of the program."""
    return program_help(ABOUT, headed_commands(), EXIT_STATUS, width)


@command("help", "mltools help", "mltools help swap")
def help_(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[COMMAND]", autocompletion=lambda: [*COMMANDS], help="The command to explain."),
    ] = None,
) -> None:
    """Explain a command, or list them all."""
    names = [c.name for members in headed_commands().values() for c in members]
    text = root_help() if name is None else command_help(COMMANDS[options.one_of("COMMAND", name, names)])
    write_stdout(text.encode())
