"""The edge: exit statuses, one line for a person, nothing raw on the terminal. Streams: test_streams.py."""

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mltools.run
from conftest import Cli, marked, toy_rows, write_jsonl
from mltools.errors import CheckpointError

Tiny = Callable[..., Path]
PYTHON = (sys.executable, "-m", "mltools")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows that perturb can take."""
    return write_jsonl(tmp_path / "rows.jsonl", [{"text": "a", "label": "xy"[i % 2]} for i in range(40)])


# -- 2: usage -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["pertrub"], ["No such command 'pertrub'", "perturb", "(see mltools --help)"]),
        (["perturb", "--rat", "1"], ["No such option: --rat", "--rate", "(see mltools perturb --help)"]),
        (["--nonsense"], ["No such option: --nonsense", "(see mltools --help)"]),
        (["perturb", "--rate", "x"], ["--rate", "(see mltools perturb --help)"]),
        (["perturb", "--rate", "2", "ROWS"], ["--rate 2.0: write a number from 0 to 1"]),
        (["perturb", "--seed", "1.5", "ROWS"], ["--seed"]),
        (["perturb", "ROWS", "ROWS"], ["is named twice"]),
        (["perturb", "--draw", "hsh", "ROWS"], ['--draw "hsh": choose hash or python; did you mean hash?']),
        (["perturb", "--preset", "papers", "ROWS"], ["did you mean paper?"]),
        (["perturb", "--label-type", "int", "ROWS"], ['--label-type "int": choose auto or str']),
        (["perturb", "--classes", "a,,b", "ROWS"], ['"a,,b" has an empty name in it']),
        (["swap"], ["Missing argument 'NOISY'"]),
        (["swap", "a", "b", "ROWS", "--batch-size", "0"], ['--batch-size "0": write a number from 1, or auto']),
        (["swap", "a", "b", "ROWS", "--tag", "=x"], ['--tag "=x": write KEY=VALUE']),
        (["windows", "x"], ["LAYERS"]),
        (["windows", "0"], ["0 layers: at least 1 is needed"]),
        (["finetune", "a", "ROWS"], ["-o DIR is missing"]),
        (["help", "nope"], ["nope"]),
    ],
)
def test_usage(cli: Cli, rows: Path, words: list[str], parts: list[str]) -> None:
    result = cli(*(rows if word == "ROWS" else word for word in words))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("mltools: ") and result.err.count("\n") == 1
    assert all(part in result.err for part in parts), result.err


def test_no_command_shows_help(cli: Cli) -> None:
    assert cli().code == cli("--help").code == cli("-h").code == 0
    assert cli().out == cli("--help").out == cli("help").out
    assert cli("perturb", "-h").out == cli("perturb", "--help").out
    assert cli("--version").out.startswith("mltools ")


def test_no_rows_and_a_terminal() -> None:
    controller, terminal = pty.openpty()
    result = subprocess.run([*PYTHON, "perturb"], stdin=terminal, capture_output=True, text=True)
    os.close(terminal)
    os.close(controller)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "mltools: no rows: name a file, or pipe rows in (- is stdin)\n"


# -- 3, 4, 5 ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("words", [["perturb"], ["swap", "NOISY", "CLEAN"], ["finetune", "NOISY", "-o", "OUT"]])
@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (None, 5, "no such file: {path}"),
        (b"", 3, "{path}: "),
        (b'{"text":"a","label":"x"}\n\nnonsense\n', 3, "{path}:3: not JSON"),
        (b'{"text":"a","label":"x"}\n{"text":"a","label":"\xff"}\n', 3, "{path}:2: not UTF-8"),
        (b'{"text":"a","label":"x"}\n{"text":"a"}\n', 3, '{path}:2: no "label" (found: text'),
        (b'{"text":"a","label":"x"}\n[]\n', 3, "{path}:2: a list"),
    ],
)
def test_rows_that_cannot_be_read(
    cli: Cli, tiny: Tiny, tmp_path: Path, words: list[str], content: bytes | None, code: int, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    names = {"NOISY": tiny("bert", 1), "CLEAN": tiny("bert", 2), "OUT": tmp_path / "out"}
    result = cli(words[0], *(names.get(word, word) for word in words[1:3] if word != "-o"), path, *_out(words, names))
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"mltools: {message.format(path=path)}") and result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def _out(words: list[str], names: dict[str, Path]) -> list[object]:
    return ["-o", names["OUT"]] if "-o" in words else []


def test_labels_that_the_checkpoint_lacks(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    bad = toy_rows(20)
    bad[7]["label"] = bad[7]["original_label"] = "NONE"
    path = write_jsonl(tmp_path / "rows.jsonl", bad)
    result = cli("swap", tiny("bert", 1), tiny("bert", 2), path)
    assert (result.code, result.out) == (3, "")
    assert 'label "NONE" (row id 7) is no class of the checkpoint (ABBR, HUM, LOC, NUM)' in result.err


@pytest.mark.parametrize(("noisy", "text"), [(True, "every row is noisy"), (False, "no noisy rows")])
def test_rows_all_noisy_or_all_clean(cli: Cli, tiny: Tiny, tmp_path: Path, noisy: bool, text: str) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", marked(toy_rows(20), lambda _: noisy))
    result = cli("swap", tiny("bert", 1), tiny("bert", 2), path)
    assert (result.code, text in result.err) == (3, True)


def test_checkpoints_that_are_missing_or_unusable(cli: Cli, tiny: Tiny, tmp_path: Path, noisy_rows: Path) -> None:
    missing = cli("swap", tmp_path / "none", tiny("bert", 2), noisy_rows)
    assert (missing.code, missing.err) == (5, f"mltools: no such folder: {tmp_path / 'none'}\n")
    (tmp_path / "empty").mkdir()
    empty = cli("swap", tmp_path / "empty", tiny("bert", 2), noisy_rows)
    assert (empty.code, empty.err) == (
        4,
        f"mltools: {tmp_path / 'empty'}: no config.json; is it a checkpoint folder?\n",
    )


def test_files_that_cannot_be_read(cli: Cli, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("perturb", "/proc/self/mem")
    assert (result.code, result.err) == (1, "mltools: /proc/self/mem: Input/output error\n")

    def refuse(path: Path, *_: object) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    result = cli("perturb", rows)
    assert (result.code, result.err) == (1, f"mltools: {rows}: Permission denied\n")


# -- outputs ------------------------------------------------------------------------------------------
def test_output_folder_and_output_that_is_a_folder(cli: Cli, rows: Path, tmp_path: Path) -> None:
    result = cli("perturb", rows, "-o", tmp_path / "none" / "out.jsonl")
    assert (result.code, "make it first" in result.err) == (2, True)
    (tmp_path / "out").mkdir()
    result = cli("perturb", rows, "-o", tmp_path / "out", "--force")
    assert (result.code, result.err) == (2, f"mltools: {tmp_path / 'out'} is a folder; name a file to write\n")


def test_outputs_are_checked_before_any_work(cli: Cli, tmp_path: Path, noisy_rows: Path) -> None:
    exists = "exists; overwrite it with --force"
    for option, text in (("-o", exists), ("--per-row", exists), ("--write", "is a file"), ("--provenance", exists)):
        (tmp_path / "out.parquet").write_text("precious")
        result = cli("swap", "/none", "/none", noisy_rows, option, tmp_path / "out.parquet", "--layers", "1")
        assert (result.code, text in result.err) == (2, True)
        assert (tmp_path / "out.parquet").read_text() == "precious"


def test_empty_names(cli: Cli, noisy_rows: Path) -> None:
    assert (cli("perturb", "").code, cli("perturb", "").err) == (5, 'mltools: no such file: ""\n')
    assert (cli("swap", "", "", noisy_rows).code, cli("swap", "", "", noisy_rows).err) == (
        5,
        'mltools: no such folder: ""\n',
    )


# -- --debug, bugs ------------------------------------------------------------------------------------
def test_b51_debug_shows_the_trace_and_keeps_the_status(cli: Cli) -> None:
    plain = cli("perturb", stdin=b"[]\n")
    result = cli("perturb", "--debug", stdin=b"[]\n")
    assert (result.code, result.out) == (plain.code, "") == (3, "")
    assert result.err.startswith("Traceback (most recent call last):\n")
    assert result.err.endswith(plain.err)
    assert "Traceback" not in plain.err


def test_b51_a_bug_says_that_it_is_one(cli: Cli, monkeypatch: pytest.MonkeyPatch, rows: Path) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("oh\x1b[31m")

    monkeypatch.setattr("mltools.run.Run.input", broken)
    result = cli("perturb", rows)
    assert result.code == 1
    assert result.err == (
        "mltools: a fault in mltools: ZeroDivisionError: oh\\x1b[31m (--debug shows where; please report it)\n"
    )


def test_a_warning_of_a_library_is_a_line_at_v(cli: Cli, monkeypatch: pytest.MonkeyPatch, rows: Path) -> None:
    """torch's own, with the path of its file and a line of its code, stood among our lines."""
    given = mltools.run.Run.input

    def warned(*arguments: Any, **settings: Any) -> Any:
        warnings.warn("two\nlines", UserWarning, stacklevel=1)
        return given(*arguments, **settings)

    monkeypatch.setattr("mltools.run.Run.input", warned)
    monkeypatch.setattr(sys, "warnoptions", [])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        assert "two" not in cli("perturb", rows).err
        assert "two\\nlines\n" in cli("perturb", rows, "-v").err
        assert warnings.showwarning is before


