"""What the commands share: reading common options, the record writer, provenance and the summary line."""

import contextlib
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
from mltools.errors import UsageError
from mltools.io.atomic import atomic_file, check_output
from mltools.io.columns import Columns, LabelType
from mltools.io.examples import Examples
from mltools.io.provenance import Provenance, plain
from mltools.io.records import Records, read_records
from mltools.io.source import STDIN, Source
from mltools.io.writer import RecordWriter
from mltools.options import parse_names, parse_tags

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


def is_main_process() -> bool:
    """Whether this process is the only one, or the first of those that torchrun or accelerate started."""
    return os.environ.get("RANK", "0") == "0"


class Job:
    """One run of a command: its inputs, settings and outputs.

    Of several processes that share a run only the first writes and speaks.
    """

    def __init__(
        self,
        tool: str,
        settings: Any,
        *,
        out: Path | None = None,
        others: Sequence[Path | None] = (),
        force: bool = False,
        tag: list[str] | None = None,
        provenance: Path | None = None,
    ) -> None:
        """Check the outputs before any work is done: `out`, `others` that are made beside it, and `provenance`.

        Raises:
            UsageError: an output exists, or a tag is no KEY=VALUE.
        """
        if not is_main_process():
            console.configure(verbosity=-1)
            out, provenance = Path(os.devnull), None
        self.tool, self.settings, self.out = tool, settings, out
        self.tags = parse_tags(tag)
        self.inputs: dict[str, Mapping[str, str]] = {}
        self._provenance = provenance
        self._force = force
        self._start = time.monotonic()
        self._others = [path for path in others if path is not None]
        for path in (out, provenance):
            if path is not None and str(path) != STDIN:
                check_output(path, force=force, file=True)
        for path in self._others:
            check_output(path, force=force)

    def check_input(self, path: str) -> None:
        """Refuse to write over an input."""
        for out in (self.out, self._provenance, *self._others):
            if out is not None and str(out) != STDIN and path != STDIN:
                check_output(out, force=True, inputs=(Path(path),))

    def used(self, role: str, source: Source | Examples) -> None:
        """Note an input that was read, by its digest, and say how many of its rows have no label."""
        if isinstance(source, Examples):
            if source.n_unlabelled:
                console.warn(f"{source.n_unlabelled} rows without a label are left out")
            source = source.source
        self.inputs[role] = {"path": source.name, "sha256": source.digest}

    def read_records(self, paths: list[str] | None) -> Iterator[Records]:
        """Yield the records of a command's arguments (none is stdin) in blocks, and note each file as an input.

        Raises:
            UsageError: no arguments, and stdin is a terminal; or an argument is an output too.
        """
        paths = paths or [rows_source(None).path]
        for path in paths:
            self.check_input(path)
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
        with RecordWriter(self.out, self.tags, keep_going=keep_going or bool(self._others)) as writer:
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
            with atomic_file(self._provenance) as temporary:
                temporary.write_text(self.provenance.by("--provenance").as_json() + "\n", encoding="utf-8")
        seconds = round(time.monotonic() - self._start, 2)
        settings = self.provenance.settings
        console.summary(
            self.tool, {**facts, "seed": settings.get("seed"), "preset": settings.get("preset"), "seconds": seconds}
        )


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
