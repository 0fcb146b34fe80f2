"""What every command keeps, read off its declaration: each check takes all commands that have what it needs.

A new command needs an entry in cases.py, and is checked.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

from cases import CASES, line, without_out
from conftest import COMMANDS, Cli, Result, Shell
from forkserver import Process
from mltools.cli.registry import command_names
from mltools.io.groups import GROUPING
from mltools.io.kinds import record_kinds
from mltools.schemas import schema, schema_names
from mltools.spec import Field, Flag, flatten

Tiny = Callable[..., Path]
ROOT = Path(__file__).parents[1]
GENERATOR = ROOT / "scripts/gen.py"
COMPLETION = ROOT / "completions/mltools.bash"
"""What `completion bash` prints, as test_completion.py sees to."""
SPECS = {name: command.spec for name, command in COMMANDS.items()}
FIELDS: dict[str, dict[str, Field]] = {
    name: {each.name: each for each in flatten(spec.settings)} for name, spec in SPECS.items()
}
SILENT_ON_COMMANDS = (".jsonl", ".svg", ".png", ".html")
"""Forms that have no place for provenance; --provenance writes it beside them."""


def flag_of(each: Field) -> Flag | None:
    return each.mark if isinstance(each.mark, Flag) else None


def outputs_of(name: str) -> list[tuple[str, str]]:
    """Each output option of a command, with an ending that its file may have."""
    found = []
    for each in FIELDS[name].values():
        mark = flag_of(each)
        if mark is not None and mark.writes is not None:
            endings = mark.writes.endings
            found.append((mark.names[-1], "" if mark.writes.folder else endings[0] if endings else ".jsonl"))
    return found + ([("-o", "")] if SPECS[name].outputs is not None else [])


def having(*names: str) -> list[str]:
    """Name the commands that have all these settings."""
    return [name for name in command_names() if all(each in FIELDS[name] for each in names)]


def tables() -> list[str]:
    """Name the commands whose -o is the same rows or records as stdout, in JSONL or Parquet."""
    marks = {name: flag_of(FIELDS[name]["out"]) for name in having("out")}
    return [n for n, m in marks.items() if m and m.writes and {".jsonl", ".parquet"} <= {*m.writes.endings}]


RECORDS = having("tag")
OUTPUTS = [(name, option, ending) for name in command_names() for option, ending in outputs_of(name)]
FILES = [(name, words) for name, case in CASES.items() for words in case.files]


WHOLE: dict[str, Result] = {}


@pytest.fixture
def whole(cli: Cli, place: Path) -> Callable[[str], Result]:
    """What a command's line gives, run once for all checks."""

    def run(name: str) -> Result:
        if name not in WHOLE:
            WHOLE[name] = cli(*line(name, "whole"))
            assert WHOLE[name].code == 0, WHOLE[name].err
            assert bool(WHOLE[name].out) is not CASES[name].quiet
        return WHOLE[name]

    return run


@pytest.fixture(scope="module")
def man_page() -> Callable[[str], str]:
    """What scripts/gen.py makes of a command."""
    spec = importlib.util.spec_from_file_location("gen", GENERATOR)
    assert spec is not None and spec.loader is not None
    gen = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gen)
    return lambda name: "\n".join(gen.man_page(COMMANDS[name]))


def content(path: Path) -> dict[str, bytes]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def test_every_command_has_a_case() -> None:
    assert CASES.keys() == {*command_names()} == COMMANDS.keys()


# -- what is said of it -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", COMMANDS)
def test_help_man_page_and_completions_have_the_same_options(
    name: str, cli: Cli, man_page: Callable[[str], str]
) -> None:
    declared = {flag for option in COMMANDS[name].options for flag in option.flags}
    text = cli("help", name).out.partition("\n\nExamples:")[0]
    shown = re.findall(r"^  (-[^\s,]+)(?:, (--\S+))?", text, re.MULTILINE)
    assert {flag for pair in shown for flag in pair if flag} == declared
    page = man_page(name).replace(r"\-", "-").partition(".SH EXAMPLES")[0]
    titles = re.findall(r"^\.TP\n(\\fB-.*)$", page, re.MULTILINE)
    assert {flag for title in titles for flag in re.findall(r"\\fB(-.*?)\\fR", title)} == declared
    script = COMPLETION.read_text().partition(f"\n    {name})\n")[2].partition(";;\n    esac\n")[0]
    words = re.search(r'\$cur == -\* \]\] && words="([^"]*)"', script)
    assert words is not None and {*words[1].split()} == {each for flag in declared for each in flag.split("/")}


# -- what it writes -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted({*COMMANDS} - {*tables()}))
def test_same_line_same_bytes(name: str, cli: Cli, place: Path, whole: Callable[[str], Result]) -> None:
    """Of the commands that print no table; the next checks run those again."""
    second = cli(*line(name, "again"))
    assert second.code == 0 and second.out == whole(name).out


