"""Tensors: one safetensors file, read lazily, written atomically with provenance in its metadata."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from mltools.errors import NotFoundError, RowsError
from mltools.io.atomic import atomic_file, is_device
from mltools.io.provenance import KEY, Provenance


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], provenance: Provenance | str, *, replace: bool = False
) -> None:
    """Write tensors with provenance under the one metadata key `mltools` (two keys would be in random order)."""
    text = provenance if isinstance(provenance, str) else provenance.as_json()
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_file(path, replace=replace) as temporary:
        if is_device(temporary):  # which `save_file` would put a file in the place of
            temporary.write_bytes(save(plain, {KEY: text}))
        else:
            save_file(plain, temporary, {KEY: text})


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file for reading by name.

    Raises:
        NotFoundError: no such file.
        RowsError: not a whole safetensors file.
    """
    if not path.is_file():
        raise NotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise RowsError(f"{path}: not a whole safetensors file ({error})") from None


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the provenance of a safetensors file; empty where it has none.

    Raises:
        NotFoundError, RowsError: as `open_tensors`.
    """
    with open_tensors(path) as file:
        text = (file.metadata() or {}).get(KEY, "{}")
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
