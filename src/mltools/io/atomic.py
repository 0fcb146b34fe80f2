"""Writing that never leaves half a file: a hidden sibling, fsync, then a rename.

Works for files and for folders. Files get the mode that the umask gives, not the 0600 of temporary files. What has
come to stand at the name meanwhile is replaced only if that is asked for; else both are kept.
"""

import ctypes
import errno
import fcntl
import glob
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NoReturn

from mltools.errors import UsageError
from mltools.signals import unfinished


def is_device(path: Path) -> bool:
    """Say whether a path is a device or a named pipe, which is written as it stands."""
    return path.is_char_device() or path.is_fifo()


@contextmanager
def atomic_file(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary sibling to write to; on success it takes the name `path`, on failure it goes.

    A device or a named pipe (`/dev/null`, `/dev/full`) is written directly.

    Args:
        path: the file to be.
        replace: whether a file that is there by then is replaced.

    Raises:
        UsageError: one is there, and is not to be replaced; what was written is kept beside it, as `FILE.kept-1`.
    """
    if is_device(path):
        yield path
        return
    path = path.resolve() if path.is_symlink() else path
    _tidy(path)
    temporary = _sibling(path)
    with _cleared_away(temporary):
        yield temporary
        _sync_file(temporary)
        if replace:
            temporary.replace(path)
        elif not _name_file(temporary, path):
            _keep(temporary, path, _name_file)
        _sync_folder(path.absolute().parent)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a new hidden sibling folder; on success it takes the name `path`.

    Args:
        path: the folder to be; an empty one is filled.
        replace: whether one that is there by then is removed for it.

    Raises:
        UsageError: one is there, and is not to be replaced; what was written is kept beside it, as `FOLDER.kept-1`.
    """
    path = path.resolve() if path.is_symlink() else path
    _tidy(path)
    temporary = _sibling(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    with _cleared_away(temporary):
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                _sync_file(file)
        if replace:
            _replace_folder(temporary, path)
        elif not _name_folder(temporary, path):
            _keep(temporary, path, _name_folder)
        _sync_folder(path.absolute().parent)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a temporary folder for what is read back in this run."""
    with tempfile.TemporaryDirectory(prefix="mltools-") as name, _cleared_away(Path(name)):
        yield Path(name)


@contextmanager
def _cleared_away(temporary: Path) -> Iterator[None]:
    """Remove a temporary file or folder in the end, however the program ends, if it still has that name."""

    def clear() -> None:
        shutil.rmtree(temporary, ignore_errors=True) if temporary.is_dir() else temporary.unlink(missing_ok=True)

    with unfinished(clear):
        try:
            yield
        finally:
            clear()


def _name_file(temporary: Path, path: Path) -> bool:
    """Give a file a name that nothing has, in one step; False if something has it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(path):  # the best that a file system without links can do
            return False
        temporary.rename(path)
    return True


NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system says that has no hard links (FAT, some network shares), or allows none."""


def _name_folder(temporary: Path, path: Path) -> bool:
    """Give a folder a name that nothing but an empty folder has, in one step; False if something has it."""
    try:
        temporary.rename(path)  # POSIX: never over a folder that holds something, nor over a file
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _keep(temporary: Path, path: Path, name: Callable[[Path, Path], bool]) -> NoReturn:
    """Keep what cannot have its name under the next one that is free, and say so."""
    kept = next(kept for n in count(1) if name(temporary, kept := path.with_name(f"{path.name}.kept-{n}")))
    raise UsageError(f"{path} is there by now; what this run made is kept as {kept}")


AT_FDCWD = -100
RENAME_EXCHANGE = 2


def _replace_folder(new: Path, path: Path) -> None:
    """Let the new folder take the name of the old one, which `_exchange` leaves under the new one's for removal."""
    if _name_folder(new, path) or _exchange(new, path):
        return
    old = _sibling(path, "old")
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths exchange names in one step, so that there is no moment without either (Linux only)."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def check_name(path: Path) -> None:
    """See that the temporary sibling of a path can have its name.

    Raises:
        UsageError: it is too long for the file system.
    """
    try:
        _sibling(path).lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; choose another name") from None


def _sibling(path: Path, kind: str = "tmp") -> Path:
    """Name a hidden sibling of this process."""
    return path.with_name(f"{_marker(path, kind)}{os.getpid()}")


def _marker(path: Path, kind: str) -> str:
    return f".{path.name}.{kind}-{platform.node()}-"


def _tidy(path: Path) -> None:
    """Clear away what killed processes of this host left of `path`, or put back what they had set aside."""
    for kind in ("tmp", "old"):
        marker = _marker(path, kind)
        for left in path.absolute().parent.glob(f"{glob.escape(marker)}*"):
            pid = left.name[len(marker) :]
            if not pid.isdigit() or _alive(int(pid)):
                continue
            if kind == "old" and not path.exists():
                left.rename(path)
            elif left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def lock(descriptor: int, path: Path) -> None:
    """Keep other runs away from what is open, until it is closed, by the end of the process at the latest.

    Raises:
        UsageError: another run has it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{path} is in use by another run; wait for it, or choose another -o") from None
    except OSError:  # a file system without locks
        pass


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_file(path: Path) -> None:
    path.chmod(0o666 & ~_umask())
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems refuse to sync a folder; the rename still holds
        pass
    finally:
        os.close(descriptor)