@pytest.mark.parametrize(("name", "words"), FILES)
def test_same_bytes_and_the_command_that_makes_them_again(name: str, words: str, cli: Cli, place: Path) -> None:
    """The line in the provenance, or where there is none the same line, gives the same bytes under another name."""
    out = re.search(r"OUT\S*", words)
    assert out is not None
    written, other = (out[0].replace("OUT", made) for made in ("made-1", "made-2"))
    command = [*without_out(name), *shlex.split(words.replace(out[0], written))]
    first = cli(*command)
    assert first.code == 0, first.err
    printed = cli("inspect", written, "--command")
    if written.endswith(SILENT_ON_COMMANDS):
        assert (printed.code, printed.out) == (2, "")
    else:
        assert printed.code == 0 and printed.out.startswith(f"mltools {name} "), printed.err
        command = shlex.split(printed.out)[1:]
        assert written in command and not {"-q", "--force"} & {*command}
    second = cli(*(other if word == written else word for word in command))
    assert (second.code, second.out) == (0, first.out), second.err
    assert content(place / other) == content(place / written) != {}


@pytest.mark.parametrize("name", tables())
def test_file_and_parquet_hold_what_stdout_does(
    name: str, cli: Cli, place: Path, whole: Callable[[str], Result]
) -> None:
    """In JSONL to the byte, by the line that the Parquet file says it was made by."""
    expected, words = whole(name), [*without_out(name), "-o", "out.parquet"]
    done = cli(*words)
    assert (done.code, done.out) == (0, ""), done.err
    rows = pl.read_parquet(place / "out.parquet").to_dicts()
    if name == "inspect":  # a frame has all keys of an object in every row, and the command no provenance
        assert [row.keys() for row in rows] == [record.keys() for record in expected.records]
    else:
        assert rows == expected.records
        printed = cli("inspect", "out.parquet", "--command")
        assert printed.code == 0 and printed.out.startswith(f"mltools {name} "), printed.err
        words = shlex.split(printed.out)[1:]
    again = cli(*("out.jsonl" if word == "out.parquet" else word for word in words))
    assert (again.code, again.out) == (0, ""), again.err
    assert (place / "out.jsonl").read_text() == expected.out


@pytest.mark.parametrize("name", RECORDS)
def test_tags_are_in_every_record(name: str, cli: Cli, place: Path, whole: Callable[[str], Result]) -> None:
    tagged = cli(*line(name, "tagged", "--tag", "colour=red", "--tag", "count=1"))
    assert tagged.code == 0, tagged.err
    expected = [{**record, "colour": "red", "count": 1} for record in whole(name).records]
    assert tagged.records == expected and expected


def kinds_of(name: str, record: dict[str, Any]) -> set[str]:
    """The declared kinds that a record is of: as the schema says, and no column besides."""
    groups = GROUPING if "records" in {each.mark.opens for each in FIELDS[name].values()} else frozenset()
    found = set()
    for kind, made in SPECS[name].written.items():
        columns = {each.name for each in fields(made)}
        if columns <= record.keys() <= columns | groups and jsonschema.Draft202012Validator(schema(kind)).is_valid(
            record
        ):
            found.add(kind)
    return found


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.written])
def test_records_are_of_the_kinds_declared(name: str, cli: Cli, place: Path, whole: Callable[[str], Result]) -> None:
    """Each record is of a kind that the command declares, and each kind that it declares is written."""
    records = [*whole(name).records]
    for number, words in enumerate(CASES[name].more):
        per_row = ["--per-row", f"rows-{number}.jsonl"] if "--merge" in words else []
        done = cli(name, *shlex.split(f"{words} {CASES[name].needs.replace('OUT', f'more-{number}')}"), *per_row)
        assert done.code == 0, done.err
        records += done.records
        if per_row:
            records += [json.loads(each) for each in (place / per_row[1]).read_text().splitlines()]
    if "dry_run" in FIELDS[name]:
        records += cli(*line(name, "planned", "--dry-run")).records
    found = [kinds_of(name, record) for record in records]
    unknown = [record for record, kinds in zip(records, found, strict=True) if not kinds]
    assert not unknown, unknown[0]
    assert set().union(*found) == {*SPECS[name].written}


def test_every_kind_is_some_commands() -> None:
    declared = {kind for spec in SPECS.values() for kind in spec.written}
    assert declared == {*record_kinds()} == {*schema_names()} - {"rows", "provenance"}


@pytest.mark.parametrize("name", ["perturb", "prepare"])
def test_rows_are_as_their_schema_says(name: str, whole: Callable[[str], Result]) -> None:
    for row in whole(name).records:
        jsonschema.validate(row, schema("rows"))


@pytest.mark.parametrize("name", having("provenance"))
def test_provenance_is_as_its_schema_says(name: str, cli: Cli, place: Path) -> None:
    """It names the command, every setting that steers, and each input with its digest."""
    done = cli(*line(name, "out", "--provenance", "how.json"))
    assert done.code == 0, done.err
    found = json.loads((place / "how.json").read_text())
    jsonschema.validate(found, schema("provenance"))
    assert (found["tool"], found["command"][:2]) == (name, ["mltools", name])
    assert found["settings"].keys() == {each.name for each in FIELDS[name].values() if each.mark.steers}
    assert found["inputs"] and ("threads" in found) is ("libraries" in found)


