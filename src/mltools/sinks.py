"""What takes a command's results: records, or text for stdout. A sink is a context manager made from the run."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

from mltools import console, signals
from mltools.io.partial import Partial
from mltools.io.stdout import write_stdout
from mltools.io.writer import RecordWriter
from mltools.run import Run


class RecordSink(RecordWriter):
    """Takes records, or records with the columns of their group: lines on stdout, or a file that appears whole."""

    def __init__(self, run: Run) -> None:
        """Write where the run's -o says."""
        out = Path(os.devnull) if run.silent else run.get("out")
        super().__init__(out, run.tags, keep_going=run.makes_more, replace=run.force)
        self._run, self.kinds = run, list(run.spec.written.values())
        self._unfinished = contextlib.ExitStack()

    def __enter__(self) -> "RecordSink":
        if self._run.partial is not None and self._out is not None and not self._run.silent:
            self._rows = [json.loads(line) for line in self._run.taken_over]
            self.partial = Partial(self._out, self._run.taken_over)
            self._unfinished.enter_context(signals.unfinished(self._leave))
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.provenance = self._run.provenance
        with self._unfinished:
            try:
                super().__exit__(kind, error, trace)
            except BaseException as own:
                self._note(own)
                raise
            if isinstance(error, BaseException):
                self._note(error)
            elif self.partial is not None:
                self.partial.close(discard=True)

    def _note(self, error: BaseException) -> None:
        if (said := self._leave()) is not None:
            error.add_note(said)

    def _leave(self) -> str | None:
        """Leave the finished records where they are, and say how to go on from them."""
        if self.partial is None:
            return None
        partial, self.partial = self.partial, None
        partial.close(discard=False)
        if not partial.n:
            return None
        return f"{partial.path} holds {partial.n} finished records; {self._run.goes_on(partial.path)}"


class NoSink(contextlib.AbstractContextManager["NoSink"]):
    """Takes nothing: the work writes its one output itself."""

    def __init__(self, run: Run) -> None:
        """Start with nothing."""
        self.n = 0

    def __exit__(self, *error: object) -> None:
        pass

    def write(self, item: Any) -> None:
        """Refuse whatever comes."""
        raise AssertionError(f"nothing is to be written, and yet there is {item}")


class TextSink(NoSink):
    """Takes lines of text for stdout."""

    def write(self, line: str) -> None:
        """Write a line."""
        write_stdout(line.encode() + b"\n")
        self.n += 1


def stdout_colors() -> Literal[0, 256, 16_777_216]:
    """How many colours text on stdout may have; 0 is none."""
    if not console.use_color(sys.stdout):
        return 0
    return 16_777_216 if os.environ.get("COLORTERM") in ("truecolor", "24bit") else 256
