"""What a command is, declared once: settings whose fields are marked with their flags, and what goes with them.

A settings class is a frozen dataclass. A field is an operand, a flag, or a bundle: a settings class of its own that
several commands share. Bundles are fields and not base classes, since bases reorder operands in silence. Help, man
pages, completions, the command line and the checks are all read from here; nothing here imports the work.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mltools.errors import UsageError
from mltools.ranges import Range

if TYPE_CHECKING:
    from mltools.io.outputs import Output

S = TypeVar("S")
Parse = Callable[[str], Any]
"""Turns the word on the command line into a value; raises UsageError with what to write instead."""


Opens = Literal["", "rows", "source", "records", "states", "checkpoint"]
"""What a field names, as an input: rows read whole, rows that the work reads itself, records, states, a checkpoint."""


@dataclass(frozen=True)
class Writes:
    """What an output may be named: with one of these endings (none given: any), or `plain`, with none; or a folder."""

    endings: tuple[str, ...] = ()
    plain: bool = True
    folder: bool = False


@dataclass(frozen=True)
class Operand:
    """Marks a field that is given by position."""

    metavar: str
    help: str
    choices: tuple[str, ...] | Callable[[], Sequence[str]] = ()
    opens: Opens = ""
    steers: bool = False
    neutral: bool = False


@dataclass(frozen=True, init=False)
class Flag:
    """Marks a field that is given by a flag.

    The default that the help states is the field's; a default of None, False or () is not stated.
    """

    names: tuple[str, ...]
    help: str
    metavar: str
    parse: Parse | None
    numbers: Range | None
    steers: bool
    neutral: bool
    counts: bool
    default: str
    opens: Opens
    writes: Writes | None

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str = "",
        parse: Parse | None = None,
        numbers: Range | None = None,
        steers: bool = True,
        neutral: bool = False,
        counts: bool = False,
        default: str = "",
        opens: Opens = "",
        writes: Writes | None = None,
    ) -> None:
        """Declare a flag.

        Args:
            names: its spellings, `--lr`; the first names it in messages. `--a/--no-a` can be switched both ways. A
                setting without one is for Python callers only.
            help: a line for the help, without the default.
            metavar: what its value is called; none for a switch.
            parse: reads its value, where the type of the field does not say how.
            numbers: the range of its numbers.
            steers: whether it decides what comes out, so that provenance holds it.
            neutral: whether no result depends on it, so that runs which differ in it are of one sweep.
            counts: whether giving it several times counts, as `-vv`.
            default: how the help says the default, where the field's value does not.
            opens: what it names, if it is an input.
            writes: what it may be named, if it is an output.
        """
        given = locals()
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, given[name])


Mark = Operand | Flag


@dataclass(frozen=True)
class Field:
    """A marked field of settings, wherever in the bundles it stands."""

    path: tuple[str, ...]
    kind: Any
    mark: Mark
    default: Any

    @property
    def name(self) -> str:
        """The field's own name, unique among the settings of a command."""
        return self.path[-1]

    @property
    def flag(self) -> str:
        """The flag that messages name it by."""
        names = self.mark.names if isinstance(self.mark, Flag) else ()
        return names[0] if names else "--" + self.name.replace("_", "-")

    @property
    def hidden(self) -> bool:
        """Whether the command line does not offer it."""
        return isinstance(self.mark, Flag) and not self.mark.names

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    @property
    def scalar(self) -> Any:
        """Its type without `| None`."""
        return _without_none(self.kind)

    @property
    def repeats(self) -> bool:
        """Whether it is given once for each of its values: a tuple that no `parse` makes from one word."""
        return get_origin(self.scalar) is tuple and not (isinstance(self.mark, Flag) and self.mark.parse)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it can be, where they are few."""
        if isinstance(self.mark, Operand) and self.mark.choices:
            given = self.mark.choices
            return tuple(given()) if callable(given) else given
        return get_args(self.scalar) if get_origin(self.scalar) is Literal else ()

    @property
    def help(self) -> str:
        """What it is, and its default."""
        said = self.mark.default if isinstance(self.mark, Flag) else ""
        if not said and not self.required and not self.is_switch and self.default not in (None, (), "", 0):
            said = _said(self.default)
        return f"{self.mark.help} [default: {said}]" if said else self.mark.help

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.scalar is bool

    def read(self, word: Any) -> Any:
        """Turn what was given into the field's value, and check it.

        Raises:
            UsageError: it is none.
        """
        if self.repeats:
            return tuple(self._read(each) for each in ([word] if isinstance(word, str | Path) else word))
        return self._read(word)

    def _path(self, word: str) -> Path:
        may = self.mark.writes if isinstance(self.mark, Flag) else None
        if may is not None and not may.folder and word.endswith(os.sep) and not Path(word).is_dir():
            raise UsageError(f"{word}: no such folder; name a file to write")
        return Path(word)

    def _read(self, word: Any) -> Any:
        value = word
        if isinstance(self.mark, Flag) and self.mark.parse is not None and isinstance(word, str):
            value = self.mark.parse(word)
        elif self.scalar is Path and isinstance(word, str):
            value = self._path(word)
        elif self.choices:
            name = self.mark.names[0] if isinstance(self.mark, Flag) else self.mark.metavar.strip("[]")
            one_of(name, word, self.choices)
        if isinstance(self.mark, Flag) and self.mark.numbers is not None:
            self.mark.numbers.check(self.flag, value)
        return value


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_said, value))
    return re.sub(r"e-0(?=\d)", "e-", str(value))


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        kinds = [each for each in get_args(kind) if each is not NoneType]
        return kinds[0] if len(kinds) == 1 else kind
    return kind


def flatten(kind: type[Any], defaults: Any = None, path: tuple[str, ...] = ()) -> Iterator[Field]:
    """Yield the marked fields of settings, those of bundles where the bundle stands.

    Args:
        kind: the settings class.
        defaults: an instance whose values are the defaults, in place of the class's own.
        path: the names of the bundles around it.

    Raises:
        TypeError: two fields of one name, or a field that is neither marked nor a bundle.
    """
    seen: set[str] = set()
    hints = _hints(kind)  # type: ignore[arg-type]
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        default = getattr(defaults, each.name) if defaults is not None else _default(each)
        found: Iterator[Field]
        if dataclasses.is_dataclass(hint):
            given = default if default is not MISSING else None
            found = flatten(hint, given, (*path, each.name))  # type: ignore[arg-type]
        elif get_origin(hint) is Annotated and isinstance(get_args(hint)[1], Operand | Flag):
            own, mark = get_args(hint)[:2]
            found = iter([Field((*path, each.name), own, mark, default)])
        else:
            raise TypeError(f"{kind.__name__}.{each.name} is neither marked nor a bundle")
        for one in found:
            if one.name in seen:
                raise TypeError(f"{kind.__name__} has two fields named {one.name}")
            seen.add(one.name)
            yield one


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _default(each: "dataclasses.Field[Any]") -> Any:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return each.default


def rebuild(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Build settings from values by the fields' own names; what is not among them keeps its default.

    Raises:
        TypeError: a name that is no field, or a required one is missing.
        UsageError: a value that its field cannot have.
    """
    known = {each.name: each for each in flatten(kind)}
    unknown = values.keys() - known.keys()
    if unknown:
        raise TypeError(f"no setting {', '.join(sorted(unknown))}")
    for each in known.values():
        if each.required and each.name not in values and isinstance(each.mark, Flag):
            raise UsageError(f"{each.mark.names[0]} {each.mark.metavar} is missing: {each.mark.help}")
    return _build(kind, {name: known[name].read(value) for name, value in values.items()})


