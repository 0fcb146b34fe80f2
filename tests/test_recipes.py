"""The scripts in examples/ run as printed, on a tiny model."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Shell

EXAMPLES = Path(__file__).parents[1] / "examples"
Tiny = Callable[..., Path]


def test_quickstart(shell: Shell, tiny: Tiny, tmp_path: Path) -> None:
    """The demo's script on another model and fewer epochs: ends with the heat map, the layers and M-CoG."""
    rows = EXAMPLES / "questions.jsonl"
    done = shell(f"{EXAMPLES}/quickstart.sh {rows} {tiny('bert')}", tmp_path, EPOCHS="1", LR="1e-3")
    assert done.code == 0, done.err
    assert re.search(r"width +1 +2 +3 +4\n", done.out)
    assert json.loads(done.out.splitlines()[-1])["tool"] == "swap"
    assert {p.name for p in (tmp_path / "demo").iterdir()} >= {
        "noisy.jsonl",
        "noisy",
        "clean",
        "swap.jsonl",
        "mcog.jsonl",
    }


@pytest.mark.slow
def test_natural_noise(shell: Shell, tiny: Tiny, tmp_path: Path) -> None:
    """Human labels in a CSV: a row is noisy where the label given is not the gold one."""
    done = shell(f"{EXAMPLES}/natural-noise.sh {EXAMPLES}/human-labels.csv {tiny('bert')}", tmp_path, EPOCHS="1")
    assert done.code == 0, done.err
    records = [json.loads(line) for line in (tmp_path / "natural/swap.jsonl").read_text().splitlines()]
    assert len(records) == 10 and {(row["n_noisy"], row["n_clean"]) for row in records} == {(8, 40)}
    assert json.loads(done.out.splitlines()[-1])["tool"] == "swap"


WINDOWS = ["1", "1-2", "1-3", "2", "2-3", "3"]
LAYERS = 3
FAST = "--epochs 1 --batch-size 16"


def windows_of(text: str) -> list[str]:
    """The windows of the records, in order."""
    return sorted(json.loads(line)["window"] for line in text.splitlines())


def pair(tiny: Tiny) -> tuple[Path, Path]:
    """Two models of LAYERS layers."""
    return tiny("bert", 1, num_hidden_layers=LAYERS), tiny("bert", 2, num_hidden_layers=LAYERS)


def both(tiny: Tiny) -> str:
    """The same as words of a command line."""
    return " ".join(map(str, pair(tiny)))


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")


