"""Writing that never leaves half a file: a hidden sibling, fsync, then a rename.

Works for files and for folders. Files get the mode that the umask gives, not the 0600 of temporary files.
"""

import glob
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mltools.errors import UsageError


def check_output(path: Path, *, force: bool, inputs: tuple[Path, ...] = ()) -> None:
    """Refuse an output that exists (unless forced) or that is one of the inputs.

    Raises:
        UsageError: as said; also when the folder to write into does not exist.
    """
    for source in inputs:
        if source.exists() and path.exists() and path.resolve() == source.resolve():
            raise UsageError(f"{path} is an input; write to another path")
    if path.exists() and not force and not _is_device(path):
        raise UsageError(f"{path} exists; overwrite it with --force, or choose another path")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: no folder {path.absolute().parent}; make it first")


def _is_device(path: Path) -> bool:
    return path.is_char_device() or path.is_fifo()


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a temporary sibling to write to; on success it takes the name `path`, on failure it goes.

    A device or a named pipe (`/dev/null`, `/dev/full`) is written directly.
    """
    if _is_device(path):
        yield path
        return
    path = path.resolve() if path.is_symlink() else path
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


def _replace_folder(new: Path, path: Path) -> None:
    if not path.exists():
        new.rename(path)
        return
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sibling(path: Path) -> Path:
    """Name a hidden sibling of this process, and clear away those that killed processes of this host left."""
    marker = f".{path.name}.tmp-{platform.node()}-"
    for left in path.absolute().parent.glob(f"{glob.escape(marker)}*"):
        pid = left.name[len(marker) :]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f"{marker}{os.getpid()}")


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