def _build(kind: type[Any], values: Mapping[str, Any], defaults: Any = None) -> Any:
    hints = _hints(kind)  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        default = getattr(defaults, each.name) if defaults is not None else _default(each)
        if dataclasses.is_dataclass(hints[each.name]):
            made[each.name] = _build(hints[each.name], values, default if default is not MISSING else None)
        elif each.name in values:
            made[each.name] = values[each.name]
        elif default is not MISSING:
            made[each.name] = default
    return kind(**made)


def bare(kind: type[S], **values: Any) -> S:
    """Build settings without operands, for callers that hand the opened things over.

    Args:
        kind: the settings class.
        values: settings by their own names; the others keep their defaults.
    """
    known = {each.name: each for each in flatten(kind)}
    operands = {name: "" for name, each in known.items() if each.required}
    read = {name: known[name].read(value) for name, value in values.items()}
    return _build(kind, {**operands, **read})  # type: ignore[no-any-return]


def plain_settings(settings: Any, *, neutral: bool = True) -> dict[str, Any]:
    """Give the settings that decide what comes out, by their own names: what provenance holds.

    Args:
        settings: of a command.
        neutral: whether those that change no result have their value too, and not their default.
    """
    return {
        each.name: each.default if each.mark.neutral and not neutral else value_at(settings, each.path)
        for each in flatten(type(settings))
        if each.mark.steers
    }


