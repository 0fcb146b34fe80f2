"""The typer application, and the decorator that makes a function a command with the options all commands have."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from mltools import options
from mltools.io.stdout import end_quietly
from mltools.reference import Command, command_help

F = TypeVar("F", bound=Callable[..., None])

EXIT_STATUS = (
    ("0", "done; or the reader closed the pipe, or nothing was left to do"),
    ("1", "failed while running"),
    ("2", "wrong usage, or the output exists"),
    ("3", "rows or records invalid"),
    ("4", "checkpoint unusable"),
    ("5", "not found, or offline"),
    ("6", "out of memory or disk"),
    ("130", "stopped by Ctrl-C"),
    ("143", "terminated"),
)

HEADINGS: Mapping[str, tuple[str, ...]] = {
    "Rows and models": ("prepare", "perturb", "finetune", "generalise"),
    "Localise": ("swap", "retrain", "grads", "states", "probe", "centroid"),
    "Summarise": ("mcog", "correlate", "score", "plot"),
    "Beside them": ("windows", "inspect", "schema", "completion", "help"),
}
"""The commands by heading, in the order of the program's help."""

COMMANDS: dict[str, Command] = {}
"""Every command, by name."""

app = typer.Typer(add_completion=False, add_help_option=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def headed_commands() -> dict[str, Sequence[Command]]:
    """Give the commands by heading, in order."""
    return {heading: [COMMANDS[name] for name in names if name in COMMANDS] for heading, names in HEADINGS.items()}


def _help(context: typer.Context, value: bool) -> None:
    if value:
        from mltools.io.stdout import write_stdout

        write_stdout(command_help(COMMANDS[str(context.info_name)]).encode())
        raise typer.Exit


Help = Annotated[bool, typer.Option("-h", "--help", is_eager=True, callback=_help, help="Show this message and exit.")]

COMMON: dict[str, tuple[Any, Any]] = {
    "quiet": (options.Quiet, False),
    "verbose": (options.Verbose, 0),
    "no_color": (options.NoColor, False),
    "debug": (options.Debug, False),
    "help": (Help, False),
}


def command(name: str, *examples: str, writes: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Add a function to the program as a command, with the options that every command has.

    Args:
        name: of the command.
        examples: command lines that run; at least two.
        writes: the kinds of records that it writes, as `mltools schema` names them.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            try:
                function(**{key: value for key, value in arguments.items() if key not in COMMON})
            except BrokenPipeError:  # typer would make it status 1
                end_quietly()

        signature = inspect.signature(function)
        extra = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, (kind, default) in COMMON.items()
        ]
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])  # type: ignore[attr-defined]
        run.__annotations__ = {**function.__annotations__, **{key: kind for key, (kind, _) in COMMON.items()}}
        app.command(name, add_help_option=False)(run)
        COMMANDS[name] = Command(name, run, examples, writes)
        return function

    return decorate
