"""Stops: a signal is answered wherever the program is, and what a sweep has finished is kept and gone on from."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Cli, Shell, toy_rows, write_jsonl
from mltools import signals
from mltools.run import Run

Tiny = Callable[..., Path]
Begin = Callable[..., list[str]]
STATUS = {signal.SIGTERM: 143, signal.SIGINT: 130}
DEAF = """
import os, signal, sys, time
from pathlib import Path
from mltools import cli, signals
from mltools.io.atomic import atomic_file, scratch_folder
signals.GRACE = 0.3

def run(arguments):
    with atomic_file(Path("out.jsonl")) as path, scratch_folder() as scratch:
        path.write_text("half")
        Path("scratch").write_text(str(scratch))
        print("ready", flush=True)
        {body}
    return 0

cli._run = run
sys.exit(cli.main([]))
"""
BODIES = {
    "swallowed": "\n        ".join(
        (
            "for _ in range(100):",
            "    try: time.sleep(0.1)",
            "    except BaseException: pass",
        )
    ),
    "finaliser": "\n        ".join(
        (
            "class Last:",
            "    def __del__(self): time.sleep(5)",
            "last = Last()",
            "del last",
            "time.sleep(20)",
        )
    ),
    "deaf": "import ctypes; ctypes.CDLL(None).sleep(20)",
}
"""What swallows the exception, as a callback from C++ or an object's own end does; and what runs in C for long."""


@pytest.mark.parametrize("number", STATUS)
@pytest.mark.parametrize("body", BODIES)
def test_k10_a_signal_is_answered_where_no_exception_is_heard(tmp_path: Path, body: str, number: int) -> None:
    code = DEAF.format(body=BODIES[body])
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        start = time.monotonic()
        assert process.wait(20) == STATUS[signal.Signals(number)] and time.monotonic() - start < 10
        assert process.stderr.read() == f"mltools: {signals.ENDS[number][0]}\n"
    assert not Path((tmp_path / "scratch").read_text()).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]


@pytest.mark.parametrize("number", STATUS)
def test_k10_a_swallowed_stop_is_raised_between_items(cli: Cli, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag is looked at in whatever goes through `track`."""
    seen: list[int] = []

    def run(arguments: object) -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(1)
        except BaseException:  # noqa: BLE001  what C++ does
            pass
        loop = Run.__new__(Run)
        loop._shows_progress = False
        seen.extend(loop.track(range(9), 9))
        return 0

    monkeypatch.setattr("mltools.cli._run", run)
    result = cli("windows", "2")
    assert (result.code, result.err) == (STATUS[signal.Signals(number)], f"mltools: {signals.ENDS[number][0]}\n")
    assert seen == []


def test_k10_an_ignored_interrupt_stays_ignored() -> None:
    """As of what a script starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.stoppable():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


# -- finished records -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    folder = tmp_path_factory.mktemp("stops")
    write_jsonl(folder / "noisy.jsonl", toy_rows(40))
    for name, seed in (("noisy", 1), ("clean", 2), ("model", 3)):
        (folder / name).symlink_to(tiny("bert", seed, num_hidden_layers=2))
    return folder


SWEEPS = {
    "swap": "swap noisy clean noisy.jsonl --tag kind=x",
    "retrain": "retrain noisy model noisy.jsonl --epochs 1 --lr 1e-3 --tag kind=x",
}


@pytest.fixture
def stopped(
    request: pytest.FixtureRequest, cli: Cli, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Run in the inputs' folder, stopped after some records; gives the message."""
    from mltools.io.writer import RecordWriter

    monkeypatch.chdir(inputs)
    write = RecordWriter.write

    def run(words: str, after: int = 1, number: int = signal.SIGTERM) -> str:
        def stop(self: RecordWriter, record: object) -> None:
            write(self, record)
            if self.n == after:
                os.kill(os.getpid(), number)

        with monkeypatch.context() as patched:
            patched.setattr(RecordWriter, "write", stop)
            result = cli(*words.split())
        assert result.code == STATUS[signal.Signals(number)] and result.out == "", result.err
        return result.err.splitlines()[-1]

    yield run
    for path in inputs.glob("out.*"):
        path.unlink()


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("swap", "jsonl"),
        ("swap", "parquet"),
        ("retrain", "jsonl"),
        pytest.param("retrain", "parquet", marks=pytest.mark.slow),
    ],
)
def test_k10_a_stopped_sweep_keeps_its_records_and_goes_on(
    name: str, form: str, cli: Cli, inputs: Path, stopped: Callable[..., str]
) -> None:
    """The message is a command line that ends with the bytes of an unbroken run; no second run takes the records."""
    line = f"{SWEEPS[name]} -o out.{form} -q"
    said = stopped(line)
    found = re.fullmatch(r"mltools: terminated; (out\.\S+) holds 1 finished records; go on with: mltools (.*)", said)
    assert found is not None and found[1] == f"out.{form}.partial", said
    assert len((inputs / found[1]).read_text().splitlines()) == 1 and not (inputs / f"out.{form}").exists()
    refused = cli(*line.split())
    assert refused.code == 2 and f"go on from them with --resume {found[1]}, or start anew with --force" in refused.err
    other = cli(*line.replace("kind=x", "kind=y").split(), "--resume", found[1])
    assert other.code == 3 and "records of another sweep" in other.err
    again = stopped(f"{found[2]}")  # once more, after one more record
    assert "holds 2 finished records" in again and again.count("--resume") == 1
    (inputs / found[1]).open("ab").write(b'{"tool": "swa')
    assert cli(*shlex.split(found[2])[:-3], "--resume", found[1]).code == 0
    assert cli(*SWEEPS[name].split(), "-o", f"out.whole.{form}", "-q").code == 0
    assert (inputs / f"out.{form}").read_bytes() == (inputs / f"out.whole.{form}").read_bytes()
    assert not list(inputs.glob("out*.partial"))


