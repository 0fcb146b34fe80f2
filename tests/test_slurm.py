"""The Slurm recipes on a real Slurm of one machine: arrays, requeueing, kills, the chain. All slow."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import slurm
from conftest import Cli, keyword_rows, write_jsonl

EXAMPLES = Path(__file__).parents[1] / "examples" / "slurm"
Tiny = Callable[..., Path]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    lacks = slurm.lacking()
    if lacks is not None:
        pytest.skip(lacks)
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "bin").mkdir()
    program = folder / "bin" / "mltools"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mltools "$@"\n')
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "HF_HUB_OFFLINE", "PYTHONPATH")}
    with slurm.cluster(folder / "cluster", {**kept, "PATH": f"{folder}/bin:{os.environ['PATH']}"}) as found:
        yield found


def lines(*files: Path) -> list[str]:
    return [line for file in files for line in file.read_text().splitlines()]


def records_of(folder: Path, task: str) -> int:
    """How many records a task of three has made so far."""
    try:
        return len(lines(folder / f"{task}-of-3.jsonl.partial"))
    except FileNotFoundError:  # not begun, or done
        return 0


def kill_those_of(words: str) -> bool:
    """Kill the programs with these words on their command lines; say whether there were any."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.parent.name != str(os.getpid()) and words.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    for number in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return bool(found)


def test_an_array_of_shards_is_one_run(
    cluster: slurm.Slurm, cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    pair = (tiny("bert", 1), tiny("bert", 2), noisy_rows)
    log = ("--output", tmp_path / "%a.log")
    cluster.run(
        *("sbatch", "--array", "1-3", "--cpus-per-task", 1, *log),
        *(EXAMPLES / "sweep.sh", tmp_path / "swap", "swap", *pair),
    )
    cluster.wait(300)
    parts = sorted((tmp_path / "swap").glob("*.jsonl"))
    assert [part.name for part in parts] == [f"{i}-of-3.jsonl" for i in (1, 2, 3)], lines(*tmp_path.glob("*.log"))
    assert cli("merge", *parts).out == cli("swap", *pair, "-q").out


def test_two_hundred_windows_under_kills_and_requeues(
    cluster: slurm.Slurm, cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """210 windows in 3 shards; SIGTERM, SIGKILL, requeues and ends of the time: none lost, none twice.

    A task is stopped again once it has made records since.
    """
    model = [tiny("bert", seed, num_hidden_layers=20) for seed in (1, 2)]
    line = ("retrain", *model, noisy_rows, "--epochs", 1, "--batch-size", 64)
    log = ("--output", tmp_path / "%a.log")
    job = cluster.run(
        *("sbatch", "--parsable", "--array", "1-3", "--cpus-per-task", 1, *log),
        *(EXAMPLES / "sweep.sh", tmp_path / "runs", *line),
        TIME_LEFT="40s",
    )
    stops = kills = 0
    made = dict.fromkeys("123", 0)
    end = time.monotonic() + 1200
    while jobs := cluster.jobs():
        assert time.monotonic() < end, jobs
        running = [number for number, state in jobs if state == "RUNNING"]
        found = {number: records_of(tmp_path / "runs", number.partition("_")[2]) for number in running}
        further = [number for number in running if found[number] > made[number.partition("_")[2]]]
        if further and stops < 12:
            number = further[stops % len(further)]
            made[number.partition("_")[2]] = found[number]
            if stops % 3 == 2:  # no time to say a word; of Slurm's own KILL the first is SIGTERM
                killed = kill_those_of(f"{tmp_path}/runs/{number.partition('_')[2]}-of-3")
                kills, stops = kills + killed, stops + killed
            else:
                cluster.run("scancel", "--signal", "TERM", "--batch", number)
                stops += 1
        time.sleep(1)
        for task in range(1, 4):  # a task that was killed is done for; as a person would, start it again
            if not (tmp_path / "runs" / f"{task}-of-3.jsonl").exists() and not any(
                number == f"{job}_{task}" for number, _ in cluster.jobs()
            ):
                cluster.run("sh", "-c", f"scontrol requeue {job}_{task} || true")
    parts = sorted((tmp_path / "runs").glob("*.jsonl"))
    assert len(parts) == 3 and (stops, kills) == (12, 4), (stops, kills, lines(*tmp_path.glob("*.log")))
    windows = [json.loads(each)["window"] for each in lines(*parts)]
    assert len(windows) == len(set(windows)) == 210
    merged = cli("merge", *parts)
    assert merged.code == 0 and merged.out == cli(*line, "-q").out


def test_the_chain_ends_with_a_summary(cluster: slurm.Slurm, tiny: Tiny, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", keyword_rows(42))
    cluster.run(
        *(EXAMPLES / "chain.sh", tiny("bert", dropout=False), rows, tmp_path / "out", 2),
        FINETUNE="--epochs 40 --lr 5e-3 --batch-size 14",
        RETRAIN="--epochs 2 --lr 1e-3",
        SBATCH="--cpus-per-task=1",
    )
    cluster.wait(900)
    logs = "\n".join(lines(*(tmp_path / "out" / "log").iterdir()))
    assert (tmp_path / "out" / "summary.jsonl").exists(), logs
    tools = {json.loads(line)["tool"] for line in lines(tmp_path / "out" / "summary.jsonl")}
    assert tools == {"swap", "retrain", "grads", "probe"}
    assert len(lines(tmp_path / "out" / "agreement.jsonl")) >= 3


def test_a_study_over_tasks_models_and_seeds(cluster: slurm.Slurm, tiny: Tiny, tmp_path: Path) -> None:
    rows = [{"text": row["text"], "label": row["original_label"]} for row in keyword_rows(42)]
    tasks = [write_jsonl(tmp_path / f"{name}.jsonl", rows) for name in ("one", "two")]
    words = " ".join(map(str, tasks)), str(tiny("bert")), "1 2"
    log = ("--output", tmp_path / "%a.log")
    cluster.run(
        *("sbatch", "--array", "1-4", "--cpus-per-task", 1, *log, EXAMPLES / "study.sh", tmp_path / "out", *words),
        OPTIONS="--epochs 2 --lr 1e-3",
    )
    cluster.wait(600)
    found = [json.loads(file.read_text().splitlines()[0]) for file in (tmp_path / "out").glob("*/swap.jsonl")]
    assert len(found) == 4, lines(*tmp_path.glob("*.log"))
    assert {(each["dataset"], each["seed"]) for each in found} == {(d, s) for d in ("one", "two") for s in (1, 2)}
