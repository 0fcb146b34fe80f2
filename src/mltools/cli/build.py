"""The function that typer calls for a command, made from the command's declaration."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from mltools.cli.driver import drive
from mltools.cli.registry import command_spec
from mltools.spec import Field, Flag, Operand, flatten


def command_function(name: str) -> Callable[..., None]:
    """Give a function that takes a command's operands and flags, and runs it on those that were given."""

    def run(**given: object) -> None:
        drive(name, {key: value for key, value in given.items() if value not in (None, [])})

    spec = command_spec(name)
    parameters = [_parameter(each) for each in flatten(spec.settings)]
    run.__doc__ = spec.settings.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameter(each: Field) -> inspect.Parameter:
    choices = list(each.choices)
    common: dict[str, Any] = {"metavar": each.mark.metavar or None, "help": each.help}
    if choices:
        common["autocompletion"] = lambda: choices
    is_flag = isinstance(each.mark, Flag)
    info = typer.Option(*each.mark.names, **common) if isinstance(each.mark, Flag) else typer.Argument(**common)
    must = each.required and not is_flag
    kind = _typer_type(each)
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if must else None,
        annotation=Annotated[kind if must else kind | None, info],  # type: ignore[valid-type]
    )


def _typer_type(each: Field) -> Any:
    """Give the type that typer reads: numbers, switches and paths as such, all else as text."""
    if each.repeats:
        return list[int] if int in get_args(each.scalar) else list[str]
    parsed = isinstance(each.mark, Flag) and each.mark.parse is not None
    return each.scalar if each.scalar in (int, float, bool, Path) and not parsed else str