@pytest.fixture(scope="module")
def swept(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with swap.jsonl and swap.parquet, made by the loop over windows."""
    folder = tmp_path_factory.mktemp("swept")
    done = shell(f"{EXAMPLES}/loop.sh {both(tiny)} {noisy_rows} {LAYERS} > swap.jsonl", folder)
    assert done.code == 0 and not done.err
    assert windows_of((folder / "swap.jsonl").read_text()) == WINDOWS
    return folder


def test_loop_equals_one_call(shell: Shell, swept: Path, tiny: Tiny, noisy_rows: Path) -> None:
    whole = shell(f"mltools swap {both(tiny)} {noisy_rows}", swept)
    looped = [json.loads(line) for line in (swept / "swap.jsonl").read_text().splitlines()]
    unscaled = {"memorisation_error_scaled": None}  # only a sweep knows the full window's error
    assert [{**r, **unscaled} for r in looped] == [{**r, **unscaled} for r in whole.records]


@pytest.mark.slow
def test_xargs_goes_on_where_it_was(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    script = f"{EXAMPLES}/xargs.sh {both(tiny)} {noisy_rows} {LAYERS} all.jsonl 2"
    assert shell(script, tmp_path, OPTIONS=FAST).code == 0
    records = (tmp_path / "all.jsonl").read_text().splitlines()
    assert windows_of("\n".join(records)) == WINDOWS
    (tmp_path / "all.jsonl").write_text("".join(f"{line}\n" for line in records[:4]))
    assert shell(script, tmp_path, OPTIONS=FAST).code == 0
    again = (tmp_path / "all.jsonl").read_text().splitlines()
    assert sorted(map(unscaled, again)) == sorted(map(unscaled, records))


def unscaled(line: str) -> str:
    """A record without its scaled error, which is null where the full window was not there yet when it was made."""
    return json.dumps({**json.loads(line), "memorisation_error_scaled": None})


def test_parallel_with_job_log_and_resume(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    needs("parallel")
    script = f"{EXAMPLES}/parallel.sh {both(tiny)} {noisy_rows} {LAYERS} runs"
    done = shell(script, tmp_path, OPTIONS=FAST)
    assert done.code == 0 and windows_of(done.out) == WINDOWS, done.err
    log = (tmp_path / "runs/jobs.log").read_text().splitlines()
    assert len(log) == 1 + len(WINDOWS) and all(line.split("\t")[6] == "0" for line in log[1:])
    kept = [line for line in log if " 2-3 " not in line]
    (tmp_path / "runs/jobs.log").write_text("".join(f"{line}\n" for line in kept))
    (tmp_path / "runs/2-3.jsonl").unlink()
    again = shell(script, tmp_path, OPTIONS=FAST)
    assert sorted(again.out.splitlines()) == sorted(done.out.splitlines())
    assert len((tmp_path / "runs/jobs.log").read_text().splitlines()) == 1 + len(WINDOWS)


def test_slurm_sweep_without_slurm(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """The script of an array's task does its shard once; with real Slurm it is run by test_slurm.py."""
    script = f"{EXAMPLES}/slurm/sweep.sh runs swap {both(tiny)} {noisy_rows}"
    script = f"SLURM_ARRAY_TASK_COUNT=2 {script}"
    for task in (1, 2):
        done = shell(f"SLURM_ARRAY_TASK_ID={task} {script}", tmp_path)
        assert done.code == 0, done.err
    files = sorted((tmp_path / "runs").iterdir())
    assert [file.name for file in files] == ["1-of-2.jsonl", "2-of-2.jsonl"]
    assert windows_of("".join(file.read_text() for file in files)) == WINDOWS
    before = files[0].stat().st_mtime_ns
    assert shell(f"SLURM_ARRAY_TASK_ID=1 {script}", tmp_path).code == 0
    assert files[0].stat().st_mtime_ns == before
    assert shell("mltools merge runs/*.jsonl", tmp_path).out.count("\n") == len(WINDOWS)


def test_sky_runs_a_shard_a_node(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """SkyPilot's file is read, and what it runs on each node is run here."""
    import yaml

    job = yaml.safe_load((EXAMPLES / "sky.yaml").read_text())
    assert {"name", "num_nodes", "resources", "envs", "workdir", "file_mounts", "setup", "run"} == job.keys()
    for name, source in zip(("noisy", "clean", "noisy.jsonl"), (*pair(tiny), noisy_rows), strict=True):
        (tmp_path / name).symlink_to(source)
    for rank in (0, 1):
        node = f"SKYPILOT_NODE_RANK={rank} SKYPILOT_NUM_NODES=2 TOOL={job['envs']['TOOL']} SHARDS=."
        done = shell(f"export {node}\n{job['run']}", tmp_path)
        assert done.code == 0, done.err
    assert shell("mltools merge *-of-2.jsonl", tmp_path).out.count("\n") == len(WINDOWS)


def test_look_at_checkpoints(shell: Shell, tiny: Tiny, tmp_path: Path) -> None:
    needs("jq")
    done = shell(f"{EXAMPLES}/look.sh {both(tiny)}", tmp_path)
    assert done.code == 0, done.err
    moved = [line.split("\t") for line in done.out.splitlines()[-3:]]
    assert len({layer for _, layer in moved}) == 3
    assert [float(distance) for distance, _ in moved] == sorted((float(d) for d, _ in moved), reverse=True)


def test_jq_reads_records(shell: Shell, swept: Path) -> None:
    needs("jq")
    rows = [line.split("\t") for line in shell(f"{EXAMPLES}/read-records.sh swap.jsonl", swept).out.splitlines()]
    errors = [float(row[2]) for row in rows]
    assert len(rows) == 5 and errors == sorted(errors, reverse=True) and rows[0][0] == "swap"


def test_polars_reads_records(shell: Shell, swept: Path, tiny: Tiny, noisy_rows: Path) -> None:
    shell(f"mltools swap {both(tiny)} {noisy_rows} -q -o swap.parquet --force", swept)
    lines = shell(f"python {EXAMPLES}/read_records.py swap.jsonl", swept).out
    assert [line.split(",")[1] for line in lines.splitlines()] == ["width", "1", "2", "3"]
    assert shell(f"python {EXAMPLES}/read_records.py swap.parquet", swept).out == lines
    assert shell(f"python {EXAMPLES}/read_records.py swap.jsonl swap.parquet", swept).out == lines


def test_duckdb_reads_records(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(swept)
    rows = duckdb.sql((EXAMPLES / "read-records.sql").read_text()).fetchall()
    assert [layer for layer, _ in rows] == [1, 2, 3]


def test_miller_reads_records(shell: Shell, swept: Path) -> None:
    needs("mlr")
    done = shell(f"{EXAMPLES}/read-records-miller.sh swap.jsonl", swept)
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["tool", "width", "memorisation_error_mean", "memorisation_error_count"]
    assert [row[1] for row in rows[1:]] == ["3", "2", "1"] and [row[3] for row in rows[1:]] == ["1", "2", "3"]
    records = [json.loads(line) for line in (swept / "swap.jsonl").read_text().splitlines()]
    errors = [record["memorisation_error"] for record in records if record["width"] == 1]
    assert float(rows[3][2]) == pytest.approx(sum(errors) / 3)


def test_the_best_windows_are_kept(shell: Shell, swept: Path) -> None:
    needs("jq")
    found = shell(f"{EXAMPLES}/top-windows.sh 3 < swap.jsonl", swept).records
    records = [json.loads(line) for line in (swept / "swap.jsonl").read_text().splitlines()]
    best = sorted(records, key=lambda record: (-record["memorisation_error"], record["width"], record["start"]))
    assert found == best[:3]


def test_named_pipes(shell: Shell, swept: Path, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    words = f"{both(tiny)} rows kept.jsonl"
    script = f"mkfifo rows; cat {noisy_rows} > rows & {EXAMPLES}/pipes.sh {words}"
    done = shell(script, tmp_path, timeout=60)
    assert done.code == 0 and not done.err
    assert re.search(r"width +1 +2 +3\n", done.out)
    assert windows_of((tmp_path / "kept.jsonl").read_text()) == WINDOWS
    files = shell("mltools mcog -q kept.jsonl", tmp_path).out
    assert done.out.endswith(files) and json.loads(files)["m_cog"]


SEEDS = {"noisy-1", "clean-1", "noisy-1.jsonl", "swap-1.jsonl", "mcog.jsonl"}


def test_make(shell: Shell, tiny: Tiny, tmp_path: Path) -> None:
    """A sweep with make; what is made is not made again, and a command that fails leaves nothing that looks made."""
    needs("make")
    words = f"ROWS={EXAMPLES}/questions.jsonl MODEL={tiny('bert')} SEEDS=1 TRAIN='--epochs 1 --batch-size 64'"
    make = f"make -f {EXAMPLES}/sweep.mk {words}"
    failed = shell(f"{make} READ='--max-length 0' swap-1.jsonl", tmp_path)
    assert failed.code == 2 and not (tmp_path / "swap-1.jsonl").exists() and (tmp_path / "noisy-1.jsonl").exists()
    done = shell(make, tmp_path)
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.iterdir()} >= SEEDS
    assert json.loads((tmp_path / "mcog.jsonl").read_text())["seed"] == 1
    for name in ("swap-1.jsonl", "mcog.jsonl"):
        (tmp_path / name).unlink()
    broken = shell(f"{make} READ=--nonsense", tmp_path)
    assert broken.code == 2 and "Deleting file" in broken.err and not (tmp_path / "swap-1.jsonl").exists()
    again = shell(make, tmp_path)
    assert again.code == 0 and "finetune" not in again.out and "mltools swap" in again.out


@pytest.mark.slow
def test_snakemake(shell: Shell, tiny: Tiny, tmp_path: Path) -> None:
    """The same sweep with Snakemake, from two seeds; what is made is not made again."""
    needs("snakemake")
    config = f"rows={EXAMPLES}/questions.jsonl model={tiny('bert')} seeds=[1,2]"
    run = f"snakemake -s {EXAMPLES}/Snakefile --cores 2 --config {config} 'train=--epochs 1 --batch-size 64'"
    done = shell(run, tmp_path)
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.iterdir()} >= SEEDS | {"swap-2.jsonl"}
    assert [json.loads(line)["seed"] for line in (tmp_path / "mcog.jsonl").read_text().splitlines()] == [1, 2]
    assert "Nothing to be done" in shell(run, tmp_path).err


@pytest.mark.slow
def test_tensorboard_shows_epochs(shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="no tensorboard here: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = shell(
        f"mltools finetune {tiny('bert')} {noisy_rows} --epochs 2 --batch-size 16 -o out | tee epochs.jsonl | "
        f"python {EXAMPLES}/tensorboard_epochs.py runs/out",
        tmp_path,
    )
    assert done.code == 0, done.err
    events = EventAccumulator(str(tmp_path / "runs/out")).Reload()
    records = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text().splitlines()]
    assert {"loss", "train_accuracy", "noisy_accuracy"} <= set(events.Tags()["scalars"])
    for column in ("loss", "train_accuracy"):
        shown = [(event.step, event.value) for event in events.Scalars(column)]
        assert shown == [(record["epoch"], pytest.approx(record[column])) for record in records]


def test_shell_reports_the_exit_status(shell: Shell, tmp_path: Path) -> None:
    done = shell("mltools swap nowhere/ nowhere/ nofile.jsonl", tmp_path)
    assert done.code == 5 and done.err == "mltools: no such file: nofile.jsonl\n"


def test_questions_are_what_they_should_be() -> None:
    lines = (EXAMPLES / "questions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    labels = [row["label"] for row in rows]
    assert len(rows) >= 360 and len({row["text"].lower() for row in rows}) == len(rows)
    assert {labels.count(x) for x in ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")} == {len(rows) // 6}
    assert shutil.which("bash")
