"""`mltools inspect`."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.errors import UsageError
from mltools.io.provenance import CHECKPOINT_FILE, command_for
from mltools.io.stdout import write_stdout

if TYPE_CHECKING:
    from mltools.io.kinds import CheckpointRecord, DifferenceRecord, FileRecord

    Record = CheckpointRecord | DifferenceRecord | FileRecord


@command(
    "inspect",
    "mltools inspect noisy/",
    "mltools inspect noisy/ clean/ --json | jq '{layer, distance}'",
    "mltools inspect states.safetensors --command",
    writes=("checkpoint", "difference", "file"),
)
def inspect(
    first: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|FILE", help="A checkpoint; or rows, records, tensors, provenance; - is stdin."
        ),
    ],
    second: Annotated[
        str | None, typer.Argument(metavar="[CHECKPOINT2]", help="Compare with this one, layer by layer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write records instead of text.")] = False,
    show_command: Annotated[
        bool, typer.Option("--command", help="Print only the command line that made it, and its output option.")
    ] = False,
    blocks: options.Blocks = None,
    tag: options.Tag = None,
    out: options.Out = None,
    force: options.Force = False,
) -> None:
    """Say what a checkpoint or file is, what is in it, and how it was made.

    One checkpoint: where its blocks are, weights by layer and part, their norms, whether all are finite, classes,
    which position the head reads. Two: distance and cosine of each layer, and which tensors are equal. A file: rows or
    records or tensors, how many, which columns. Prints text, the same in a pipe; --json or -o FILE writes records.
    """
    from mltools.tools.inspect_file import inspect_file, is_file

    task = job.Job("inspect", {}, inputs=(first, second), out=out, force=force, tag=tag)
    if second is not None:
        if is_file(first) or is_file(second) or show_command:
            raise UsageError("two names are two checkpoints to compare; look at files and commands one by one")
        from mltools.tools.inspect import compare

        _write(list(compare(first, second, blocks)), task, as_json)
        return
    if show_command:
        _print_command(first)
        return
    if is_file(first):
        _write([inspect_file(first)], task, as_json)
        return
    from mltools.tools.inspect import inspect as tool

    _write([tool(first, blocks)], task, as_json)


def _print_command(name: str) -> None:
    from mltools.tools.inspect_file import find_provenance

    made = str(Path(name).parent) if Path(name).name == CHECKPOINT_FILE else name
    words = command_for(find_provenance(name) or {}, made)
    if words is None:
        raise UsageError(f"{name} does not say which command made it")
    write_stdout(shlex.join(words).encode() + b"\n")


def _write(records: "Sequence[Record]", task: job.Job, as_json: bool) -> None:
    if as_json or task.out is not None:
        with task.records() as writer:
            for record in records:
                writer.write(record)
        return
    write_stdout("".join(f"{console.printable(line)}\n" for line in _text(records)).encode())


def _text(records: "Sequence[Record]") -> Iterator[str]:
    from mltools.io.kinds import CheckpointRecord, DifferenceRecord, FileRecord

    match records[0]:
        case CheckpointRecord():
            yield from _checkpoint_text(records[0])
        case FileRecord():
            yield from _file_text(records[0])
        case _:
            yield from _difference_text([record for record in records if isinstance(record, DifferenceRecord)])


def _checkpoint_text(record: "CheckpointRecord") -> Iterator[str]:
    head = f"classes {', '.join(record.class_names)}" if record.head else "no classification head"
    pooled = f"{record.pooled_position} position" if record.pooled_position in ("first", "last") else "all positions"
    yield f"{record.path}: {record.model_class}, {record.layers} layers of width {record.width}"
    yield from _facts(
        {
            "blocks": f"{record.block_path} ({record.block_class})",
            "head": head + (f"; reads the {pooled}" if record.pooled_position else ""),
            "weights": f"{record.weights:,}, stored as {record.weights_type}"
            + ("" if record.faults else ", all there and finite"),
            "tokenizer": f"{record.tokens:,} tokens" + (f", rows up to {record.longest}" if record.longest else ""),
            **{f"fault {i}": fault for i, fault in enumerate(record.faults, start=1)},
            **_made_by(record.provenance),
        }
    )
    yield ""
    header = ["layer", "weights", "attn", "mlp", "norm", "L2 norm", "largest", "NaN/inf"]
    rows = [
        [
            _layer(part.layer),
            f"{part.weights:,}",
            *("" if n is None else f"{n:,}" for n in (part.attn, part.mlp, part.norm)),
            _number(part.l2),
            _number(part.largest),
            str(part.not_finite),
        ]
        for part in record.parts
    ]
    yield from _table(header, rows)


def _difference_text(records: "Sequence[DifferenceRecord]") -> Iterator[str]:
    yield f"{records[0].path} and {records[0].other}"
    yield ""
    rows = [
        [
            _layer(record.layer),
            _number(record.distance),
            "-" if record.cosine is None else f"{record.cosine:.6f}",
            f"{len(record.equal)} of {len(record.equal) + len(record.different)}",
            str(len(record.unmatched) or ""),
        ]
        for record in records
    ]
    yield from _table(["layer", "distance", "cosine", "equal tensors", "unmatched"], rows)


def _file_text(record: "FileRecord") -> Iterator[str]:
    counted = {"rows": "rows", "records": "records", "provenance": ""}.get(record.kind, "tensors")
    yield f"{record.path}: {record.kind}" + (f", {record.n:,} {counted}" if counted else "")
    contents = {key: _words(value) for key, value in record.contents.items() if value not in ({}, None)}
    yield from _facts({**contents, **_made_by(record.provenance)})
    yield ""
    yield from _facts(record.columns)


def _made_by(provenance: Mapping[str, Any] | None) -> dict[str, str]:
    if provenance is None:
        return {"made by": "not said"}
    command = provenance.get("command")
    by = shlex.join(command) if isinstance(command, list) else str(provenance.get("tool"))
    facts = {"made by": f"{by} (version {provenance.get('version')})"}
    inputs = provenance.get("inputs")
    for role, entry in inputs.items() if isinstance(inputs, dict) else ():
        facts[f"from {role}"] = f"{entry.get('path')} (sha256 {str(entry.get('sha256'))[:12]}…)"
    settings = provenance.get("settings")
    if isinstance(settings, dict):
        facts["settings"] = _words({key: value for key, value in settings.items() if value not in (None, False, [])})
    return facts


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(_words, value))
    return f"{value:,}" if type(value) is int else f"{value:g}" if isinstance(value, float) else str(value)


def _layer(layer: int | None) -> str:
    return "head" if layer is None else "embeddings" if layer == 0 else str(layer)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _facts(facts: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, facts), default=0)
    yield from (f"  {key:<{width}}  {value}" for key, value in facts.items())


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lay out columns, all but the first to the right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = [
            f"{cell:<{w}}" if i == 0 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()
