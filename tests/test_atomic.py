"""Writing never leaves half a file, whatever happens."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mltools.errors import UsageError
from mltools.io.atomic import atomic_file, atomic_folder
from mltools.io.endings import PARQUET, RECORDS
from mltools.io.outputs import Output, check_outputs

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
    with atomic_file(path, replace=True) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), names(tmp_path)) == ("new", ["file"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failure_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), atomic_file(path, replace=True) as temporary:
        temporary.write_text("half")
        raise error
    assert (path.read_text(), names(tmp_path)) == ("old", ["file"])


def test_mode_is_the_umasks(tmp_path: Path, umask: int) -> None:
    with atomic_file(tmp_path / "file") as temporary:
        temporary.touch(0o600)
    with atomic_folder(tmp_path / "folder", replace=True) as temporary:
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
        with atomic_folder(path, replace=True) as temporary:
            (temporary / "part").write_text("new")
    else:
        with atomic_file(path, replace=True) as temporary:
            temporary.write_text("new")
    assert (path / "part" if kind == "folder" else path).read_text() == "new"
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_interrupt_leaves_nothing(tmp_path: Path, kind: str) -> None:
    interrupt(tmp_path / "thing", kind, signal.SIGINT)
    assert names(tmp_path) == []


def test_a_living_writer_is_let_alone(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "file", replace=True) as mine:
        mine.write_text("mine")
        other = mine.with_name(f"{mine.name.rpartition('-')[0]}-{os.getppid()}")
        other.write_text("theirs")
        with atomic_file(tmp_path / "file", replace=True) as again:
            assert again == mine
            again.write_text("again")
        assert other.exists()
        mine.write_text("mine")
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for content in ("old", "new"):
        with atomic_folder(path, replace=True) as temporary:
            (temporary / content).write_text(content)
    assert (names(path), names(tmp_path)) == (["new"], ["folder"])


def test_folder_killed_between_the_two_renames_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with atomic_folder(path, replace=True) as temporary:
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
    with atomic_file(tmp_path / "link", replace=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"
    (tmp_path / "folder").symlink_to("real")
    with atomic_folder(tmp_path / "folder", replace=True) as temporary:
        (temporary / "other").write_text("new")
    assert (tmp_path / "folder").is_symlink()
    assert names(tmp_path / "real") == ["other"]
    assert names(tmp_path) == ["folder", "link", "real"]


def test_devices_are_written_directly() -> None:
    with atomic_file(Path("/dev/null")) as path:
        assert path == Path("/dev/null")
    check_outputs([Output("-o", Path("/dev/null"))] * 2, [Path("/dev/null")], force=False)


def refused(*outputs: Output, inputs: Sequence[Path] = (), force: bool = True) -> str:
    with pytest.raises(UsageError) as caught:
        check_outputs(outputs, inputs, force=force)
    return str(caught.value)


def test_where_an_output_can_go(tmp_path: Path) -> None:
    file, none = Output("-o", tmp_path / "file"), tmp_path / "none"
    check_outputs([file], [], force=False)
    file.path.touch()
    check_outputs([file], [], force=True)
    assert "exists; overwrite it with --force" in refused(file, force=False)
    assert f"no folder {none}; make it first" in refused(Output("-o", none / "file"))
    assert "is a folder; name a file" in refused(Output("-o", tmp_path))
    assert "is a file; name a folder" in refused(Output("-o", file.path, folder=True))
    assert "File name too long" in refused(Output("-o", tmp_path / ("n" * 250)))
    assert "only records go to stdout" in refused(Output("--save", Path("-")))
    (tmp_path / "to nothing").symlink_to("nothing")
    check_outputs([Output("-o", tmp_path / "to nothing")], [], force=False)
    (tmp_path / "dangling").symlink_to(none / "file")
    assert "make it first" in refused(Output("-o", tmp_path / "dangling"))


def test_names_of_outputs(tmp_path: Path) -> None:
    for name in ("x", "x.jsonl", "x.NDJSON", "x.parquet", "x.csv", "x.jsonl.gz", "x.ndjson.zst"):
        check_outputs([Output("-o", tmp_path / name, RECORDS)], [], force=False)
    for name in ("x.tsv", "x.json", "x.jsonl.bz2", "x.csv.gz", "x.2024"):
        assert ".ndjson.zst, .csv or .parquet" in refused(Output("-o", tmp_path / name, RECORDS))
    assert "ends in .parquet" in refused(Output("--per-row", tmp_path / "x", PARQUET, plain=False))


def test_k7_no_output_is_holds_or_lies_in_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever name: links, relative paths, a folder's links."""
    model, blob = tmp_path / "model", tmp_path / "blobs" / "blob"
    model.mkdir()
    blob.parent.mkdir()
    blob.touch()
    (model / "rows.jsonl").touch()
    (model / "model.safetensors").symlink_to(blob)
    (tmp_path / "link").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    for name in (model, tmp_path / "link", Path("link"), Path("model/../model")):
        assert "holds the input" in refused(
            Output("-o", name, folder=True, resumed=True), inputs=[model / "rows.jsonl"]
        )
        assert "is an input" in refused(Output("-o", name, folder=True, resumed=True), inputs=[model])
        assert "lies in the input" in refused(Output("-o", name / "mixed", folder=True), inputs=[model])
        assert "is an input" in refused(Output("-o", model / "rows.jsonl"), inputs=[name / "rows.jsonl"])
        assert "lies in the input" in refused(Output("-o", model / "tokenizer.json"), inputs=[name])
        assert "lies in the input" in refused(Output("-o", name / "rows.jsonl"), inputs=[model])
        check_outputs([Output("-o", name / "swap.jsonl")], [model], force=False)
    assert "is an input" in refused(Output("-o", blob), inputs=[model])
    assert "holds the input" in refused(Output("-o", blob.parent, folder=True, resumed=True), inputs=[model])


