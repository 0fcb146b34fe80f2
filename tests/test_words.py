"""Plain command lines are read without typer, and just as typer reads them."""

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltools.cli import driver, main
from mltools.cli.program import run_typer
from mltools.cli.registry import command_names, command_spec
from mltools.cli.words import apply_messages, read_words
from mltools.errors import UsageError
from mltools.options import MessageOptions
from mltools.spec import Flag, flatten

ODD_WORDS = [
    "-",
    "--",
    "-1",
    "",
    "a=b",
    "--=",
    "-qv",
    "-ofile",
    "1e3",
    "0x1",
    "1_000",
    "--help",
    "-h",
    "--nonsense",
    "é",
]


def typers(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]] | None:
    """What typer makes of the words; None if it refuses them or prints help."""
    seen: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(driver, "run_command", lambda name, given: seen.append((name, given)))
    try:
        run_typer(words)
    except UsageError:
        return None
    return seen[0] if seen else None


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(command_names()))
    fields = [*(each for each in flatten(command_spec(name).settings) if not each.hidden), *flatten(MessageOptions)]
    flags = [flag for each in fields if isinstance(each.mark, Flag) for flag in each.mark.names]
    values = st.one_of(st.sampled_from(ODD_WORDS), st.from_regex(r"[a-z]{1,3}|[0-9]{1,2}(\.[0-9])?", fullmatch=True))
    options = st.one_of(
        st.sampled_from(flags).map(lambda flag: [flag]), st.tuples(st.sampled_from(flags), values).map(list)
    )
    joined = st.tuples(st.sampled_from(flags), values).map("=".join).map(lambda word: [word])
    words = draw(st.lists(st.one_of(options, joined, values.map(lambda word: [word])), max_size=6))
    return [name, *(word for some in words for word in some)]


@settings(max_examples=120, deadline=None)
@given(lines())
def test_plain_lines_are_read_as_typer_reads_them(words: list[str]) -> None:
    read = read_words(words)
    if read is None or "help" in read[1]:
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        theirs = typers(words, monkeypatch)
    assert theirs is not None, "typer refuses it"
    assert theirs[0] == read[0]
    unset: tuple[Any, ...] = (None, [], 0, False)
    assert {k: v for k, v in theirs[1].items() if v not in unset} == {
        k: v for k, v in read[1].items() if v not in unset
    }


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["windows", "12", "--width", "3"], {"layers": 12, "width": 3}),
        (["mcog", "a", "-", "--tag", "k=v", "--tag=l=w"], {"records": ["a", "-"], "tag": ["k=v", "l=w"]}),
        (["perturb", "--rate", "1e-1", "-q", "-v", "-v"], {"rate": "1e-1", "quiet": True, "verbose": 2}),
    ],
)
def test_usual_lines_need_no_typer(words: list[str], given: dict[str, Any]) -> None:
    read = read_words(words)
    assert read is not None
    assert {k: str(v) if k == "rate" else v for k, v in read[1].items()} == given | (
        {"rate": "0.1"} if "rate" in given else {}
    )


def test_what_is_wrong_is_left_to_typer() -> None:
    for words in (
        [],
        ["nope"],
        ["windows"],
        ["windows", "x"],
        ["windows", "3", "--width"],
        ["windows", "3", "--wide", "2"],
    ):
        assert read_words(words) is None


def test_messages_are_set_and_left_out() -> None:
    assert apply_messages({"quiet": True, "debug": True, "layers": 3, "width": None}) == {"layers": 3}


def test_quick_commands_load_no_typer(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "typer" or name == "mltools.cli.program"]:
        monkeypatch.delitem(sys.modules, name)
    for words in (["--help"], ["swap", "--help"], ["windows", "3", "--width", "2"]):
        assert main(words) == 0
        assert "typer" not in sys.modules
    assert "1-2\n2-3\n" in capfd.readouterr().out
