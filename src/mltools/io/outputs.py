"""What a command may write where: all of its outputs against all of its inputs, before any work is done."""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from mltools.errors import UsageError
from mltools.io.atomic import check_name, is_device
from mltools.io.provenance import foreign, is_checkpoint_file

STDOUT = "-"


@dataclass(frozen=True)
class Output:
    """A file or folder that a command writes.

    `endings` are those of the names that it may have (none given: any); `plain` lets it have none. `resumed` is a
    folder that a run before this one may have left.
    """

    option: str
    path: Path
    endings: tuple[str, ...] = ()
    plain: bool = True
    folder: bool = False
    resumed: bool = False


def check_outputs(outputs: Sequence[Output], inputs: Iterable[str | Path], *, force: bool) -> None:
    """See that every output can be written, and that writing it takes nothing away but what --force may replace.

    Args:
        outputs: all that the command writes beside stdout.
        inputs: all that it reads; names that are no files or folders here, as of the hub, are passed over.
        force: whether outputs that exist are replaced.

    Raises:
        UsageError: an output has a name that its kind cannot have, cannot be written, is there already, is another
            output too, or is, holds or lies in an input.
        OSError: nothing can be written there.
    """
    for output in outputs:
        _check_name(output)
        _check_place(output, force)
    files = [output for output in outputs if not is_device(output.path)]
    if not files:
        return
    for one, other in combinations(files, 2):
        _check_apart(one, other)
    for name in inputs:
        for path in _read_through(Path(name)):
            for output in files:
                _check_input(output, path)


def state_folder(out: Path) -> Path:
    """Where an unfinished run for the checkpoint `out` keeps its state: beside it, as `OUT.resume`."""
    return out.parent / f"{out.name}.resume"


def is_taken(path: Path) -> bool:
    """Say whether something is there that an output would replace; an empty folder is nothing."""
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() and not is_device(path)


def _check_name(output: Output) -> None:
    option, path = output.option, output.path
    if path.name in ("", ".."):
        raise UsageError(f"{option} {path}: an output has a name of its own; write to {path}/NAME")
    if str(path) == STDOUT:
        raise UsageError(f"{option} -: only records go to stdout; name a {'folder' if output.folder else 'file'}")
    fits = path.name.lower().endswith(output.endings) or (output.plain and not path.suffix)
    if is_device(path) or not output.endings or fits:
        return
    named = " or ".join(filter(None, (", ".join(output.endings[:-1]), output.endings[-1])))
    raise UsageError(f"{option} {path}: the name of such a file ends in {named}")


def _check_place(output: Output, force: bool) -> None:
    path, folder = output.path, output.path.absolute().parent
    if is_device(path):
        if output.folder:
            raise UsageError(f"{path} is no folder; choose another path")
        return
    if path.is_dir() and not output.folder:
        raise UsageError(f"{path} is a folder; name a file to write")
    if path.exists() and output.folder and not path.is_dir():
        raise UsageError(f"{path} is a file; name a folder to write")
    if is_taken(path) and not output.resumed:
        if not force:
            raise UsageError(f"{path} exists; overwrite it with --force, or choose another path")
        if output.folder and (reason := foreign(path)):
            raise UsageError(f"{path} {reason}, so that --force does not replace it; choose another path")
    place = path.resolve().parent
    if not place.is_dir():
        raise UsageError(f"{path}: no folder {folder if not folder.is_dir() else place}; make it first")
    if not os.access(place, os.W_OK | os.X_OK):
        number = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number, os.strerror(number), str(path))
    check_name(path)


def _check_apart(one: Output, other: Output) -> None:
    for outer, inner in ((one, other), (other, one)):
        if _same(outer.path, inner.path):
            raise UsageError(f"{inner.path} is both {outer.option} and {inner.option}; give each a path of its own")
        if outer.folder and _inside(inner.path, outer.path):
            raise UsageError(f"{inner.option} {inner.path} lies in {outer.path}, which is written whole; move it out")


def _check_input(output: Output, path: Path) -> None:
    if _same(output.path, path):
        raise UsageError(f"{output.path} is an input; write to another path")
    if output.folder and _inside(path, output.path):
        raise UsageError(f"{output.path} holds the input {path}, which would be removed; write to another path")
    if not path.is_dir() or not _inside(output.path, path):
        return
    if output.folder:
        raise UsageError(f"{output.path} lies in the input {path}; write to another path")
    if is_checkpoint_file(output.path.name) or output.path.exists():
        raise UsageError(f"{output.path} lies in the input {path}, as what is read there does; give it another name")


def _read_through(path: Path) -> Iterator[Path]:
    """Yield an input that is here, and what a folder links to, which is read through it."""
    if str(path) == STDOUT or not path.exists() or is_device(path):
        return
    yield path
    if path.is_dir():
        yield from (entry for entry in path.iterdir() if entry.is_symlink() and entry.exists())


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are one name, by whatever links; hard links are two, of which one can be replaced."""
    one, other = one.resolve(), other.resolve()
    if one == other:
        return True
    if not (one.exists() and other.exists() and one.samefile(other)):
        return False
    return one.is_dir() or (one.name.casefold() == other.name.casefold() and one.parent.samefile(other.parent))


def _inside(inner: Path, outer: Path) -> bool:
    """Whether a path lies in a folder, at whatever depth."""
    return any(_same(parent, outer) for parent in inner.resolve().parents)
