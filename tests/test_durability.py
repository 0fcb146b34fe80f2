"""Nothing is lost: runs are stopped at random moments, disks fill up, folders refuse writing, inputs are replaced.

Whatever happens, an output is the old one, whole, or the new one, whole; and what was stopped can be run again or
resumed to the bytes of an unbroken run. KILLS says how often each run is killed (docs/reliability.md tells of 200).
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import Shell, toy_rows, write_jsonl

Tiny = Callable[..., Path]
Content = dict[str, bytes] | bytes | None
KILLS = int(os.environ.get("KILLS", "20"))
STATE = "out.resume"


@dataclass(frozen=True)
class Case:
    """A run to be broken: its words, its outputs, and how it is run again."""

    words: str
    outputs: tuple[str, ...]
    old: str = ""
    """Words of the run whose outputs are there already, and are to be replaced."""
    again: str = ""
    """Words to add to take it up; without, it is run anew."""
    stdout: str = ""
    """File that stdout is appended to."""


CASES = {
    "finetune": Case(
        "finetune model noisy.jsonl -o out -q --epochs 2 --batch-size 12 --lr 3e-3 --memorised-at 0.3",
        ("out",),
        again="--resume",
    ),
    "finetune over an old one": Case(
        "finetune model noisy.jsonl -o out -q --epochs 2 --batch-size 12 --lr 3e-3 --memorised-at 0.3 --force",
        ("out",),
        old="finetune model noisy.jsonl -o out -q --epochs 1 --seed 2",
        again="--resume",
    ),
    "swap": Case(
        "swap noisy clean noisy.jsonl -q --layers 2-3 --write mixed -o swap.jsonl --per-row rows.parquet --force",
        ("mixed", "swap.jsonl", "rows.parquet"),
        old="swap noisy clean noisy.jsonl -q --layers 1 --write mixed -o swap.jsonl --per-row rows.parquet",
    ),
    "retrain": Case(
        "retrain noisy model noisy.jsonl -q --epochs 1 --layers 1-4 --layers 2-3 --layers 4",
        ("retrain.jsonl",),
        again="--resume retrain.jsonl",
        stdout="retrain.jsonl",
    ),
    "states": Case(
        "states noisy noisy.jsonl -q -o states.safetensors --force",
        ("states.safetensors",),
        old="states clean noisy.jsonl -q -o states.safetensors",
    ),
    "perturb": Case(
        "perturb many.jsonl -q -o out.jsonl --force", ("out.jsonl",), old="perturb many.jsonl --seed 2 -q -o out.jsonl"
    ),
    "perturb to Parquet": Case(
        "perturb many.jsonl -q -o out.parquet --force",
        ("out.parquet",),
        old="perturb many.jsonl --seed 2 -q -o out.parquet",
    ),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    """A folder with rows and three checkpoints (links)."""
    folder = tmp_path_factory.mktemp("inputs")
    write_jsonl(folder / "noisy.jsonl", toy_rows(48))
    write_jsonl(folder / "many.jsonl", [{"text": f"row {i}", "label": f"c{i % 5}"} for i in range(20_000)])
    for name, seed in (("noisy", 1), ("clean", 2), ("model", 3)):
        (folder / name).symlink_to(tiny("bert", seed))
    return folder


@pytest.fixture(autouse=True)
def save_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let finetune save its state after each step instead of every minute."""
    monkeypatch.setenv("MLTOOLS_TEST_PATCH", "mltools.tools.finetune:SAVE_EVERY_SECONDS=0")


def content(path: Path) -> Content:
    """Read a file, or all files of a folder by name."""
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    return path.read_bytes() if path.exists() else None


def contents(folder: Path, names: Sequence[str]) -> list[Content]:
    return [content(folder / name) for name in names]


