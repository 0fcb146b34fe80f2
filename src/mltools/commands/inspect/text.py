"""What `inspect` found, as text for people."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mltools.io.kinds import CheckpointRecord, DifferenceRecord, FileRecord, TensorRecord

Found = CheckpointRecord | DifferenceRecord | FileRecord | TensorRecord


def as_text(records: Sequence[Found]) -> Iterator[str]:
    """Yield the lines that tell of records of one kind."""
    match records[0]:
        case CheckpointRecord():
            yield from _checkpoint_text(records[0])
        case FileRecord():
            yield from _file_text(records[0])
        case TensorRecord():
            yield from _tensor_text([record for record in records if isinstance(record, TensorRecord)])
        case _:
            yield from _difference_text([record for record in records if isinstance(record, DifferenceRecord)])


def _checkpoint_text(record: CheckpointRecord) -> Iterator[str]:
    head = f"classes {', '.join(record.class_names)}" if record.head else "no classification head"
    pooled = (
        f"the {record.pooled_position} position" if record.pooled_position in ("first", "last") else "all positions"
    )
    best = f", best metric {record.best_metric:.4g}" if record.best_metric is not None else ""
    yield f"{record.path}: {record.model_class}, {record.layers} layers of width {record.width}"
    yield from _facts(
        {
            "blocks": f"{record.block_path} ({record.block_class})",
            "head": head + (f"; reads {pooled}" if record.pooled_position else ""),
            "weights": f"{record.weights:,}, stored as {record.weights_type}"
            + ("" if record.faults else ", all there and finite"),
            "tokenizer": f"{record.tokens:,} tokens" + (f", rows up to {record.longest}" if record.longest else ""),
            **({"trained": f"{record.step:,} steps{best}"} if record.step is not None else {}),
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


def _difference_text(records: Sequence[DifferenceRecord]) -> Iterator[str]:
    yield f"{records[0].path} and {records[0].other}"
    yield ""
    rows = [
        [
            _layer(record.layer),
            _number(record.distance),
            "-" if record.cosine is None else f"{record.cosine:.6f}",
            f"{len(record.equal)} of {len(record.equal) + len(record.different)}",
            str(len(record.unmatched) or ""),
            _both(record.not_finite, record.other_not_finite),
        ]
        for record in records
    ]
    yield from _table(["layer", "distance", "cosine", "equal tensors", "unmatched", "NaN/inf"], rows)


def _tensor_text(records: Sequence[TensorRecord]) -> Iterator[str]:
    other, layers = records[0].other, records[0].layers
    n = sum(record.parameters for record in records)
    yield records[0].path + (f" and {other}" if other else f": {len(records)} tensors, {n:,} numbers, {layers} layers")
    yield ""
    compared = ["difference", "distance", "largest"] if other else []
    rows = []
    for record in records:
        row = [record.tensor, str(record.layer or ""), record.dtype, "x".join(map(str, record.shape))]
        row += [
            _number(record.l2),
            _number(record.largest),
            _both(record.not_finite, record.other_not_finite),
        ]
        if other:
            gaps = (record.difference, record.distance, record.largest_difference)
            row += ["unmatched", "", ""] if record.unmatched else map(_number, gaps)
        rows.append(row)
    yield from _table(["tensor", "layer", "type", "shape", "L2 norm", "largest", "NaN/inf", *compared], rows)


def _file_text(record: FileRecord) -> Iterator[str]:
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
    by = shlex.join(map(str, command)) if isinstance(command, list) else str(provenance.get("tool"))
    facts = {"made by": f"{by} (version {provenance.get('version')})"}
    inputs = provenance.get("inputs")
    for role, entry in inputs.items() if isinstance(inputs, dict) else ():
        if isinstance(entry, dict):  # a file may say anything
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


def _both(n: int | None, other: int | None) -> str:
    """Write a count of A, or those of A and B where they differ."""
    if n is None:
        return "-"
    return str(n) if other in (None, n) else f"{n}, {other}"


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