def test_k7_one_name_for_two_outputs(tmp_path: Path) -> None:
    out, folder = Output("-o", tmp_path / "x"), Output("--write", tmp_path, folder=True, resumed=True)
    assert "is both -o and --provenance" in refused(out, Output("--provenance", tmp_path / "." / "x"))
    (tmp_path / "link").symlink_to("x")
    assert "is both" in refused(out, Output("--provenance", tmp_path / "link"))
    assert "-o" in refused(out, folder) and "lies in" in refused(folder, out)


def test_k7_files_of_others_are_never_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "memorised").mkdir(parents=True)
    output = Output("-o", out, folder=True)
    assert "no checkpoint that mltools wrote" in refused(output)
    for name in ("mltools.json", "config.json", "model.safetensors", "tokenizer.json", "memorised/mltools.json"):
        (out / name).touch()
    check_outputs([output], [], force=True)
    for name in ("notes.txt", "states.safetensors", "memorised/notes.txt"):
        (out / name).touch()
        assert "holds" in refused(output) and Path(name).name in refused(output)
        (out / name).unlink()
    (out / "config.json").unlink()
    (out / "config.json").mkdir()
    assert "holds config.json" in refused(output)


@pytest.mark.parametrize("links", [True, False])
def test_k7_what_came_meanwhile_is_not_replaced(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a file system without links; and what was made is kept, each time under another name."""
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EPERM, "no links")))
    kept: list[str] = []
    for text in ("first", "second", "third"):
        try:
            with atomic_file(tmp_path / "file") as file:
                file.write_text(text)
        except UsageError as error:
            kept.append(str(error).rpartition(" ")[2])
        try:
            with atomic_folder(tmp_path / "folder") as folder:
                (folder / text).touch()
        except UsageError as error:
            kept.append(str(error).rpartition(" ")[2])
    assert kept == [str(tmp_path / f"{name}.kept-{n}") for n in (1, 2) for name in ("file", "folder")]
    assert [Path(name).read_text() for name in (str(tmp_path / "file"), *kept[::2])] == ["first", "second", "third"]
    assert [names(Path(name)) for name in (str(tmp_path / "folder"), *kept[1::2])] == [["first"], ["second"], ["third"]]
    assert len(names(tmp_path)) == 6


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    check_outputs([Output("-o", tmp_path / "out", folder=True)], [], force=False)
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "file").touch()
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["file"]