class Workplace:
    """A folder in which a case is run, broken and run again; the inputs are links in it."""

    def __init__(self, shell: Shell, inputs: Path, folder: Path, case: Case, old: Path | None = None) -> None:
        folder.mkdir()
        self.shell, self.folder, self.case = shell, folder, case
        self.inputs = sorted(path.name for path in inputs.iterdir())
        for name in self.inputs:
            (folder / name).symlink_to((inputs / name).resolve())
        if old is not None and case.old:
            shutil.copytree(old, folder, symlinks=True, dirs_exist_ok=True)
        elif case.old:
            self.run(case.old)

    def run(self, words: str, stdout: str = "") -> float:
        """Run to the end; give the seconds it took."""
        start = time.monotonic()
        process = self.shell.start(words.split(), self.folder, self.folder / stdout if stdout else None)
        status = process.wait()
        assert status == 0, (words, status, (self.folder / "stderr").read_text())
        return time.monotonic() - start

    def break_off(self, number: int, seconds: float | None, wait: float) -> int | None:
        """Run, and send a signal after some seconds, or `wait` seconds after something is first being written."""
        before = self.names()
        process = self.shell.start(
            self.case.words.split(), self.folder, self.folder / self.case.stdout if self.case.stdout else None
        )
        if seconds is None:
            end = time.monotonic() + 30
            while self.names() == before and time.monotonic() < end:
                time.sleep(0.0005)
            seconds = wait
        time.sleep(seconds)
        process.send_signal(number)
        return process.wait()

    def names(self) -> set[str]:
        """Everything in the folder that was made there, and in an unfinished run."""
        state = [f"{STATE}/{path.name}" for path in (self.folder / STATE).glob("*")]
        return {path.name for path in self.folder.iterdir()} - {*self.inputs, "stderr"} | set(state)

    def take_up(self) -> None:
        """Run again after it was broken off."""
        self.run(f"{self.case.words} {self.case.again}", self.case.stdout)

    def outputs(self) -> list[Content]:
        return contents(self.folder, self.case.outputs)


def is_whole(found: Content, old: Content, new: Content, *, appended: bool) -> bool:
    """Whether an output is the old or the new one; a stream that was appended to may have fewer whole lines."""
    if appended and isinstance(found, bytes) and isinstance(new, bytes):
        return new.startswith(found) and (not found or found.endswith(b"\n"))
    return found in (old, new)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("name", CASES)
def test_b23_b30_broken_off_at_random_moments(
    name: str, number: signal.Signals, shell: Shell, inputs: Path, tmp_path: Path
) -> None:
    """Half of the signals come at any moment of the run, half just after something began to be written."""
    case = CASES[name]
    model = Workplace(shell, inputs, tmp_path / "model", case)
    old = model.outputs()
    start = tmp_path / "old"
    start.mkdir()
    for output in case.outputs if case.old else ():
        (shutil.copytree if (model.folder / output).is_dir() else shutil.copy)(model.folder / output, start / output)
    seconds = model.run(case.words, case.stdout)
    new = model.outputs()
    assert None not in new and old != new
    generator, broken = random.Random(f"{name} {number}"), 0
    for index in range(KILLS):
        place = Workplace(shell, inputs, tmp_path / f"run{index}", case, start)
        moment = generator.uniform(0, seconds) if index % 2 else None
        status = place.break_off(number, moment, generator.expovariate(1 / 0.02))
        broken += status != 0
        allowed = (None, 0) if number == signal.SIGKILL else (None, 0, 143)
        assert status in allowed, (place.folder / "stderr").read_text()
        found = place.outputs()
        whole = [is_whole(*three, appended=bool(case.stdout)) for three in zip(found, old, new, strict=True)]
        assert all(whole), (index, moment, case.outputs, whole)
        visible = {item for item in place.names() if not item.startswith((".", STATE))}
        assert visible <= set(case.outputs), visible
        if number == signal.SIGTERM and status is not None:
            assert not [item for item in place.names() if item.rpartition("/")[2].startswith(".")]
        if case.again or index % 5 == 0:
            place.take_up()
            assert place.outputs() == new, (index, moment)
            assert place.names() == set(case.outputs)
        shutil.rmtree(place.folder)
    print(f"\n{name}: {broken} of {KILLS} runs broken off by {number.name}; a run takes {seconds:.2f} s")
    assert broken
