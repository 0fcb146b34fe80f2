"""Completions work in the real shells (skipped where there are none) and start no mltools; man pages render."""

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import COMMANDS, Cli
from mltools.cli.registry import command_names

ROOT = Path(__file__).parents[1]
COMPLETIONS = ROOT / "completions"
MAN = ROOT / "man"

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SET_UP = {
    "bash": "bind 'set bell-style none'; source {folder}/mltools.bash; mltools() {{ echo \"<$*>\"; }}\n",
    "zsh": (
        'unsetopt beep; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; mltools() {{ echo "<$*>" }}\n'
    ),
    "fish": 'source {folder}/mltools.fish; function mltools; echo "<$argv>"; end\n',
}
CASES = [
    ("mltools sw", "<swap>"),
    ("mltools --ver", "<--version>"),
    ("mltools swap --wri", "<swap --write>"),
    ("mltools mcog --by-l", "<mcog --by-layer>"),
    ("mltools swap --preset rel", "<swap --preset released-code>"),
    ("mltools swap noisy.js", "<swap noisy.jsonl>"),
    ("mltools completion zs", "<completion zsh>"),
    ("mltools perturb --rate 0.2 'two wo", "<perturb --rate 0.2 two words.jsonl>"),
]


class Terminal:
    """A shell under a pseudo-terminal."""

    def __init__(self, shell: str, folder: Path) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="dumb" if shell != "fish" else "xterm", PS1="> ", HOME=str(folder))
            os.environ["PATH"] = "/usr/bin:/bin"  # no mltools there: completing must not need it
            os.execvp(shell, START[shell])

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, pattern: str, seconds: float = 10) -> str:
        """Read until the pattern is on the screen; give all that was read."""
        seen, end = "", time.monotonic() + seconds
        while not re.search(pattern, seen) and time.monotonic() < end:
            if select.select([self._fd], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    seen += os.read(self._fd, 65536).decode(errors="replace")
        return seen

    def close(self) -> None:
        os.close(self._fd)
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


@pytest.fixture(params=["bash", "zsh", "fish"])
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    for name in ("noisy.jsonl", "two words.jsonl"):
        (tmp_path / name).touch()
    terminal = Terminal(shell, tmp_path)
    terminal.send(SET_UP[shell].format(folder=COMPLETIONS))
    terminal.send("mltools ready\n")
    assert "<ready>" in terminal.wait_for("<ready>")
    yield terminal
    terminal.close()


def test_b49_tab(terminal: Terminal) -> None:
    """A typed beginning and TAB give the whole word; the shell's `mltools` then shows its arguments."""
    for typed, expected in CASES:
        terminal.send(typed + "\t\n")
        seen = terminal.wait_for(r"<[^<>]*>\s")
        assert expected in re.sub(r"\s+>", ">", seen), (typed, seen)


@pytest.mark.parametrize("shell", START)
def test_completion_prints_the_file(cli: Cli, shell: str) -> None:
    name = "_mltools" if shell == "zsh" else f"mltools.{shell}"
    assert cli("completion", shell).out == (COMPLETIONS / name).read_text()


def test_unknown_shell(cli: Cli) -> None:
    done = cli("completion", "fsh")
    assert (done.code, done.err) == (2, 'mltools: SHELL "fsh": choose bash, zsh or fish; did you mean fish?\n')


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/gen.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.parametrize("page", ["mltools", *(f"mltools-{name}" for name in command_names())])
def test_man_page(page: str) -> None:
    """The page renders without a warning and names every option."""
    if shutil.which("man") is None:
        pytest.skip("no man here")
    path = MAN / f"{page}.1"
    environment = {**os.environ, "MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""}
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", path], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    if page != "mltools":
        for option in COMMANDS[page.removeprefix("mltools-")].options:
            assert option.flags[-1] in done.stdout


def test_man_pages_pass_mandoc() -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("no mandoc here")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *MAN.glob("*.1")], capture_output=True, text=True)
    complaints = [line for line in done.stdout.splitlines() if "missing date" not in line]
    assert not complaints
