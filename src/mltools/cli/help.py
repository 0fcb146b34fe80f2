"""`mltools help`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from mltools.spec import CommandSpec, Operand


def _names() -> list[str]:
    from mltools.cli.registry import headed_commands

    return [name for names in headed_commands().values() for name in names]


@dataclass(frozen=True)
class Settings:
    """Explain a command, or list them all."""

    name: Annotated[str | None, Operand("[COMMAND]", "The command to explain.", choices=_names)] = None


def run(run: Any) -> Iterator[str]:
    """Print the help of the command asked for, or of the program."""
    from mltools.cli.reference import Command, command_help, root_help

    name = run.settings.name
    yield (root_help() if name is None else command_help(Command.of(name))).removesuffix("\n")


SPEC = CommandSpec(
    Settings,
    heading="Utilities",
    rank=50,
    examples=("mltools help", "mltools help swap"),
    text=True,
)
