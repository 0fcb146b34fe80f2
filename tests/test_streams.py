"""Streams and signals, with real processes: pipes that close, pseudo-terminals, appends at once, Ctrl-C and SIGTERM."""

import contextlib
import gzip
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from conftest import LABELS, Cli, Shell, toy_rows, write_jsonl
from mltools import console

Tiny = Callable[..., Path]
PYTHON = [sys.executable, "-m", "mltools"]
SWAP = ("swap", "noisy", "clean")
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstandard.compress, "jsonl": bytes}
SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    """A folder with rows, two checkpoints (links) and the records of a swap."""
    folder = tmp_path_factory.mktemp("streams")
    write_jsonl(folder / "noisy.jsonl", toy_rows(40))
    write_jsonl(folder / "rows.jsonl", [{"text": row["text"], "label": row["original_label"]} for row in toy_rows(40)])
    for name, seed, layers in (("noisy", 1, 4), ("clean", 2, 4), ("model", 3, 2)):
        (folder / name).symlink_to(tiny("bert", seed, num_hidden_layers=layers))
    windows = [(start, end) for start in range(1, 5) for end in range(start, 5)]
    record = {"tool": "swap", "layers": 4, "part": "all", "memorisation_error": 0.5}
    write_jsonl(
        folder / "swap.jsonl",
        [
            {**record, "start": a, "end": b, "width": b - a + 1, "window": f"{a}-{b}" if a < b else f"{a}"}
            for a, b in windows
        ],
    )
    return folder


# -- pipes --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "command",
    [
        "windows 3000",
        f"perturb --stream --classes {','.join(LABELS)} rows.jsonl",
        "mcog --by-layer swap.jsonl",
        "plot heatmap swap.jsonl",
        "swap noisy clean noisy.jsonl",
        "swap noisy clean noisy.jsonl --dry-run",
        "states noisy noisy.jsonl",
        "inspect noisy",
        "prepare --list",
    ],
)
def test_b45_reader_that_closes_early_ends_it_silently(shell: Shell, folder: Path, command: str) -> None:
    done = shell(f"mltools {command} | true; echo ${{PIPESTATUS[0]}}", folder)
    said = [line for line in done.err.splitlines() if not line.startswith("mltools: note: ")]  # of the toy models
    assert (done.out, said) == ("0\n", [])


def test_reader_that_closes_early_does_not_stop_other_outputs(shell: Shell, folder: Path, tmp_path: Path) -> None:
    script = (
        f"mltools finetune {folder}/model {folder}/noisy.jsonl -o out -q --epochs 2 | true; echo ${{PIPESTATUS[0]}}"
    )
    done = shell(script, tmp_path)
    assert (done.out, done.err) == ("0\n", "") and (tmp_path / "out" / "config.json").exists()
    done = shell(f"mltools swap noisy clean noisy.jsonl --per-row {tmp_path}/rows.parquet -q | true", folder)
    assert not done.err and (tmp_path / "rows.parquet").exists()


@pytest.mark.parametrize(
    ("redirection", "status", "out", "err"),
    [
        (">&-", 1, "", "mltools: stdout is closed\n"),
        (">/dev/full", 6, "", "mltools: No space left on device\n"),
        ("2>&-", 0, "1\n1-2\n2\n", ""),
        ("<&- 2>&-", 0, "1\n1-2\n2\n", ""),
    ],
)
def test_closed_and_full_streams(redirection: str, status: int, out: str, err: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m mltools windows 2 {redirection}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_files_do_not_take_the_place_of_closed_streams(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    script = f"{sys.executable} -m mltools perturb {folder}/rows.jsonl -o {out} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", script]).returncode == 0
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 40


