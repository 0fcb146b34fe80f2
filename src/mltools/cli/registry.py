"""Which commands there are: the modules of `mltools.commands`, and those that need this list themselves.

A command's declaration is imported when it is asked for, and its work when it runs.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from mltools import commands
from mltools.spec import CommandSpec

ABOUT_COMMANDS = ("completion", "help", "schema")
"""Commands about the commands, which stand in `mltools.cli`."""
HEADINGS = ("Rows and models", "Localise", "Summarise", "Utilities")
"""What commands stand under, in the order of the program's help."""


def command_names() -> list[str]:
    """Name every command, without importing one."""
    found = (each.name for each in iter_modules(commands.__path__))
    return sorted([*(name for name in found if not name.startswith("_")), *ABOUT_COMMANDS])


@cache
def command_spec(name: str) -> CommandSpec:
    """Import a command's declaration."""
    spec = import_module(f"{_package(name)}.{name}").SPEC
    assert isinstance(spec, CommandSpec)
    return spec


def command_work(name: str) -> ModuleType:
    """Import what does a command's work: the module `work` of its package, or its own module."""
    module = import_module(f"{_package(name)}.{name}")
    return import_module(f"{module.__name__}.work") if hasattr(module, "__path__") else module


def _package(name: str) -> str:
    return "mltools.cli" if name in ABOUT_COMMANDS else commands.__name__


def learn_kinds() -> None:
    """Make known the kinds of records that commands declare in their own modules, to all that reads records."""
    from mltools.io.kinds import learn_kind  # which help need not load

    for name in command_names():
        for kind in command_spec(name).writes:
            if isinstance(kind, type):
                learn_kind(kind)


def headed_commands() -> Mapping[str, Sequence[str]]:
    """Name the commands by heading, in the order of every list of them."""
    ranked = sorted(command_names(), key=lambda name: (command_spec(name).rank, name))
    return {heading: [name for name in ranked if command_spec(name).heading == heading] for heading in HEADINGS}
