"""Writing never leaves half a file, whatever happens."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltools.errors import UsageError
from mltools.io.atomic import atomic_file, atomic_folder, check_output

WRITER = """
import signal, sys, time
from pathlib import Path
from mltools.io.atomic import atomic_{kind}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start background jobs with it ignored
with atomic_{kind}(Path(sys.argv[1])) as temporary:
    target = temporary / "part" if "{kind}" == "folder" else temporary
    target.write_text("half of the new")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def interrupt(path: Path, kind: str, number: int) -> None:
    """Start writing in another process, and stop it with a signal in the middle."""
    words = [sys.executable, "-c", WRITER.format(kind=kind), str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(number)
        process.wait(30)


def test_success_replaces_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), names(tmp_path)) == ("new", ["file"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failure_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise error
    assert (path.read_text(), names(tmp_path)) == ("old", ["file"])


def test_mode_is_the_umasks(tmp_path: Path, umask: int) -> None:
    with atomic_file(tmp_path / "file") as temporary:
        temporary.touch(0o600)
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "file").touch(0o600)
    assert mode(tmp_path / "file") == 0o666 & ~umask
    assert mode(tmp_path / "folder" / "inner" / "file") == 0o666 & ~umask
    assert mode(tmp_path / "folder") == mode(tmp_path / "folder" / "inner") == 0o777 & ~umask


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_kill_leaves_the_old_and_the_next_writer_tidies(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing[1]*"
    if kind == "folder":
        path.mkdir()
        (path / "part").write_text("old")
    else:
        path.write_text("old")
    interrupt(path, kind, signal.SIGKILL)
    assert (path / "part" if kind == "folder" else path).read_text() == "old"
    assert len(names(tmp_path)) == 2
    if kind == "folder":
        with atomic_folder(path) as temporary:
            (temporary / "part").write_text("new")
    else:
        with atomic_file(path) as temporary:
            temporary.write_text("new")
    assert (path / "part" if kind == "folder" else path).read_text() == "new"
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_interrupt_leaves_nothing(tmp_path: Path, kind: str) -> None:
    interrupt(tmp_path / "thing", kind, signal.SIGINT)
    assert names(tmp_path) == []


def test_a_living_writer_is_let_alone(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "file") as mine:
        mine.write_text("mine")
        other = mine.with_name(f"{mine.name.rpartition('-')[0]}-{os.getppid()}")
        other.write_text("theirs")
        with atomic_file(tmp_path / "file") as again:
            assert again == mine
            again.write_text("again")
        assert other.exists()
        mine.write_text("mine")
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for content in ("old", "new"):
        with atomic_folder(path) as temporary:
            (temporary / content).write_text(content)
    assert (names(path), names(tmp_path)) == (["new"], ["folder"])


def test_folder_killed_between_the_two_renames_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with atomic_folder(path) as temporary:
        (temporary / "file").write_text("old")
        marker = temporary.name.replace(".tmp-", ".old-").rpartition("-")[0]
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    path.rename(tmp_path / f"{marker}-{process.pid}")
    with pytest.raises(ValueError, match="stop"), atomic_folder(path):
        raise ValueError("stop")
    assert (path / "file").read_text() == "old"
    assert names(tmp_path) == ["folder"]


def test_link_keeps_pointing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to("real/file")
    with atomic_file(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"
    (tmp_path / "folder").symlink_to("real")
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "other").write_text("new")
    assert (tmp_path / "folder").is_symlink()
    assert names(tmp_path / "real") == ["other"]
    assert names(tmp_path) == ["folder", "link", "real"]


def test_devices_are_written_directly() -> None:
    with atomic_file(Path("/dev/null")) as path:
        assert path == Path("/dev/null")
    check_output(Path("/dev/null"), force=False)


def test_what_check_output_refuses(tmp_path: Path) -> None:
    file = tmp_path / "file"
    check_output(file, force=False)
    file.touch()
    check_output(file, force=True, file=True)
    with pytest.raises(UsageError, match="exists; overwrite it with --force"):
        check_output(file, force=False)
    with pytest.raises(UsageError, match="is an input"):
        check_output(tmp_path / ".." / tmp_path.name / "file", force=True, inputs=(file,))
    with pytest.raises(UsageError, match="none; make it first"):
        check_output(tmp_path / "none" / "file", force=True)
    with pytest.raises(UsageError, match="is a folder; name a file"):
        check_output(tmp_path, force=True, file=True)
