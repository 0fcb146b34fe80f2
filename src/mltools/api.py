"""The commands as functions, for notebooks and programs: the same settings and records, nothing written.

An operand may be a name, as on the command line, or the thing itself: an opened checkpoint, a transformers model with
its tokenizer, rows as a polars or pandas frame, records as another function gave them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltools.registry import command_spec
from mltools.run import Run
from mltools.spec import Operand, flatten, rebuild

if TYPE_CHECKING:
    import polars

    from mltools.io.examples import Examples
    from mltools.model.checkpoint import Checkpoint


class Results(list[Any]):
    """The records of a call, in their order."""

    def to_frame(self) -> "polars.DataFrame":
        """Give them as a polars frame, one column a field; records with the columns of their group have both."""
        import polars

        return polars.DataFrame([as_row(record) for record in self], infer_schema_length=None)
