"""What goes to stderr: messages, the summary line, progress. Nothing here ever touches stdout.

The only user of rich, imported when a bar is first drawn. Control characters in messages are shown
escaped, so that rows and records cannot send commands to a terminal.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

LOG_EVERY_SECONDS = 60.0

_state = {"verbosity": 0, "color": True}
_bars: "list[Progress]" = []


def configure(*, verbosity: int | None = None, color: bool | None = None) -> None:
    """Set how much is said on stderr (-1 errors only, 0 normal, more adds detail) and whether in colour."""
    if verbosity is not None:
        _state["verbosity"] = verbosity
    if color is not None:
        _state["color"] = color


def printable(text: str) -> str:
    """Show control characters escaped, so that text from files cannot send commands to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def error(message: str) -> None:
    """Print one line that says what went wrong."""
    _line(f"mltools: {message}")


def warn(message: str) -> None:
    """Print one line that a person should read but that stops nothing."""
    if _state["verbosity"] >= 0:
        _line(f"mltools: note: {message}")


def log(message: str, level: int = 0) -> None:
    """Print one line of information, json_preview from verbosity `level` on."""
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


def track(items: Iterable[T], total: int, label: str, unit: str = "") -> Iterator[T]:
    """Pass items on while showing progress on stderr: a bar on a terminal, else a line a minute."""
    if _state["verbosity"] < 0:
        yield from items
    elif terminal():
        yield from _bar(items, total, label, unit)
    else:
        yield from _log_progress(items, total, label, unit)


def _bar(items: Iterable[T], total: int, label: str, unit: str) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=not use_color())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        _bars.append(progress)
        task = progress.add_task(label, total=total, rate="")
        start = time.monotonic()
        for done, item in enumerate(items, start=1):
            yield item
            rate = done / max(time.monotonic() - start, 1e-9)
            progress.update(task, advance=1, rate=f"{rate:.3g}/s")
        _bars.remove(progress)


def end_progress() -> None:
    """Take away bars that are still there, as after Ctrl-C, and give the cursor back."""
    while _bars:
        _bars.pop().stop()


def _log_progress(items: Iterable[T], total: int, label: str, unit: str) -> Iterator[T]:
    start = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= LOG_EVERY_SECONDS:
            last = now
            rate = done / (now - start)
            left = (total - done) / rate
            log(f"{label}: {done}/{total} {unit} ({rate:.3g}/s, {left:.0f} s left)")
