"""A shell in which `mltools` starts at once: each call is a fork of a process that has everything imported.

Real argv, pipes, signals and exit statuses; only the seconds of importing torch are saved. `python forkserver.py
SOCKET CHECKPOINT ROWS` serves, once it has run commands on those; the `mltools` on PATH hands over its arguments,
folder, environment, streams and, later, signals.

A request is its length and then, each ended by a zero byte: the folder, how many arguments there are, these, and the
environment.
"""

import array
import contextlib
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

CLIENT = """#!{python}
import _signal, _socket, posix, sys  # the modules above these take longer to import than all else here
s = _socket.socket(_socket.AF_UNIX)
s.connect({socket!r})
words = [posix.getcwdb(), b"%d" % len(sys.argv[1:])]
words += [word.encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()) for word in sys.argv[1:]]
words += [b"%b=%b" % item for item in posix.environ.items()]
request = b"".join(b"%b\\0" % word for word in words)
streams = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
s.sendmsg([len(request).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
s.sendall(request)
for fd in (0, 1):
    posix.close(fd)
pid = int.from_bytes(s.recv(8), "big")
for number in (_signal.SIGINT, _signal.SIGTERM):
    _signal.signal(number, lambda number, frame: posix.kill(pid, number))
answer = s.recv(8)
sys.stderr.close()
posix._exit(int(answer or b"1"))
"""


MODULES = (
    "datasets",
    "matplotlib.backends.backend_agg",
    "mltools.drawing.axes",
    "polars",
    "scipy.stats",
    "sklearn.metrics",
)
"""What some commands import once they need it."""


def write_client(folder: Path, path: Path) -> None:
    """Put an `mltools` into `folder` that asks the server at socket `path`."""
    client = folder / "mltools"
    client.write_text(CLIENT.format(python=sys.executable + " -SIE", socket=str(path)))
    client.chmod(0o755)


class Process:
    """A run of the program in a child of the server, which can be killed by its own pid."""

    def __init__(self, path: Path, arguments: Sequence[str], folder: Path, streams: Sequence[int]) -> None:
        """Ask the server at socket `path` for a run; `streams` are stdin, stdout and stderr."""
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(path))
        words = [
            str(folder),
            str(len(arguments)),
            *arguments,
            *(f"{name}={value}" for name, value in os.environ.items()),
        ]
        request = b"".join(os.fsencode(word) + b"\0" for word in words)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        self._connection.sendmsg([len(request).to_bytes(8, "big")], ancillary)
        self._connection.sendall(request)
        self.pid = int.from_bytes(self._connection.recv(8), "big")

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the run has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> int | None:
        """Wait for the end; give the status, None if it was killed."""
        status = self._connection.recv(8)
        while self._connection.recv(8):
            pass
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(self.pid, 0)  # it has closed its files, but its number may not be free yet
                time.sleep(0.001)
        return int(status) if status else None


def patch(environment: dict[str, str]) -> None:
    """Set numbers in modules as MLTOOLS_TEST_PATCH says: `module:NAME=0`, by spaces."""
    for word in environment.get("MLTOOLS_TEST_PATCH", "").split():
        place, _, value = word.partition("=")
        module, _, name = place.partition(":")
        setattr(importlib.import_module(module), name, float(value))


def limit(environment: dict[str, str]) -> None:
    """Limit a resource as MLTOOLS_TEST_LIMIT says: `FSIZE=100` bytes a file, `AS=+1000` bytes more memory."""
    name, _, value = environment.get("MLTOOLS_TEST_LIMIT", "").partition("=")
    if name:
        pages = int(Path("/proc/self/statm").read_text().split()[0]) if value.startswith("+") else 0
        most = pages * resource.getpagesize() + int(value)
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def receive(connection: socket.socket) -> tuple[list[int], list[str], str, dict[str, str]]:
    """Read one request: streams, arguments, folder, environment."""
    fds = array.array("i")
    head, ancillary, *_ = connection.recvmsg(8, socket.CMSG_LEN(3 * fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data)
    size, body = int.from_bytes(head, "big"), b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    folder, number, *words = (os.fsdecode(word) for word in body.split(b"\0")[:-1])
    environment = dict(word.split("=", 1) for word in words[int(number) :])
    return list(fds), words[: int(number)], folder, environment


def answer(connection: socket.socket) -> None:
    """Run one request in this (forked) process and tell its status."""
    fds, arguments, folder, environment = receive(connection)
    connection.sendall(os.getpid().to_bytes(8, "big"))
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for target, mode in ((0, "r"), (1, "w"), (2, "w")):
        setattr(sys, ("stdin", "stdout", "stderr")[target], os.fdopen(target, mode, closefd=False))
    sys.argv = ["mltools", *arguments]
    patch(environment)
    limit(environment)
    from mltools.cli import main

    try:
        status = main(arguments)
    except BaseException:  # noqa: BLE001  whatever happens, the client must hear a status
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(b"%d" % status)


def reap(_number: int, _frame: object) -> None:
    """Take leave of the runs that have ended, so that the time they took counts as this process's children's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def load() -> None:
    """Import whatever commands import."""
    import torch
    from transformers import BertForSequenceClassification, GPT2ForSequenceClassification  # noqa: F401  the tests' models

    from mltools.cli.registry import command_names, command_work
    from mltools.model import speed

    for command in command_names():
        command_work(command)
    for name in MODULES:
        importlib.import_module(name)
    torch.set_num_threads(1)
    speed.SECONDS = 0.01  # dry runs need not come near


def warm(checkpoint: str, rows: str) -> None:
    """Do what libraries put off until the first call: a sweep that trains; a line that typer has to refuse."""
    from mltools.cli import main

    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        trained = main(["retrain", checkpoint, checkpoint, rows, "--epochs", "1", "-o", os.devnull, "-q"])
        assert (trained, main(["swap"])) == (0, 2)


def serve(path: str, checkpoint: str, rows: str) -> None:
    """Answer requests until killed, each in a child of its own."""
    gc.disable()  # while objects are made that stay
    load()
    warm(checkpoint, rows)
    signal.signal(signal.SIGCHLD, reap)
    gc.freeze()  # a collection in a child need not copy every page of these libraries
    gc.enable()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer(connection)
            os._exit(0)
        connection.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