@pytest.mark.parametrize(
    ("error", "code"),
    [(MemoryError(), 6), (OSError(28, "No space left on device"), 6), (RuntimeError("x: can't allocate memory: y"), 6)],
)
def test_what_runs_out(cli: Cli, monkeypatch: pytest.MonkeyPatch, rows: Path, error: Exception, code: int) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr("mltools.run.Run.input", broken)
    result = cli("perturb", rows)
    assert (result.code, result.err.count("\n")) == (code, 1)


# -- the terminal -------------------------------------------------------------------------------------
EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202e\x00\n\x9b31m"


def test_control_characters_of_rows_never_reach_the_terminal(cli: Cli, tmp_path: Path) -> None:
    sources: list[list[dict[str, Any]]] = [
        [{"id": EVIL, "label": 0}, {"id": EVIL, "label": 1}],
        [{"label": EVIL}, {"label": 3}],
        [{EVIL: 1, "text": "a"}],
        [{"label": EVIL}],
        [{"label": 0, "original_label": EVIL}],
    ]
    for number, source in enumerate(sources):
        for debug in ((), ("--debug",)):
            result = cli("perturb", write_jsonl(tmp_path / f"{number}.jsonl", source), *debug)
            assert result.code == 3
            shown = result.err.replace("\n", "")
            assert shown.isprintable(), shown
    shown = cli("perturb", tmp_path / EVIL.replace("\x00", "")).err[:-1]
    assert shown.isprintable() and "no such file" in shown
    assert cli(EVIL).err[:-1].isprintable()


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    """No provenance could name them: they are refused at the start, be there such a file or not."""
    path = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    for there in (False, True):
        if there:
            Path(os.fsdecode(path)).write_bytes(b'{"label":0}\n{"label":1}\n')
        result = subprocess.run([*PYTHON, "perturb", path], capture_output=True)
        assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (2, b"", 1)


