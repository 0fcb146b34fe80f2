"""Several processes that share a run: the bytes of one, one that writes, and one end for all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from conftest import Cli, Shell, toy_rows, write_jsonl
from forkserver import Process
from mltools.model.device import find_device
from mltools.processes import ALONE, LAUNCHER, Launched, OtherEnded, Team
from slurm import free_ports

Tiny = Callable[..., Path]
SAID = "2 processes share this run"


@pytest.fixture
def inputs(tiny: Tiny, tmp_path: Path) -> Path:
    """A folder with NOISY, CLEAN, PRETRAINED and rows, of lengths that make several batches."""
    for name, seed in (("noisy", 1), ("clean", 2), ("pretrained", 3)):
        (tmp_path / name).symlink_to(tiny("bert", seed))
    write_jsonl(tmp_path / "rows.jsonl", toy_rows(60))
    return tmp_path


def shared(*words: object) -> str:
    """A line of shell that runs the program in two processes as a launcher would, and ends with their statuses."""
    line = " ".join(map(str, words))
    ranks = [f"RANK={rank} LOCAL_RANK={rank} mltools {line} & p{rank}=$!" for rank in (0, 1)]
    common = f"export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free_ports(1)[0]}"
    ends = "; ".join(f"s{rank}=0; wait $p{rank} || s{rank}=$?" for rank in (0, 1))
    return f'{common}; {"; ".join(ranks)}; {ends}; echo "statuses $s0 $s1" >&2'.replace("&;", "&")


COMMANDS: dict[str, tuple[object, ...]] = {
    "swap": ("noisy", "clean", "rows.jsonl", "--batch-size", 8, "--per-row", "OUT.parquet"),
    "retrain": ("noisy", "pretrained", "rows.jsonl", "--layers", "1-4", "--layers", "2", "--layers", "2-3"),
    "grads": ("noisy", "rows.jsonl", "--frozen", "pretrained", "--save", "OUT.safetensors"),
    "states": ("noisy", "rows.jsonl", "--batch-size", 8),
}
"""OUT is another file for each run."""
MORE = {"retrain": ("--epochs", 1)}


def words_of(command: str, out: str) -> list[str]:
    found = [command, *COMMANDS[command], *MORE.get(command, ())]
    return [str(word).replace("OUT", out) for word in found]


def files(folder: Path, name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob(f"{name}.*"))]


@pytest.mark.parametrize("command", [pytest.param(n, marks=[] if n == "swap" else pytest.mark.slow) for n in COMMANDS])
def test_two_processes_write_the_bytes_of_one(command: str, inputs: Path, shell: Shell) -> None:
    own = "--provenance one.json" if command != "states" else "-o one.safetensors"
    other = own.replace("one", "two")
    one = shell(f"mltools {' '.join(words_of(command, 'one'))} {own}", inputs)
    two = shell(shared(*words_of(command, "two"), other), inputs)
    assert "statuses 0 0" in two.err, two.err
    assert two.out == one.out
    assert files(inputs, "two") == files(inputs, "one") != []
    assert two.err.count(f"{command}: ") == one.err.count(f"{command}: ") == 1
    assert two.err.count(SAID) == 1


def test_a_wrong_row_of_one_process_ends_both_with_its_status(inputs: Path, shell: Shell) -> None:
    """The second one finds other rows, in its own folder."""
    (inputs / "other").mkdir()
    for name in ("noisy", "clean"):
        (inputs / "other" / name).symlink_to(inputs / name)
    write_jsonl(inputs / "other" / "rows.jsonl", [{"text": "who", "label": "nobody"}] * 3)
    line = shared("swap", "noisy", "clean", "rows.jsonl").replace(
        "RANK=1 LOCAL_RANK=1", "cd other; RANK=1 LOCAL_RANK=1"
    )
    result = shell(line, inputs)
    assert "statuses 3 3" in result.err and result.out == ""
    assert result.err.count("rows.jsonl: no noisy rows") == 1, result.err


@pytest.fixture(params=[0, 1])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Be one of two processes, as a launcher says it; the other is not there."""
    for name, value in zip(LAUNCHER, (request.param, 2, request.param, "127.0.0.1", free_ports(1)[0]), strict=True):
        monkeypatch.setenv(name, str(value))
    return int(request.param)


