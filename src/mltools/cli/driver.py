"""The one way in which every command runs: check, open, digest, choose, work, write, finish.

Usage errors, wrong rows and unusable checkpoints (statuses 2-5) come before any work.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from mltools import console
from mltools.cli.command_line import command_line
from mltools.cli.registry import command_spec
from mltools.io.atomic import atomic_file, check_output
from mltools.io.records import read_records
from mltools.io.source import STDIN
from mltools.io.writer import RecordWriter
from mltools.options import parse_tags
from mltools.run import Run
from mltools.sinks import RecordSink
from mltools.spec import FOLDER, CommandSpec, Field, Flag, rebuild
from mltools.sweep import finished


def drive(name: str, given: dict[str, Any]) -> None:
    """Run a command on what was given for it on the command line.

    Raises:
        MltoolsError: whatever went wrong; usage, rows and checkpoints before any work.
    """
    spec = command_spec(name)
    run = Run(name, spec, settle(spec, given), command_line())
    check(run)
    work = spec.work()
    load(run)
    if run.get("dry_run", False):
        plan(run, work)
        return
    resume(run)
    with resting_collector():
        written = write(run, work)
    finish(run, written)


def settle(spec: CommandSpec, given: dict[str, Any]) -> Any:
    """Build the settings: what was given, else the preset's, else the defaults; and see that they go together.

    Raises:
        UsageError: a value out of range, or settings that do not go together.
    """
    released: Mapping[str, Any] = {}
    if given.get("preset") == "released-code":
        released = spec.released(given) if callable(spec.released) else spec.released
    settings = rebuild(spec.settings, {**released, **given})
    if spec.check is not None:
        spec.check(settings, given)
    return settings


def check(run: Run) -> None:
    """Check tags and outputs, before anything is opened."""
    run.tags = parse_tags(run.get("tag", ()))
    inputs = [Path(name) for each in run.fields.values() if each.mark.opens for name in named(run, each)]
    for each in run.outputs():
        path = run.get(each.name)
        check_output(path, force=run.get("force", False), inputs=tuple(inputs), file=FOLDER not in writes(each))


def named(run: Run, each: Field) -> list[str]:
    """Give the names that were given for an input."""
    value = run.get(each.name)
    names = [value] if isinstance(value, str) else list(value or ())
    return [name for name in names if name != STDIN]


def writes(each: Field) -> tuple[str, ...]:
    """Give the endings that an output may have; none for a field that is no output."""
    return each.mark.writes if isinstance(each.mark, Flag) else ()


def load(run: Run) -> None:
    """Read the rows that are read whole, and digest the checkpoints."""
    for each in run.fields.values():
        if each.mark.opens == "rows":
            _ = run.rows
    for each in run.fields.values():
        if each.mark.opens == "checkpoint" and run.get(each.name) is not None:
            run.model(each.name)


def plan(run: Run, work: Any) -> None:
    """Print the work items and what each would cost, for --dry-run."""
    from mltools.model.cost import estimate, measure_rate
    from mltools.model.device import set_threads

    items = list(work.items(run))
    set_threads(run.get("threads"), run.shape.width)
    rate = measure_rate(run.shape.width, run.device)
    seconds = 0.0
    with RecordWriter(None, run.tags) as writer:
        for record in estimate(run.name, run.shape, items, rate):
            writer.write(record)
            seconds += record.seconds
    console.summary(f"{run.name} --dry-run", {"items": writer.n, "estimated_seconds": seconds, "gigaflops": rate / 1e9})


def resume(run: Run) -> None:
    """Take the records of an earlier run of this sweep, whose items are not done again."""
    for each in run.fields.values():
        if each.name == "resume" and each.mark.opens == "records" and (paths := named(run, each)):
            run.earlier = finished(chain.from_iterable(read_records(paths)), run.name, run.get("part"), run.tags)


def write(run: Run, work: Any) -> int:
    """Do the work and write what it gives; how many records that were."""
    sink = run.spec.sink() if run.spec.sink is not None else RecordSink
    with sink(run) as writer:
        for item in work.run(run):
            writer.write(item)
    return int(writer.n)


def finish(run: Run, written: int) -> None:
    """Write --provenance and say what was done."""
    path = run.get("provenance")
    if path is not None:
        with atomic_file(path) as temporary:
            temporary.write_text(run.made_by("provenance").as_json() + "\n", encoding="utf-8")
    said = {"seed": run.get("seed"), "preset": run.get("preset"), "seconds": run.seconds}
    if run.spec.says:
        console.summary(run.name, {**({run.spec.counted: written} if run.spec.counted else {}), **run.facts, **said})
    if run.error is not None:
        raise run.error


@contextlib.contextmanager
def resting_collector() -> Iterator[None]:
    """Let the collector of cycles rest: it would look at a million rows, which are in no cycle, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
