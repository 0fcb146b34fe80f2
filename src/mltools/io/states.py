"""States: every row's hidden states at the pooled position, all layers, in one safetensors file. Needs no torch.

Tensors: `hidden_states` (n, L + 1, d), float32 or float16, rows in input order; `label` and `original_label` (n,),
int64 indices of the class names that the metadata lists; `noisy` (n,); `ids`, a JSON array as bytes; `baseline` (2,),
the head's accuracy on noisy and on clean rows, NaN where there is none (no head, no such rows). All shapes are
known beforehand, so the header is written first and rows go to their places as they come: memory does not grow.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mltools.errors import NotFoundError, RowsError, UsageError
from mltools.io.atomic import atomic_file, is_device
from mltools.io.columns import RowId
from mltools.io.provenance import KEY, Provenance
from mltools.io.rows import json_preview
from mltools.io.source import Source, rereadable
from mltools.io.stdout import to_stdout, write_stdout

HIDDEN = "hidden_states"
BASELINE = "baseline"
NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL", "uint8": "U8"}
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class RowTable:
    """What is kept of each row beside its states, in input order.

    `label` and `original_label` are (n,) indices of `names`; `noisy` is (n,). Noisy rows whose right label is unknown
    have their label in both.
    """

    ids: list[RowId]
    label: NDArray[np.int64]
    original_label: NDArray[np.int64]
    noisy: NDArray[np.bool_]
    names: list[str]

    def __len__(self) -> int:
        return len(self.ids)


class StatesWriter:
    """Writes a states file in parts, in any order of rows; use as a context manager."""

    def __init__(self, path: Path, rows: RowTable, layers: int, width: int, dtype: str, provenance: Provenance) -> None:
        """Write all but the hidden states; class names go to the provenance.

        Args:
            path: the file to make.
            rows: every row that there will be states of.
            layers: number of layers L; a row has L + 1 states.
            width: width d of a state.
            dtype: float32 or float16.
            provenance: for the metadata.
        """
        self._rows, self._dtype = rows, np.dtype(dtype)
        self._row_shape = (layers + 1, width)
        ids = np.frombuffer(json.dumps(rows.ids, ensure_ascii=False, separators=(",", ":")).encode(), np.uint8)
        provenance = replace(provenance, facts={**provenance.facts, "labels": rows.names})
        before = {
            BASELINE: np.full(2, np.nan),
            "label": rows.label,
            "original_label": rows.original_label,
        }  # the widest first: all are aligned
        after = {"noisy": rows.noisy, "ids": ids}
        shapes = {
            **{name: (values.dtype, values.shape) for name, values in before.items()},
            HIDDEN: (self._dtype, (len(rows), *self._row_shape)),
            **{name: (values.dtype, values.shape) for name, values in after.items()},
        }
        header, starts = _layout(shapes, provenance)
        self._start, self._baseline = starts[HIDDEN], starts[BASELINE]
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        _write_at(self._file, header, 0)
        for name, values in {**before, **after}.items():
            _write_at(self._file, np.ascontiguousarray(values), starts[name])

    def __enter__(self) -> "StatesWriter":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def write_baseline(self, accuracies: tuple[float | None, float | None]) -> None:
        """Write the head's accuracy on noisy and on clean rows."""
        values = np.array([np.nan if value is None else value for value in accuracies], np.float64)
        _write_at(self._file, values, self._baseline)

    def write(self, positions: NDArray[np.int64], states: NDArray[np.float32]) -> None:
        """Write the states (rows, L + 1, d) of the rows at the given positions.

        Raises:
            RowsError: a state that is not finite.
        """
        assert states.shape == (len(positions), *self._row_shape), states.shape
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(states, dtype=self._dtype)
        finite = np.isfinite(values).all(axis=2)
        if not finite.all():
            row, layer = (int(i) for i in np.argwhere(~finite)[0])
            kept = bool(np.isfinite(states[row, layer]).all())
            why = "does not fit float16; use --dtype float32" if kept else "is NaN or infinite"
            raise RowsError(
                f"the state of row id {json_preview(self._rows.ids[positions[row]])} at layer {layer} {why}"
            )
        size = values[0].nbytes
        for position, row_values in zip(positions.tolist(), values, strict=True):
            _write_at(self._file, row_values, self._start + position * size)


