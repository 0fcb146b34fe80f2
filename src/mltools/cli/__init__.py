"""The program: one thin module a command (read, call, write), and `main`, through which all errors leave.

Nothing here imports torch, transformers or polars before a command needs it, so help starts at once.
"""

import errno
import signal
import sys
import traceback
from collections.abc import Sequence

from mltools import console
from mltools.cli.reference import Command, command_help, root_help
from mltools.cli.words import HELP_FLAGS, read_words, say_opening
from mltools.errors import MltoolsError, NotFoundError, ResourceError, lacks_memory
from mltools.io.stdout import write_stdout
from mltools.signals import ENDS, Terminated, asked, heard, stoppable

OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status; errors for people become one line on stderr.

    Args:
        argv: arguments without the program's name; the process's own by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    console.configure(verbosity=0, color=True, progress="auto")
    with stoppable():
        try:
            try:
                return _run(arguments)
            finally:
                console.end_progress()
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
    if stop is not None and not isinstance(error, MltoolsError | SystemExit):
        stop.__notes__ = [*getattr(error, "__notes__", ())]
        error = stop  # what else comes of it, as an import that was broken off, is not worth a word
    match error:
        case SystemExit():
            return error.code if isinstance(error.code, int) else 1
        case MltoolsError():
            _say(str(error), error)
            return ResourceError.exit_code if lacks_memory(error.__context__) else error.exit_code
        case KeyboardInterrupt() | Terminated():
            word, status = ENDS[signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM]
            _say(word, error)
            return status
        case BrokenPipeError():
            return 0
    if lacks_memory(error):
        _say("out of memory; a smaller --batch-size (perturb: --stream) needs less", error)
        return ResourceError.exit_code
    if isinstance(error, OSError):
        return _system_status(error)
    return _space_or_bug(error)


def _system_status(error: OSError) -> int:
    where = f"{error.filename}: " if error.filename else ""
    _say(f"{where}{error.strerror or error}", error)
    if error.errno in OUT_OF_SPACE:
        return ResourceError.exit_code
    return NotFoundError.exit_code if isinstance(error, FileNotFoundError) else 1


def _space_or_bug(error: BaseException) -> int:
    if any(said in str(error) for said in ("No space left", "os error 28", "os error 27")):
        _say("no space left on device", error)
        return ResourceError.exit_code
    console.error(f"a fault in mltools: {type(error).__name__}: {error} (--debug shows where; please report it)")
    return 1
