"""Accuracy@k of tools, tasks or models, with chance (Figure 2)."""

from collections.abc import Iterable
from math import fsum
from operator import mul

from mltools.analysis.statistics import wilson
from mltools.drawing.grouped import Asked, carried_by, grouped, marked, short_names, validity, without
from mltools.drawing.panels import Columns, Panel
from mltools.io.groups import Group
from mltools.io.records import Record, Records


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make one panel of the records of `score`: a column a group and k, with Wilson's 95 % interval.

    Several records of one group and k are averaged, each weighing as many groups as it judged.

    Raises:
        RowsError: other records.
    """
    groups = grouped(records, asked.by)
    if asked.by is not None and "tool" not in asked.by:
        groups = _joined(groups)
    sizes = sorted({record.get("k", int) for members in groups.values() for record in members})
    found = [[_accuracy([r for r in members if r.values["k"] == k]) for k in sizes] for members in groups.values()]
    every = [record for members in groups.values() for record in members]
    names = short_names(list(groups))
    return [
        Columns(
            title="",
            value_name="accuracy@k",
            names=[marked(name, carried_by(its)) for name, its in zip(names, groups.values(), strict=True)],
            series=[f"k = {k}" for k in sizes],
            values=[[one[0] if one else None for one in row] for row in found],
            low=[[one[1] if one else None for one in row] for row in found],
            high=[[one[2] if one else None for one in row] for row in found],
            chance=[_weighed(its, "chance") for its in groups.values()],
            **validity(carried_by(every)),
        )
    ]


def _joined(groups: dict[Group, list[Record]]) -> dict[Group, list[Record]]:
    """Put groups of several tools together: `Groups` always tells tools apart."""
    joined: dict[Group, list[Record]] = {}
    for key, members in groups.items():
        joined.setdefault(without(key, "tool"), []).extend(members)
    return joined


def _accuracy(records: list[Record]) -> tuple[float, float, float] | None:
    if not records:
        return None
    share = _weighed(records, "accuracy")
    return share, *wilson(share, sum(record.get("n_groups", int) for record in records))


def _weighed(records: list[Record], column: str) -> float:
    weights = [int(record.get("n_groups", int)) for record in records]
    return fsum(map(mul, weights, [record.number(column) for record in records])) / sum(weights)
