"""The commands as functions, for notebooks and programs: the same settings, checks and records.

An operand may be a name, as on the command line, or the thing itself: an opened checkpoint, a transformers model with
its tokenizer, rows or records as a polars or pandas frame, records as another function gave them. Settings go by the
names of their fields (`learning_rate`, `max_length`). Nothing is written but what a setting names.
"""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltools.cli.driver import check, estimates, load, resume, settle, write
from mltools.cli.registry import command_spec, command_work
from mltools.errors import UsageError
from mltools.io.columns import Columns
from mltools.io.examples import Examples, read_examples
from mltools.io.lines import dump
from mltools.io.writer import as_row
from mltools.run import Run
from mltools.spec import CommandSpec, Operand, flatten

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


def read_rows(rows: Any, columns: Columns = Columns()) -> Examples:
    """Read labelled rows from a file or a polars or pandas frame, as every command that runs a model does.

    Raises:
        RowsError, NotFoundError: they cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="mltools-") as folder:
        return read_examples(_named("rows", rows, Path(folder)), columns)


def command_function(name: str) -> Callable[..., Any]:
    """Give the function of a command: operands by position, settings by name."""

    def call(*operands: Any, **settings: Any) -> Any:
        spec = command_spec(name)
        names = [each.name for each in flatten(spec.settings) if isinstance(each.mark, Operand)]
        if len(operands) > len(names):
            raise UsageError(f"{name} takes {len(names)} operands: {', '.join(names)}")
        given = {**dict(zip(names, operands, strict=False)), **settings}
        with tempfile.TemporaryDirectory(prefix="mltools-") as folder:
            opened = {role: value for role, value in given.items() if _is_open(value)}
            _check_opened(spec, opened)
            plain = {role: _named(role, value, Path(folder)) for role, value in given.items()}
            return _run(Run(name, spec, spec.settle(plain), opened=opened))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = command_spec(name).settings.__doc__
    return call


def _run(run: Run) -> Any:
    check(run)
    work = command_work(run.name)
    load(run)
    if run.get("dry_run"):
        return Results(_tagged(run, estimates(run, work)[-1]))
    resume(run)
    results = Results()
    if run.get("out") is not None:
        written = write(run, work)
    else:
        results.extend(_tagged(run, work.run(run)))
        written = len(results)
    settle(run, written)
    if run.error is not None:
        raise run.error
    return getattr(work, "in_python", lambda found: found)(results)


def _tagged(run: Run, records: Iterable[Any]) -> Iterable[Any]:
    """Give each record the run's tags, as columns of its group."""
    if not run.tags:
        return records
    pairs = (record if isinstance(record, tuple) else (record, {}) for record in records)
    return ((own, {**group, **run.tags}) for own, group in pairs)


def _check_opened(spec: CommandSpec, opened: Iterable[str]) -> None:
    """Refuse an open thing where the command would go by its name and read a file instead.

    Raises:
        UsageError: there is one.
    """
    opens = {each.name: each.mark.opens for each in flatten(spec.settings)}
    for role in opened:
        if opens.get(role) not in ("checkpoint", "rows", "states"):
            raise UsageError(f"{role}: name a file or folder; this command takes no open one here")


def _is_open(value: Any) -> bool:
    """Whether a value is what a run takes as it is: rows or a checkpoint that is open."""
    return isinstance(value, Examples) or (hasattr(value, "runner") and hasattr(value, "stack"))


def _named(role: str, value: Any, folder: Path) -> Any:
    """Give a value as the command line would: things that a run cannot take as they are go into files in `folder`."""
    if _is_open(value):
        return str(getattr(value, "name", role))
    if isinstance(value, tuple) and len(value) == 2 and hasattr(value[0], "save_pretrained"):
        for part in value:  # what is saved and opened again is what the caller has, whose own model stays as it is
            part.save_pretrained(folder / role)
        return str(folder / role)
    if hasattr(value, "write_parquet") or hasattr(value, "to_parquet"):
        path = folder / f"{role}.parquet"
        (value.write_parquet if hasattr(value, "write_parquet") else value.to_parquet)(path)
        return [str(path)] if role == "records" else str(path)
    if role == "records":
        return [name for part, each in enumerate(_parts(value)) for name in [_records(each, folder / str(part))]]
    return str(value) if isinstance(value, Path) and role not in ("out", "provenance") else value


def _parts(value: Any) -> list[Any]:
    """Tell several files or results from one."""
    if isinstance(value, str | Path | Results):
        return [value]
    several = isinstance(value, list | tuple) and all(isinstance(each, str | Path | Results) for each in value)
    return list(value) if several else [value]


def _records(value: Any, path: Path) -> str:
    """Give the file of records that a value is, or write it."""
    if isinstance(value, str | Path):
        return str(value)
    records: Iterable[Any] = value
    name = path.with_suffix(".jsonl")
    name.write_bytes(b"".join(dump(as_row(record)) for record in records))
    return str(name)
