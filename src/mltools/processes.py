"""Which of a launcher's processes this one is. The environment is believed only where all of it is there and fits.

Job arrays, containers and old shells leave `RANK` or `WORLD_SIZE` behind: a lone variable says nothing about us.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun and accelerate launch set, all of it, for each of their processes."""
ALSO_READ = ("LOCAL_WORLD_SIZE", "PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "ACCELERATE_")
"""What accelerate reads beside it, by its beginning: none of it may change what an option of ours says."""


@dataclass(frozen=True)
class Launched:
    """The place of this process among those that share a run."""

    rank: int
    processes: int


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Find the place of this process among several; None where no launcher's full, consistent set says so."""
    try:
        rank, processes, local, port = (int(environment[name]) for name in (*LAUNCHER[:3], "MASTER_PORT"))
    except (KeyError, ValueError):
        return None
    fits = 0 <= local <= rank < processes and processes > 1 and 0 < port < 1 << 16 and environment.get("MASTER_ADDR")
    return Launched(rank, processes) if fits else None


@contextmanager
def believed(shared: bool) -> Iterator[None]:
    """Hide from accelerate what it would read and we do not believe; the launcher's set stays if work is `shared`."""
    keep = (*LAUNCHER, "LOCAL_WORLD_SIZE") if shared and launched() is not None else ()
    hidden = {name: value for name, value in os.environ.items() if name not in keep and _is_read(name)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def _is_read(name: str) -> bool:
    return name in LAUNCHER or name.startswith(ALSO_READ)
