"""Nothing is lost: runs are stopped at random moments, disks fill up, folders refuse writing, inputs are replaced.

Whatever happens, an output is the old one, whole, or the new one, whole; and what was stopped can be run again or
resumed to the bytes of an unbroken run. KILLS says how often each run is killed (docs/reliability.md tells of 200).
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
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
    write_jsonl(folder / "many-noisy.jsonl", [{**row, "id": i} for i, row in enumerate(toy_rows(48) * 120)])
    for name, seed in (("noisy", 1), ("clean", 2), ("model", 3)):
        (folder / name).symlink_to(tiny("bert", seed))
    return folder


@pytest.fixture(autouse=True)
def save_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let finetune save its state after each step instead of every minute."""
    monkeypatch.setenv("MLTOOLS_TEST_PATCH", "mltools.commands.finetune.training_run:SAVE_EVERY_SECONDS=0")


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
        assert visible <= {*case.outputs, "swap.jsonl.partial"}, visible
        if number == signal.SIGTERM and status is not None:
            assert not [item for item in place.names() if item.rpartition("/")[2].startswith(".")]
        if case.again or index % 5 == 0:
            place.take_up()
            assert place.outputs() == new, (index, moment)
            assert place.names() == set(case.outputs)
        shutil.rmtree(place.folder)
    print(f"\n{name}: {broken} of {KILLS} runs broken off by {number.name}; a run takes {seconds:.2f} s")
    assert broken


