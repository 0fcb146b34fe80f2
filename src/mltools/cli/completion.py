"""`mltools completion`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from mltools.spec import CommandSpec, Operand

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class Settings:
    """Print the completion script of a shell.

    Writes a script that completes commands, options, their words and file names without starting mltools. An
    installation puts it where the shells look; else source it, or save it in the shell's folder for completions.
    """

    shell: Annotated[str, Operand("SHELL", "bash, zsh or fish.", choices=get_args(Shell))]


def run(run: Any) -> Iterator[str]:
    """Print the script asked for."""
    from mltools.cli.completion_scripts import completion
    from mltools.cli.reference import all_commands

    yield completion(run.settings.shell, all_commands()).removesuffix("\n")


SPEC = CommandSpec(
    Settings,
    heading="Utilities",
    rank=40,
    examples=(
        "source <(mltools completion bash)",
        "mltools completion zsh > _mltools",
        "mltools completion fish > mltools.fish",
    ),
    text=True,
)
