"""What the commands share: reading common options, the record writer, provenance and the summary line."""

import contextlib
import dataclasses
import gc
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltools import console
from mltools.cli.app import COMMANDS
from mltools.errors import UsageError
from mltools.io.atomic import atomic_file
from mltools.io.columns import Columns, LabelType
from mltools.io.examples import Examples
from mltools.io.kinds import record_kinds
from mltools.io.outputs import RECORDS, Output, check_outputs
from mltools.io.provenance import Provenance, plain
from mltools.io.records import Records, read_records
from mltools.io.source import STDIN, Source
from mltools.io.writer import RecordWriter
from mltools.options import parse_names, parse_tags
from mltools.processes import LAUNCHER, launched

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from mltools.model.cost import Shape, WorkItem


def columns(text: str | None, label: str | None, separator: str | None, label_type: str) -> Columns:
    """Build the columns from --text, --label, --separator and --label-type."""
    kind: LabelType = "str" if label_type == "str" else "auto"
    return Columns(parse_names(text) or ("text",), label or "label", separator, kind)


def rows_source(rows: str | None) -> Source:
    """Open the rows argument: a path, `-`, or stdin if it is left out and is no terminal.

    Raises:
        UsageError: left out, and stdin is a terminal.
    """
    if rows is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no rows: name a file, or pipe rows in (- is stdin)")
    return Source(rows if rows is not None else STDIN)


def shape_of(
    checkpoint: str, examples: Examples, max_length: int, blocks: str | None, offload: bool = False
) -> "Shape":
    """Read what decides the cost of a checkpoint on rows, for --dry-run."""
    from mltools.model.checkpoint_loading import open_outline
    from mltools.model.cost import read_shape

    return read_shape(open_outline(checkpoint, blocks), examples, max_length, offload)


def device_for(name: str) -> "torch.device":
    """Find the device of --device."""
    from mltools.model.device import find_device

    return find_device(name)


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Let the collector of cycles rest: it would look at a million rows, which are in no cycle, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def columns_of(tool: str) -> set[str]:
    """Name the columns of all records that a command writes."""
    kinds = record_kinds()
    return {field.name for kind in COMMANDS[tool].writes for field in dataclasses.fields(kinds[kind])}