def value_at(settings: Any, path: Sequence[str]) -> Any:
    """Give a field's value by its path through the bundles."""
    for name in path:
        settings = getattr(settings, name)
    return settings


@dataclass(frozen=True)
class CommandSpec:
    """A command: its settings, and what the help says besides.

    Its work is the module `work` beside the declaration, or the declaration's own module: `run(run)` yields what the
    command writes, `items(run)` lists the work for --dry-run, and `sink(run)` takes the results where they are
    neither records nor text.

    Attributes:
        settings: the settings class; its docstring is the help's text, one imperative line first.
        heading: what the command stands under in the program's help.
        examples: command lines that run; at least two.
        rank: its place under the heading, lowest first.
        writes: the kinds of records that it writes: names, as `mltools schema` gives them, or classes of its own.
        released: settings by name as `--preset released-code` has them; or gives them, told what was given.
        counted: what the summary calls the results, to say how many there are.
        text: whether it writes lines of text for stdout, with no summary after them, and not records.
        outputs: gives further outputs than those that flags name.
        shared: what the processes of a launcher share: each `step` of a training, or the `items` (windows, batches of
            rows) among them; else each does all of the work.
        check: raises UsageError where settings that are right alone do not go together; told which were given.
        sweep: lists the windows of a whole sweep of a model of so many layers, in the order of its records.
    """

    settings: type[Any]
    heading: str
    examples: tuple[str, ...]
    rank: int = 100
    writes: tuple[str | type[Any], ...] = ()
    released: Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default_factory=dict)
    counted: str = ""
    text: bool = False
    outputs: Callable[[Any], Sequence["Output"]] | None = None
    shared: Literal["", "steps", "items"] = ""
    check: Callable[[Any, Collection[str]], None] | None = None
    sweep: Callable[[int], Sequence[Any]] | None = None

    @property
    def written(self) -> dict[str, type[Any]]:
        """The kinds of records that it writes, by name."""
        from mltools.io.kinds import kind_name, record_kinds  # which no help of the program needs

        return {
            **{kind: record_kinds()[kind] for kind in self.writes if isinstance(kind, str)},
            **{kind_name(kind): kind for kind in self.writes if isinstance(kind, type)},
        }

    def settle(self, given: Mapping[str, Any], *, without_operands: bool = False) -> Any:
        """Build the settings: what was given, else the preset's, else the defaults; and see that they go together.

        Args:
            given: values, or words of the command line, by the settings' own names.
            without_operands: leave the operands empty, for callers that hand the opened things over.

        Raises:
            UsageError: a value out of range, or settings that do not go together.
        """
        released: Mapping[str, Any] = {}
        if given.get("preset") == "released-code":
            released = self.released(given) if callable(self.released) else self.released
        if without_operands:
            return bare(self.settings, **{**released, **given})
        settings = rebuild(self.settings, {**released, **given})
        if self.check is not None:
            self.check(settings, given)
        return settings


def one_of(option: str, value: str, choices: Sequence[str]) -> str:
    """Check that a value is one of the choices, and suggest the nearest.

    Raises:
        UsageError: it is not.
    """
    if value in choices:
        return value
    close = get_close_matches(value, choices, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f'{option} "{value}": choose {", ".join(choices[:-1])} or {choices[-1]}{hint}')