# -- disks ----------------------------------------------------------------------------------------------
WRITERS = {
    "perturb many.jsonl -o {}/out.jsonl": "out.jsonl",
    "perturb many.jsonl -o {}/out.parquet": "out.parquet",
    "swap noisy clean noisy.jsonl --layers 2 --write {}/mixed": "mixed",
    "swap noisy clean many-noisy.jsonl --layers 1 --per-row {}/rows.parquet": "rows.parquet",
    "states noisy noisy.jsonl -o {}/states.safetensors": "states.safetensors",
    "grads noisy noisy.jsonl --save {}/grads.safetensors": "grads.safetensors",
    "finetune model noisy.jsonl --epochs 1 -o {}/out": "out",
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small file system of its own, or change its options; skips where mounting is not permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> Path:
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
            pytest.skip("mounting is not permitted here")
        return folder

    yield mount
    while folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("words", WRITERS)
def test_full_disk_leaves_the_old_output(
    words: str, shell: Shell, inputs: Path, tmp_path: Path, disk: Callable[[str], Path]
) -> None:
    folder, name = disk("size=96k"), WRITERS[words]
    (folder / "filler").write_bytes(bytes(88 << 10))
    old = folder / name
    if name in ("mixed", "out"):
        old.mkdir()
        (old / "mltools.json").write_text("old")
    else:
        old.write_text("old")
    before = content(old)
    process = shell.start([*words.format(folder).split(), "--force", "-q"], inputs, tmp_path / "stdout")
    assert process.wait() == 6
    assert (inputs / "stderr").read_text().lower().count("no space left on device") == 1
    assert (inputs / "stderr").read_text().count("\n") == 1
    assert content(old) == before
    assert {path.name for path in folder.iterdir()} <= {name, "filler"}


@pytest.mark.slow
def test_finetune_goes_on_after_the_disk_was_full(
    shell: Shell, inputs: Path, tmp_path: Path, disk: Callable[[str], Path]
) -> None:
    folder = disk("size=96k")
    words = f"finetune model noisy.jsonl --epochs 2 --lr 3e-3 -q -o {folder}/out".split()
    assert shell.start(words, inputs).wait() == 6
    disk("remount,size=16m")
    assert shell.start([*words, "--resume"], inputs).wait() == 0, (inputs / "stderr").read_text()
    assert shell.start([*words[:-1], tmp_path / "whole"], inputs).wait() == 0
    assert content(folder / "out") == content(tmp_path / "whole")
    assert {path.name for path in folder.iterdir()} == {"out"}


@pytest.mark.slow
@pytest.mark.parametrize("words", WRITERS)
def test_folder_that_refuses_writing(
    words: str, shell: Shell, inputs: Path, tmp_path: Path, disk: Callable[[str], Path]
) -> None:
    folder = disk("size=16m")
    (folder / "other").write_text("other")
    disk("remount,ro")
    process = shell.start([*words.format(folder).split(), "-q"], inputs, tmp_path / "stdout")
    assert process.wait() == 1
    message = (inputs / "stderr").read_text()
    assert message.count("\n") == 1 and "ead-only file system" in message
    assert {path.name for path in folder.iterdir()} == {"other"}


# -- inputs that change, and two runs at once -------------------------------------------------------------
def test_b23_weights_that_are_overwritten_during_a_run_do_not_matter(tiny: Tiny, tmp_path: Path) -> None:
    """The mapped file is let go: neither writing into it nor cutting it reaches the running model."""
    import torch

    from mltools.errors import CheckpointError
    from mltools.model.checkpoint_loading import open_checkpoint

    folder = Path(shutil.copytree(tiny("bert", 1), tmp_path / "model"))
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.digest()["path"] == str(folder)
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    size = (folder / "model.safetensors").stat().st_size
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.write(bytes(size))
        stream.truncate(size // 2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in checkpoint.model.state_dict().items())
    with pytest.raises(CheckpointError, match="its files changed while they were read; run again"):
        checkpoint.digest()


def test_checkpoint_replaced_while_it_is_opened(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mltools.errors import CheckpointError
    from mltools.model.anatomy import find_blocks
    from mltools.model.checkpoint_loading import open_checkpoint

    folder = Path(shutil.copytree(tiny("bert", 1), tmp_path / "model"))

    def replace(*arguments: object) -> object:
        shutil.copy(tiny("bert", 2) / "model.safetensors", tmp_path / "new")
        (tmp_path / "new").replace(folder / "model.safetensors")
        return find_blocks(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("mltools.model.checkpoint_loading.find_blocks", replace)
    with pytest.raises(CheckpointError, match="its files changed while they were read"):
        open_checkpoint(str(folder)).digest()


def test_rows_replaced_while_they_are_read(tmp_path: Path) -> None:
    """JSON lines are digested as they pass, from the file that was opened; a Parquet file that changed is refused."""
    import hashlib

    import polars as pl

    from mltools.errors import RowsError
    from mltools.io.examples import read_examples
    from mltools.io.parquet import parquet_rows
    from mltools.io.source import Source

    path = write_jsonl(tmp_path / "rows.jsonl", toy_rows(3000))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    source = Source(path)
    blocks = source.blocks()
    next(blocks)
    write_jsonl(tmp_path / "new", toy_rows(5)).replace(path)
    assert sum(map(len, blocks)) and source.digest == digest
    pl.DataFrame(toy_rows(9)).write_parquet(tmp_path / "rows.parquet")
    source = Source(tmp_path / "rows.parquet")
    assert len(parquet_rows(source)) == 9 and len(read_examples(tmp_path / "rows.parquet")) == 9
    pl.DataFrame(toy_rows(8)).write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(RowsError, match="the rows changed while they were read"):
        source.digest  # noqa: B018  a property that raises


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_rows_with_the_same_ids_replaced_between_two_passes(tiny: Tiny, tmp_path: Path, form: str) -> None:
    import polars as pl

    from mltools.errors import RowsError
    from mltools.io.inputs import Rows
    from mltools.model.checkpoint_loading import open_checkpoint
    from mltools.model.states import read_table, states

    rows = toy_rows(20)
    path, others = tmp_path / f"rows.{form}", [{**row, "text": "who"} for row in rows]

    def write(content: Sequence[dict[str, object]]) -> None:
        write_jsonl(path, content) if form == "jsonl" else pl.DataFrame(content).write_parquet(path)

    write(rows)
    source = Rows(path)
    table = read_table(source)
    checkpoint = open_checkpoint(str(tiny("bert")), fresh_head=table.names)
    write(others)
    with pytest.raises(RowsError, match="the rows changed while they were read"):
        states(checkpoint, source, table, tmp_path / "out.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swap", "states", "perturb"])
def test_two_runs_that_write_one_output(name: str, shell: Shell, inputs: Path, tmp_path: Path) -> None:
    """The output is that of one of them, whole."""
    case = CASES[name]
    place = Workplace(shell, inputs, tmp_path / "both", case)
    one = Workplace(shell, inputs, tmp_path / "one", case)
    old = one.outputs()
    one.run(case.words)
    processes = [shell.start(words.split(), place.folder) for words in (case.words, f"{case.old} --force")]
    assert {process.wait() for process in processes} <= ({0, 2} if name == "swap" else {0})  # its records are one run's
    assert all(found in both for found, *both in zip(place.outputs(), old, one.outputs(), strict=True))
    assert place.names() == set(case.outputs)


@pytest.mark.slow
def test_two_runs_of_finetune_for_one_checkpoint(shell: Shell, inputs: Path, tmp_path: Path) -> None:
    """The second is refused while the first goes on; neither harms the other."""
    place = Workplace(shell, inputs, tmp_path / "both", CASES["finetune"])
    long = CASES["finetune"].words.replace("--epochs 2", "--epochs 30")
    words = long.split()
    first = shell.start(words, place.folder)
    while not list(place.folder.glob(f"{STATE}/*")):
        time.sleep(0.001)
    for option in ("--resume", "--force"):
        assert shell.start([*words, option], place.folder).wait() == 2
        message = (place.folder / "stderr").read_text()
        assert message == "mltools: out.resume is in use by another run; wait for it, or choose another -o\n"
    assert first.wait() == 0
    whole = Workplace(shell, inputs, tmp_path / "whole", CASES["finetune"])
    whole.run(long)
    assert place.outputs() == whole.outputs()
    assert place.names() == {"out"}