class Job:
    """One run of a command: its inputs, settings and outputs.

    Of several processes that share a run only the first writes and speaks.
    """

    def __init__(
        self,
        tool: str,
        settings: Any,
        *,
        inputs: Iterable[str | Path | None] = (),
        out: Path | None = None,
        endings: tuple[str, ...] = RECORDS,
        others: Sequence[Output | None] = (),
        force: bool = False,
        tag: list[str] | None = None,
        provenance: Path | None = None,
        shared: bool = False,
    ) -> None:
        """Check outputs and tags before any work is done.

        Args:
            tool: the command.
            settings: its settings.
            inputs: all files and folders that it reads; None and `-` are stdin.
            out: -o; None and `-` are stdout.
            endings: those that the name of `out` may have.
            others: what is made beside `out`.
            force: whether outputs that are there are replaced.
            tag: the --tag options.
            provenance: --provenance.
            shared: whether the processes of a launcher share the work; else each does all of it.

        Raises:
            UsageError: what `check_outputs` and `parse_tags` refuse.
        """
        self._beside = [output for output in others if output is not None]
        outputs = list(self._beside)
        if out is not None and str(out) != STDIN:
            outputs.append(Output("-o", out, endings))
        if provenance is not None:
            outputs.append(Output("--provenance", provenance))
        check_outputs(outputs, filter(None, inputs), force=force)
        self.tags = parse_tags(tag, columns_of(tool))
        if not _is_first(tool, shared):
            console.configure(verbosity=-1)
            out, provenance = Path(os.devnull), None
        self.tool, self.settings, self.out, self.force = tool, settings, out, force
        self.inputs: dict[str, Mapping[str, str]] = {}
        self._provenance = provenance
        self._start = time.monotonic()

    def used(self, role: str, source: Source | Examples) -> None:
        """Note an input that was read, by its digest."""
        source = source.source if isinstance(source, Examples) else source
        self.inputs[role] = {"path": source.name, "sha256": source.digest}

    def read_records(self, paths: list[str] | None) -> Iterator[Records]:
        """Yield the records of a command's arguments (none is stdin) in blocks, and note each file as an input.

        Raises:
            UsageError: no arguments, and stdin is a terminal.
        """
        paths = paths or [rows_source(None).path]
        return read_records(paths, lambda source: self.used(source.name, source))

    @property
    def provenance(self) -> Provenance:
        """How the outputs of this run are made."""
        settings: dict[str, Any] = plain(self.settings)
        return Provenance(self.tool, settings, settings.get("seed"), dict(self.inputs), command_line())

    def sweep(self, settings: Any, examples: Examples) -> str:
        """Digest what decides the results of this run: settings, checkpoints, and rows in whatever order and form."""
        inputs = {**self.inputs, "rows": {"sha256": examples.digest()}}
        return replace(self.provenance, settings=plain(settings), inputs=inputs).run

    @contextlib.contextmanager
    def records(self, *, keep_going: bool = False) -> Iterator[RecordWriter]:
        """Give the writer of this run's records.

        Args:
            keep_going: whether to go on when stdout's reader goes; so it is anyway where there are other outputs.
        """
        going = keep_going or bool(self._beside)
        with RecordWriter(self.out, self.tags, keep_going=going, replace=self.force) as writer:
            yield writer
            writer.provenance = self.provenance

    def plan(
        self, shape: "Shape", items: "Iterable[WorkItem]", device: str, threads: int | None, **facts: object
    ) -> None:
        """Print the work items and what each would cost, for --dry-run.

        Args:
            shape: the model and the rows.
            items: the work, counted.
            device: --device.
            threads: --threads.
            facts: more for the summary.
        """
        from mltools.model.cost import measure_rate, price
        from mltools.model.device import set_threads

        set_threads(threads, shape.width)
        rate = measure_rate(shape.width, device_for(device))
        seconds = 0.0
        with RecordWriter(None, self.tags) as writer:
            for record in price(self.tool, shape, items, rate):
                writer.write(record)
                seconds += record.seconds
        console.summary(
            f"{self.tool} --dry-run",
            {"items": writer.n, "estimated_seconds": seconds, "gigaflops": rate / 1e9, **facts},
        )

    def finish(self, **facts: object) -> None:
        """Write --provenance and print the summary line."""
        if self._provenance is not None:
            with atomic_file(self._provenance, replace=self.force) as temporary:
                temporary.write_text(self.provenance.by("--provenance").as_json() + "\n", encoding="utf-8")
        seconds = round(time.monotonic() - self._start, 2)
        settings = self.provenance.settings
        console.summary(
            self.tool, {**facts, "seed": settings.get("seed"), "preset": settings.get("preset"), "seconds": seconds}
        )


def _is_first(tool: str, shared: bool) -> bool:
    """Whether this process is the first, or the only one, of a run; and say what a launcher's variables do."""
    place, found = launched(), [name for name in LAUNCHER if name in os.environ]
    if place is None:
        if shared and "RANK" in found:
            console.warn(f"{', '.join(found)} alone are no launcher's: this process trains alone")
        return True
    if not shared:
        console.log(f"mltools: note: started as one of {place.processes} processes; {tool} does all work in each", 1)
        return True
    if place.rank == 0:
        console.warn(f"{place.processes} processes share this run, as RANK, WORLD_SIZE and the like say")
    return place.rank == 0


OUTPUT_OPTIONS = ("--out", "--provenance", "--per-row", "--save", "--write")
SWITCHES = ("--force", "--quiet", "--verbose", "--debug", "--no-color")
SHORT = re.compile(r"-[qv]*(o.*)?")
"""Short options in one word, of which only -o takes a value: the rest of the word, or the next one."""


def command_line() -> tuple[str, ...]:
    """Give the command line without where outputs go and how much is said, so that it is the same for the same work."""
    kept: list[str] = ["mltools"]
    switches = (*SWITCHES, "--resume") if sys.argv[1:2] == ["finetune"] else SWITCHES
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        short = SHORT.fullmatch(argument) if len(argument) > 1 else None
        if argument in OUTPUT_OPTIONS or (short is not None and short[1] == "o"):
            next(arguments, None)
        elif short is None and argument not in switches and argument.partition("=")[0] not in OUTPUT_OPTIONS:
            kept.append(argument)
    return tuple(kept)
