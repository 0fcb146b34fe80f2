"""What a command refuses before it starts, what it never destroys, and what it does not believe (K6, K7, K8)."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from accelerate.state import AcceleratorState

from conftest import COMMANDS, Cli, Shell, tiny_of, toy_rows, write_jsonl
from mltools.cli.driver import record_columns
from mltools.commands.finetune import training_run as module
from mltools.errors import UsageError
from mltools.model.tasks import Task
from mltools.processes import LAUNCHER, Launched, believed, launched
from mltools.tags import parse_tags

Tiny = Callable[..., Path]
tiny = tiny_of(2)
ONE = ("--epochs", 1, "-q")
FULL = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- what is there ------------------------------------------------------------------------------------
def test_k7_an_input_in_the_output_folder_is_not_deleted(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """`finetune d/noisy/memorised d/noisy/rows.jsonl -o d/noisy --force`: it used to train, then delete both."""
    out = tmp_path / "noisy"
    assert cli("finetune", tiny("bert"), noisy_rows, "-o", out, *ONE).code == 0
    shutil.copytree(tiny("bert"), out / "memorised")
    shutil.copy(noisy_rows, out / "rows.jsonl")
    before = names(out)
    for inputs in ((out / "memorised", noisy_rows), (tiny("bert"), out / "rows.jsonl"), (out, noisy_rows)):
        result = cli("finetune", *inputs, "-o", out, *ONE, "--force")
        assert result.code == 2 and "input" in result.err, result.err
    (out / "rows.jsonl").unlink()
    for option in ("--aux", "--validation"):
        rows = shutil.copy(noisy_rows, out / "vocab.txt")
        assert cli("finetune", tiny("bert"), noisy_rows, "-o", out, *ONE, "--force", option, rows).code == 2
        assert cli("finetune", tiny("bert"), noisy_rows, "-o", out, *ONE, "--resume", option, rows).code == 2
    assert names(out) == sorted({*before, "vocab.txt"} - {"rows.jsonl"})
    state = tmp_path / "new.resume"
    shutil.copytree(tiny("bert"), state / "memorised")
    assert cli("finetune", state / "memorised", noisy_rows, "-o", tmp_path / "new", *ONE, "--force").code == 2
    assert (state / "memorised" / "config.json").exists()


def test_k7_files_of_others_survive_force(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    out, stock = tmp_path / "m", tmp_path / "stock"
    assert cli("finetune", tiny("bert"), noisy_rows, "-o", out, *ONE).code == 0
    (out / "thesis.tex").write_text("precious")
    shutil.copytree(tiny("bert"), stock)
    for folder, text in ((out, "holds thesis.tex"), (stock, "no checkpoint that mltools wrote")):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        result = cli("finetune", tiny("bert"), noisy_rows, "-o", folder, *ONE, "--force")
        assert result.code == 2 and text in result.err, result.err
        assert cli("swap", *[tiny("bert")] * 2, noisy_rows, "--layers", 1, "--write", folder, "--force").code == 2
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (out / "thesis.tex").unlink()
    assert cli("finetune", tiny("bert"), noisy_rows, "-o", out, *ONE, "--force").code == 0
    (tmp_path / "m.resume").mkdir()
    (tmp_path / "m.resume" / "notes").touch()
    assert cli("finetune", tiny("bert"), noisy_rows, "-o", out, *ONE, "--force").code == 0
    assert names(tmp_path / "m.resume") == ["notes"]


def test_k7_one_name_for_two_outputs(
    cli: Cli, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for other in ("x", "./x", tmp_path / "x"):
        result = cli("perturb", noisy_rows, "-o", "x", "--provenance", other)
        assert result.code == 2 and "is both -o and --provenance" in result.err
    assert cli("swap", "a", "b", noisy_rows, "--per-row", "x.parquet", "-o", "x.parquet").code == 2


def test_k7_four_runs_at_once_with_one_name(shell: Shell, tmp_path: Path) -> None:
    """Without --force the first to end has the name; the others end with 2, and what they made is kept."""
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": str(i), "label": "ab"[i % 2]} for i in range(20_000)])
    (tmp_path / "runs").mkdir()
    processes = []
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        words = ["perturb", rows, "--seed", seed, "-q", "-o", tmp_path / "runs" / "out.jsonl"]
        processes.append(shell.start(words, tmp_path / str(seed)))
    statuses = [process.wait() for process in processes]
    assert sorted(map(str, statuses)) == ["0", "2", "2", "2"]
    errors = [(tmp_path / str(seed) / "stderr").read_text() for seed in range(4)]
    kept = [error.split()[-1] for error in errors if "is kept as" in error]
    assert names(tmp_path / "runs") == sorted(["out.jsonl", *(Path(name).name for name in kept)])
    for error in errors:
        assert not error or "is kept as" in error or "exists; overwrite it with --force" in error
    assert {(tmp_path / "runs" / name).read_bytes().count(b"\n") for name in names(tmp_path / "runs")} == {20_000}


# -- before any work ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("swap A B ROWS -o x.txt", "-o x.txt: the name of such a file ends in"),
        ("swap A B ROWS -o x.csv.gz", "-o x.csv.gz: the name"),
        ("swap A B ROWS --per-row x.csv", "--per-row x.csv"),
        ("centroid S --per-row x", "--per-row x: the name of such a file ends in .parquet"),
        ("generalise A --merge --per-row x.txt", "--per-row x.txt"),
        ("grads A ROWS --save x.pt", "--save x.pt: the name of such a file ends in .safetensors"),
        ("states A ROWS -o x.jsonl", "-o x.jsonl: the name of such a file ends in .safetensors"),
        ("plot heatmap ROWS -o x.jpg", "-o x.jpg: the name of such a file ends in .pdf, .png or .svg"),
        ("mcog ROWS -o x.json", "-o x.json"),
        ("perturb ROWS -o nope/", "nope/: no such folder; name a file to write"),
        ("perturb ROWS --provenance nope/", "nope/: no such folder"),
        ("perturb ROWS --provenance -", "only records go to stdout"),
        ("finetune A ROWS -o ROWS --force", "is a file; name a folder to write"),
        ("finetune A ROWS -o none/out", "make it first"),
    ],
)
def test_k6_outputs_are_checked_before_anything_is_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").write_text("no rows\n")
    result = cli(*["rows" if word == "ROWS" else word for word in words.split()])
    assert (result.code, result.out) == (2, "") and text in result.err, result.err
    assert names(tmp_path) == ["rows"]


@pytest.mark.parametrize("name", [".", "./", "..", "/", "sub/.."])
@pytest.mark.parametrize("command", ["finetune", "swap", "states"])
def test_k6_an_output_without_a_name_of_its_own(
    command: str, name: str, cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`finetune -o .` ended as a fault in mltools."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    models = [tiny("bert")] * (2 if command == "swap" else 1)
    option = ["--layers", 1, "--write"] if command == "swap" else ["-o"]
    result = cli(command, *models, noisy_rows, *option, name, "--force")
    assert (result.code, result.out) == (2, "") and "has a name of its own" in result.err
    assert names(tmp_path) == ["sub"]


def test_k6_a_folder_that_cannot_be_written_to(
    cli: Cli, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    result = cli("finetune", "/none", noisy_rows, "-o", tmp_path / "out")
    assert (result.code, result.err) == (1, f"mltools: {tmp_path / 'out'}: Permission denied\n")


def test_k6_an_empty_folder_is_filled(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """`mkdir out; finetune … -o out` used to ask for --force, and with it to train, then refuse."""
    (tmp_path / "out").mkdir()
    assert cli("finetune", tiny("bert"), noisy_rows, "-o", tmp_path / "out", *ONE).code == 0
    assert (tmp_path / "out" / "config.json").exists() and names(tmp_path) == ["out"]


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 6), (errno.EROFS, 1)])
def test_k6_a_failure_at_the_last_save_keeps_the_training(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), "somewhere")

    arguments = ("finetune", tiny("bert"), noisy_rows, "-q", "--epochs", 2, "-o")
    assert cli(*arguments, tmp_path / "whole").code == 0
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", fail)
        failed = cli(*arguments, out)
    assert (failed.code, out.exists()) == (status, False)
    assert f"{out}.resume keeps the training; go on with --resume" in failed.err and failed.err.count("\n") == 1
    monkeypatch.setattr(Task, "update", fail)  # nothing is left to train
    again = cli(*arguments, out, "--resume")
    assert (again.code, again.out) == (0, failed.out), again.err
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert names(tmp_path) == ["out", "whole"]


# -- tags ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("0.001", 0.001),
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("true", True),
        ("007", "007"),
        (".5", ".5"),
        ("+1", "+1"),
        ("1_000", "1_000"),
        ('"1.10"', "1.10"),
        ('"nan"', "nan"),
        ('"', '"'),
        ("", ""),
        ("a=b", "a=b"),
        ("9007199254740993", "9007199254740993"),
        ("null", "null"),
    ],
)
def test_k9_a_tag_that_is_a_json_number_is_one(text: str, value: object) -> None:
    found = parse_tags([f"x={text}"])["x"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("tags", [["x=nan"], ["x=-Infinity"], ["x=1e999"], ["=1"], [" =1"], ["x"], ["x=1", "x=1"]])
def test_k6_tags_that_cannot_be_meant(cli: Cli, noisy_rows: Path, tags: list[str]) -> None:
    words = [word for tag in tags for word in ("--tag", tag)]
    result = cli("swap", "/none", "/none", noisy_rows, *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("mltools: --tag ")


def test_k6_tags_named_as_a_column_or_not_utf8(cli: Cli, noisy_rows: Path) -> None:
    for command in COMMANDS.values():
        if not any(parameter.name == "tag" for parameter in command.parameters):
            continue
        assert "tool" in record_columns(command.spec)
        for column in record_columns(command.spec):
            with pytest.raises(UsageError, match="is a column of the records already"):
                parse_tags([f"{column}=1"], record_columns(command.spec))
    assert cli("swap", "/none", "/none", noisy_rows, "--tag", "reverted=1").code == 2
    assert cli("swap", "/none", "/none", noisy_rows, "--tag", "x=\udcff").code == 2


# -- the environment ----------------------------------------------------------------------------------
@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Let accelerate look at the environment anew."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def test_k8_only_a_full_and_consistent_set_is_a_launchers() -> None:
    assert launched(FULL) == Launched(1, 2, 1)
    for name in LAUNCHER:
        assert launched({key: value for key, value in FULL.items() if key != name}) is None
    for change in ({"RANK": "2"}, {"RANK": "-1"}, {"RANK": ""}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "x"}):
        assert launched({**FULL, **change}) is None
    for change in ({"LOCAL_RANK": "2"}, {"LOCAL_RANK": "-1"}, {"MASTER_PORT": "0"}, {"MASTER_ADDR": ""}):
        assert launched({**FULL, **change}) is None


def test_k8_what_is_not_believed_is_hidden_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**FULL, "PMI_SIZE": "4", "ACCELERATE_MIXED_PRECISION": "bf16"}.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with believed(shared=True):
        assert before.items() - os.environ.items() == {("PMI_SIZE", "4"), ("ACCELERATE_MIXED_PRECISION", "bf16")}
    with believed(shared=False):
        assert not os.environ.keys() & {*FULL, "PMI_SIZE", "ACCELERATE_MIXED_PRECISION"}
    assert dict(os.environ) == before
    monkeypatch.delenv("MASTER_PORT")
    with believed(shared=True):
        assert not os.environ.keys() & FULL.keys()


LEFT_OVER: tuple[dict[str, str], ...] = (
    {"RANK": "1"},
    {"WORLD_SIZE": "2"},
    {"LOCAL_RANK": "1"},
    {**FULL, "WORLD_SIZE": "1"},
    {"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "2"},
    {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4", "ACCELERATE_USE_FSDP": "true"},
)


def test_k8_variables_left_over_change_nothing(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_accelerate: None
) -> None:
    arguments = ("finetune", tiny("bert"), noisy_rows, "--epochs", 1, "-o")
    expected = cli(*arguments, tmp_path / "expected")
    for number, environment in enumerate(LEFT_OVER):
        AcceleratorState._reset_state(True)
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            result = cli(*arguments, tmp_path / str(number))
        assert (result.code, result.out) == (0, expected.out) and result.out, result.err
        for file in ("model.safetensors", "config.json"):
            assert (tmp_path / str(number) / file).read_bytes() == (tmp_path / "expected" / file).read_bytes()
        assert ("this process works alone" in result.err) == ("RANK" in environment)


@pytest.mark.parametrize("environment", [{"RANK": "1"}, FULL], ids=["RANK", "full"])
def test_k8_commands_that_share_no_work_write_in_every_process(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", toy_rows(20))
    record = {"tool": "grads", "layers": 2, "part": "all"}
    records = write_jsonl(tmp_path / "g.jsonl", [{**record, "layer": i, "score": i / 3} for i in (1, 2)])
    commands = (("mcog", records), ("inspect", rows, "--json"), ("score", records, "--truth", 1))
    expected = [cli(*words) for words in commands]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert [cli(*words).out for words in commands] == [result.out for result in expected]
    assert all(result.out for result in expected)
    assert cli("mcog", records, "-o", tmp_path / "m.jsonl", "--provenance", tmp_path / "p.json").code == 0
    assert json.loads((tmp_path / "m.jsonl").read_text())["m_cog"] == pytest.approx(5 / 3)
    assert (tmp_path / "p.json").exists()
    noted = "started as one of 2 processes" in cli("mcog", records, "-v").err
    assert noted == (environment is FULL)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_never_replaced_by_a_file(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """`grads --save /dev/null`, run by root, put a file in the device's place; `plot -o` ended as a fault of ours."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    records = tmp_path / "grads.jsonl"
    for words, first in (
        (["grads", tiny("bert", 1), noisy_rows, "--min-noisy-accuracy", 0, "-o", records, "--save", pipe], b"{"),
        (["plot", "layers", records, "-o", pipe], b"<?xml"),
    ):
        found: list[bytes] = []
        reader = Thread(target=lambda read=found: read.append(pipe.read_bytes()), daemon=True)
        reader.start()
        assert cli(*words, "-q").code == 0
        assert pipe.is_fifo()
        reader.join(20)
        assert first in found[0][:16]
