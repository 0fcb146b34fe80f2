"""The command that typer runs, made from a command's declaration when it is asked for."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from mltools import console
from mltools.cli.reference import HELP, Command, command_help
from mltools.cli.registry import command_spec
from mltools.io.stdout import end_quietly, write_stdout
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
    messages = list(flatten(MessageOptions))
    aside = {"help", *(each.name for each in messages)}

    def run(**given: Any) -> None:
        from mltools.cli.driver import drive  # which help need not load

        try:
            drive(name, {key: value for key, value in given.items() if key not in aside and value not in (None, [])})
        except BrokenPipeError:  # typer would make it status 1
            end_quietly()

    parameters = [_parameter(each) for each in flatten(command_spec(name).settings) if not each.hidden]
    parameters += [_parameter(each, MESSAGES.get(each.name)) for each in messages]
    parameters.append(_help(name))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameter(each: Field, callback: Callable[[Any], Any] | None = None) -> inspect.Parameter:
    choices = list(each.choices)
    common: dict[str, Any] = {"metavar": each.mark.metavar or None, "help": each.help, "callback": callback}
    if choices:
        common["autocompletion"] = lambda: choices
    if isinstance(each.mark, Flag):
        info: Any = typer.Option(*each.mark.names, count=each.mark.counts, **common)
    else:
        info = typer.Argument(**common)
    must = each.required and not isinstance(each.mark, Flag)
    kind = _typer_type(each)
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if must else 0 if getattr(each.mark, "counts", False) else None,
        annotation=Annotated[kind if must else kind | None, info],
    )


def _typer_type(each: Field) -> Any:
    """Give the type that typer reads: numbers and switches as such, all else as text."""
    if each.repeats:
        return list[int] if int in get_args(each.scalar) else list[str]
    parsed = isinstance(each.mark, Flag) and each.mark.parse is not None
    return each.scalar if each.scalar in (int, float, bool) and not parsed else str


def _help(name: str) -> inspect.Parameter:
    def show(value: bool) -> None:
        if value:
            write_stdout(command_help(Command.of(name)).encode())
            raise typer.Exit

    info = typer.Option(*HELP.flags, is_eager=True, callback=show, help=HELP.help)
    return inspect.Parameter("help", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info])


def _quiet(value: bool | None) -> bool | None:
    if value:
        console.configure(verbosity=-1)
    return value


def _verbose(value: int) -> int:
    if value:
        console.configure(verbosity=value)
    return value


def _no_color(value: bool | None) -> bool | None:
    if value:
        console.configure(color=False)
    return value


MESSAGES: dict[str, Callable[[Any], Any]] = {"quiet": _quiet, "verbose": _verbose, "no_color": _no_color}
