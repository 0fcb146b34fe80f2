"""Finding a checkpoint's folder, and refusing, before anything is loaded, files that are not safe or not whole.

safetensors only: nothing is unpickled, no code of a checkpoint runs, nothing outside its folder is read.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mltools import console
from mltools.errors import CheckpointError, NotFoundError
from mltools.io.provenance import CHECKPOINT_DATA, CHECKPOINT_FILE, data_entries
from mltools.io.rows import json_preview

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
TOKENIZER = "tokenizer_config.json"
TRAINERS = "checkpoint-"
"""How the names of the folders begin that transformers' Trainer saves within its own."""
DISTRIBUTED = "shard-*-model-*-of-*.safetensors"
"""Files that transformers would read in place of all others."""
OTHER_FILES = ("configuration_files", "fast_tokenizer_files", "init_inputs", "gguf_file")
"""Keys that make transformers open files by other names, or hand paths to a tokenizer."""
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pkl", "tf_model.h5")


def locate(name: str) -> Path:
    """Give the local folder of a checkpoint: a folder, or a hub repository fetched into the hub's cache.

    A name that starts with `/`, `.` or `~`, or whose parent folder exists, is a path and never asked of the hub.

    Raises:
        NotFoundError: no such folder; the repository is unknown or cannot be reached.
    """
    path = Path(os.path.expanduser(name))  # noqa: PTH111  pathlib's raises where there is no such user
    if name and path.is_dir():
        return path
    if name and path.exists():
        raise CheckpointError(f"{name} is a file; a checkpoint is a folder with config.json and {WEIGHTS}")
    parent = name.rpartition("/")[0]
    looks_local = name.startswith(("/", ".", "~")) or name.count("/") > 1 or (parent and Path(parent).is_dir())
    if looks_local or not name:
        raise NotFoundError(f"no such folder: {name or json_preview(name)}")
    return _fetch(name)


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=[*CHECKPOINT_DATA, CHECKPOINT_FILE, ADAPTER]))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0][:120]
        raise NotFoundError(f"{name}: no such folder here, and not available from the hub ({reason})") from None


@dataclass(frozen=True)
class Stored:
    """A tensor as the header of its file says it: type in safetensors' words, and shape."""

    kind: str
    shape: tuple[int, ...]


def check_files(folder: Path, name: str) -> dict[str, Stored]:
    """Check, before anything is loaded, that a folder is a safetensors checkpoint without traps.

    Returns:
        Its tensors by name, as the headers of the files say.

    Raises:
        CheckpointError: no or bad config.json, code to run, pickles, shards that are missing or lie elsewhere.
    """
    for entry in data_entries(folder):
        _check_place(entry, folder, name)
    _check_kind(folder, name)
    config = read_json(folder / "config.json", name)
    _check_keys("config.json", config, name)
    if (folder / TOKENIZER).exists():
        _check_keys(TOKENIZER, read_json(folder / TOKENIZER, name), name)
    if config.get("quantization_config") is not None:
        raise CheckpointError(f"{name}: its weights are quantised; save it dequantised first")
    if config.get("transformers_weights") not in (None, WEIGHTS, INDEX):
        raise CheckpointError(
            f"{name}: config.json takes the weights from {json_preview(config['transformers_weights'])} "
            f"(transformers_weights); only {WEIGHTS} or {INDEX} is read: save them so and remove that key"
        )
    sharded = next((file.name for file in folder.glob(DISTRIBUTED)), None)
    if sharded is not None:
        raise CheckpointError(
            f"{name}: {sharded} is of a distributed checkpoint; save the model in one piece, or remove it"
        )
    stored: dict[str, Stored] = {}
    for file in _weight_files(folder, name):
        stored |= _check_weights(file, folder, name)
    return stored


