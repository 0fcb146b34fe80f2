"""The command that typer runs, made from a command's declaration when it is asked for."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mltools.cli.reference import HELP, Command, command_help
from mltools.cli.registry import command_spec
from mltools.cli.words import typed
from mltools.io.stdout import write_stdout
from mltools.options import MessageOptions
from mltools.spec import Field, Flag, flatten


def build_command(name: str) -> TyperCommand:
    """Build a command: its own settings, then what every command takes."""
    own = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    own.command(name, add_help_option=False)(_function(name))
    command = typer.main.get_command(own)
    assert isinstance(command, TyperCommand)
    return command


def _function(name: str) -> Callable[..., None]:
    def run(**given: Any) -> None:
        from mltools.cli.driver import run_command  # which help need not load

        run_command(name, given)

    parameters = [_parameter(each) for each in flatten(command_spec(name).settings) if not each.hidden]
    parameters += [_parameter(each) for each in flatten(MessageOptions)]
    parameters.append(_help(name))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameter(each: Field) -> inspect.Parameter:
    choices = list(each.choices)
    common: dict[str, Any] = {"metavar": each.mark.metavar or None, "help": each.help}
    if choices:
        common["autocompletion"] = lambda: choices
    if isinstance(each.mark, Flag):
        info: Any = typer.Option(*each.mark.names, count=each.mark.counts, **common)
    else:
        info = typer.Argument(**common)
    must = each.required and not isinstance(each.mark, Flag)
    kind = list[typed(each)] if each.repeats else typed(each)  # type: ignore[misc]
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if must else 0 if getattr(each.mark, "counts", False) else None,
        annotation=Annotated[kind if must else kind | None, info],
    )


def _help(name: str) -> inspect.Parameter:
    def show(value: bool) -> None:
        if value:
            write_stdout(command_help(Command.of(name)).encode())
            raise typer.Exit

    info = typer.Option(*HELP.flags, is_eager=True, callback=show, help=HELP.help)
    return inspect.Parameter("help", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info])
