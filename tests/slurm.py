"""A Slurm of one machine for tests: munged, slurmctld and slurmd in a folder, from Debian's slurm-wlm."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
CONFIG = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={other}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=20
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> str | None:
    """Say what this machine lacks for a Slurm of its own; None if nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "only root can start Slurm's daemons"


@dataclass
class Slurm:
    """A running cluster of one node."""

    environment: Mapping[str, str]

    def run(self, *words: object, **variables: str) -> str:
        """Run a command of Slurm's, or one that calls some, and give what it prints."""
        line = [str(word) for word in words]
        done = subprocess.run(line, env={**self.environment, **variables}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout.strip()

    def jobs(self) -> list[tuple[str, str]]:
        """Give the number and state of every job that has not ended."""
        lines = self.run("squeue", "--noheader", "--array", "--format", "%i %T").splitlines()
        return [(line.split()[0], line.split()[1]) for line in lines]

    def wait(self, seconds: float) -> None:
        """Wait until no job is left."""
        end = time.monotonic() + seconds
        while jobs := self.jobs():
            assert time.monotonic() < end, f"still there: {jobs}"
            time.sleep(1)


@contextlib.contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[Slurm]:
    """Start a cluster, and end it and its jobs."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    munge = folder / "munge"
    munge.mkdir()
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o400)
    for path in (munge, munge / "key"):
        shutil.chown(path, "munge", "munge")
    for parent in [folder, *folder.parents][:-2]:
        parent.chmod(parent.stat().st_mode | 0o055)
    host = socket.gethostname().split(".")[0]
    config = folder / "slurm.conf"
    port, other = free_ports(2)
    config.write_text(CONFIG.format(host=host, folder=folder, port=port, other=other))
    own = {**environment, "SLURM_CONF": str(config), "PATH": f"{environment['PATH']}:/usr/sbin:/usr/bin:/bin"}
    daemons = [
        ["runuser", "-u", "munge", "--", "munged", "--foreground", f"--key-file={munge}/key"]
        + [f"--{what}={munge}/{name}" for what, name in (("socket", "sock"), ("pid-file", "pid"), ("log-file", "log"))]
        + [f"--seed-file={munge}/seed"],
        ["slurmctld", "-D", "-f", str(config)],
        ["slurmd", "-D", "-f", str(config)],
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for daemon in daemons:
            running.append(subprocess.Popen(daemon, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(1)
        slurm = Slurm(own)
        end = time.monotonic() + 60
        while "idle" not in slurm.run("sinfo", "--noheader", "--format", "%t"):
            assert time.monotonic() < end, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(1)
        yield slurm
        slurm.run("scancel", "--full", "--user", "root")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
