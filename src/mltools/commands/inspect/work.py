"""Look at checkpoints and files: which of the two a name means, and what is said of it."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mltools.commands.inspect import Settings
from mltools.commands.inspect.file import find_provenance, inspect_file, is_file, is_weights
from mltools.commands.inspect.text import Found, as_text
from mltools.commands.inspect.weights import inspect_tensors
from mltools.console import printable
from mltools.errors import NotFoundError, UsageError
from mltools.io.provenance import CHECKPOINT_FILE, command_for
from mltools.io.source import STDIN
from mltools.io.stdout import write_stdout
from mltools.run import Run
from mltools.sinks import RecordSink, TextSink


def run(run: Run) -> Iterator[Found | str]:
    """Look at what is named."""
    settings: Settings = run.settings
    first, second, layers = settings.first, settings.second, settings.layers
    names = [first] if second is None else [first, second]
    if settings.show_command and second is None:
        yield _command(first)
    elif all(map(is_weights, names)) and not settings.show_command:
        yield from inspect_tensors(first, second, layers, settings.blocks)
    elif second is not None:
        missing = next((name for name in names if is_file(name) and name != STDIN and not Path(name).exists()), None)
        if missing is not None:
            raise NotFoundError(f"no such file: {missing}")
        if is_file(first) or is_file(second) or settings.show_command:
            raise UsageError(
                "two names are two checkpoints or two files of weights to compare; look at others one by one"
            )
        from mltools.commands.inspect.checkpoint import compare

        yield from compare(first, second, settings.blocks, layers)
    elif is_file(first):
        if layers is not None:
            raise UsageError(f"--layers are those of checkpoints and of weights; {first} is another file")
        yield inspect_file(first)
    else:
        from mltools.commands.inspect.checkpoint import inspect

        yield inspect(first, settings.blocks, layers)


def _command(name: str) -> str:
    made = str(Path(name).parent) if Path(name).name == CHECKPOINT_FILE else name
    words = command_for(find_provenance(name) or {}, made)
    if words is None:
        raise UsageError(f"{name} does not say which command made it")
    return shlex.join(words)


class FoundSink(TextSink):
    """Takes what was found, and tells of it together at the end; a command line as it is."""

    def __init__(self, run: Run) -> None:
        """Start with nothing."""
        super().__init__(run)
        self._found: list[Found] = []

    def write(self, item: Any) -> None:
        """Keep what was found."""
        if isinstance(item, str):
            super().write(item)
        else:
            self._found.append(item)

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._found:
            write_stdout("".join(f"{printable(line)}\n" for line in as_text(self._found)).encode())


def sink(run: Run) -> RecordSink | FoundSink:
    """Give the sink: records with --json or -o, else text."""
    return RecordSink(run) if run.settings.as_json or run.settings.out is not None else FoundSink(run)