# -- work in parts ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", having("dry_run"))
def test_items_are_as_many_as_promised(name: str, cli: Cli, place: Path, whole: Callable[[str], Result]) -> None:
    """A window, a half split and a probe's target are an item each; all else is one. Nothing is written."""
    planned = cli(*line(name, "planned", "-n"))
    assert planned.code == 0 and not (place / "planned").exists(), planned.err
    items = [item["item"] for item in planned.records]
    assert len({*items}) == len(items) and {item["tool"] for item in planned.records} == {name}
    by = {"layers": "window", "runs": "split", "targets": "target"}
    column = next((column for setting, column in by.items() if setting in FIELDS[name]), None)
    promised = {record[column] for record in whole(name).records} if column else {None}
    assert len(items) == len(promised)


@pytest.mark.parametrize("name", [n for n in having("resume") if FIELDS[n]["resume"].mark.opens == "records"])
def test_half_and_the_rest_are_the_whole(name: str, cli: Cli, place: Path, whole: Callable[[str], Result]) -> None:
    lines = whole(name).out.splitlines(keepends=True)
    half = len(lines) // 2
    (place / "half.jsonl").write_text("".join(lines[:half]))
    rest = cli(*line(name, "rest", "--resume", "half.jsonl"))
    assert rest.code == 0 and 0 < half < len(lines), rest.err
    found = sorted([*lines[:half], *rest.out.splitlines(keepends=True)])
    assert found == sorted(lines)


# -- what it refuses ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "option", "ending"), OUTPUTS)
def test_an_output_that_exists_is_kept(name: str, option: str, ending: str, cli: Cli, place: Path) -> None:
    """Without --force the status is 2, before any work."""
    there = place / f"there{ending}"
    if ending:
        there.write_bytes(b"mine")
    else:
        there.mkdir()
        (there / "mine").write_bytes(b"mine")
    before = content(there)
    done = cli(*(line(name, "out") if option == "--provenance" else without_out(name, option)), option, there)
    assert (done.code, done.out) == (2, "") and "exists" in done.err, done.err
    assert content(there) == before


def input_files(name: str, option: str = "") -> Iterator[tuple[str, str]]:
    """The files that a command's lines read: (line, word), in the folder of inputs."""
    case = CASES[name]
    for words in [case.instead[option]] if option in case.instead else [case.line, *case.more]:
        yield from ((words, word) for word in shlex.split(words) if Path(word).suffix in (".jsonl", ".safetensors"))


@pytest.mark.parametrize(("name", "option", "ending"), OUTPUTS)
def test_an_output_is_no_input(name: str, option: str, ending: str, cli: Cli, place: Path) -> None:
    """Not even with --force, whichever of its inputs it is; an output folder does not hold one either."""
    for number, (words, word) in enumerate(input_files(name, option)):
        folder = place / str(number)
        folder.mkdir()
        own = Path(shutil.copy(place / word, folder / f"own{ending}"))
        before = own.read_bytes()
        given = [str(own) if each == word else each for each in shlex.split(words)]
        needed = CASES[name].needs.replace("OUT", f"o{number}") if option == "--provenance" else ""
        done = cli(name, *given, *shlex.split(needed), option, own if ending else folder, "--force")
        assert (done.code, done.out, own.read_bytes()) == (2, "", before), done.err
        assert "is an input" in done.err or not ending, done.err  # a folder that holds rows is no checkpoint either


def reads(name: str) -> bool:
    return any(each.mark.opens in ("rows", "source", "records", "states") for each in FIELDS[name].values())


@pytest.mark.parametrize("name", [name for name in command_names() if reads(name)])
def test_bad_rows_are_named(name: str, cli: Cli, place: Path) -> None:
    """Each file of rows, records or states that is none gives status 3, in one line that names the file."""
    for number, (words, word) in enumerate(input_files(name)):
        bad = place / f"bad{Path(word).suffix}"
        bad.write_text('{"text": "who"\n')
        given = [str(bad) if each == word else each for each in shlex.split(words)]
        done = cli(name, *given, *shlex.split(CASES[name].needs.replace("OUT", f"out-{number}")))
        assert (done.code, done.out) == (3, ""), (given, done.err)
        assert bad.name in done.err.splitlines()[-1]


@pytest.mark.parametrize("name", COMMANDS)
def test_b45_a_reader_that_is_gone_is_no_failure(name: str, shell: Shell, place: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Path(os.devnull).open() as stdin, (place / "stderr").open("wb") as stderr:
        process = Process(
            Path(shell.program).parent / "socket", line(name, "out"), place, [stdin.fileno(), writer, stderr.fileno()]
        )
        os.close(writer)
        assert process.wait() == 0, (place / "stderr").read_text()
