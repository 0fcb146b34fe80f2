"""Which of a launcher's processes this one is, and how these share a run.

The environment is believed only where all of it is there and fits. Job arrays, containers and old shells leave `RANK`
or `WORLD_SIZE` behind: a lone variable says nothing about us.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mltools import signals
from mltools.errors import MltoolsError, exit_status

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun and accelerate launch set, all of it, for each of their processes."""
ALSO_READ = ("LOCAL_WORLD_SIZE", "PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "ACCELERATE_")
"""What accelerate reads beside it, by its beginning: none of it may change what an option of ours says."""


@dataclass(frozen=True)
class Launched:
    """The place of this process among those that share a run; `local` is its place among those of its host."""

    rank: int
    processes: int
    local: int = 0


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Find the place of this process among several; None where no launcher's full, consistent set says so."""
    try:
        rank, processes, local, port = (int(environment[name]) for name in (*LAUNCHER[:3], "MASTER_PORT"))
    except (KeyError, ValueError):
        return None
    fits = 0 <= local <= rank < processes and processes > 1 and 0 < port < 1 << 16 and environment.get("MASTER_ADDR")
    return Launched(rank, processes, local) if fits else None


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


# -- sharing a run ------------------------------------------------------------------------------------
PATIENCE = timedelta(days=30)
"""How long a process waits for the others: as long as an item may take. Launchers end the others of one that dies."""


class OtherEnded(MltoolsError):
    """Another process of this run ends, with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        """Keep what the process said, and the status it ended with."""
        super().__init__(message)
        self.exit_code = status


class OtherLost(MltoolsError):
    """Another process of this run is gone without a word."""


class Team:
    """The processes that share a run: each does some of the items, and each gets what comes of all.

    So every process goes through the same steps with the same values as one alone, and the first one writes and speaks.
    Every process must call the same methods in the same order.
    """

    def __init__(self, place: Launched = Launched(0, 1)) -> None:
        """Stand at a place among the processes; one alone has nobody to meet."""
        self.rank, self.n, self.local = place.rank, place.processes, place.local

    def gather(self, own: T) -> list[T]:
        """Give what each process has, by rank.

        Raises:
            OtherEnded: one of them ends instead.
            OtherLost: one of them is gone.
        """
        return [own] if self.n == 1 else self._exchange(own)

    def dealt(self, items: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, R]]:
        """Do each item in one of the processes, all at once, and yield each with its result in every one, in order."""
        waiting = iter(items)
        if self.n == 1:
            yield from ((item, work(item)) for item in waiting)
            return
        while group := list(islice(waiting, self.n)):
            own = work(group[self.rank]) if self.rank < len(group) else None
            found: list[Any] = self.gather(own)
            yield from zip(group, found, strict=False)

    def hand_out(self, tensors: Iterable["Tensor"], owner: int) -> None:
        """Fill the tensors of every process with those of the `owner`."""
        import torch.distributed as dist

        for tensor in tensors:
            with _lost():
                on_cpu = tensor.cpu().contiguous()
                dist.broadcast(on_cpu, owner)
                tensor.copy_(on_cpu)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Begin and end as one: where one process fails, all end with its status, and the first one says why."""
        if self.n == 1:
            yield
            return
        try:
            self.gather(None)
            yield
            self.gather(None)
        except OtherLost:
            raise
        except OtherEnded as error:
            self._leave(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  all are told of it, and it goes on
            try:
                self._exchange(None, (exit_status(error), self._said(error)))
            except OtherEnded:
                self._leave(error)
            except OtherLost:
                raise error from None

    def _leave(self, error: Exception | SystemExit) -> NoReturn:
        """End with an error, without a word where the first process says it."""
        if self.rank and isinstance(error, MltoolsError):
            raise SystemExit(error.exit_code) from None
        raise error

    def _said(self, error: Exception | SystemExit) -> str:
        if isinstance(error, MltoolsError):
            return str(error)
        return f"process {self.rank + 1} of {self.n}: {type(error).__name__}: {error}"

    def _exchange(self, own: T, end: tuple[int, str] | None = None) -> list[T]:
        """Gather what each has, or learn that one of them ends."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.n
        with _lost():
            dist.all_gather_object(found, (end, own))
        for ends, _ in found:
            if ends is not None:
                raise OtherEnded(*ends)
        return [each for _, each in found]


ALONE = Team()


def join(place: Launched) -> Team:
    """Meet the other processes of this run, over the network and in main memory whatever the device."""
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=PATIENCE)
    return Team(place)


@contextmanager
def _lost() -> Iterator[None]:
    """Turn the errors of a connection that breaks off into one line."""
    try:
        yield
    except RuntimeError:
        signals.check()
        raise OtherLost("another process of this run has ended") from None
