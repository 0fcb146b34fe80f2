"""The commands as functions, for notebooks and programs: the same settings, checks and records.

An operand may be a name, as on the command line, or the thing itself: an opened checkpoint, a transformers model with
its tokenizer, rows or records as a polars or pandas frame, records as another function gave them. Settings go by the
names of their fields (`learning_rate`, `max_length`). Nothing is written but what a setting names.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltools.cli.registry import command_spec
from mltools.errors import UsageError
from mltools.run import Run
from mltools.spec import Operand, flatten

if TYPE_CHECKING:
    import polars



class Results(list[Any]):
    """The records of a call, in their order: dataclasses, or pairs of one and the columns of its group."""

    def rows(self) -> list[dict[str, Any]]:
        """Give each record's columns, those of its group among them."""
        return [as_row(record) for record in self]

    def to_frame(self) -> "polars.DataFrame":
        """Give the records as a polars frame, one column a field."""
        import polars

        return polars.DataFrame(self.rows(), infer_schema_length=None)


def as_row(record: Any) -> dict[str, Any]:
    """Give a record's columns, and those of its group if it comes with them."""
    own, group = record if isinstance(record, tuple) else (record, {})
    return {**(own if isinstance(own, Mapping) else vars(own)), **group}


def command_function(name: str) -> Callable[..., Results]:
    """Give the function of a command."""

    def call(*operands: Any, **settings: Any) -> Results:
        spec = command_spec(name)
        fields = [each for each in flatten(spec.settings) if isinstance(each.mark, Operand)]
        if len(operands) > len(fields):
            raise UsageError(f"{name} takes {len(fields)} operands: {', '.join(each.name for each in fields)}")
        given = {each.name: value for each, value in zip(fields, operands, strict=False)} | settings
        with tempfile.TemporaryDirectory(prefix="mltools-") as folder:
            opened = {key: value for key, value in given.items() if not _is_plain(value)}
            names = {key: _name(key, value, Path(folder)) for key, value in given.items()}
            run = Run(name, spec, spec.settle(names), opened=opened)
            run.check()
            results = Results(spec.work().run(run))
        if run.error is not None:
            raise run.error
        return results

    call.__name__ = call.__qualname__ = name
    call.__doc__ = command_spec(name).settings.__doc__
    return call
