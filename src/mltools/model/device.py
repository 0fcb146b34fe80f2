"""Where tensors live and how many threads compute: --device, --threads."""

import ctypes
import os
from pathlib import Path

import torch

from mltools.errors import UsageError
from mltools.ranges import THREADS, read_whole

NARROW = 512
"""Up to this width, one thread is faster than several on a busy machine: the products are too small to share."""

C_LIBRARY = ctypes.CDLL(None) if os.name == "posix" else None
STATM = Path("/proc/self/statm")


def find_device(name: str, place: int | None = None) -> torch.device:
    """Turn `auto`, `cpu`, `cuda[:i]` or `mps` into a device. `auto` is CUDA if there is one, else CPU, never MPS.

    Args:
        name: as in `--device`.
        place: of this process among those that share the host, and so its CUDA devices: one each, in turn.

    Raises:
        UsageError: no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and place is not None and torch.cuda.is_available():
        name = f"cuda:{place % torch.cuda.device_count()}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f'--device "{name}": write auto, cpu, cuda, cuda:0 or mps') from None
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device.type, False):
        raise UsageError(f"--device {name}: there is none here")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {name}: there are {torch.cuda.device_count()} here")
    return device


def set_threads(threads: int | None, width: int) -> int:
    """Set torch's threads and say how many: the option, else OMP_NUM_THREADS, else 1 for narrow models.

    The count is decided by what is asked and by the model, never by the load of the machine, so that a run
    can be repeated to the byte.

    Args:
        threads: the option, if given.
        width: hidden width of the model.
    """
    if threads is None:
        given = read_whole(os.environ.get("OMP_NUM_THREADS", ""))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = given if given and THREADS.holds(given) else 1 if width <= NARROW else min(cores, 8)
    torch.set_num_threads(threads)
    return threads


def trim_heap() -> None:
    """Give what the heap keeps of freed tensors back to the system, where it is glibc's; elsewhere do nothing."""
    trim = getattr(C_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)


class MallocTrimmer:
    """Trims the heap when freed tensors hold more than at first. Does nothing without Linux.

    glibc cuts what it keeps of freed tensors into pieces as tensors of other shapes come, so that a loop over batches
    takes more and more memory, at last several times what a batch needs. Giving it back costs a tenth of a batch's
    time, so it is done only where the heap grew.
    """

    def __init__(self) -> None:
        """Watch from the first `check` on."""
        self._first: int | None = None

    def check(self) -> None:
        """Compare the memory in use with that at the first call, after the largest batch."""
        if not STATM.exists():
            return
        pages = int(STATM.read_text().split()[1])
        if self._first is None:
            self._first = pages
        elif pages > self._first:
            trim_heap()
