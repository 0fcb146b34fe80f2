"""Say what a file of rows, records, tensors or provenance is, and how it was made. Needs no torch."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mltools.errors import NotFoundError, RowsError, UsageError
from mltools.io.kinds import FileRecord, known_columns, record_kinds
from mltools.io.parquet import parquet_metadata
from mltools.io.provenance import CHECKPOINT_FILE, KEY
from mltools.io.rows import Values, iter_rows
from mltools.io.source import STDIN, Source
from mltools.io.tables import record_cells

FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
ROW_FILES = tuple(form + packer for form in FORMATS for packer in ("", ".gz", ".zst", ".bz2", ".xz"))
TENSOR_FILES = (".safetensors",)
MOST = 20
TYPES: Mapping[type, str] = {
    str: "text",
    bool: "true/false",
    int: "integer",
    float: "number",
    list: "list",
    dict: "object",
    type(None): "null",
}


def is_file(name: str) -> bool:
    """Whether a name means a file that `inspect_file` looks at, rather than a checkpoint."""
    return name == STDIN or name.endswith((*ROW_FILES, *TENSOR_FILES, ".json")) or Path(name).is_file()


def is_weights(name: str) -> bool:
    """Whether a name means a file of tensors that mltools gives no other meaning, as states or gradients.

    Raises:
        RowsError: it is damaged.
    """
    return name.endswith(TENSOR_FILES) and Path(name).is_file() and _tensors(name).kind in ("weights", "tensors")


def inspect_file(name: str) -> FileRecord:
    """Look at one file, or at rows or records on stdin (`-`).

    Raises:
        NotFoundError: no such file.
        RowsError: it is damaged.
        UsageError: its name says nothing of what it is.
    """
    if name != STDIN and not Path(name).exists():
        raise NotFoundError(f"no such file: {name}")
    if name.endswith(TENSOR_FILES):
        return _tensors(name)
    if name.endswith(".json"):
        return _provenance(name)
    if name == STDIN or name.endswith(ROW_FILES):
        return _lines(name)
    endings = ", ".join((*FORMATS, *TENSOR_FILES))
    raise UsageError(f"{name}: neither a checkpoint folder nor a file that ends in {endings} or .json")


def find_provenance(name: str) -> dict[str, Any] | None:
    """Read how a file or a checkpoint folder was made; None if it does not say. Reads no weights."""
    if is_file(name):
        return inspect_file(name).provenance
    path = Path(name).expanduser() / CHECKPOINT_FILE
    return _as_provenance(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None


# -- tensors ------------------------------------------------------------------------------------------


def _tensors(name: str) -> FileRecord:
    try:
        with safe_open(name, framework="numpy") as file:
            slices = {tensor: file.get_slice(tensor) for tensor in file.keys()}  # noqa: SIM118
            columns = {t: f"{s.get_dtype()} {list(s.get_shape())}" for t, s in slices.items()}
            provenance = _as_provenance((file.metadata() or {}).get(KEY))
            kind = _tensor_kind(columns)
            noisy = int(file.get_tensor("noisy").sum()) if kind == "states" and "noisy" in columns else None
    except SafetensorError as error:
        raise RowsError(f"{name}: not a whole safetensors file ({error})") from None
    contents: dict[str, Any] = {}
    if kind == "states":
        n, layers, width = slices["hidden_states"].get_shape()
        contents = {"rows": n, "noisy": noisy, "layers": layers - 1, "width": width}
    elif kind == "gradients":
        contents = dict(Counter(f"{tensor.partition('/')[0]} tensors" for tensor in columns))
    return FileRecord("inspect", name, kind, len(columns), columns, contents, provenance)


def _tensor_kind(names: Iterable[str]) -> str:
    names = list(names)
    groups = {name.partition("/")[0] for name in names if "/" in name}
    if "hidden_states" in names:
        return "states"
    if groups and groups <= {"noisy", "clean"}:
        return "gradients"
    if "weight" in groups:
        return "unfinished run"
    return "weights" if any(name.endswith((".weight", ".bias")) for name in names) else "tensors"


def _as_provenance(text: str | None) -> dict[str, Any] | None:
    try:
        value = json.loads(text or "null")
    except ValueError:
        return None
    return value if isinstance(value, dict) and "tool" in value else None


def _provenance(name: str) -> FileRecord:
    text = Path(name).read_text(encoding="utf-8", errors="replace")
    if text.lstrip().startswith("["):
        return _lines(name)
    provenance = _as_provenance(text)
    if provenance is None:
        raise RowsError(f"{name}: no provenance that mltools wrote (an object with a tool)")
    return FileRecord("inspect", name, "provenance", 1, {}, {}, provenance)


# -- rows and records ---------------------------------------------------------------------------------


def _lines(name: str) -> FileRecord:
    source = Source(name)
    columns: dict[str, Counter[str]] = {}
    found: _Rows | _Records | None = None
    n = 0
    for _, _, values in iter_rows(source, record_cells):
        n += 1
        found = found or (_Records() if isinstance(values.get("tool"), str) else _Rows())
        found.add(values)
        for column, value in values.items():
            columns.setdefault(column, Counter())[TYPES.get(type(value), type(value).__name__)] += 1
    types = {column: " or ".join(sorted(kinds)) for column, kinds in columns.items()}
    metadata = parquet_metadata(source).get(KEY) if source.is_parquet else None
    kind, contents = (found.kind, found.contents()) if found is not None else ("rows", {})
    return FileRecord("inspect", name, kind, n, types, contents, _as_provenance(metadata))


class _Rows:
    """What is worth knowing of rows: how many of each class, and how many of them noisy."""

    kind = "rows"

    def __init__(self) -> None:
        self._labels: Counter[str] = Counter()
        self._noisy: Counter[str] = Counter()

    def add(self, values: Values) -> None:
        if "label" not in values:
            return
        label = json.dumps(values["label"], ensure_ascii=False, default=str)
        self._labels[label] += 1
        self._noisy[label] += values.get("noisy") is True

    def contents(self) -> dict[str, Any]:
        labels = dict(sorted(self._labels.items())) if len(self._labels) <= MOST else {}
        return {"noisy": self._noisy.total(), "classes": len(self._labels), "rows by label": labels}


class _Records:
    """What is worth knowing of records: how many of each tool, their kind, and the values of the tags."""

    kind = "records"

    def __init__(self) -> None:
        self._tools: Counter[str] = Counter()
        self._tags: dict[str, set[str]] = {}
        self._kinds: set[str] = set()
        self._known = known_columns()
        self._fields = {name: fields(kind) for name, kind in record_kinds().items()}

    def add(self, values: Values) -> None:
        self._tools[str(values.get("tool"))] += 1
        shared = {
            name: sum(column.name in values for column in columns)
            for name, columns in self._fields.items()
            if all(column.name in values for column in columns if column.default is MISSING)
        }  # another version's records may lack columns that have a default
        self._kinds.add(max(shared, key=lambda name: shared[name], default="unknown"))
        for column in values.keys() - self._known:
            self._tags.setdefault(column, set()).add(str(values[column]))

    def contents(self) -> dict[str, Any]:
        tags = {
            tag: sorted(seen) if len(seen) <= MOST else f"{len(seen)} values"
            for tag, seen in sorted(self._tags.items())
        }
        return {"records by tool": dict(self._tools), "kinds": sorted(self._kinds), "tags": tags}