def _layout(
    tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], provenance: Provenance
) -> tuple[bytes, dict[str, int]]:
    """Make the header of a safetensors file, and say at which byte of the file each tensor starts."""
    entries: dict[str, Any] = {"__metadata__": {KEY: provenance.as_json()}}
    end, starts = 0, {}
    for name, (dtype, shape) in tensors.items():
        starts[name] = end
        end += int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        entries[name] = {"dtype": NAMES[dtype.name], "shape": list(shape), "data_offsets": [starts[name], end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}


def _write_at(file: int, data: Any, offset: int) -> None:
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


@contextlib.contextmanager
def states_output(out: Path | None, *, replace: bool = False) -> Iterator[Path]:
    """Give a path to write a states file to, at any place in it: `out`, whole or not at all; stdout; or a device.

    Raises:
        UsageError: stdout is a terminal.
    """
    if out is not None and not to_stdout(out) and not is_device(out):
        with atomic_file(out, replace=replace) as path:
            yield path
        return
    if to_stdout(out) and sys.stdout.isatty():
        raise UsageError("states are not for a terminal: name a file with -o, or pipe them on")
    with tempfile.NamedTemporaryFile(prefix="mltools-") as copy:
        yield Path(copy.name)
        if out is not None and not to_stdout(out):
            with out.open("wb") as stream:
                shutil.copyfileobj(copy, stream)
            return
        while data := copy.read(COPY_BYTES):
            write_stdout(data)


class States:
    """An open states file. `layers` is L, `width` is d."""

    def __init__(self, source: Source, file: Any) -> None:
        """Read all but the hidden states.

        Raises:
            RowsError: tensors that are missing or do not fit together.
        """
        self.source, self.name, self._file = source, source.name, file
        found = list(file.keys())
        for tensor in (HIDDEN, "label"):
            if tensor not in found:
                raise RowsError(
                    f'{self.name}: no tensor "{tensor}" (found: {", ".join(found[:5]) or "none"}); is it a file that '
                    "mltools states wrote?"
                )
        self._hidden = file.get_slice(HIDDEN)
        shape, dtype = self._hidden.get_shape(), self._hidden.get_dtype()
        if len(shape) != 3 or shape[1] < 2 or dtype not in ("F32", "F16", "F64"):
            raise RowsError(
                f"{self.name}: hidden_states is {dtype} {shape}, not floating-point (rows, layers + 1, width)"
            )
        n, self.layers, self.width = shape[0], shape[1] - 1, shape[2]
        self.provenance: dict[str, Any] = _metadata(file)
        self.rows = self._table(n, found)
        self.baseline = self._accuracies(found)

    def __len__(self) -> int:
        return len(self.rows)

    def _table(self, n: int, found: list[str]) -> RowTable:
        label = self._column("label", n)
        original = self._column("original_label", n) if "original_label" in found else label
        noisy = self._column("noisy", n).astype(bool) if "noisy" in found else label != original
        ids: list[RowId] = self._ids() if "ids" in found else list(range(n))
        lowest = int(min(label.min(initial=0), original.min(initial=0)))
        highest = int(max(label.max(initial=0), original.max(initial=0)))
        names = self._names() or [str(index) for index in range(highest + 1)]
        if len(ids) != n or len(set(ids)) != n or lowest < 0 or highest >= len(names):
            raise RowsError(
                f"{self.name}: {n} rows with {len(set(ids))} ids and labels {lowest}-{highest} of {len(names)} classes"
            )
        denied = ~noisy & (label != original)
        if denied.any():
            raise RowsError(
                f"{self.name}: row id {json_preview(ids[int(denied.argmax())])} is not noisy, though its label differs "
                "from its original_label; take the states again, from rows whose columns agree"
            )
        return RowTable(ids, label, original, noisy, names)

    def _accuracies(self, found: list[str]) -> tuple[float | None, float | None]:
        values = self._file.get_tensor(BASELINE) if BASELINE in found else np.full(2, np.nan)
        if values.shape != (2,) or values.dtype.kind != "f" or ((values < 0) | (values > 1)).any():
            raise RowsError(f"{self.name}: {BASELINE} is {values.dtype} {list(values.shape)}, not two accuracies")
        noisy, clean = (None if np.isnan(value) else float(value) for value in values)
        return noisy, clean

    def _ids(self) -> list[RowId]:
        try:
            ids = json.loads(self._file.get_tensor("ids").tobytes())
        except ValueError as error:
            raise RowsError(f"{self.name}: ids are not JSON ({error})") from None
        if not isinstance(ids, list) or not all(type(row_id) in (int, str) for row_id in ids):
            raise RowsError(f"{self.name}: ids are not a JSON array of integers and text")
        return ids

    def _names(self) -> list[str] | None:
        facts = self.provenance.get("facts")
        names = facts.get("labels") if isinstance(facts, dict) else None
        return [str(name) for name in names] if isinstance(names, list) else None

    def _column(self, tensor: str, n: int) -> NDArray[np.int64]:
        values = self._file.get_tensor(tensor)
        if values.shape != (n,) or values.dtype.kind not in "biu":
            raise RowsError(f"{self.name}: {tensor} is {values.dtype} {list(values.shape)}, not {n} whole numbers")
        return values.astype(np.int64)  # type: ignore[no-any-return]

    def layer(self, layer: int) -> NDArray[np.float32]:
        """Read the states of one layer (0 is the embeddings): (n, d), float32.

        Raises:
            RowsError: a state that is not finite.
        """
        values: NDArray[np.float32] = self._hidden[:, layer].astype(np.float32, copy=False)
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            row = json_preview(self.rows.ids[int(finite.argmin())])
            raise RowsError(f"{self.name}: the state of row id {row} at layer {layer} is NaN or infinite")
        return values


def _metadata(file: Any) -> dict[str, Any]:
    try:
        value = json.loads((file.metadata() or {}).get(KEY, "{}"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@contextlib.contextmanager
def open_states(source: Source) -> Iterator[States]:
    """Open a states file, or a stream of one, which is kept in a temporary file.

    Raises:
        NotFoundError: no such file.
        RowsError: not a whole safetensors file, or not of states.
    """
    with rereadable(source) as file:
        if not Path(file.path).is_file():
            raise NotFoundError(f"no such file: {source.name}")
        try:
            opened = safe_open(file.path, framework="np")
        except (SafetensorError, ValueError, OSError) as error:
            raise RowsError(f"{source.name}: not a whole safetensors file of states ({error})") from None
        with opened as tensors:
            yield States(file, tensors)
