"""Writing that never leaves half a file: a hidden sibling, fsync, then a rename.

Works for files and for folders. Files get the mode that the umask gives, not the 0600 of temporary files.
"""

import ctypes
import glob
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mltools.errors import UsageError


def check_output(path: Path, *, force: bool, inputs: tuple[Path, ...] = (), file: bool = False) -> None:
    """Refuse an output that exists (unless forced) or that is one of the inputs.

    Raises:
        UsageError: as said; also when the folder to write into does not exist, or a `file` would replace a folder.
    """
    if file and path.is_dir():
        raise UsageError(f"{path} is a folder; name a file to write")
    for source in inputs:
        if source.exists() and path.exists() and path.resolve() == source.resolve():
            raise UsageError(f"{path} is an input; write to another path")
    if path.exists() and not force and not is_device(path):
        raise UsageError(f"{path} exists; overwrite it with --force, or choose another path")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: no folder {path.absolute().parent}; make it first")


def is_device(path: Path) -> bool:
    """Say whether a path is a device or a named pipe, which is written as it stands."""
    return path.is_char_device() or path.is_fifo()


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a temporary sibling to write to; on success it takes the name `path`, on failure it goes.

    A device or a named pipe (`/dev/null`, `/dev/full`) is written directly.
    """
    if is_device(path):
        yield path
        return
    path = path.resolve() if path.is_symlink() else path
    _tidy(path)
    temporary = _sibling(path)
    try:
        yield temporary
        _sync_file(temporary)
        temporary.replace(path)
        _sync_folder(path.absolute().parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give a new hidden sibling folder; on success it takes the name `path`, replacing an old folder."""
    path = path.resolve() if path.is_symlink() else path
    _tidy(path)
    temporary = _sibling(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                _sync_file(file)
        _replace_folder(temporary, path)
        _sync_folder(path.absolute().parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


AT_FDCWD = -100
RENAME_EXCHANGE = 2


def _replace_folder(new: Path, path: Path) -> None:
    """Let the new folder take the name of the old one, which `_exchange` leaves under the new one's for removal."""
    if not path.exists():
        new.rename(path)
        return
    if _exchange(new, path):
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
