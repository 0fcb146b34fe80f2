"""SIGTERM and Ctrl-C: end at once by default, or at the next safe point where work can be saved first."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived; the program ends with status 143 after cleaning up."""


def raise_on_sigterm() -> None:
    """Let SIGTERM unwind the stack like Ctrl-C does, so that temporary files go."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Terminated

    with contextlib.suppress(ValueError):  # not the main thread: the host program owns the signals
        signal.signal(signal.SIGTERM, handler)


class Stop:
    """Whether a stop was asked for, and how."""

    def __init__(self) -> None:
        """Start with none asked for."""
        self.error: BaseException | None = None

    def __bool__(self) -> bool:
        return self.error is not None

    def check(self) -> None:
        """Raise the stop that was asked for, if any."""
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def deferred_stop() -> Iterator[Stop]:
    """Note the first SIGTERM or Ctrl-C instead of ending, for code that polls; a second one ends at once."""
    stop = Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        error = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        if stop:
            raise error
        stop.error = error

    try:
        old = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread
        old = {}
    try:
        yield stop
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)
