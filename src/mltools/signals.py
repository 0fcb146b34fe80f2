"""SIGTERM and Ctrl-C: an exception, a flag that is looked at between items, and a watchdog where neither is heard.

Python runs a handler only between its own steps, and what a handler raises can be swallowed, as in a callback of C++.
So the stop is also a flag (`check`), and a thread that C's own handler wakes: if the program has not begun to end after
some seconds, the thread clears away what is unfinished and ends it.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from mltools import console

GRACE = 4.0
"""Seconds in which the program ends by itself."""
GRACE_TO_SAVE = 25.0
"""The same where a step is brought to its end first, so that its work can be saved."""
GRACE_AGAIN = 1.0
"""The same after a second signal."""
ENDS: dict[int, tuple[str, int]] = {signal.SIGTERM: ("terminated", 143), signal.SIGINT: ("stopped", 130)}
"""What is said of a signal, and the exit status."""
LastWord = Callable[[], str | None]


class Terminated(BaseException):
    """SIGTERM arrived; the program ends with status 143 after cleaning up."""


class Stop:
    """Whether a stop was asked for, and how."""

    def __init__(self) -> None:
        """Start with none asked for."""
        self.error: BaseException | None = None
        self.deferred = self.heard = False

    def __bool__(self) -> bool:
        self.heard = self.error is not None
        return self.heard

    def admit(self) -> None:
        """Have stops raised from here on, and raise the one that came meanwhile."""
        self.deferred = False
        self.check()

    def hold(self) -> None:
        """Have stops noted only: nothing is left to break off."""
        self.deferred = True

    def check(self) -> None:
        """Raise the stop that was asked for, if any."""
        if self.error is not None:
            raise self.error


_stop = Stop()
_last_words: list[LastWord] = []


def check() -> None:
    """Raise the stop that was asked for, if any, unless it is looked for elsewhere (`deferred_stop`)."""
    if not _stop.deferred:
        _stop.check()


def asked() -> BaseException | None:
    """Give the stop that was asked for, if any."""
    return _stop.error


def heard() -> None:
    """Say that the program is ending by itself."""
    _stop.heard = True


@contextlib.contextmanager
def unfinished(last_word: LastWord) -> Iterator[None]:
    """Have something cleared away, if the watchdog must end the program meanwhile; what it gives is said."""
    _last_words.append(last_word)
    try:
        yield
    finally:
        _last_words.remove(last_word)


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Let SIGTERM and Ctrl-C unwind the stack, so that temporary files go; for the main thread, else nothing.

    They are only noted until `Stop.admit`, which stands where what they raise is caught.
    """
    if threading.current_thread() is not threading.main_thread():  # the host program owns the signals
        yield Stop()
        return
    global _stop
    _stop = Stop()
    _stop.deferred = True
    old = {number: signal.getsignal(number) for number in ENDS}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watchdog = threading.Thread(target=_watch, args=(reader,), daemon=True)
    watchdog.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    unraisable, sys.unraisablehook = sys.unraisablehook, _silence
    for number in ENDS:
        if old[number] is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _handle)
    try:
        yield _stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        sys.unraisablehook = unraisable
        os.close(writer)
        watchdog.join()
        _stop = Stop()  # what a host calls next was not asked to stop


def _handle(number: int, frame: FrameType | None) -> None:
    again = _stop.error is not None
    _stop.error = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
    if again or not _stop.deferred:
        raise _stop.error


def _silence(unraisable: "sys.UnraisableHookArgs") -> None:
    """Say nothing of a stop that an object's own end swallowed: it is a flag too."""
    if unraisable.exc_value is None or unraisable.exc_value is not _stop.error:
        sys.__unraisablehook__(unraisable)


@contextlib.contextmanager
def deferred_stop() -> Iterator[Stop]:
    """Note the first SIGTERM or Ctrl-C instead of ending, for code that polls; a second one ends at once."""
    _stop.deferred = True
    try:
        yield _stop
    finally:
        _stop.deferred = False


def _watch(reader: int) -> None:
    """End the program if it does not do so by itself some time after a signal; returns once the pipe is closed."""
    asked = 0
    while data := os.read(reader, 1):
        if data[0] not in ENDS:
            continue
        asked += 1
        grace = GRACE_AGAIN if asked > 1 else GRACE_TO_SAVE if _stop.deferred else GRACE
        is_over = not select.select([reader], [], [], grace)[0]
        if is_over and not (_stop.heard and asked == 1):
            _end(*ENDS[data[0]])
    os.close(reader)


def _end(word: str, status: int) -> None:
    """Clear away what is unfinished, and end."""
    said = [word]
    for last_word in reversed(_last_words):
        with contextlib.suppress(Exception):
            said += filter(None, [last_word()])
    console.end_progress()
    console.error("; ".join(said))
    os._exit(status)
