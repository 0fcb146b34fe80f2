"""The configuration of a checkpoint: only keys that its model computes with get through to transformers.

Some keys of config.json choose which files are opened, what is fetched, and which code or kernels run. So a key is
taken if the configuration class has it or the model's own code names it, and none of those that steer loading is.
"""

import functools
import inspect
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

from transformers import CONFIG_MAPPING, masking_utils, modeling_layers, modeling_rope_utils
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from mltools import console
from mltools.errors import CheckpointError
from mltools.io.rows import json_preview
from mltools.model.checkpoint_files import Stored

STEERING = frozenset(
    {
        *("attn_implementation", "experts_implementation", "auto_map", "quantization_config", "transformers_weights"),
        *("configuration_files", "name_or_path", "base_model_name_or_path", "distributed_config", "fusion_config"),
        *("device_map", "kernel_config", "use_kernels", "extra_files", "extra_config_files", "gguf_file"),
    }
)
"""Never let through, whatever names them. Nor are names that start with `_`, which are transformers' own."""
COMMON = frozenset({"num_labels", "id2label", "label2id", "problem_type", "dtype", "torch_dtype", "model_type"})
SHOWN = 8
"""How many of its names an error shows."""
SHARED_CODE = (masking_utils, modeling_layers, modeling_rope_utils)


def build_config(values: Mapping[str, Any], name: str) -> Any:
    """Build a configuration of what is allowed of config.json's keys.

    Args:
        values: what config.json holds.
        name: of the checkpoint, for the note on keys passed over.

    Raises:
        ValueError: transformers has no such model type.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ValueError(f"transformers has no model_type {json_preview(model_type)}")
    kind = CONFIG_MAPPING[model_type]
    known = known_keys(kind)
    values = {**values, **_labels(values)}
    passed_over = sorted(key for key in values if key not in known and not key.startswith("_"))
    if passed_over:
        console.log(f"{name}: config.json has keys that this model does not use: {', '.join(passed_over)}", 1)
    return kind.from_dict({key: _harmless(value) for key, value in values.items() if key in known})


def _labels(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the names of the classes counted from 0, where they count from 1.

    Raises:
        ValueError: they count in another way.
    """
    names = values.get("id2label")
    if not isinstance(names, dict) or names.keys() == _numbered(0, names):
        return {}
    if names.keys() != _numbered(1, names):
        found = ", ".join(map(console.printable, list(names)[:SHOWN]))
        raise ValueError(f"id2label has the numbers {found}, not 0 to {len(names) - 1}")
    inorder = [names[str(i + 1)] for i in range(len(names))]
    return {"id2label": dict(enumerate(inorder)), "label2id": {str(label): i for i, label in enumerate(inorder)}}


def _numbered(first: int, names: Collection[str]) -> set[str]:
    return {str(first + i) for i in range(len(names))}


LAYERS, COUNT, SIZE = (
    re.compile(r"layer"),
    re.compile(r"^(num|n)_|label|head|expert"),
    re.compile(r"size|dim|width|embd"),
)
MANY, WIDE, DEEP = 10_000, 1_000_000, 1_000
"""What transformers builds in a blink whatever the files hold: modules and names, numbers of a tensor, layers."""


def check_sizes(values: Mapping[str, Any], stored: Mapping[str, Stored], name: str) -> None:
    """Check sizes in config.json against the headers of the files, before transformers believes them.

    Raises:
        CheckpointError: more layers than there are tensors, or a size far beyond that of any tensor.
    """
    widest = max((size for tensor in stored.values() for size in tensor.shape), default=0)
    for key, value in values.items():
        if isinstance(value, dict):
            check_sizes(value if key != "id2label" else {"num_labels": len(value)}, stored, name)
        if not isinstance(value, int):
            continue
        if LAYERS.search(key) and value > max(len(stored), DEEP):
            raise CheckpointError(f"{name}: config.json says {key} {value:,}, but the files hold {len(stored)} weights")
        limit = max(widest, MANY) if COUNT.search(key) else max(8 * widest, WIDE) if SIZE.search(key) else value
        if value > limit:
            raise CheckpointError(
                f"{name}: config.json says {key} {value:,}, but no weight in the files is longer than {widest:,}"
            )


@functools.cache
def known_keys(kind: type[Any]) -> frozenset[str]:
    """Name the keys that a configuration class takes or that the code of its model computes with."""
    names = {*COMMON, *kind.attribute_map, *dir(kind), *inspect.signature(kind).parameters}
    modules = [sys.modules[kind.__module__], *SHARED_CODE]
    if kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        modules.append(sys.modules[MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[kind].__module__])
    for module in modules:
        names.update(re.findall(r"\w+", inspect.getsource(module)))
    methods = {name for name in dir(kind) if callable(getattr(kind, name, None))}
    return frozenset(name for name in names - methods if _may_pass(name))


def _may_pass(key: str) -> bool:
    return key not in STEERING and not key.startswith("_")


def _harmless(value: Any) -> Any:
    """Leave steering keys out of configurations within a configuration too."""
    if isinstance(value, dict):
        return {key: _harmless(item) for key, item in value.items() if _may_pass(str(key))}
    return [_harmless(item) for item in value] if isinstance(value, list) else value
