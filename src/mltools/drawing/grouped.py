"""What all pictures ask of records: which make one panel or row, what it is called, whether they are valid."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from mltools.analysis.carried import Carried
from mltools.analysis.layer_scores import LayerScores
from mltools.analysis.score_records import read_layer_scores, read_layer_scores_each
from mltools.console import printable
from mltools.errors import RowsError, UsageError
from mltools.io.groups import GROUPING, Group, Groups
from mltools.io.records import Record, Records


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
    """Name groups by what tells them apart: values alone."""
    same = set(keys[0]).intersection(*keys)
    names = [" ".join(str(value) for item in key if item not in same for value in item[1:]) for key in keys]
    return [printable(name or title(key)) for name, key in zip(names, keys, strict=True)]


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


def mean(numbers: Sequence[float] | None) -> float | None:
    """Average numbers; None of none."""
    return fmean(numbers) if numbers else None


def deviation(numbers: Sequence[float] | None) -> float | None:
    """Give the sample standard deviation; None of fewer than two."""
    return stdev(numbers) if numbers and len(numbers) > 1 else None
