"""What all pictures ask of records: which make one panel or row, what it is called, whether they are valid."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from mltools import console
from mltools.analysis.carried import Carried
from mltools.analysis.layer_scores import LayerScores
from mltools.analysis.score_records import read_layer_scores, read_layer_scores_each
from mltools.console import printable
from mltools.errors import RowsError, UsageError
from mltools.io.groups import GROUPING, Group, Groups
from mltools.io.records import Record, Records

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Asked:
    """What was asked of a picture.

    Attributes:
        by: the columns that make panels, or rows of one; runs that fall together are averaged. None: all tags.
        values: the columns to show; none: the picture's own.
        overlay: the column whose values share a panel.
        pivot: the column whose two values are the axes of a scatter.
    """

    by: Sequence[str] | None = None
    values: Sequence[str] = ()
    overlay: str | None = None
    pivot: str | None = None


def read_groups(records: Iterable[Records], asked: Asked) -> list[LayerScores]:
    """Measure windows or layers; several values make groups of their own."""
    if len(asked.values) > 1:
        return read_layer_scores_each(records, asked.by, asked.values)
    return read_layer_scores(records, asked.by, *asked.values)


def validity(carried: Carried) -> dict[str, Any]:
    """Give what a panel says of the records that it shows."""
    return {"valid": carried.valid, "valid_reason": carried.valid_reason}


def carried_by(records: Iterable[Record]) -> Carried:
    """Read what records say of themselves."""
    carried = Carried()
    for record in records:
        carried.read(Records(record.source, [record.line], [record.values]))
    return carried


def marked(name: str, carried: Carried) -> str:
    """Mark the name of what is not valid, among others that are."""
    return f"{name} (invalid)" if carried.valid is False else name


def title(key: Group) -> str:
    """Name a group: its tool, then its tags; `part=all` goes without saying."""
    tags: dict[str, Any] = {name: value for name, value in key if (name, value) != ("part", "all")}
    tool = str(tags.pop("tool", ""))
    return printable(" ".join([tool, *(f"{name}={value}" for name, value in tags.items())]).strip())


def row_name(key: Group) -> str:
    """Name a row of groups that several tools share: by its tags, alone by its value."""
    tags = tuple(item for item in key if item[0] not in ("tool", *GROUPING))
    return printable(str(tags[0][1])) if len(tags) == 1 else title(tags)


def short_names(keys: Sequence[Group]) -> list[str]:
    """Name groups by what tells them apart: values alone, where these are names enough."""
    same = set(keys[0]).intersection(*keys)
    values = [" ".join(str(item[1]) for item in key if item not in same) for key in keys]
    names = [printable(name or title(key)) for name, key in zip(values, keys, strict=True)]
    return names if len(set(names)) == len(set(keys)) else list(map(title, keys))


def without(key: Group, *names: str | None) -> Group:
    """Leave columns out of a group."""
    return tuple(item for item in key if item[0] not in names)


def overlaid(key: Group, overlay: str) -> str:
    """Give a group's value of the column that shares a panel.

    Raises:
        UsageError: it has none.
    """
    found = dict(key)
    if overlay not in found:
        raise UsageError(f'--overlay {overlay}: no such tag in "{title(key)}"')
    return printable(str(found[overlay]))


def parts(records: Iterable[Records]) -> Iterator[Records]:
    """Split blocks of records where their columns change."""
    return (part for block in records for part in block.by_columns())


@dataclass(eq=False)
class _Members:
    key: Group
    records: list[Record]


def grouped(
    records: Iterable[Records], by: Sequence[str] | None, merged: str | None = None
) -> dict[Group, list[Record]]:
    """Collect the records of each group; groups that differ only in the column `merged` are one."""
    groups = Groups(by, lambda key, _: _Members(key, []))
    for part in parts(records):
        for group, run in groups.runs(part):
            group.records.extend(part[run])
    collected: dict[Group, list[Record]] = {}
    for group in groups:
        collected.setdefault(without(group.key, merged), []).extend(group.records)
    if not collected:
        raise RowsError("no records came in")
    return collected


def check_depth(records: Sequence[Record], what: str) -> None:
    """See that layers which are averaged are of models with as many layers: layer 6 of 12 is no layer 6 of 6.

    Raises:
        RowsError: they are not; `what` names them.
    """
    found = {depth: record for record in records if (depth := record.values.get("layers")) is not None}
    if len(found) > 1:
        depths = " and ".join(map(str, sorted(found)))
        raise RowsError(
            f"{[*found.values()][-1].place}: layers of models with {depths} layers would be averaged ({what}); tell "
            "them apart with --by"
        )


def mean(numbers: Numbers | None) -> float | None:
    """Average numbers, undefined ones left out; None of none."""
    known = _known(numbers)
    return fmean(known) if known else None


def deviation(numbers: Numbers | None) -> float | None:
    """Give the sample standard deviation, undefined ones left out; None of fewer than two."""
    known = _known(numbers)
    return stdev(known) if len(known) > 1 else None


def _known(numbers: Numbers | None) -> list[float]:
    return [number for number in numbers or () if number is not None]


def tell_of_undefined(averaged: Iterable[tuple[str, Numbers]]) -> None:
    """Say that means leave undefined numbers out, as of events that some runs do not have.

    Args:
        averaged: the name and the numbers of each mean.
    """
    short = [(name, len(numbers) - len(_known(numbers)), len(numbers)) for name, numbers in averaged if _known(numbers)]
    short = [entry for entry in short if entry[1]]
    if short:
        name, n, of = short[0]
        more = f", and so in {len(short) - 1} more" if len(short) > 1 else ""
        console.warn(f"{name}: {n} of {of} numbers are undefined, so that the mean is of the others{more}")
