"""The one way in which every command runs: check, open, digest, choose, work, write, finish.

Usage errors, wrong rows and unusable checkpoints (statuses 2-5) come before any work.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltools import console, signals
from mltools.cli.command_line import command_line, going_on
from mltools.cli.registry import command_spec, command_work, learn_kinds
from mltools.cli.words import apply_messages
from mltools.errors import RowsError, UsageError
from mltools.io.inputs import split_name
from mltools.io.outputs import Output, check_outputs
from mltools.io.partial import Resumed, check_partial, whole_lines
from mltools.io.provenance import tell_other_threads
from mltools.io.records import read_records
from mltools.io.source import STDIN
from mltools.io.stdout import end_quietly
from mltools.io.writer import RecordWriter
from mltools.processes import LAUNCHER, join, launched
from mltools.run import Run
from mltools.shards import item_digest, item_line
from mltools.sinks import RecordSink, TextSink
from mltools.spec import CommandSpec, Field, Operand
from mltools.sweep import finished
from mltools.tags import parse_tags

if TYPE_CHECKING:
    from mltools.model.speed import Speed


def run_command(name: str, given: dict[str, Any]) -> None:
    """Run a command on what the command line gave for it, by its settings' own names and those of MessageOptions.

    Raises:
        MltoolsError: what `drive` raises.
    """
    try:
        drive(name, apply_messages(given))
    except BrokenPipeError:  # typer would make it status 1
        end_quietly()


def drive(name: str, given: dict[str, Any]) -> None:
    """Run a command on what was given for it on the command line.

    Raises:
        MltoolsError: whatever went wrong; usage, rows and checkpoints before any work.
    """
    spec = command_spec(name)
    run = Run(name, spec, spec.settle(given), command_line())
    run.goes_on = going_on
    if any(each.mark.opens == "records" for each in run.fields.values()):
        learn_kinds()
    check(run)
    share(run)
    with run.team.together():
        go(run)


def go(run: Run) -> None:
    """Open, digest, choose, work, write, finish: what several processes do together."""
    work = command_work(run.name)
    load(run)
    resume(run)
    if run.get("dry_run", False):
        if not run.silent:
            plan(run, work)
        return
    with resting_collector():
        written = write(run, work)
    finish(run, written)


def check(run: Run) -> None:
    """Check outputs and tags, before anything is opened.

    Raises:
        UsageError: what `check_outputs` and `parse_tags` refuse; two inputs from one stdin.
    """
    if len(read := from_stdin(run)) > 1:
        raise UsageError(f"{' and '.join(read)} cannot both come from stdin: name a file for one")
    inputs = [name for each in run.fields.values() if each.mark.opens for name in named(run, each)]
    outputs = list(run.outputs().values())
    if run.partial is not None:
        outputs.append(Output("-o", run.partial, resumed=True))
        if run.goes_on_from_partial:
            inputs.remove(str(run.get("resume")))
        elif not run.force:
            check_partial(run.get("out"))
    check_outputs(outputs, inputs, force=run.force)
    run.tags = parse_tags(run.get("tag", ()), record_columns(run.spec))


def record_columns(spec: CommandSpec) -> set[str]:
    """Name the columns of all records that a command writes."""
    return {column.name for kind in spec.written.values() for column in fields(kind)}


def named(run: Run, each: Field) -> list[str]:
    """Give the names that were given for an input, stdin left out."""
    return [split_name(name)[0] for name in as_list(run.get(each.name)) if name != STDIN]


def share(run: Run) -> None:
    """Meet the other processes of a launcher, of which one speaks and writes; and say what its variables do.

    Raises:
        UsageError: all of them would read one stdin.
    """
    place, left_over = launched(), [name for name in LAUNCHER if name in os.environ]
    if place is None:
        if run.spec.shared and "RANK" in left_over:
            console.warn(f"no launcher set {', '.join(left_over)}: others are missing, so this process works alone")
    elif not run.spec.shared:
        note = f"started as one of {place.processes} processes; {run.name} does all work in each"
        console.log(f"mltools: note: {note}", level=1)
    else:
        if from_stdin(run):
            raise UsageError(f"{place.processes} processes share this run, and one stdin: name a file in place of it")
        if place.rank == 0:
            console.warn(f"{place.processes} processes share this run, as RANK, WORLD_SIZE and the like say")
        else:
            console.configure(verbosity=-1, progress="none")
            run.silent = True
        if run.spec.shared == "items" and not run.get("dry_run", False):
            run.team = join(place)


def from_stdin(run: Run) -> list[str]:
    """Name the inputs that are stdin: those named so, and the one operand that stands for it when it is left out."""
    inputs = [each for each in run.fields.values() if each.mark.opens or each.name == "layers"]
    words = {each.name: as_list(run.get(each.name)) for each in inputs}
    read = [each.name for each in inputs if STDIN in words[each.name]]
    operands = [each.name for each in inputs if isinstance(each.mark, Operand) and each.mark.opens != "checkpoint"]
    if operands and not any(words[name] for name in operands):
        read.insert(0, operands[0])
    return read


def as_list(value: Any) -> list[str]:
    """Give the values of a setting, one, none or several, as text."""
    values = value if isinstance(value, tuple | list) else () if value is None else (value,)
    return list(map(str, values))


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
    speed, seconds, planned = estimates(run, work)
    with RecordWriter(None, run.tags) as writer:
        for record in planned:
            writer.write(record)
    console.summary(
        f"{run.name} --dry-run", {"items": writer.n, "estimated_seconds": seconds, "gigaflops": speed.forward / 1e9}
    )


def estimates(run: Run, work: Any) -> tuple["Speed", float, list[Any]]:
    """Give the measured speed, the seconds that one run of all items would take, and what each would cost alone."""
    from mltools.model.cost import estimate, in_one_run, speed_for
    from mltools.model.device import set_threads

    items = list(work.items(run))
    items = run.left(run.chosen(items, lambda _: items))
    set_threads(run.get("threads"), run.shape.width)
    speed = speed_for(run.shape, items, run.device)
    seconds = sum(each.seconds for each in estimate(run.name, run.shape, in_one_run(items), speed))
    found = zip(items, estimate(run.name, run.shape, items, speed), strict=True)
    line = item_line(run.command)
    planned = [
        replace(
            each,
            item_digest=item_digest(run.digest, item.options),
            command=f"{line} {item.options}".strip() if line else None,
        )
        for item, each in found
    ]
    return speed, seconds, planned


def resume(run: Run) -> None:
    """Take the records of an earlier run of this sweep, whose items are not done again."""
    for each in run.fields.values():
        if each.name == "resume" and each.mark.opens == "records" and (paths := named(run, each)):
            if run.goes_on_from_partial and not Path(paths[0]).exists():
                continue  # the first start of a line that is to be started again and again
            found = [Resumed(path, own=run.goes_on_from_partial, to_stdout=run.get("out") is None) for path in paths]
            records = list(chain.from_iterable(read_records(found)))
            run.earlier = finished(records, run.name, run.get("part"), run.tags)
            compare_threads(run)
            if run.goes_on_from_partial:
                run.taken_over = whole_lines(Path(paths[0]))
                if len(run.earlier) < len(records):
                    raise RowsError(
                        f"{paths[0]}: records of another sweep; go on with its settings, or choose another -o"
                    )


def compare_threads(run: Run) -> None:
    """Say so where earlier records were made with another number of threads than this run will have."""
    begun = [record.values.get("threads") for record in run.earlier]
    if any(begun):
        from mltools.model.device import set_threads

        set_threads(run.get("threads"), run.model(run.main_checkpoint).outline().width)
        tell_other_threads(begun)


def write(run: Run, work: Any) -> int:
    """Do the work and write what it gives; how many records that were."""
    sink = getattr(work, "sink", TextSink if run.spec.text else RecordSink)
    with sink(run) as writer:
        for item in work.run(run):
            writer.write(item)
            signals.check()
    return int(writer.n)


def finish(run: Run, written: int) -> None:
    """Judge what was taken over, write --provenance and say what was done."""
    settle(run, written)
    said = {"seed": run.get("seed"), "preset": run.get("preset"), "seconds": run.seconds}
    if not run.spec.text:
        console.summary(run.name, {**({run.spec.counted: written} if run.spec.counted else {}), **run.facts, **said})
    if run.error is not None:
        raise run.error


def settle(run: Run, written: int) -> None:
    """Judge what was taken over, and write --provenance."""
    if run.earlier and not written:
        run.judge_earlier()
    if run.get("provenance") is not None and not run.silent:
        with run.output("provenance") as temporary:
            temporary.write_text(run.made_by("provenance").as_json() + "\n", encoding="utf-8")


@contextlib.contextmanager
def resting_collector() -> Iterator[None]:
    """Let the collector of cycles rest: it would look at a million rows, which are in no cycle, again and again.

    Where there are models, only what is there by now is left alone: cycles that are made later could hold tensors.
    """
    was_enabled = gc.isenabled()
    if "torch" in sys.modules:
        gc.freeze()
    else:
        gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
