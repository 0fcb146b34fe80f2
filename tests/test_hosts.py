"""GNU parallel over two hosts: two ssh servers on this machine, one of which goes down in the middle. All slow."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import Cli
from slurm import free_ports

SCRIPT = Path(__file__).parents[1] / "examples" / "hosts.sh"
Tiny = Callable[..., Path]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FAST = ("--epochs", "1", "--batch-size", "64")
NEEDED = ("sshd", "ssh", "ssh-keygen", "parallel", "rsync")


@dataclass
class Host:
    """An ssh server, and how to log in there."""

    login: str
    server: subprocess.Popen[bytes]

    def go_down(self) -> None:
        """Stop the server and all that was started through it, at once."""
        self.server.send_signal(19)  # no new session while the old ones are found
        found = subprocess.run(["pgrep", "-P", str(self.server.pid)], capture_output=True, text=True).stdout.split()
        for session in found:
            subprocess.run(["pkill", "-KILL", "-P", session], check=False)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(session), 9)
        self.server.kill()
        self.server.wait()


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} (Debian: apt-get install openssh-server openssh-client parallel rsync)")
    folder = tmp_path_factory.mktemp("hosts")
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "bin").mkdir()
    program = folder / "bin" / "mltools"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mltools "$@"\n')
    program.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
    found = []
    try:
        for number, port in enumerate(free_ports(2), start=1):
            home = folder / f"home{number}"
            home.mkdir()
            variables = [f"HOME={home}", f"PATH={folder}/bin:{path}", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"]
            variables += ["OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1"]
            config = folder / f"sshd{number}"
            config.write_text(
                f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
                f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPermitRootLogin yes\nMaxStartups 100\n"
                f"SetEnv {' '.join(variables)}\n"
            )
            sshd = shutil.which("sshd", path=path) or ""
            server = subprocess.Popen([sshd, "-D", "-f", config], stderr=subprocess.DEVNULL)
            options = f"-i {folder}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
            found.append(Host(f"ssh -p {port} {options} 127.0.0.1", server))
        time.sleep(1)
        yield found
    finally:
        for host in found:
            host.server.kill()
            host.server.wait()


def test_two_hosts_of_which_one_goes_down(
    hosts: list[Host], cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """210 windows in shards over both; one host dies in the middle; what is merged is the serial run, byte by byte."""
    for name, seed in (("noisy", 1), ("clean", 2)):
        shutil.copytree(tiny("bert", seed, num_hidden_layers=20), tmp_path / name)
    shutil.copy(noisy_rows, tmp_path / "rows.jsonl")
    (tmp_path / "hosts").write_text("".join(f"{host.login}\n" for host in hosts))
    words = [str(SCRIPT), "hosts", "12", "runs", "retrain", "noisy", "clean", "rows.jsonl", *FAST]
    script = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE)
    runs, end = tmp_path / "runs", time.monotonic() + 300
    while script.poll() is None and not list(runs.glob("*.jsonl")) and time.monotonic() < end:
        time.sleep(0.2)
    hosts[1].go_down()
    _, err = script.communicate(timeout=600)
    if script.returncode:  # as a person would: once more
        assert len(list(runs.glob("*.jsonl"))) < 12
        subprocess.run(words, cwd=tmp_path, check=True, timeout=600)
    parts = sorted(runs.glob("*.jsonl"))
    assert len(parts) == 12, err
    windows = [json.loads(line)["window"] for part in parts for line in part.read_text().splitlines()]
    assert len(windows) == len(set(windows)) == 210
    merged = cli("merge", *parts)
    serial = cli("retrain", tmp_path / "noisy", tmp_path / "clean", tmp_path / "rows.jsonl", *FAST, "-q")
    assert merged.code == 0 and merged.out == serial.out


def test_records_that_do_not_come_back_are_told(tmp_path: Path) -> None:
    """A parallel that says all is done, though a host went down before its records were copied."""
    parallel = tmp_path / "parallel"
    parallel.write_text("#!/bin/sh\nread one; cat > /dev/null; touch runs/$one-of-3.jsonl\n")
    parallel.chmod(0o755)
    words = [str(SCRIPT), "hosts", "3", "runs", "swap", "noisy", "clean", "rows.jsonl"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for left in (2, 1, 0):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, f"{left} of 3 shards are not back" in done.stderr) == (int(left > 0), left > 0)
