"""The records that a sweep has finished, kept beside the file they are to become: no stop or kill loses them."""

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from mltools import console
from mltools.errors import UsageError
from mltools.io.atomic import lock
from mltools.io.source import Source
from mltools.io.stdout import STDOUT

PARTIAL = ".partial"
"""How records are named that a stopped run left for its own output, which is whole without a word of them."""


def partial_path(out: Path) -> Path:
    """Where the finished records of a run that writes `out` are kept: beside it, as `OUT.partial`."""
    return out.with_name(out.name + PARTIAL)


def whole_lines(path: Path) -> list[bytes]:
    """Read the finished records that a run left, without half a one at the end; none if there is no such file."""
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def check_partial(out: Path) -> None:
    """See that a new run takes nothing away that a stopped one left.

    Raises:
        UsageError: finished records are there.
    """
    path = partial_path(out)
    if lines := whole_lines(path):
        raise UsageError(
            f"{path} holds {len(lines)} records of a run that was stopped or goes on; go on from them with "
            f"--resume {path}, or start anew with --force"
        )


class Resumed(Source):
    """Records to go on from; half a record at their end, as a kill or a full disk leaves it, is dropped with a note."""

    def __init__(self, path: str, *, own: bool, to_stdout: bool) -> None:
        """Read a file of records.

        Args:
            path: the file.
            own: whether a run of ours wrote it line by line, so that a line without an end is none.
            to_stdout: whether what follows goes to stdout; if that is this very file, half a record is cut off there.
        """
        super().__init__(path)
        data = Path(path).read_bytes() if Path(path).is_file() else b""
        whole = data.rfind(b"\n") + 1
        self._whole: bytes | None = None
        if whole == len(data) or not data.startswith(b"{") or (not own and _is_record(data[whole:])):
            return
        self._whole = data[:whole]
        console.warn(f"{self.name}: the last line is half a record, which is left out and made again")
        if to_stdout and os.path.samestat(os.fstat(STDOUT), Path(path).stat()):
            os.truncate(path, whole)

    def _open_raw(self) -> io.BufferedReader:
        if self._whole is None:
            return super()._open_raw()
        return cast(io.BufferedReader, io.BufferedReader(io.BytesIO(self._whole)))


def _is_record(line: bytes) -> bool:
    """Whether a last line without an end is a whole record."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class Partial:
    """The growing file of one run, which no other run has meanwhile."""

    def __init__(self, out: Path, earlier: Sequence[bytes]) -> None:
        """Claim the file; what it holds stays if it is these lines, and all else goes.

        Raises:
            UsageError: another run has it.
        """
        self.path, self.n = partial_path(out), len(earlier)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            lock(self._file, self.path)
        except UsageError:
            os.close(self._file)
            raise
        os.ftruncate(self._file, sum(map(len, earlier)))

    def append(self, line: bytes) -> None:
        """Add a record."""
        view = memoryview(line)
        while view:
            view = view[os.write(self._file, view) :]
        self.n += 1

    def close(self, *, discard: bool) -> None:
        """Let go of the file, which goes itself if it holds nothing, or all of it is elsewhere by now."""
        if discard or not self.n:
            self.path.unlink(missing_ok=True)
        os.close(self._file)