@pytest.mark.parametrize(
    "words",
    ["swap", *(pytest.param(words, marks=pytest.mark.slow) for words in ("retrain --epochs 1", "shapley --samples 2"))],
)
def test_k10_a_resume_with_other_threads_is_said(cli: Cli, tiny: Tiny, words: str, tmp_path: Path) -> None:
    """They decide the last digits; said of every command that goes on from records."""
    tool, *options = words.split()
    rows = write_jsonl(tmp_path / "rows.jsonl", toy_rows(40))
    line = (tool, tiny("bert", 1), tiny("bert", 2), rows, *options, "--threads", 1)
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text(cli(*line).out)
    same = cli(*line, "--resume", earlier)
    assert same.code == 0 and "--threads" not in same.err
    text = earlier.read_text()
    earlier.write_text(text.replace('"threads":1', '"threads":3'))
    assert earlier.read_text() != text
    other = cli(*line, "--resume", earlier)
    assert other.code == 0 and "note: begun with --threads 3, gone on with 1: not to the byte" in other.err
    earlier.write_text(text.replace('"threads":1', '"threads":["1"]'))
    assert cli(*line, "--resume", earlier).code == 0


def test_k10_half_a_record_is_dropped_and_said(cli: Cli, inputs: Path, shell: Shell, tmp_path: Path) -> None:
    """Also of a file that stdout goes on with: there it is cut off, and the next record begins a line."""
    whole = shell(f"mltools {SWEEPS['swap']} -q", inputs).out
    out = tmp_path / "all.jsonl"
    first, second, _ = whole.splitlines(keepends=True)
    out.write_text(first + second[:40])
    done = shell(f"mltools {SWEEPS['swap']} --resume {out} >> {out}", inputs)
    assert done.code == 0 and "the last line is half a record, which is left out and made again" in done.err
    assert out.read_text() == whole
    out.write_text(whole.rstrip("\n"))  # a whole record without an end is one
    done = shell(f"mltools {SWEEPS['swap']} --resume {out}", inputs)
    assert (done.code, done.out) == (0, "") and "half" not in done.err


