"""One run of a command, as its work sees it: settings, opened inputs, work to do, progress, outputs.

The driver makes it and prepares it; the work takes from it what it needs and yields records. Python callers may give
opened things in place of names.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mltools import console
from mltools.errors import UsageError
from mltools.io.atomic import atomic_file
from mltools.io.columns import Columns
from mltools.io.examples import Examples, read_examples
from mltools.io.provenance import Provenance
from mltools.io.records import Record, Records, read_records
from mltools.io.source import STDIN, Source
from mltools.spec import CommandSpec, Field, Flag, flatten, plain_settings, value_at

if TYPE_CHECKING:
    import torch

    from mltools.model.cost import Shape
    from mltools.model.opened import Model

T = TypeVar("T")


class Run:
    """What a command was told, and all that its work needs of the world outside."""

    def __init__(self, name: str, spec: CommandSpec, settings: Any, command: Sequence[str] = ()) -> None:
        """Start a run of the command `name` with its settings; `command` is the line that makes its outputs again."""
        self.name, self.spec, self.settings = name, spec, settings
        self.fields: dict[str, Field] = {each.name: each for each in flatten(spec.settings)}
        self.tags: Mapping[str, Any] = {}
        self.inputs: dict[str, Mapping[str, str]] = {}
        self.earlier: Sequence[Record] = ()
        self.facts: dict[str, object] = {}
        self._command = tuple(command)
        self._models: dict[str, Model] = {}
        self._start = time.monotonic()

    def get(self, name: str, default: Any = None) -> Any:
        """Give a setting by its own name, whichever bundle holds it; `default` where the command has none such."""
        return value_at(self.settings, self.fields[name].path) if name in self.fields else default

    # -- inputs ---------------------------------------------------------------------------------------
    def source(self, role: str) -> Source:
        """Give an input of rows, records or states that is not opened yet; none named is stdin."""
        return open_source(self.get(role))

    @property
    def columns(self) -> Columns:
        """Which columns of rows are meant."""
        own = Columns()
        return Columns(
            self.get("text", own.text),
            self.get("label", own.label),
            self.get("separator"),
            self.get("label_type", own.label_type),
        )

    @cached_property
    def rows(self) -> Examples:
        """The rows, read whole.

        Raises:
            RowsError, NotFoundError: they cannot be read.
        """
        return self.examples("rows", self.source("rows"), self.columns)

    def examples(self, role: str, source: Source, columns: Columns) -> Examples:
        """Read other rows whole, and note them as an input."""
        examples = read_examples(source, columns)
        if examples.n_unlabelled:
            console.warn(f"{examples.n_unlabelled} rows without a label are left out")
        self.used(role, source)
        return examples

    def records(self, role: str = "records") -> Iterator[Records]:
        """Yield the records of the files named, block by block, and note each file as an input."""
        paths = self.get(role) or [open_source(None).path]
        return read_records(paths, lambda source: self.used(source.name, source))

    def model(self, role: str) -> "Model":
        """Give a checkpoint that is not opened yet, but whose digest is known."""
        from mltools.model.opened import Model

        if role not in self._models:
            made = Model(
                self.get(role), self.device, self.get("blocks"), self.get("threads"), self.get("offload", False)
            )
            self._models[role] = made
            self.inputs[role] = {"path": made.name, "sha256": made.sha256}
        return self._models[role]

    @cached_property
    def device(self) -> "torch.device":
        """Where tensors live."""
        from mltools.model.device import find_device

        return find_device(self.get("device", "cpu"))

    def used(self, role: str, source: Source) -> None:
        """Note an input that was read, by its digest."""
        self.inputs[role] = {"path": source.name, "sha256": source.digest}

    # -- what it is -----------------------------------------------------------------------------------
    @property
    def provenance(self) -> Provenance:
        """How the outputs of this run are made."""
        settings = plain_settings(self.settings)
        return Provenance(self.name, settings, settings.get("seed"), dict(self.inputs), self._command)

    def made_by(self, role: str) -> Provenance:
        """How an output beside the records is made: with the option that names it."""
        mark = self.fields[role].mark
        assert isinstance(mark, Flag)
        return self.provenance.by(mark.names[-1])

    @property
    def digest(self) -> str:
        """Digest of what decides the results: settings, checkpoints, and rows in whatever order and form."""
        inputs = {**self.inputs, "rows": {"sha256": self.rows.digest()}}
        return Provenance(self.name, plain_settings(self.settings, neutral=False), inputs=inputs).run

    @cached_property
    def shape(self) -> "Shape":
        """What decides the cost of the first checkpoint on the rows; reads no weight."""
        from mltools.model.cost import read_shape

        role = next(each.name for each in self.fields.values() if each.mark.opens == "checkpoint")
        outline = self.model(role).outline()
        return read_shape(outline, self.rows, self.get("max_length"), self.get("offload", False))

    # -- while it goes --------------------------------------------------------------------------------
    def track(self, items: Iterable[T], total: int, unit: str = "rows", label: str | None = None) -> Iterator[T]:
        """Pass items on while showing progress."""
        return console.track(items, total, label or self.name, unit)

    def report(self, **facts: object) -> None:
        """Add to the summary."""
        self.facts.update(facts)

    # -- outputs --------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def output(self, role: str) -> Iterator[Path]:
        """Give a path to write an output file to, which takes its name when the context ends without an error."""
        with atomic_file(self.get(role)) as path:
            yield path

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return round(time.monotonic() - self._start, 2)


def open_source(path: str | None) -> Source:
    """Open an argument: a path, `-`, or stdin if it is left out and is no terminal.

    Raises:
        UsageError: left out, and stdin is a terminal.
    """
    import sys

    if path is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no rows: name a file, or pipe rows in (- is stdin)")
    return Source(path if path is not None else STDIN)
