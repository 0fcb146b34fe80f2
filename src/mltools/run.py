"""One run of a command, as its work sees it: settings, opened inputs, work to do, progress, outputs.

The driver makes it and prepares it; the work takes from it what it needs and yields records. Python callers may give
opened things in place of names.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mltools import console, signals
from mltools.errors import InvalidError, MltoolsError, TimeLeftError, UsageError
from mltools.io.atomic import atomic_file, is_device, scratch_folder
from mltools.io.columns import Columns
from mltools.io.examples import Examples, read_examples
from mltools.io.inputs import Rows
from mltools.io.outputs import Output
from mltools.io.partial import partial_path
from mltools.io.provenance import KEY, Provenance
from mltools.io.records import Record, Records, read_records
from mltools.io.source import STDIN, Source
from mltools.processes import ALONE, Team
from mltools.shards import in_shard, item_digest
from mltools.spec import CommandSpec, Field, Flag, flatten, plain_settings, value_at

if TYPE_CHECKING:
    import polars as pl
    import torch

    from mltools.io.states import States
    from mltools.model.checkpoint import Checkpoint
    from mltools.model.cost import Shape, WorkItem
    from mltools.model.opened import Model
    from mltools.model.states import Extraction
    from mltools.model.validity import Validity

T = TypeVar("T")


class Run:
    """What a command was told, and all that its work needs of the world outside."""

    def __init__(
        self,
        name: str,
        spec: CommandSpec,
        settings: Any,
        command: Sequence[str] = (),
        opened: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a run of the command `name` with its settings.

        Args:
            name: of the command.
            spec: its declaration.
            settings: what was given, settled.
            command: the line that makes its outputs again.
            opened: checkpoints and rows that a Python caller hands over, by the operands' names; None for the
                command line, which shows progress.
        """
        self.opened: Mapping[str, Any] = opened or {}
        self._shows_progress = opened is None
        self._progress = console.Progress()
        self.name, self.spec, self.settings = name, spec, settings
        self.fields: dict[str, Field] = {each.name: each for each in flatten(spec.settings)}
        self.tags: Mapping[str, Any] = {}
        self.inputs: dict[str, Mapping[str, str]] = {}
        self.earlier: Sequence[Record] = ()
        self.taken_over: Sequence[bytes] = ()
        """The lines of the records that --resume FILE.partial goes on from."""
        self.goes_on: Callable[[Path], str] = "go on with resume={}".format
        """Says how to go on from some records."""
        self.facts: dict[str, object] = {}
        self.error: MltoolsError | None = None
        self.silent = False
        """Whether another process writes and speaks for this one."""
        self.team: Team = ALONE
        """The processes that share the items of this run."""
        self.command = tuple(command)
        self._models: dict[str, Model] = {}
        self._sources: dict[str, Source] = {}
        self._rows: dict[str, Rows] = {}
        self._start = time.monotonic()
        self._edge: float | None = None
        self._longest = 0.0

    def get(self, name: str, default: Any = None) -> Any:
        """Give a setting by its own name, whichever bundle holds it; `default` where the command has none such."""
        return value_at(self.settings, self.fields[name].path) if name in self.fields else default

    # -- inputs ---------------------------------------------------------------------------------------
    def source(self, role: str) -> Source:
        """Give an input of records or states that is not opened yet; none named is stdin."""
        if role not in self._sources:
            self._sources[role] = open_source(self.get(role))
        return self._sources[role]

    def input(self, role: str) -> Rows:
        """Give an input of rows that is not opened yet; none named is stdin."""
        if role not in self._rows:
            self._rows[role] = Rows(self.get(role) or [open_source(None)], self.columns)
        return self._rows[role]

    @property
    def columns(self) -> Columns:
        """Which columns of rows are meant."""
        own = Columns()
        return Columns(
            self.get("text", own.text),
            self.get("label", own.label),
            self.get("separator"),
            self.get("label_type", own.label_type),
            self.get("id_column", own.id),
            self.get("original_column", own.original_label),
            self.get("noisy_column", own.noisy),
        )

    @cached_property
    def rows(self) -> Examples:
        """The rows, read whole.

        Raises:
            RowsError, NotFoundError: they cannot be read.
        """
        if "rows" in self.opened:
            examples: Examples = self.opened["rows"]
            return examples
        return self.examples("rows", self.input("rows"))

    @property
    def measured(self) -> Examples:
        """The rows that are measured: all that were read, or fewer clean ones where --clean-rows says so."""
        if self.get("clean_rows") is None:
            return self.rows
        from mltools.hashing import draw_clean  # numpy, which not all need

        return draw_clean(self.rows, self.get("clean_rows"))

    def examples(self, role: str, rows: Rows) -> Examples:
        """Read rows whole, and note them as an input."""
        examples = read_examples(rows)
        self.used(role, rows)
        return examples

    def records(self, role: str = "records") -> Iterator[Records]:
        """Yield the records of the files named, block by block, and note each file as an input."""
        return self.read_records(self.get(role))

    def read_records(self, paths: Sequence[str]) -> Iterator[Records]:
        """Yield the records of these files (none is stdin); else as `records`."""
        return read_records(paths or [open_source(None).path], lambda source: self.used(source.name, source))

    @contextlib.contextmanager
    def states(self) -> "Iterator[States]":
        """Open the states that the command is given: STATES, or CHECKPOINT ROWS to take them from.

        Raises:
            UsageError: options that only rows need, without rows.
        """
        from mltools.io.states import open_states

        first = self.get("states")
        if not self.get("rows") and not (first is not None and Path(first).is_dir()):
            own = (self.columns, self.get("max_length"), self.get("batch_size"), self.get("blocks"))
            if own != (Columns(), None, None, None):
                raise UsageError("STATES hold no rows: --text, --label, --max-length and the like need CHECKPOINT ROWS")
            with open_states(self.source("states")) as opened:
                self.used("states", opened.source)
                yield opened
            return
        from mltools.model.states import Extraction

        max_length = self.get("max_length") or Extraction.max_length
        with scratch_folder() as folder:
            path = folder / "states.safetensors"
            self.write_states("states", path, Extraction(batch_size=self.get("batch_size"), max_length=max_length))
            written = Source(path)
            written.name = self.input("rows").name
            with open_states(written) as opened:
                yield opened

    def write_states(self, checkpoint: str, path: Path, extraction: "Extraction") -> "Checkpoint":
        """Write the states of the rows in a checkpoint to a file; `checkpoint` is the role of the checkpoint."""
        from mltools.model.states import read_table, states

        with self.input("rows").rereadable() as again:
            table = read_table(again)
            self.used("rows", again)
            opened = self.model(checkpoint, "checkpoint").open(fresh_head=table.names)
            states(opened, again, table, path, extraction, self.provenance, self.track, self.team)
        self.report(rows=len(table), layers=opened.n_layers, width=opened.width, dtype=extraction.dtype)
        return opened

    def model(self, role: str, as_role: str = "") -> "Model":
        """Give a checkpoint that is not opened yet, but whose digest is known, noted as `as_role`."""
        from mltools.model.opened import Model

        if role not in self._models:
            given = self.opened.get(role, self.get(role))
            own = (self.get("blocks"), self.get("threads"), self.get("offload", False), self.get("classes", ()))
            made = Model(given, self.device, *own)
            self._models[role] = made
            if role not in self.opened:  # what is open may be other than its files
                self.inputs[as_role or role] = {"path": made.name, "sha256": made.sha256}
        return self._models[role]

    @cached_property
    def device(self) -> "torch.device":
        """Where tensors live."""
        from mltools.model.device import find_device

        return find_device(self.get("device", "cpu"), place=self.team.local if self.team.n > 1 else None)

    def used(self, role: str, source: Source | Rows) -> None:
        """Note an input that was read, by its digest."""
        self.inputs[role] = {"path": source.name, "sha256": source.digest}

    # -- what it is -----------------------------------------------------------------------------------
    @property
    def provenance(self) -> Provenance:
        """How the outputs of this run are made."""
        settings = plain_settings(self.settings)
        return Provenance(self.name, settings, settings.get("seed"), dict(self.inputs), self.command)

    def made_by(self, role: str) -> Provenance:
        """How an output beside the records is made: with the option that names it."""
        mark = self.fields[role].mark
        assert isinstance(mark, Flag)
        return self.provenance.by(mark.names[-1])

    @property
    def digest(self) -> str | None:
        """Digest of what decides the results: settings, checkpoints, and rows in whatever order and form.

        None where a checkpoint was handed over opened: its weights may be other than its files'.
        """
        if any(role != "rows" for role in self.opened):
            return None
        inputs = dict(self.inputs)
        if "rows" in self.fields and self.fields["rows"].mark.opens == "rows":
            inputs["rows"] = {"sha256": self.rows.digest()}
        return Provenance(self.name, plain_settings(self.settings, neutral=False), inputs=inputs).run

    @cached_property
    def shape(self) -> "Shape":
        """What decides the cost of the first checkpoint on the rows; reads no weight."""
        return self.shape_of(self.main_checkpoint)

    @property
    def main_checkpoint(self) -> str:
        """The role of the first checkpoint."""
        return next(each.name for each in self.fields.values() if each.mark.opens == "checkpoint")

    def shape_of(self, role: str) -> "Shape":
        """Give what decides the cost of a checkpoint on the rows."""
        from mltools.model.cost import read_shape
        from mltools.model.states import Extraction

        longest = self.get("max_length") or Extraction.max_length
        return read_shape(self.model(role).outline(), self.measured, longest, self.get("offload", False))

    # -- items of work --------------------------------------------------------------------------------
    def chosen(self, values: Sequence[T], items: "Callable[[Run], Iterable[WorkItem]]") -> list[T]:
        """Take what --shard asks for.

        Args:
            values: one for each item of work, in their order.
            items: lists the items, whose costs decide where shards end.
        """
        if self.get("shard") is None:
            return list(values)
        costs = [self.cost(item) for item in items(self)]
        found = in_shard(values, costs, self.get("shard"))
        if not found:
            console.warn(f"this shard is empty: {len(values)} items in {self.get('shard')[1]} parts")
        return found

    def left(self, items: "Iterable[WorkItem]") -> "list[WorkItem]":
        """Leave out the items whose records --resume names."""
        done = {record.values.get("item_digest") for record in self.earlier} - {None}
        return [item for item in items if item_digest(self.digest, item.options) not in done]

    def cost(self, item: "WorkItem") -> float:
        """Give an item's floating-point operations."""
        return (item.applications + item.backward) * self.shape.operations + item.operations

    def edge(self) -> None:
        """Mark that the next item of work begins: what was done before it has been put out.

        Raises:
            TimeLeftError: it would not end within --time-left, if it took as long as the longest one did. The first
                item is always begun, so that each start gets on.
        """
        now = time.monotonic()
        if self._edge is not None:
            self._longest = max(self._longest, now - self._edge)
            left = self.get("time_left")
            if left is not None and any(self.team.gather(now + self._longest > self._start + left)):
                raise TimeLeftError("--time-left is over, items are left; start again, with --resume")
        self._edge = now

    # -- while it goes --------------------------------------------------------------------------------
    def track(
        self, items: Iterable[T], total: int, unit: str = "rows", label: str | None = None, pieces: int = 1
    ) -> Iterator[T]:
        """Pass a piece's items on while showing progress: `pieces` such are still to be done, with this one."""
        if self._shows_progress:
            items = self._progress.track(items, total, label or self.name, unit, pieces)
        for item in items:
            signals.check()
            yield item

    def report(self, **facts: object) -> None:
        """Add to the summary."""
        self.facts.update(facts)

    def judged(self, validity: "Validity", *, strict: bool) -> None:
        """Say if the experiment did not take place; with `strict`, let the run end with that once all is written."""
        if validity.message is not None:
            self.invalid(validity.message, strict=strict)

    def invalid(self, message: str, *, strict: bool, marks: str = "records have valid=false") -> None:
        """Warn of an experiment that did not take place, or with `strict` let the run end with it."""
        if strict and self.error is None:
            self.fail(InvalidError(f"{message} (--strict)"))
        else:
            console.warn(f"{message}; {marks}")

    def carried(self, results: Iterable[T], what: str = "records") -> Iterator[T]:
        """Pass on results made of records, and say once, at the end, how many are of experiments that failed.

        Args:
            results: what has `valid` and `valid_reason`, alone or as the first of a pair.
            what: what the results are.
        """
        n = invalid = 0
        reasons: set[str] = set()
        for result in results:
            judged: Any = result[0] if isinstance(result, tuple) else result
            n += 1
            if judged.valid is False:
                invalid += 1
                reasons |= set((judged.valid_reason or "no reason given").split(","))
            yield result
        if invalid:
            named = ", ".join(sorted(reasons))
            message = f"invalid ({named}): {invalid} of {n} {what} are made of records with valid=false"
            self.invalid(message, strict=self.get("strict"), marks="they say so too")

    def judge_earlier(self) -> None:
        """Say what --resume's records say of the experiment, where there was nothing left to do and so to judge."""
        bad = [record for record in self.earlier if record.values.get("valid") is False]
        if bad:
            named = bad[-1].values.get("valid_reason") or "no reason given"
            message = f"invalid ({named}): {len(bad)} of the {len(self.earlier)} records that --resume goes on from"
            self.invalid(message, strict=self.get("strict"), marks="they have valid=false")

    def fail(self, error: MltoolsError) -> None:
        """Let the run end with an error, once all that it has to write is written."""
        self.error = self.error or error

    # -- outputs --------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def output(self, role: str) -> Iterator[Path]:
        """Give a path to write an output file to, which takes its name when the context ends without an error."""
        with atomic_file(self.get(role), replace=self.force) as path:
            yield path

    def write_frame(self, role: str, frame: "pl.DataFrame") -> None:
        """Write a polars frame as the Parquet file that an option names."""
        with self.output(role) as path:
            frame.write_parquet(path, metadata={KEY: self.made_by(role).as_json()})

    def outputs(self) -> dict[str, Output]:
        """Give the outputs that were asked for, by their setting; stdout left out."""
        found: dict[str, Output] = {}
        for each in self.fields.values():
            path = self.get(each.name)
            may = each.mark.writes if isinstance(each.mark, Flag) else None
            if may is not None and path is not None and (each.name, str(path)) != ("out", STDIN):
                found[each.name] = Output(each.flag, path, may.endings, may.plain, may.folder)
        more = self.spec.outputs(self.settings) if self.spec.outputs is not None else ()
        return {**found, **{f"{each.option} {each.path}": each for each in more}}

    @property
    def partial(self) -> Path | None:
        """Where finished records are kept meanwhile: of commands that can go on from records, and write a file."""
        out = self.get("out")
        resumes = "resume" in self.fields and self.fields["resume"].mark.opens == "records"
        to_file = out is not None and out.name not in ("", STDIN) and not is_device(out)
        return partial_path(out) if resumes and to_file else None

    @property
    def goes_on_from_partial(self) -> bool:
        """Whether --resume names the records that this very run has left."""
        return self.partial is not None and Path(self.get("resume") or "").absolute() == self.partial.absolute()

    @property
    def makes_more(self) -> bool:
        """Whether there are outputs beside the records."""
        return bool(self.outputs().keys() - {"out", "provenance"})

    @property
    def force(self) -> bool:
        """Whether outputs that are there are replaced."""
        return bool(self.get("force"))

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return round(time.monotonic() - self._start, 2)


def open_source(path: str | None) -> Source:
    """Open an argument: a path, `-`, or stdin if it is left out and is no terminal.

    Raises:
        UsageError: left out, and stdin is a terminal.
    """
    if path is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no rows: name a file, or pipe rows in (- is stdin)")
    return Source(path if path is not None else STDIN)