def test_ascii_locale(rows: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    source = write_jsonl(tmp_path / "rows.jsonl", [{"label": "né", "id": "é"}, {"label": "π", "id": "é"}])
    source.write_text(source.read_text().encode().decode("unicode_escape"))
    result = subprocess.run([*PYTHON, "perturb", source], capture_output=True, env=environment)
    assert (result.returncode, b"is also line 1's" in result.stderr) == (3, True)
    for words in (("--help",), ("swap", "--help")):
        assert subprocess.run([*PYTHON, *words], capture_output=True, env=environment).returncode == 0


# -- 130, 143 -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_no_temporary_file(tmp_path: Path, number: int, code: int) -> None:
    words = [*PYTHON, "perturb", "-", "-o", "out.jsonl", "--stream", "--classes", "a,b"]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b'{"label":"a"}\n' * 10_000)
        process.stdin.flush()
        end = time.monotonic() + 30
        while not list(tmp_path.iterdir()) and time.monotonic() < end:
            time.sleep(0.01)
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        err = process.stderr.read()
        process.stdin.close()
    assert process.returncode == code
    assert err in (b"mltools: stopped\n", b"mltools: terminated\n")
    assert not list(tmp_path.iterdir())


# -- provenance ---------------------------------------------------------------------------------------
def test_provenance_holds_no_place_and_no_time(cli: Cli, rows: Path, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        out, how = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.json"
        assert cli("perturb", rows, "-o", out, "--provenance", how, "--seed", "4", "-v").code == 0
        made.append(how.read_text())
    assert made[0] == made[1]
    how_made = json.loads(made[0])
    assert how_made["command"] == ["mltools", "perturb", str(rows), "--seed", "4"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_k10_little_memory_is_status_6(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Whoever says it, also behind another error."""

    def fail(_: object) -> int:
        raise error

    def fail_behind(_: object) -> int:
        try:
            raise error
        except type(error):
            raise CheckpointError("model: it cannot be loaded") from None

    for run in (fail, fail_behind):
        monkeypatch.setattr("mltools.cli._run", run)
        result = cli("swap", "a", "b")
        assert (result.code, result.err.count("\n")) == (6, 1), result.err
        assert ("out of memory" in result.err) is (run is fail)