def test_one_stdin_is_not_for_two(rank: int, inputs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    swap = ("swap", "noisy", "clean")
    for words in ((*swap, "-"), swap, (*swap, "rows.jsonl", "--layers", "-"), ("states", "noisy")):
        result = cli(*words)
        assert result.code == 2 and "name a file in place of it" in result.err, words


def test_a_dry_run_is_printed_once(rank: int, inputs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    result = cli("swap", "noisy", "clean", "rows.jsonl", "--dry-run")
    assert result.code == 0 and len(result.records) == (10 if rank == 0 else 0)


@pytest.mark.slow
def test_shards_time_and_resumption_in_two_processes(inputs: Path, shell: Shell) -> None:
    line = "retrain noisy pretrained rows.jsonl --epochs 1 -q"
    whole = shell(f"mltools {line} -o one.jsonl", inputs)
    assert whole.code == 0
    for shard in ("1/2", "2/2"):
        assert "statuses 0 0" in shell(shared(line, "--shard", shard, ">>", "shards.jsonl"), inputs).err
    assert shell("mltools merge shards.jsonl", inputs).out == (inputs / "one.jsonl").read_text()
    stopped = 0
    while not (inputs / "two.jsonl").exists():
        result = shell(shared(line, "-o two.jsonl --time-left 0.001s --resume two.jsonl.partial"), inputs)
        assert stopped < 6 and ("statuses 75 75" in result.err or "statuses 0 0" in result.err), result.err
        assert result.err.count("--time-left is over") == result.err.count("statuses 75")
        stopped += 1
    assert stopped == 5  # two windows each time
    assert (inputs / "two.jsonl").read_bytes() == (inputs / "one.jsonl").read_bytes()


@dataclass
class Pair:
    """Two processes of one run, whose messages are in `stderr`, and whose records go to `FILE`."""

    processes: Sequence[Process]
    err: Path

    def wait(self) -> list[int | None]:
        return [process.wait() for process in self.processes]


@pytest.fixture
def pair(inputs: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """A sweep that takes some time, once it has written its first records."""
    line = "retrain noisy pretrained rows.jsonl --epochs 15 --layers 1-4 --layers 1 --layers 2 --layers 3 -o out.jsonl"
    port, found = free_ports(1)[0], []
    for rank in (0, 1):
        values = (rank, 2, rank, "127.0.0.1", port)
        for name, value in zip(LAUNCHER, values, strict=True):
            monkeypatch.setenv(name, str(value))
        found.append(shell.start(line.split(), inputs, None))
    end = time.monotonic() + 100
    partial = inputs / "out.jsonl.partial"
    while not (partial.exists() and partial.read_bytes()) and time.monotonic() < end:
        time.sleep(0.02)
    return Pair(found, inputs / "stderr")


@pytest.mark.slow
def test_ctrl_c_stops_both_and_keeps_the_records(pair: Pair, inputs: Path) -> None:
    for process in pair.processes:
        process.send_signal(signal.SIGINT)
    assert pair.wait() == [130, 130]
    assert len((inputs / "out.jsonl.partial").read_text().splitlines()) == 2


@pytest.mark.slow
def test_where_one_is_killed_the_other_does_not_wait(pair: Pair, inputs: Path) -> None:
    pair.processes[1].send_signal(signal.SIGKILL)
    assert pair.wait() == [1, None]
    assert len((inputs / "out.jsonl.partial").read_text().splitlines()) == 2


# -- launchers ----------------------------------------------------------------------------------------
LAUNCH = {
    "torchrun": "torchrun --nproc-per-node 2 --master-port {port} -m mltools",
    "accelerate": "accelerate launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no "
    "--dynamo_backend no --main_process_port {port} -m mltools",
}


def launched_by(launcher: str, words: Sequence[str], folder: Path) -> "subprocess.Popen[str]":
    own = f"{Path(sys.executable).parent}/{LAUNCH[launcher].format(port=free_ports(1)[0])}".split()
    return subprocess.Popen([*own, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("launcher", LAUNCH)
@pytest.mark.parametrize("command", COMMANDS)
def test_launchers_give_the_bytes_of_one(command: str, launcher: str, inputs: Path, shell: Shell) -> None:
    own = [] if command != "states" else ["-o", "one.safetensors"]
    one = shell(" ".join(["mltools", *words_of(command, "one"), *own]), inputs)
    assert one.code == 0, one.err
    words = [word.replace("one.", "two.") for word in (*words_of(command, "two"), *own)]
    process = launched_by(launcher, words, inputs)
    out, err = process.communicate(timeout=400)
    assert (process.returncode, out) == (0, one.out), err
    assert files(inputs, "two") == files(inputs, "one")
    assert err.count(f"{command}: ") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_torchrun_ends_all_where_one_dies(inputs: Path) -> None:
    """Once by a kill of a process, once by Ctrl-C."""
    line = ["retrain", "noisy", "pretrained", "rows.jsonl", "--epochs", "60"]
    line += ["-o", "out.jsonl", "--resume", "out.jsonl.partial"]
    partial = inputs / "out.jsonl.partial"
    for kill in (True, False):
        before = partial.read_bytes() if partial.exists() else b""
        process = launched_by("torchrun", line, inputs)
        end = time.monotonic() + 200
        while not (partial.exists() and len(partial.read_bytes()) > len(before)) and time.monotonic() < end:
            time.sleep(0.1)
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        assert len(found) == 2
        os.kill(int(found[1]), signal.SIGKILL) if kill else process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode != 0
        for number in found:
            with pytest.raises(ProcessLookupError):
                os.kill(int(number), 0)
        assert len(partial.read_bytes()) > len(before)


# -- one alone ----------------------------------------------------------------------------------------
def test_one_alone_does_an_item_when_it_is_asked_for() -> None:
    done: list[int] = []

    def square(number: int) -> int:
        done.append(number)
        return number * number

    results = ALONE.dealt(iter([2, 3]), square)
    assert next(results) == (2, 4) and done == [2]
    assert list(results) == [(3, 9)] and ALONE.gather("x") == ["x"]
    with pytest.raises(KeyError), ALONE.together():
        raise KeyError


def test_each_process_of_a_host_takes_the_next_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(find_device("auto", place)) for place in (None, 0, 1, 2)] == ["cuda", "cuda:0", "cuda:1", "cuda:0"]
    assert [str(find_device(name, 1)) for name in ("cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]


def test_what_another_says_is_silent_but_in_the_first_process() -> None:
    class Told(Team):
        def _exchange(self, own: object, end: tuple[int, str] | None = None) -> list[object]:  # type: ignore[override]
            raise OtherEnded(6, "out of memory")

    with pytest.raises(OtherEnded) as first, Told(Launched(0, 2)).together():
        pass
    assert first.value.exit_code == 6 and str(first.value) == "out of memory"
    with pytest.raises(SystemExit) as second, Told(Launched(1, 2)).together():
        pass
    assert second.value.code == 6
