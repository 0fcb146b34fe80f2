"""Bytes to stdout, whose reader may go at any time."""

import errno
import json
import os
import select
from pathlib import Path

from mltools.errors import MltoolsError

STDOUT = 1


def to_stdout(path: Path | None) -> bool:
    """Whether an output option means stdout."""
    return path is None or str(path) == "-"


def write_stdout(data: bytes, *, keep_going: bool = False) -> None:
    """Write bytes to stdout in one go.

    A reader that closed the pipe ends the program with status 0; if it is to `keep_going`, for the sake of other
    outputs, what is still written goes nowhere.

    Raises:
        MltoolsError: stdout was closed from the start.
    """
    view = memoryview(data)
    try:
        while view:
            try:
                view = view[os.write(STDOUT, view) :]
            except BlockingIOError:  # another program made the pipe so; it takes more once its reader has read
                select.select([], [STDOUT], [])
    except OSError as error:
        if error.errno == errno.EBADF:
            raise MltoolsError("stdout is closed") from None
        if error.errno not in (errno.EPIPE, errno.EINVAL):
            raise
        _leave_stdout()
        if not keep_going:
            raise SystemExit(0) from None


def write_json(data: bytes, *, keep_going: bool = False) -> None:
    """Write lines of JSON to stdout; where that is a terminal, characters that could command it are escaped."""
    if os.isatty(STDOUT) and not (text := data.decode()).isprintable():
        data = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text).encode()
    write_stdout(data, keep_going=keep_going)


def end_quietly() -> None:
    """End with status 0 after stdout's reader has gone."""
    _leave_stdout()
    raise SystemExit(0)


def _leave_stdout() -> None:
    """Let what is still written to stdout go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
