"""`mltools completion`."""

from typing import Annotated

import typer

from mltools import options
from mltools.cli.app import command, headed_commands
from mltools.io.stdout import write_stdout
from mltools.tools.completion import SHELLS
from mltools.tools.completion import completion as tool


@command(
    "completion",
    "source <(mltools completion bash)",
    "mltools completion zsh > _mltools",
    "mltools completion fish > mltools.fish",
)
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", autocompletion=lambda: [*SHELLS], help="bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell.

    Writes a script that completes commands, options, their words and file names without starting mltools. An
    installation puts it where the shells look; else source it, or save it in the shell's folder for completions.
    """
    options.one_of("SHELL", shell, tuple(SHELLS))
    write_stdout(tool(shell, [c for members in headed_commands().values() for c in members]).encode())
