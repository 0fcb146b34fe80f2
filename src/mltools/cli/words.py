"""Command lines as most people write them, read without typer, whose import is most of a quick command's time.

What is plain is read here and nowhere else decided: a word that is not understood at once, or that is wrong, is left to
typer (`mltools.cli.program`), which reads the whole line again and says what is wrong in its own words.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from mltools import console
from mltools.cli.registry import command_names, command_spec
from mltools.io.endings import FIGURES, PAGES
from mltools.options import MessageOptions, Shown
from mltools.spec import Field, Flag, flatten, one_of

HELP_FLAGS = ("-h", "--help")
NUMBERS: Mapping[Any, re.Pattern[str]] = {
    int: re.compile(r"[+-]?[0-9]{1,18}"),
    float: re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"),
}


class NotPlainError(Exception):
    """The words are for typer to read."""


def read_words(words: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Give the command and what was given for it, by its settings' own names and `help`; None for lines left to typer.

    Args:
        words: the arguments of the program, without its name.
    """
    if not words or words[0] not in command_names():
        return None
    fields = [*(each for each in flatten(command_spec(words[0]).settings) if not each.hidden), *flatten(MessageOptions)]
    try:
        given = _read(fields, words[1:])
    except NotPlainError:
        return None
    return words[0], given


def say_opening(name: str, given: Mapping[str, Any]) -> None:
    """Tell who waits at a terminal what is being opened, before what takes time is so much as imported."""
    if given.get("quiet") or not console.terminal():
        return
    fields = list(flatten(command_spec(name).settings))
    inputs = [each for each in fields if each.mark.opens and given.get(each.name)]
    values = (given[each.name] for each in inputs if not isinstance(each.mark, Flag))
    names = [word for value in values for word in ([value] if isinstance(value, str) else value)]
    if names and _takes_long(fields, inputs, names, given):
        console.log(f"{name}: opening {', '.join(names)}")


def _takes_long(
    fields: Sequence[Field], inputs: Sequence[Field], names: Sequence[str], given: Mapping[str, Any]
) -> bool:
    """Whether a command is one of the long ones, opens a checkpoint or folder of rows, or draws."""
    opens_models = any(each.mark.opens in ("checkpoint", "states") for each in inputs)
    return (
        any(each.name == "dry_run" or each.mark.opens == "states" for each in fields)
        or opens_models
        or any(map(os.path.isdir, names))
        or str(given.get("out")).lower().endswith((*FIGURES, *PAGES))
    )


def apply_messages(given: dict[str, Any]) -> dict[str, Any]:
    """Set how much is said, as MessageOptions ask among what was given; give the rest, without what is not set."""
    if verbosity := -1 if given.get("quiet") else given.get("verbose"):
        console.configure(verbosity=verbosity)
    if given.get("no_color"):
        console.configure(color=False)
    if given.get("progress") is not None:
        console.configure(progress=one_of("--progress", given["progress"], get_args(Shown)))
    aside = {"help", *(each.name for each in flatten(MessageOptions))}
    return {name: value for name, value in given.items() if name not in aside and value not in (None, [])}


def typed(each: Field) -> Any:
    """Give the type that a word is turned into before its field reads it: a number, a switch, or text."""
    if each.repeats:
        return int if int in get_args(each.scalar) else str
    parsed = isinstance(each.mark, Flag) and each.mark.parse is not None
    return each.scalar if each.scalar in (int, float, bool) and not parsed else str


def _read(fields: Sequence[Field], words: Sequence[str]) -> dict[str, Any]:
    flags = {name: each for each in fields if isinstance(each.mark, Flag) for name in each.mark.names}
    given: dict[str, Any] = {}
    operands: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            operands += rest
        elif word in HELP_FLAGS:
            given["help"] = True
        elif word == "-" or not word.startswith("-"):
            operands.append(word)
        else:
            _option(flags, given, word, rest)
    if "help" in given:
        return given
    given |= _operands([each for each in fields if not isinstance(each.mark, Flag)], operands)
    return given


def _option(flags: Mapping[str, Field], given: dict[str, Any], word: str, rest: Iterator[str]) -> None:
    """Read an option, and its value from the same or the next word."""
    name, equals, value = word.partition("=")
    each = flags.get(name)
    if each is None or (equals and not name.startswith("--")):
        raise NotPlainError
    if each.is_switch or getattr(each.mark, "counts", False):
        if equals:
            raise NotPlainError
        given[each.name] = True if each.is_switch else given.get(each.name, 0) + 1
        return
    value = value if equals else next(rest, "")
    if each.repeats:
        given.setdefault(each.name, []).append(_value(each, value))
    else:
        given[each.name] = _value(each, value)


def _operands(fields: Sequence[Field], words: list[str]) -> dict[str, Any]:
    """Hand the words to the operands: one each, what is left over to the one that takes many."""
    many = next((place for place, each in enumerate(fields) if each.repeats), len(fields))
    after = len(fields) - many - 1 if many < len(fields) else 0
    required = sum(each.required for each in fields)
    if len(words) < max(required, len(fields) - 1 if after else 0) or (many == len(fields) and len(words) > many):
        raise NotPlainError
    given = {each.name: _value(each, word) for each, word in zip(fields[:many], words, strict=False)}
    if many < len(fields):
        end = len(words) - after
        if left := words[many:end]:
            given[fields[many].name] = [_value(fields[many], word) for word in left]
        given |= {each.name: _value(each, word) for each, word in zip(fields[many + 1 :], words[end:], strict=True)}
    return given


def _value(each: Field, word: str) -> Any:
    kind = typed(each)
    if not word or (word.startswith("-") and word != "-"):  # what a missing value, or a negative number, looks like
        raise NotPlainError
    if kind is str:
        return word
    if not NUMBERS[kind].fullmatch(word):
        raise NotPlainError
    return kind(word)
