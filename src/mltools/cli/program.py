"""The program as typer runs it: commands are found by name, and built when they are asked for."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mltools import __version__
from mltools.cli.build import build_command
from mltools.cli.reference import root_help
from mltools.cli.registry import command_names
from mltools.errors import UsageError
from mltools.io.stdout import write_stdout

ABSENT = {
    "--shard": "; this is one item of work: give each job a model, a task or a seed, as in examples/slurm/study.sh"
}
"""What is added where a command lacks an option that others have."""


class Program(TyperGroup):
    """Builds a command when it is asked for; until then a stub holds its name, which suggestions read."""

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Build the command of this name; None if there is none."""
        return build_command(cmd_name) if cmd_name in command_names() else None


app = typer.Typer(
    cls=Program,
    add_completion=False,
    add_help_option=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run_typer(arguments: Sequence[str]) -> int:
    """Let typer read the arguments and run what they ask for; give its exit status.

    Raises:
        UsageError: they are wrong, in typer's words.
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        status = app(args=arguments, prog_name="mltools", standalone_mode=False)
    except Exception as error:
        if not isinstance(error, typer.BadParameter.__mro__[2]):  # typer's base of usage errors; it does not export it
            raise
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        name = getattr(getattr(error, "ctx", None), "command_path", "mltools")
        hint = ABSENT.get(getattr(error, "option_name", ""), "")
        raise UsageError(f"{' '.join(text.split())}{hint} (see {name} --help)") from error
    if status == 130:
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _stub() -> None:
    """Stand for a command in typer's list of them."""


for _name in command_names():
    app.command(_name)(_stub)


def _show_help(value: bool) -> None:
    if value:
        write_stdout(root_help().encode())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    show_help: Annotated[
        bool, typer.Option("-h", "--help", is_eager=True, callback=_show_help, help="Show this message and exit.")
    ] = False,
) -> None:
    if version:
        write_stdout(f"mltools {__version__}\n".encode())
        raise typer.Exit
    _show_help(context.invoked_subcommand is None)
