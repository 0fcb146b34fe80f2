"""Bytes to stdout, whose reader may go at any time."""

import errno
import os

from mltools.errors import MltoolsError

STDOUT = 1


def write_stdout(data: bytes, *, keep_going: bool = False) -> None:
    """Write bytes to stdout in one go.

    A reader that closed the pipe ends the program with status 0; if it is to `keep_going`, for the sake of other
    outputs, what is still written goes nowhere.

    Raises:
        MltoolsError: stdout was closed from the start.
    """
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(STDOUT, view) :]
    except OSError as error:
        if error.errno == errno.EBADF:
            raise MltoolsError("stdout is closed") from None
        if error.errno not in (errno.EPIPE, errno.EINVAL):
            raise
        _leave_stdout()
        if not keep_going:
            raise SystemExit(0) from None


def end_quietly() -> None:
    """End with status 0 after stdout's reader has gone."""
    _leave_stdout()
    raise SystemExit(0)


def _leave_stdout() -> None:
    """Let what is still written to stdout go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
