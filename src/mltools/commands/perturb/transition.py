"""Structured noise: how large a share of each class gets which other label, from a file."""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, cast

import orjson

from mltools.errors import RowsError
from mltools.io.columns import Label
from mltools.io.rows import iter_rows, json_preview, refuse_doubled_keys
from mltools.io.source import Source, rereadable

Transition = Mapping[Label, Mapping[Label, Decimal]]
"""Of each class, the share of its rows that get each other label."""


def read_transition(source: Source, seen: Sequence[Label]) -> Transition:
    """Read a class-by-class matrix of rates: JSON {"from": {"to": rate}}, or CSV whose first column is the class.

    Args:
        source: the file or stream. The diagonal, the share that stays, may be given or left out.
        seen: the classes of the rows; those that the matrix does not name keep their labels.

    Raises:
        RowsError: no such matrix, a class in it twice, a rate outside 0-1, rates of a class that sum up to more than 1,
            or a class to change, or to change to, that is not among the classes.
    """
    with rereadable(source) as again:
        matrix = _matrix(again)
    if not matrix:
        raise RowsError(f"{source.name}: no rates in it")
    known = {str(label): label for label in seen}
    as_int = bool(seen) and isinstance(seen[0], int)
    made = {name: _rates(source, name, rates, as_int=as_int) for name, rates in matrix.items()}
    targets = [str(to) for rates in made.values() for to, rate in rates.items() if rate]
    unknown = next((name for name in [*made, *targets] if name not in known), None)
    if unknown is not None:
        there = f"there are {', '.join(known)}; --classes names others"
        raise RowsError(f"{source.name}: no row has the class {json_preview(unknown)} ({there})")
    changes = {
        known[name]: {to: rate for to, rate in rates.items() if to != known[name]} for name, rates in made.items()
    }
    return {label: changes.get(label, {}) for label in seen}


def _matrix(source: Source) -> dict[str, Any]:
    """Read the rates as they stand there, by class."""
    text = b"\n".join(chain.from_iterable(source.blocks()))
    if text.lstrip().startswith(b"{"):
        try:
            matrix = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise RowsError(f"{source.place(error.lineno)}: not JSON: {error.msg}") from None
        refuse_doubled_keys(source.name, text)
        return cast(dict[str, Any], matrix)
    matrix = {}
    for number, _, row in iter_rows(source):
        (_, name), *rates = row.items()
        if name in matrix:
            raise RowsError(f"{source.place(number)}: the class {json_preview(name)} stands there twice; keep one")
        matrix[name] = dict(rates)
    return matrix


def _rates(source: Source, name: str, rates: Any, *, as_int: bool) -> dict[Label, Decimal]:
    if not isinstance(rates, dict):
        raise RowsError(f'{source.name}: class {json_preview(name)} has no object of rates, {{"label": rate}}')
    try:
        found: dict[Label, Decimal] = {int(to) if as_int else to: Decimal(str(rate or 0)) for to, rate in rates.items()}
    except (ValueError, InvalidOperation):
        what = "is no number, or a label no integer"
        raise RowsError(f"{source.name}: a rate of class {json_preview(name)} {what}") from None
    if not all(rate.is_finite() and 0 <= rate <= 1 for rate in found.values()) or sum(found.values()) > 1:
        shown = json_preview({str(to): float(rate) for to, rate in found.items()})
        raise RowsError(f"{source.name}: rates of class {json_preview(name)} are not 0-1 with a sum up to 1: {shown}")
    return found
