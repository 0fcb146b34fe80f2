"""Look at raw tensors, of one safetensors file or the difference of two: norms, what is not finite, by layer.

numpy alone reads them, a chunk at a time, so neither torch is imported nor a file held in memory. Which layer a tensor
is of is read from its name; a model is not built. Only `inspect CHECKPOINT` knows embeddings and head.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mltools.errors import RowsError, UsageError
from mltools.io.kinds import TensorRecord

CHUNK = 1 << 15
"""Numbers read at a time: few enough to stay in a processor's cache."""
NUMBERED = re.compile(r"(.+?)\.(\d{1,4})\.")

Decode = Callable[[NDArray[Any]], NDArray[Any]]


def _float8_e4m3() -> NDArray[np.float32]:
    """Tabulate the 256 values of F8_E4M3: 1 sign, 4 exponent (bias 7) and 3 mantissa bits, no infinity."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    size[(code & 127) == 127] = np.nan
    return np.where(code & 128, -size, size).astype(np.float32)


STORED: Mapping[str, tuple[str, Decode | None]] = {
    **{name: (kind, None) for name, kind in {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?"}.items()},
    **{f"{sign}{bits}": (f"<{kind}{bits // 8}", None) for sign, kind in ("Ii", "Uu") for bits in (8, 16, 32, 64)},
    "BF16": ("<u2", lambda raw: (raw.astype(np.uint32) << 16).view(np.float32)),
    "F8_E5M2": ("u1", lambda raw: (raw.astype(np.uint16) << 8).view(np.float16)),
    "F8_E4M3": ("u1", lambda raw: _float8_e4m3()[raw]),
}
"""How numpy reads what safetensors calls a type, and what makes numbers of it; types packed below a byte lack."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, not read yet."""

    path: Path
    dtype: str
    shape: list[int]
    start: int

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Yield its numbers, some at a time; none of a type that numpy does not read."""
        if self.dtype not in STORED:
            return
        kind, decode = STORED[self.dtype]
        with self.path.open("rb") as file:
            file.seek(self.start)
            for first in range(0, self.size, CHUNK):
                raw = np.fromfile(file, kind, min(CHUNK, self.size - first))
                yield decode(raw) if decode else raw


def stored_tensors(name: str) -> dict[str, StoredTensor]:
    """Find the tensors of a file by name, in the names' order.

    Raises:
        RowsError: it is not a whole safetensors file.
    """
    path = Path(name)
    try:
        with safe_open(path, framework="numpy"):  # checks sizes, types and places
            pass
    except (SafetensorError, OSError) as error:
        raise RowsError(f"{name}: not a whole safetensors file ({error})") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {
        tensor: StoredTensor(path, entry["dtype"], entry["shape"], 8 + length + entry["data_offsets"][0])
        for tensor, entry in sorted(header.items(), key=lambda item: _natural(item[0]))
    }


def _natural(name: str) -> list[tuple[str, int]]:
    """Order names as people do: layer 2 before layer 10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"([^0-9]*)([0-9]*)", name)]


def find_layers(tensors: Mapping[str, StoredTensor], blocks: str | None = None) -> dict[str, int]:
    """Say which layer, from 1, each tensor is of, by the first number in its name; others have none.

    Args:
        tensors: by name.
        blocks: what stands before the number; by default that which most numbers lie under.

    Raises:
        UsageError: no name starts with `blocks` and a number.
    """
    found = {name: match for name in tensors if (match := NUMBERED.match(name))}
    sizes: Counter[str] = Counter()
    for name, match in found.items():
        sizes[match[1]] += tensors[name].size
    if blocks is not None and blocks not in sizes:
        raise UsageError(f"--blocks {blocks}: no tensor is named so, with a number behind; there is {', '.join(sizes)}")
    stack = blocks or max(sizes, key=lambda prefix: sizes[prefix], default="")
    return {name: int(match[2]) + 1 for name, match in found.items() if match[1] == stack}


def inspect_tensors(
    first: str, second: str | None = None, layers: tuple[int, ...] | None = None, blocks: str | None = None
) -> Iterator[TensorRecord]:
    """Look at the tensors of one file, or of two that are compared by their tensors' names.

    Args:
        first: a safetensors file.
        second: another, whose tensors are B where the first's are A.
        layers: only tensors of these.
        blocks: what stands before a layer's number in the names.

    Raises:
        RowsError: not a whole safetensors file, or none with tensors.
        UsageError: layers or blocks that are not there.
    """
    own = stored_tensors(first)
    others = stored_tensors(second) if second is not None else {}
    tensors = {**own, **{name: tensor for name, tensor in others.items() if name not in own}}
    if not tensors:
        raise RowsError(f"{' and '.join(filter(None, (first, second)))}: no tensors in it")
    numbers = find_layers(tensors, blocks)
    n_layers = max(numbers.values(), default=None)
    outside = set(layers or ()) - set(numbers.values())
    if outside:
        raise UsageError(f"--layers {min(outside)}: {first} has layers 1-{n_layers}" if n_layers else "no layers there")
    for name, tensor in tensors.items():
        if layers is not None and numbers.get(name) not in layers:
            continue
        there = name in own
        found = _look(tensor, others.get(name) if there else None)
        unmatched = second is not None and "equal" not in found
        yield TensorRecord(
            tool="inspect",
            path=first,
            other=second,
            tensor=name,
            layer=numbers.get(name),
            layers=n_layers,
            dtype=tensor.dtype,
            shape=tensor.shape,
            parameters=tensor.size,
            unmatched=unmatched if second is not None else None,
            **found if there else {},
        )


@np.errstate(all="ignore")
def _look(tensor: StoredTensor, other: StoredTensor | None) -> dict[str, Any]:
    """Measure a tensor, and its difference from one of the same shape, in float64."""
    if tensor.dtype not in STORED:
        return {}
    compared = other is not None and other.shape == tensor.shape and other.dtype in STORED
    squares = gaps = 0.0
    largest = widest = 0.0
    bad = other_bad = n_nan = 0
    equal = compared and other is not None and other.dtype == tensor.dtype
    for a, b in zip_longest(tensor.chunks(), other.chunks() if compared and other is not None else ()):
        values = a.astype(np.float64)
        squares += float(values @ values)
        largest = max(largest, _widest(values))
        if not math.isfinite(squares):
            bad += int(np.count_nonzero(~np.isfinite(values)))
            n_nan += int(np.count_nonzero(np.isnan(values)))
        if b is not None:
            gap = b.astype(np.float64) - values
            gaps += float(gap @ gap)
            widest = max(widest, _widest(gap))
            if not math.isfinite(gaps):
                other_bad += int(np.count_nonzero(~np.isfinite(b.astype(np.float64))))
            equal = equal and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    l2 = math.sqrt(squares) if math.isfinite(squares) else None
    found: dict[str, Any] = {"l2": l2, "largest": None if bad else largest, "not_finite": bad, "n_nan": n_nan}
    if compared:
        finite = math.isfinite(gaps)
        found |= {"equal": equal, "other_not_finite": other_bad, "difference": math.sqrt(gaps) if finite else None}
        found |= {"distance": math.sqrt(gaps) / l2 if finite and l2 else None}
        found |= {"largest_difference": widest if finite else None}
    return found


def _widest(values: NDArray[np.float64]) -> float:
    return max(float(values.max()), -float(values.min()))