def test_k10_the_first_start_of_a_line_that_resumes(cli: Cli, inputs: Path, stopped: object) -> None:
    """A line that is started again after each stop need not ask whether it is the first time."""
    words = [*SWEEPS["swap"].split(), "-q", "-o", "out.jsonl", "--resume", "out.jsonl.partial"]
    assert cli(*words).code == 0 and len((inputs / "out.jsonl").read_text().splitlines()) == 3
    missing = cli(*words[:-3], "out.2.jsonl", "--resume", "other.partial")
    assert missing.code == 5


def test_k10_a_run_that_goes_on_has_its_records_to_itself(cli: Cli, inputs: Path, stopped: object) -> None:
    from mltools.io.partial import Partial

    other = Partial(inputs / "out.jsonl", [])
    result = cli(*SWEEPS["swap"].split(), "-q", "-o", "out.jsonl", "--force")
    assert result.code == 2
    assert result.err == "mltools: out.jsonl.partial is in use by another run; wait for it, or choose another -o\n"
    other.close(discard=True)
    assert not list(inputs.glob("out*"))


def test_what_comes_of_a_stop_is_the_stop(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop in the middle of importing compiled code comes out as an ImportError (seen under kills of plot)."""

    def broken_off(name: str, given: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except signals.Terminated:
            raise ImportError("initialization failed") from None

    monkeypatch.setattr("mltools.cli.driver.run_command", broken_off)
    found = cli("windows", 3)
    assert (found.code, found.err) == (143, "mltools: terminated\n")


def test_what_a_library_makes_of_a_stop_is_the_stop_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop while a model was built came out as a checkpoint that cannot be loaded, status 4 (seen under kills)."""

    def broken_off(name: str, given: object) -> None:
        with checkpoint_errors("noisy", "cannot be loaded"):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)
            finally:
                raise RuntimeError("trying to pop from empty mode stack")

    from mltools.model.checkpoint_loading import _checkpoint_errors as checkpoint_errors

    monkeypatch.setattr("mltools.cli.driver.run_command", broken_off)
    found = cli("windows", 3)
    assert (found.code, found.err) == (143, "mltools: terminated\n")


LEFT_OVER = """
import os, sys
from mltools.__main__ import run

def rows():
    try:
        yield 1
    finally:
        os.write(2, b"closed too late")

left = rows()
next(left)
sys.argv = ["mltools", *sys.argv[1:]]
run()
"""


@pytest.mark.parametrize(("words", "status"), [(["windows", "3"], 0), (["windows", "x"], 2)])
def test_nothing_of_ours_runs_while_the_interpreter_is_taken_down(words: list[str], status: int) -> None:
    """What a stop left open is not closed after its modules are gone (it printed "Exception ignored in …")."""
    done = subprocess.run([sys.executable, "-c", LEFT_OVER, *words], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "too late" not in done.stderr and (status == 0) == (done.stderr.count("\n") != 1)


@pytest.mark.parametrize("number", STATUS)
def test_a_stop_while_handlers_are_put_in_place_is_a_stop(
    number: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came between the handlers and what catches the stop, and left as a traceback, once in 3,000 kills."""

    @contextlib.contextmanager
    def opening() -> Iterator[None]:
        os.kill(os.getpid(), number)
        yield

    monkeypatch.setattr("mltools.console.warnings_as_lines", opening)
    found = cli("windows", 3)
    assert (found.code, found.out) == (STATUS[signal.Signals(number)], "") and found.err.count("\n") == 1


@pytest.mark.parametrize("number", STATUS)
def test_a_stop_after_the_work_breaks_nothing_off(number: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def closing() -> Iterator[None]:
        yield
        os.kill(os.getpid(), number)

    monkeypatch.setattr("mltools.console.warnings_as_lines", closing)
    found = cli("windows", 3)
    assert (found.code, found.err) == (0, "") and found.out.count("\n") == 6
    signals.check()  # a function called next was not asked to stop
    with signals.deferred_stop() as stop:
        assert not stop
