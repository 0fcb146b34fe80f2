"""Fold half splits into the generalisation of each row and the generalisation score of the task (§6). Needs no torch.

The step from rows to the score is missing in the released code; `DEFINITION` says what is done here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from mltools.errors import RowsError
from mltools.io.columns import RowId
from mltools.io.groups import Group, Groups
from mltools.io.kinds import GeneralisationRecord, GeneralisationScoreRecord
from mltools.io.records import Record, Records

DEFINITION = (
    "share of rows whose mean probability of their label, over the splits that hold them out, exceeds 1/classes"
)


@dataclass(slots=True)
class _Row:
    noisy: bool
    probabilities: list[float] = field(default_factory=list)
    correct_in: list[bool] = field(default_factory=list)
    correct_out: list[bool] = field(default_factory=list)
    splits: set[int] = field(default_factory=set)

    @property
    def generalisation(self) -> float | None:
        return min(1.0, fsum(self.probabilities) / len(self.probabilities)) if self.probabilities else None

    @property
    def training_memorisation(self) -> float | None:
        if not self.correct_in or not self.correct_out:
            return None
        return sum(self.correct_in) / len(self.correct_in) - sum(self.correct_out) / len(self.correct_out)


@dataclass(slots=True)
class Merged:
    """The half splits of one task: the columns that tell it apart, and its rows by id."""

    key: Group
    first: Record
    rows: dict[RowId, _Row] = field(default_factory=dict)

    @property
    def tags(self) -> dict[str, Any]:
        """The columns, without the tool."""
        return {name: value for name, value in self.key if name != "tool"}

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.first.get("classes", int))

    def add(self, record: Record) -> None:
        """Enter a record of one row under one split.

        Raises:
            RowsError: a column missing or of another type, a row twice in a split, or records of other settings.
        """
        row_id, split = record.get("id", (int, str)), record.get("split", int)
        for name in ("classes", "run"):
            if record.values.get(name) != self.first.values.get(name):
                raise RowsError(
                    f"{record.place}: {name} is {record.values.get(name)}, but {self.first.values.get(name)} at "
                    f"{self.first.place}; splits made with other settings or rows cannot be merged (tag tasks apart)"
                )
        row = self.rows.setdefault(row_id, _Row(record.get("noisy", bool)))
        if split in row.splits:
            raise RowsError(f"{record.place}: row {row_id!r} again in split {split}; give each split once")
        row.splits.add(split)
        correct = record.get("correct", bool)
        if record.get("inside", bool):
            row.correct_in.append(correct)
        else:
            row.correct_out.append(correct)
            row.probabilities.append(record.number("probability"))

    def records(self) -> Iterator[GeneralisationRecord]:
        """Yield each row's record, rows in order of appearance."""
        for row_id, row in self.rows.items():
            yield GeneralisationRecord(
                tool="generalise",
                id=row_id,
                noisy=row.noisy,
                n_in=len(row.correct_in),
                n_out=len(row.correct_out),
                generalisation=row.generalisation,
                training_memorisation=row.training_memorisation,
            )

    def score(self) -> GeneralisationScoreRecord:
        """Sum up the rows that were held out at least once."""
        held_out = [(row.generalisation, row.noisy) for row in self.rows.values()]
        counted = [(value > 1 / self.classes, noisy) for value, noisy in held_out if value is not None]
        return GeneralisationScoreRecord(
            tool="generalise",
            generalisation_score=_share([above for above, _ in counted]),
            noisy_score=_share([above for above, noisy in counted if noisy]),
            clean_score=_share([above for above, noisy in counted if not noisy]),
            chance=1 / self.classes,
            classes=self.classes,
            n_rows=len(counted),
            n_left_out=len(held_out) - len(counted),
            n_splits=len(set().union(*(row.splits for row in self.rows.values()))),
            definition=DEFINITION,
        )


def merge(records: Iterable[Records]) -> list[Merged]:
    """Gather the records of half splits by task: all tags tell tasks apart.

    Raises:
        RowsError: none came in; else as `Merged.add`.
    """
    groups = Groups(None, Merged)
    for block in records:
        for part in block.by_columns():
            for group, run in groups.runs(part):
                for index in range(*run.indices(len(part))):
                    group.add(part.record(index))
    merged = list(groups)
    if not merged:
        raise RowsError("no records came in")
    return merged


def _share(above: list[bool]) -> float | None:
    return sum(above) / len(above) if above else None
