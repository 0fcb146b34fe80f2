"""The program: one thin module a command (read, call, write), and `main`, through which all errors leave.

Nothing here imports torch, transformers or polars before a command needs it, so help starts at once.
"""

import signal
import sys
import traceback
from collections.abc import Sequence

from mltools import console
from mltools.cli.reference import Command, command_help, root_help
from mltools.cli.words import HELP_FLAGS, read_words, say_opening
from mltools.errors import MltoolsError, exit_status, lacks_memory, lacks_space
from mltools.io.stdout import write_stdout
from mltools.signals import ENDS, Terminated, asked, heard, stoppable


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status; errors for people become one line on stderr.

    Args:
        argv: arguments without the program's name; the process's own by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    console.configure(verbosity=0, color=True, progress="auto")
    with stoppable() as stop, console.warnings_as_lines():
        try:
            stop.admit()
            try:
                return _run(arguments)
            finally:
                console.end_progress()
                stop.hold()
        except BaseException as error:  # noqa: BLE001  all errors leave here
            heard()
            if "--debug" in arguments and not isinstance(error, SystemExit):
                _show_trace(error)
            return _status(error)


def _run(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; only what `read_words` leaves over takes typer's time."""
    if not arguments or (arguments[0] in HELP_FLAGS and len(arguments) == 1):
        return _print(root_help())
    if (read := read_words(arguments)) is None:
        from mltools.cli.program import run_typer

        return run_typer(arguments)
    name, given = read
    if "help" in given:
        return _print(command_help(Command.of(name)))
    say_opening(name, given)
    from mltools.cli.driver import run_command

    run_command(name, given)
    return 0


def _print(text: str) -> int:
    write_stdout(text.encode())
    return 0


def _say(message: str, error: BaseException) -> None:
    """Say what happened, and what was noted on its way here."""
    console.error("; ".join((message, *getattr(error, "__notes__", ()))))


def _show_trace(error: BaseException) -> None:
    for text in traceback.format_exception(error):
        for line in text.splitlines():
            console.log(line, level=-1)


def _status(error: BaseException) -> int:
    """Say what happened in one line, and choose the exit status (DESIGN §7)."""
    stop = asked()
    ours = isinstance(error, MltoolsError) and error.__cause__ is None  # not made of what a library raised
    if stop is not None and not ours and not isinstance(error, SystemExit):
        stop.__notes__ = [*getattr(error, "__notes__", ())]
        error = stop  # what else comes of it, as an import that was broken off, is not worth a word
    match error:
        case MltoolsError():
            _say(str(error), error)
        case KeyboardInterrupt() | Terminated():
            word, status = ENDS[signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM]
            _say(word, error)
            return status
        case SystemExit() | BrokenPipeError():
            pass
        case _:
            _say_other(error)
    return exit_status(error)


def _say_other(error: BaseException) -> None:
    """Say what happened where no error of ours says it."""
    if lacks_memory(error):
        _say("out of memory; a smaller --batch-size (perturb: --stream) needs less", error)
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}", error)
    elif lacks_space(error):
        _say("no space left on device", error)
    else:
        console.error(f"a fault in mltools: {type(error).__name__}: {error} (--debug shows where; please report it)")
