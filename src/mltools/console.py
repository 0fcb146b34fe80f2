"""What goes to stderr: messages, the summary line, progress. Nothing here ever touches stdout.

The only user of rich, imported when a bar is first drawn. Control characters in messages are shown
escaped, so that rows and records cannot send commands to a terminal.
"""

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

T = TypeVar("T")

LOG_EVERY_SECONDS = 60.0
JSON_EVERY_SECONDS = 1.0

_state: "_State" = {"verbosity": 0, "color": True, "progress": "auto"}
_bars: "list[Bar]" = []


class _State(TypedDict):
    verbosity: int
    color: bool
    progress: str


def configure(*, verbosity: int | None = None, color: bool | None = None, progress: str | None = None) -> None:
    """Set how much is said on stderr (-1 errors only, 0 normal, more adds detail), whether in colour, and progress."""
    if progress is not None:
        _state["progress"] = progress
    if verbosity is not None:
        _state["verbosity"] = verbosity
    if color is not None:
        _state["color"] = color


def printable(text: str) -> str:
    """Show control characters escaped, so that text from files cannot send commands to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print libraries' warnings as lines of information from verbosity 1 on, unless Python was told what to do."""
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.showwarning = lambda message, *_, **__: log(str(message), 1)  # as its documentation allows
        yield


def error(message: str) -> None:
    """Print one line that says what went wrong."""
    _line(f"mltools: {message}")


def warn(message: str) -> None:
    """Print one line that a person should read but that stops nothing."""
    if _state["verbosity"] >= 0:
        _line(f"mltools: note: {message}")


def log(message: str, level: int = 0) -> None:
    """Print one line of information, shown from verbosity `level` on."""
    if _state["verbosity"] >= level:
        _line(message)


def summary(tool: str, facts: Mapping[str, object]) -> None:
    """Print the last line of a run: what was done, in `key=value` words."""
    if _state["verbosity"] >= 0:
        words = (f"{key}={_word(value)}" for key, value in facts.items() if value is not None)
        _line(f"{tool}: " + " ".join(words))


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return text if text and " " not in text else json.dumps(text, ensure_ascii=False)


def _line(text: str) -> None:
    try:
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # the reader of stderr has gone: there is nobody to tell
        pass


def terminal(stream: object = None) -> bool:
    """Say whether the stream (stderr by default) is a terminal that can redraw a line."""
    stream = sys.stderr if stream is None else stream
    isatty = getattr(stream, "isatty", lambda: False)
    return bool(isatty()) and os.environ.get("TERM", "") != "dumb"


def use_color(stream: object = None) -> bool:
    """Say whether colour may be used on the stream (stderr by default): a terminal, no NO_COLOR, no --no-color."""
    return bool(_state["color"]) and terminal(stream) and not os.environ.get("NO_COLOR")


class Track(Protocol):
    """Passes a piece's items on while showing progress.

    It is told how many they are, what an item is, what the piece is, and how many such pieces are left, with this one.
    """

    def __call__(
        self, items: Iterator[T], total: int, unit: str = "rows", label: str | None = None, pieces: int = 1, /
    ) -> Iterator[T]:
        """Give the items."""
        ...


def untracked(items: Iterator[T], *_: object) -> Iterator[T]:
    """Pass items on and show nothing."""
    return items


Tell = Callable[[int, int, float], None]
"""Takes what is done, of how much, and the seconds since the start."""


class Progress:
    """How far a run is through all of its pieces (epochs, windows), and when it will be done with them."""

    def __init__(self) -> None:
        """Start with nothing done."""
        self._unit, self._done, self._start = "", 0, 0.0

    def track(self, items: Iterable[T], total: int, label: str, unit: str = "", pieces: int = 1) -> Iterator[T]:
        """Pass a piece's items on while showing, as `--progress` says, how far the whole run is.

        Args:
            items: of this piece.
            total: how many.
            label: what the piece is.
            unit: what an item is; another unit than the last piece's begins anew.
            pieces: how many such pieces are still to be done, with this one.
        """
        if unit != self._unit or not self._done:
            self._unit, self._done, self._start = unit, 0, time.monotonic()
        whole = self._done + total * pieces
        with _shown(label, unit) as tell:
            tell(self._done, whole, time.monotonic() - self._start)
            for item in items:
                yield item
                self._done += 1
                tell(self._done, whole, time.monotonic() - self._start)


def _shown(label: str, unit: str) -> "contextlib.AbstractContextManager[Tell]":
    how = _state["progress"]
    if how == "json":
        return _json_lines(label, unit)
    if how == "none" or _state["verbosity"] < 0:
        return contextlib.nullcontext(lambda done, whole, seconds: None)
    return _bar(label, unit) if terminal() else _log_lines(label, unit)


def _eta(done: int, whole: int, seconds: float) -> float | None:
    return seconds / done * (whole - done) if done else None


@contextlib.contextmanager
def _bar(label: str, unit: str) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
    )
    progress = Progress(*columns, console=Console(stderr=True, no_color=not use_color()), transient=True)
    task = progress.add_task(label, rate="")

    def tell(done: int, whole: int, seconds: float) -> None:
        eta = _eta(done, whole, seconds)
        rate = f"{done / seconds:.3g}/s, {timedelta(seconds=round(eta))} left" if eta is not None else ""
        progress.update(task, completed=done, total=whole, rate=rate)
        progress.start()

    _bars.append(progress)
    yield tell
    _bars.remove(progress)
    progress.stop()


def end_progress() -> None:
    """Take away bars that are still there, as after Ctrl-C, and give the cursor back."""
    while _bars:
        _bars.pop().stop()


@contextlib.contextmanager
def _log_lines(label: str, unit: str) -> Iterator[Tell]:
    def line(done: int, whole: int, seconds: float) -> None:
        eta = _eta(done, whole, seconds)
        if eta is not None:
            log(f"{label}: {done}/{whole} {unit} ({done / max(seconds, 1e-9):.3g}/s, {eta:.0f} s left)")

    yield _every(LOG_EVERY_SECONDS, line)


@contextlib.contextmanager
def _json_lines(label: str, unit: str) -> Iterator[Tell]:
    def line(done: int, whole: int, seconds: float) -> None:
        eta = _eta(done, whole, seconds)
        rounded = {"seconds": round(seconds, 3), "eta": round(eta, 3) if eta is not None else None}
        _line(json.dumps({"done": done, "total": whole, **rounded, "what": label, "unit": unit}))

    often = _every(JSON_EVERY_SECONDS, line, at_once=True)
    yield lambda done, whole, seconds: (line if done == whole else often)(done, whole, seconds)


def _every(interval: float, line: Tell, *, at_once: bool = False) -> Tell:
    """Let lines through that are so many seconds apart, the first `at_once` or after as long."""
    last = time.monotonic() - (interval if at_once else 0)

    def tell(done: int, whole: int, seconds: float) -> None:
        nonlocal last
        if time.monotonic() - last >= interval:
            last = time.monotonic()
            line(done, whole, seconds)

    return tell
