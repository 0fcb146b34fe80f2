"""The typer application, and the decorator that makes a function a command with the options all commands have."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from mltools import options

F = TypeVar("F", bound=Callable[..., None])

EXIT_STATUS = """\b
Exit status:
  0 done, or the reader closed the pipe   4 checkpoint unusable
  1 failed while running                  5 not found, or offline
  2 wrong usage, or the output exists     6 out of memory or disk
  3 rows or records invalid               130 Ctrl-C, 143 terminated
"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_STATUS,
)

COMMON: dict[str, tuple[Any, Any]] = {
    "quiet": (options.Quiet, False),
    "verbose": (options.Verbose, 0),
    "no_color": (options.NoColor, False),
    "debug": (options.Debug, False),
}


def command(name: str, *examples: str) -> Callable[[F], F]:
    """Add a function to the program as command `name`, with -q, -v, --no-color, --debug and its examples."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            function(**{key: value for key, value in arguments.items() if key not in COMMON})

        signature = inspect.signature(function)
        extra = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, (kind, default) in COMMON.items()
        ]
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])  # type: ignore[attr-defined]
        run.__annotations__ = {**function.__annotations__, **{key: kind for key, (kind, _) in COMMON.items()}}
        shown = "\n".join(f"  {example}" for example in examples)
        app.command(name, epilog=f"\b\nExamples:\n{shown}\n" if examples else None)(run)
        return function

    return decorate