def test_stream_writes_before_its_input_ends() -> None:
    """`perturb --stream` gives a row out as soon as it came in."""
    command = [*PYTHON, "perturb", "--stream", "--classes", "A,B", "-q"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for number in range(3):
            process.stdin.write(b'{"id": %d, "text": "x", "label": "A"}\n' % number)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize("form", ["jsonl", "gz", "zst", "parquet"])
def test_rows_and_records_from_stdin_and_in_every_form(cli: Cli, folder: Path, tmp_path: Path, form: str) -> None:
    for name, words in (
        ("rows.jsonl", ["perturb"]),
        ("swap.jsonl", ["mcog"]),
        ("noisy.jsonl", ["grads", folder / "model"]),
    ):
        plain = (folder / name).read_bytes()
        expected = cli(*words, *(["-"] if form == "gz" else []), stdin=plain)
        assert expected.code == 0 and expected.out, expected.err
        path = tmp_path / f"{name}.{form}"
        if form == "parquet":
            import polars as pl

            pl.DataFrame([json.loads(line) for line in plain.splitlines()], infer_schema_length=None).write_parquet(
                path
            )
        else:
            path.write_bytes(COMPRESS[form](plain))
        done = cli(*words, path)
        assert done.code == 0 and done.records == expected.records, done.err
        assert cli(*words, stdin=path.read_bytes()).records == expected.records


def test_out_dash_is_stdout(cli: Cli, folder: Path) -> None:
    assert cli("mcog", folder / "swap.jsonl", "-o", "-").out == cli("mcog", folder / "swap.jsonl").out
    assert cli("perturb", folder / "rows.jsonl", "-o", "-").out == cli("perturb", folder / "rows.jsonl").out


# -- terminals ----------------------------------------------------------------------------------------
def under_terminal(
    command: list[str], cwd: Path, *, stdin: bool = False, environment: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run with stdout and stderr each on a pseudo-terminal of its own; give status and what was written."""
    masters, slaves = zip(*(pty.openpty() for _ in range(3)), strict=True)
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdin=slaves[0] if stdin else subprocess.DEVNULL,
        stdout=slaves[1],
        stderr=slaves[2],
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **(environment or {})},
    )
    for slave in slaves:
        os.close(slave)
    texts = ["", ""]

    def drain(index: int) -> None:
        while True:
            try:
                data = os.read(masters[1 + index], 65536)
            except OSError:  # the last writer has closed it
                return
            texts[index] += data.decode()

    threads = [threading.Thread(target=drain, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    status = process.wait(60)
    for thread in threads:
        thread.join()
    for master in masters:
        os.close(master)
    return status, texts[0].replace("\r\n", "\n"), texts[1].replace("\r\n", "\n")


def test_b47_only_data_on_stdout_and_a_bar_on_stderr(shell: Shell, folder: Path) -> None:
    plain = shell("mltools swap noisy clean noisy.jsonl", folder)
    status, out, err = under_terminal([shell.program, *SWAP, "noisy.jsonl"], folder)
    assert status == 0 and out == plain.out
    assert re.search(r"swap .*\d+/160.* rows", err) and err.endswith("\n") and "\x1b[?25h" in err  # cursor is back
    assert err.splitlines()[-1].split("\r")[-1].endswith("\n") is False and "swap: windows=10 rows=40" in err


def test_bar_shows_rate_and_time_left(shell: Shell, folder: Path, tmp_path: Path) -> None:
    command = [shell.program, "finetune", f"{folder}/model", f"{folder}/noisy.jsonl", "-o", "out", "--batch-size", "1"]
    _, out, err = under_terminal([*command, "--epochs", "2"], tmp_path)
    assert [json.loads(line)["epoch"] for line in out.splitlines()] == [1, 2]
    assert re.search(r"epoch 1/2 .*\d+/80.* steps .*[\d.e+]+/s, \d:\d\d:\d\d left", err)


@pytest.mark.parametrize(
    ("environment", "options"), [({"NO_COLOR": "1"}, []), ({"TERM": "dumb"}, []), ({}, ["--no-color"])]
)
def test_no_colour_where_none_is_wanted(
    shell: Shell, folder: Path, environment: dict[str, str], options: list[str]
) -> None:
    for command in ([*SWAP, "noisy.jsonl"], ["plot", "heatmap", "swap.jsonl"]):
        status, out, err = under_terminal([shell.program, *command, *options], folder, environment=environment)
        assert status == 0 and not SGR.search(out + err)
        if environment.get("TERM") == "dumb":
            assert "\x1b" not in out + err
    assert SGR.search(under_terminal([shell.program, "plot", "heatmap", "swap.jsonl"], folder)[1])


@pytest.mark.parametrize(
    "command",
    [
        *(["perturb"], ["mcog"], ["plot", "layers"], ["score", "--truth", "1"], ["correlate"], ["probe"], ["centroid"]),
        *([*SWAP], ["retrain", "noisy", "model"], ["grads", "noisy"], ["states", "noisy"], ["generalise", "model"]),
        ["finetune", "model", "-o", "out"],
    ],
    ids=" ".join,
)
def test_terminal_as_stdin_and_nothing_given(shell: Shell, folder: Path, command: list[str]) -> None:
    status, out, err = under_terminal([shell.program, *command], folder, stdin=True)
    *before, message = err.splitlines()
    assert (status, out) == (2, "") and message.startswith("mltools: no r")
    assert before in ([], [f"{command[0]}: opening {', '.join(command[1:3])}"], [f"{command[0]}: opening model"])


def test_log_lines_where_there_is_no_terminal(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*(folder / word if word != "swap" else word for word in SWAP), folder / "noisy.jsonl")

    def said() -> list[str]:
        return [line for line in cli(*words).err.splitlines() if not line.startswith("mltools: note: ")]

    assert len(said()) == 1  # a run of less than a minute says nothing but the summary
    monkeypatch.setattr(console, "LOG_EVERY_SECONDS", 0.0)
    lines = said()
    assert len(lines) == 161 and re.fullmatch(r"swap: 7/160 rows \([\d.e+]+/s, \d+ s left\)", lines[6])
    assert cli(*words, "-q").err == ""


# -- appends ------------------------------------------------------------------------------------------
def test_parallel_appends_never_mix(tmp_path: Path) -> None:
    """Eight processes append long records to one file: each line is one record, and none is lost."""
    script = (
        "import sys; from mltools.io.writer import RecordWriter\n"
        "with RecordWriter(None, {'writer': int(sys.argv[1])}) as writer:\n"
        "    for number in range(200):\n"
        "        writer.write({'number': number, 'filler': sys.argv[1] * (50 * number)})\n"
    )
    path = tmp_path / "all.jsonl"
    with path.open("ab") as stream:
        writers = [subprocess.Popen([sys.executable, "-c", script, str(i)], stdout=stream) for i in range(8)]
        assert [writer.wait() for writer in writers] == [0] * 8
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted((r["writer"], r["number"]) for r in records) == [(i, n) for i in range(8) for n in range(200)]
    assert all(set(r["filler"]) <= {str(r["writer"])} for r in records)


@pytest.mark.slow
def test_parallel_swaps_append_to_one_file(shell: Shell, folder: Path, tmp_path: Path) -> None:
    script = (
        f"mltools windows 4 | xargs -P 8 -I{{}} mltools swap noisy clean noisy.jsonl -q --layers {{}} >> {tmp_path}/all"
    )
    assert shell(script, folder).code == 0
    windows = [json.loads(line)["window"] for line in (tmp_path / "all").read_text().splitlines()]
    assert sorted(windows) == ["1", "1-2", "1-3", "1-4", "2", "2-3", "2-4", "3", "3-4", "4"]


# -- signals ------------------------------------------------------------------------------------------
def start_training(shell: Shell, folder: Path, tmp_path: Path, *options: str) -> "subprocess.Popen[str]":
    """Start a long finetune and wait for its first epoch."""
    command = [shell.program, "finetune", f"{folder}/model", f"{folder}/noisy.jsonl", "-o", "out", *options]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None and json.loads(process.stdout.readline())["epoch"] == 1
    return process


@pytest.mark.parametrize(
    ("number", "status", "message"), [(signal.SIGINT, 130, "stopped"), (signal.SIGTERM, 143, "terminated")]
)
def test_signal_saves_what_resume_needs(
    shell: Shell, folder: Path, tmp_path: Path, number: int, status: int, message: str
) -> None:
    """Stopped in the middle and resumed, training ends with the same bytes as an unbroken run."""
    options = ("--epochs", "4", "--lr", "1e-3", "--batch-size", "2")
    process = start_training(shell, folder, tmp_path, *options)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status and err.splitlines()[-1].startswith(f"mltools: {message}")
    assert not (tmp_path / "out").exists()
    line = f"mltools finetune {folder}/model {folder}/noisy.jsonl -q {' '.join(options)} -o"
    assert shell(f"{line} out --resume && {line} whole", tmp_path).code == 0
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "whole"}


def test_interrupt_takes_the_bar_away(shell: Shell, folder: Path, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a bar: the cursor is back, and the last line says what happened."""
    master, slave = pty.openpty()
    command = [shell.program, "finetune", f"{folder}/model", f"{folder}/noisy.jsonl", "-o", "out", "--epochs", "9999"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    seen = ""
    while "epoch 3/9999" not in seen:
        seen += os.read(master, 65536).decode()
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the last writer has closed it
        while data := os.read(master, 65536):
            seen += data.decode()
    os.close(master)
    assert process.wait(20) == 130 and seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
    assert seen.splitlines()[-1].endswith("mltools: stopped")


def test_second_interrupt_ends_at_once(shell: Shell, folder: Path, tmp_path: Path) -> None:
    process = start_training(shell, folder, tmp_path, "--epochs", "10000")
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_leaves_no_file(tmp_path: Path, number: int, status: int) -> None:
    """A filter that is stopped while it writes a file leaves neither the file nor a temporary one."""
    command = [*PYTHON, "perturb", "--stream", "--classes", "A,B", "-o", "out.jsonl"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write('{"id": 1, "text": "x", "label": "A"}\n')
        process.stdin.flush()
        end = time.monotonic() + 20
        while not list(tmp_path.iterdir()) and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(number)
        process.stdin.close()
        assert process.stderr is not None
        err = process.stderr.read()
    assert process.returncode == status and err in ("mltools: stopped\n", "mltools: terminated\n")
    assert not list(tmp_path.iterdir())


# -- pipes that do not wait, and terminals ----------------------------------------------------------------
def test_k10_non_blocking_pipes_are_read_and_written_whole(tmp_path: Path) -> None:
    """As another program leaves them that shares the pipe: nothing is cut, though there is often nothing or no room."""
    rows = b"".join(b'{"id": %d, "text": "%s", "label": "%d"}\n' % (i, b"x" * 40, i % 2) for i in range(5000))
    (stdin, feed), (drain, stdout) = os.pipe(), os.pipe()
    os.set_blocking(stdin, False)
    os.set_blocking(stdout, False)
    process = subprocess.Popen([*PYTHON, "perturb", "-q"], stdin=stdin, stdout=stdout)
    os.close(stdin)
    os.close(stdout)

    def send() -> None:
        for start in range(0, len(rows), len(rows) // 3):
            time.sleep(0.1)
            view = memoryview(rows[start : start + len(rows) // 3])
            while view:
                view = view[os.write(feed, view) :]
        os.close(feed)

    sender = threading.Thread(target=send)
    sender.start()
    found = b""
    while data := os.read(drain, 1 << 13):
        found += data
    sender.join()
    os.close(drain)
    assert process.wait(20) == 0
    assert [json.loads(line)["id"] for line in found.splitlines()] == [*range(5000)]


def test_k10_rows_cannot_command_the_terminal_that_stdout_is(shell: Shell, tmp_path: Path) -> None:
    """Escaped where they are looked at, as they are where they are piped; the same rows either way."""
    text = "a\x9b31m\u202e\u2028é😀\U000e0001"
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": "{text}", "label": "{label}"}}\n' for label in "ab" * 4))
    status, shown, _ = under_terminal([shell.program, "perturb", str(rows), "-q"], tmp_path)
    assert status == 0 and shown.replace("\n", "").isprintable() and "é😀" in shown
    piped = shell(f"mltools perturb {rows} -q", tmp_path).out
    assert text in piped and [json.loads(line) for line in shown.splitlines()] == [
        json.loads(line) for line in piped.split("\n")[:-1]
    ]
