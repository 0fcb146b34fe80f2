"""Help is plain, complete and in one order; mistyped words bring suggestions."""

import subprocess
import sys

import pytest

from conftest import COMMANDS, Cli
from mltools.cli.reference import EXIT_STATUS, GROUPS, Command
from mltools.cli.registry import HEADINGS, headed_commands
from mltools.spec import flatten

CASES = list(COMMANDS.values())
NAMES = [command.name for command in CASES]
HEAVY = {"torch", "numpy", "polars", "typer", "rich", "tempfile", "ssl", "mltools.io.kinds", "mltools.io.source"}


def test_every_command_has_its_heading() -> None:
    listed = [name for names in headed_commands().values() for name in names]
    assert sorted(listed) == sorted(COMMANDS) and all(command.spec.heading in HEADINGS for command in CASES)


def test_program_help(cli: Cli) -> None:
    plain, short, long, word = cli(), cli("-h"), cli("--help"), cli("help")
    assert plain.out == short.out == long.out == word.out
    assert plain.code == 0 and not plain.err and "\x1b" not in plain.out
    for command in CASES:
        assert f"\n  {command.name} " in plain.out
    for status, meaning in EXIT_STATUS:
        assert f"\n  {status:<12}{meaning}" in plain.out
    assert max(map(len, plain.out.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_command_help(cli: Cli, name: str) -> None:
    """-h, --help (before other words, right or wrong) and `help COMMAND` are one plain text."""
    short, long, word = cli(name, "-h"), cli(name, "--help", "more", "words"), cli("help", name)
    assert short.out == long.out == word.out and (short.code, short.err) == (0, "")
    command = COMMANDS[name]
    assert short.out.startswith(f"Usage: mltools {name} [OPTIONS]")
    text = short.out.partition("Examples:")[0]
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in short.out
    for parameter in command.parameters:
        assert " ".join(parameter.help.split()) in " ".join(text.split())


@pytest.mark.parametrize("command", CASES, ids=NAMES)
def test_texts(command: Command) -> None:
    first = command.summary.split()[0]
    assert command.summary.endswith(".") and len(command.summary) < 80
    assert first[0].isupper() and not first.endswith("s")  # imperative
    assert len(command.spec.examples) >= 2 and all("mltools" in example for example in command.spec.examples)
    assert all(parameter.help.endswith((".", "]")) for parameter in command.parameters)
    assert all(option.flags for option in command.options)
    assert len(command.paragraphs) >= 2 or command.name == "help"


def test_common_options_stand_in_one_order() -> None:
    """Two commands show the options that they share in the same order, under the same headings."""
    for command in CASES:
        shown = [(heading, option.flags[0]) for heading, options in command.groups() for option in options]
        common = [flag for heading, flag in shown if flag in GROUPS[heading]]
        assert common == [flag for flags in GROUPS.values() for flag in flags if flag in common]
        assert [flag for flag in shown if flag[1] == "-q"] == [("Messages", "-q")]


def test_options_mean_the_same_everywhere() -> None:
    """A flag of the common groups has one help text and one metavar, but for a few."""
    texts: dict[str, set[tuple[str, str]]] = {}
    for command in CASES:
        for option in command.options:
            if any(option.flags[0] in flags for flags in GROUPS.values()):
                texts.setdefault(option.flags[0], set()).add((option.metavar, option.help))
    assert {flag for flag, found in texts.items() if len(found) > 1} <= {
        *("-o", "--batch-size", "--by", "--classes", "--layers", "--per-row", "--precision", "--resume")
    }


@pytest.mark.parametrize("command", CASES, ids=NAMES)
def test_defaults_in_help_are_those_of_the_settings(command: Command) -> None:
    """Where a default is written by hand (`default=`), it is the field's own in other words."""
    for each in flatten(command.spec.settings):
        said = each.help.partition("[default: ")[2].removesuffix("]")
        if said and isinstance(each.default, int | float) and not isinstance(each.default, bool):
            assert type(each.default)(said) == each.default, (each.flag, said, each.default)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("swpa",), "mltools: No such command 'swpa'. Did you mean 'swap'? (see mltools --help)\n"),
        (("swap", "--layer", "2"), "mltools: No such option: --layer (Possible options: --classes, --label, --layers"),
        (("help", "prob"), "did you mean probe?\n"),
        (("schema", "windw"), "did you mean window?\n"),
        (("swap", "a", "b", "--preset", "papers"), "choose paper or released-code; did you mean paper?\n"),
    ],
)
def test_suggestions(cli: Cli, words: tuple[str, ...], message: str) -> None:
    done = cli(*words)
    assert done.code == 2 and message in done.err and not done.out and done.err.count("\n") == 1


def test_version(cli: Cli) -> None:
    from mltools import __version__

    assert cli("--version").out == f"mltools {__version__}\n"


def test_help_loads_no_more_than_declarations() -> None:
    """The list of commands costs the start of Python and little else; each of these costs as much again."""
    watch = "import sys; from mltools.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", watch], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "mltools.options" in loaded and not loaded & HEAVY
