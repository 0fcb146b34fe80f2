"""What must not harm any command, of the one table: kills, two runs at once, full disks, little memory, odd streams.

Each run is a fork that has everything imported (forkserver.py). KILLS says how often each is killed.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cases import CASES, line, without_out
from conftest import Cli, Shell
from forkserver import Process
from mltools.cli.registry import command_names
from test_commands import FIELDS, OUTPUTS, content, having, input_files, reads

KILLS = int(os.environ.get("KILLS", "2"))
MANY = int(os.environ.get("KILLS", "200"))
FIRST = {name: (name, option, ending) for name, option, ending in OUTPUTS if option in ("-o", "--out")}
"""The output of each command that has one."""
RESUMES = {*having("resume")}


def words(name: str, option: str, out: str, *, force: bool = True) -> list[str]:
    """The words of a small run that writes an output."""
    own = line(name, "needed") if option == "--provenance" else without_out(name, option)
    return [*own, option, out, "-q", *(["--force"] if force else [])]


@pytest.fixture(autouse=True)
def save_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOOLS_TEST_PATCH", "mltools.commands.finetune.training_run:SAVE_EVERY_SECONDS=0")


class Place:
    """A folder in which one output is written, again and again."""

    def __init__(self, shell: Shell, folder: Path, name: str, option: str, ending: str) -> None:
        self.shell, self.folder, self.name, self.option = shell, folder, name, option
        self.out = folder / f"out{ending}"
        self.inputs = {path.name for path in folder.iterdir()}

    def start(self, *more: str, force: bool = True) -> Process:
        (self.folder / "stdout").write_bytes(b"")
        return self.shell.start(
            [*words(self.name, self.option, self.out.name, force=force), *more], self.folder, self.folder / "stdout"
        )

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text()

    def whole(self) -> tuple[dict[str, bytes], float]:
        """What an unbroken run writes, and the seconds it takes; the output is gone again."""
        begun = time.monotonic()
        assert self.start(force=False).wait() == 0, self.said
        seconds, found = time.monotonic() - begun, content(self.out)
        self.clear()
        return found, seconds

    def clear(self) -> None:
        import shutil

        for path in self.folder.iterdir():
            if path.name not in self.inputs:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def left(self) -> set[str]:
        """Name what is there besides the inputs, the output and what keeps unfinished work."""
        known = {*self.inputs, self.out.name, f"{self.out.name}.partial", "out.resume", "needed", "needed.resume"}
        known |= {"stdout", "stderr"}
        found = {path.name for path in self.folder.iterdir()} - known
        return {name for name in found if name.removesuffix(".kept-1") != self.needed}

    @property
    def needed(self) -> str:
        """The output that the command cannot do without, beside the one that is looked at."""
        return CASES[self.name].needs.replace("OUT", "needed").split()[-1] if CASES[self.name].needs else "needed"

    def resuming(self) -> list[str]:
        """The words that go on from what a broken run left."""
        if self.name not in RESUMES:
            return []
        if FIELDS[self.name]["resume"].mark.opens != "records":
            return ["--resume"]
        return ["--resume", f"{self.out.name}.partial"] if self.option in ("-o", "--out") else []


def broken_off(place: Place, kills: int, seconds: float) -> None:
    """Kill a run at random moments: the output is there whole, or not at all, and nothing else is left for good."""
    generator, force = random.Random(place.name), place.name not in RESUMES
    numbers = [signal.SIGKILL, signal.SIGTERM]
    found = []
    for kill in range(kills):
        before = place.left()
        process = place.start(*place.resuming(), force=force)
        time.sleep(generator.uniform(0, seconds))
        process.send_signal(numbers[kill % 2])
        status = process.wait()
        assert status in (None, 0, 143), place.said
        assert status is None or place.left() <= before
        assert all(name.startswith(".") for name in place.left()), place.left()
        if place.out.exists():
            found.append(content(place.out))
            place.clear()
    assert place.start(*place.resuming(), force=force).wait() == 0, place.said
    assert not place.left() and all(each == content(place.out) for each in found)
    print(f"\n{place.name} {place.option}: {kills - len(found)} of {kills} runs broken off")


@pytest.mark.parametrize("name", FIRST)
def test_k7_killed_at_random_moments(name: str, shell: Shell, place: Path) -> None:
    broken_off(Place(shell, place, *FIRST[name]), KILLS, 0.4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "option", "ending"), OUTPUTS)
def test_k7_killed_often(name: str, option: str, ending: str, shell: Shell, place: Path) -> None:
    one = Place(shell, place, name, option, ending)
    broken_off(one, MANY, 1.1 * one.whole()[1])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option", "ending"), OUTPUTS)
def test_k7_two_runs_at_once_with_one_output(
    name: str, option: str, ending: str, shell: Shell, place: Path, tmp_path: Path
) -> None:
    """One has it, whole; the other says so, and what it made is beside it, or it never began."""
    one = Place(shell, place, name, option, ending)
    new, _ = one.whole()
    processes = [one.start(force=False) for _ in range(2)]
    assert sorted(process.wait() or 0 for process in processes) == [0, 2], one.said
    assert content(one.out) == new
    assert one.left() <= {f"{one.out.name}.kept-1"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option", "ending"), OUTPUTS)
def test_k7_a_full_disk(
    name: str, option: str, ending: str, shell: Shell, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may grow beyond so many bytes: status 6, one line, no output and no half of one."""
    one = Place(shell, place, name, option, ending)
    new, _ = one.whole()
    size = max(map(len, new.values()))
    for most in {size // 2, size - 1}:
        monkeypatch.setenv("MLTOOLS_TEST_LIMIT", f"FSIZE={most}")
        status = one.start(force=False).wait()
        assert (status, one.said.count("\n")) == (6, 1), (status, one.said)
        assert not one.out.exists() and not one.left()
        one.clear()


@pytest.mark.slow
@pytest.mark.parametrize("mebibytes", [1, 8, 32, 128])
@pytest.mark.parametrize("name", CASES)
def test_k10_little_memory(
    name: str, mebibytes: int, shell: Shell, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So much more than the program takes with everything imported: done, or status 6 and one line."""
    before = {path.name for path in place.iterdir()}
    monkeypatch.setenv("MLTOOLS_TEST_LIMIT", f"AS=+{mebibytes << 20}")
    status = shell.start([*line(name, "needed"), "-q"], place, place / "stdout").wait()
    said = (place / "stderr").read_text()
    assert status == 0 or (status, said.count("\n")) == (6, 1), (status, said)
    if status:  # what finetune has trained is kept
        assert {path.name for path in place.iterdir()} <= before | {"stdout", "stderr", "needed.resume"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_k10_a_slow_reader_of_a_pipe_that_does_not_wait(name: str, shell: Shell, place: Path, cli: Cli) -> None:
    expected = cli(*line(name, "whole"))
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with Path(os.devnull).open() as stdin, (place / "stderr").open("wb") as stderr:
        process = Process(
            Path(shell.program).parent / "socket", line(name, "out"), place, [stdin.fileno(), writer, stderr.fileno()]
        )
        os.close(writer)
        time.sleep(0.3)
        with os.fdopen(reader) as stream:
            found = stream.read()
    assert process.wait() == 0 and found == expected.out


# -- named pipes ----------------------------------------------------------------------------------------
def fed(path: Path, data: bytes) -> None:
    """Feed a named pipe once, in the background."""
    os.mkfifo(path)

    def feed() -> None:
        with path.open("wb") as stream:
            stream.write(data)

    threading.Thread(target=feed, daemon=True).start()


READERS = ("perturb", "swap", "states", "mcog", "centroid", "inspect")
"""One command for each way in which files are read."""


def piped() -> Iterator[Any]:
    """Each input file of a command's first line, by its place among them."""
    for name in command_names():
        firsts = [word for words, word in input_files(name) if words == CASES[name].line] if reads(name) else []
        marks = () if name in READERS else (pytest.mark.slow,)
        yield from (pytest.param(name, number, marks=marks) for number in range(len(firsts)))


@pytest.mark.parametrize(("name", "number"), list(piped()))
def test_k10_a_named_pipe_is_read_once(name: str, number: int, cli: Cli, place: Path) -> None:
    """Rows, records and states from <(…) and named pipes: the same as from the file."""
    chosen = [word for words, word in input_files(name) if words == CASES[name].line][number]
    fed(place / f"pipe-{chosen}", (place / chosen).read_bytes())
    given = [f"pipe-{chosen}" if word == chosen else word for word in line(name, "out")]
    done = cli(*given)
    assert done.code == 0, done.err
    assert done.out.replace(f"pipe-{chosen}", chosen) == cli(*line(name, "whole")).out