def _check_kind(folder: Path, name: str) -> None:
    """Check that a folder holds a model itself, and not an adapter of one, or Trainer's checkpoints."""
    if (folder / ADAPTER).exists():
        base = read_json(folder / ADAPTER, name).get("base_model_name_or_path")
        raise CheckpointError(
            f"{name}: {ADAPTER} says it is an adapter (LoRA or the like) of {json_preview(base)}; merge it first: in "
            "Python, peft.AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=N)"
            ".merge_and_unload().save_pretrained(merged), and save the tokenizer there too"
        )
    if (folder / "config.json").exists():
        return
    inside = sorted(folder.glob(f"{TRAINERS}*/config.json"), key=lambda path: (len(path.parent.name), path))
    if inside:
        names = ", ".join(path.parent.name for path in inside)
        raise CheckpointError(f"{name}: no config.json; Trainer's checkpoints lie inside: name one of them ({names})")


def _check_place(entry: Path, folder: Path, name: str) -> None:
    """Check that a file is a plain one (a pipe would be waited for without end) that lies in the folder."""
    place, target = entry.relative_to(folder), entry.resolve()
    inside = folder.resolve() in target.parents
    in_hub_cache = target.parent.name == "blobs" and target.parent.parent in folder.resolve().parents
    if not inside and not in_hub_cache:
        raise CheckpointError(f"{name}: {place} is a link out of the folder ({target}); refused")
    if not entry.is_file():
        raise CheckpointError(f"{name}: {place} is not a plain file; refused")


def _check_keys(file_name: str, values: dict[str, Any], name: str) -> None:
    """Check that a file names no files by another name than the usual; code of its own is never run."""
    if values.get("auto_map"):
        console.warn(
            f"{name}: {file_name} names code of its own (auto_map); it is never run: transformers' classes are"
        )
    steering = next((key for key in OTHER_FILES if values.get(key)), None)
    if steering is not None:
        raise CheckpointError(f"{name}: {file_name} names other files to open ({steering}); refused; remove that key")


def read_json(path: Path, name: str) -> dict[str, Any]:
    """Read a JSON object of a checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{name}: no {path.name}; is it a checkpoint folder?") from None
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{name}: {path.name} is not readable JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{name}: {path.name} is not a JSON object")
    return value


def _weight_files(folder: Path, name: str) -> list[Path]:
    if (folder / INDEX).exists() and (folder / WEIGHTS).exists():
        raise CheckpointError(f"{name}: has {WEIGHTS} and {INDEX}; one of them is stale: remove it")
    if (folder / INDEX).exists():
        shards = read_json(folder / INDEX, name).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
            raise CheckpointError(f"{name}: {INDEX} has no weight_map")
        files = sorted(set(shards.values()))
        outside = [file for file in files if Path(file).name != file or file in (".", "..")]
        if outside:
            raise CheckpointError(f"{name}: {INDEX} names a file outside the folder ({outside[0]}); refused")
        missing = [file for file in files if not os.path.isfile(folder / file)]  # noqa: PTH113  any name, however odd
        if missing:
            raise CheckpointError(f"{name}: {len(missing)} of {len(files)} shards are missing (first: {missing[0]})")
        return [folder / file for file in files]
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    pickles = [file for file in PICKLES if (folder / file).exists()]
    if pickles:
        raise CheckpointError(
            f"{name}: only {pickles[0]}, which is never unpickled; convert it to safetensors where you trust it "
            "(transformers: model.save_pretrained(folder))"
        )
    raise CheckpointError(f"{name}: no {WEIGHTS} and no {INDEX}")


def _check_weights(file: Path, folder: Path, name: str) -> dict[str, Stored]:
    _check_place(file, folder, name)
    try:
        with safe_open(file, framework="pt") as tensors:
            parts = {key: tensors.get_slice(key) for key in tensors.keys()}  # noqa: SIM118
            return {key: Stored(part.get_dtype(), tuple(part.get_shape())) for key, part in parts.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{name}: {file.name} is not a whole safetensors file ({error})") from None


FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def stored_types(folder: Path, name: str) -> list[str]:
    """Name the types that the weights of a checkpoint are stored in, by the headers of its files."""
    found: set[str] = set()
    for file in _weight_files(folder, name):
        with safe_open(file, framework="pt") as tensors:
            found |= {tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118
    return sorted(FLOATS.get(kind, kind) for kind in found)
