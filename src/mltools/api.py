"""The commands as functions, for notebooks and programs: the same settings and records, nothing written.

An operand may be a name, as on the command line, or the thing itself: an opened checkpoint, a transformers model with
its tokenizer, rows as a polars or pandas frame, records as another function gave them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars


class Results(list[Any]):
    """The records of a call, in their order."""

    def to_frame(self) -> "polars.DataFrame":
        """Give them as a polars frame, one column a field; records with the columns of their group have both."""
        import polars

        return polars.DataFrame([as_row(record) for record in self], infer_schema_length=None)


def as_row(record: Any) -> dict[str, Any]:
    """Give a record's columns, and those of its group if it comes with them."""
    own, group = record if isinstance(record, tuple) else (record, {})
    return {**(own if isinstance(own, dict) else vars(own)), **group}
