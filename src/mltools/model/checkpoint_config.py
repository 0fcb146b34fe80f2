"""The configuration of a checkpoint: only keys that its model computes with get through to transformers.

Some keys of config.json choose which files are opened, what is fetched, and which code or kernels run. So a key is
taken if the configuration class has it or the model's own code names it, and none of those that steer loading is.
"""

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, masking_utils, modeling_layers, modeling_rope_utils
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from mltools import console
from mltools.io.rows import json_preview

STEERING = frozenset(
    {
        *("attn_implementation", "experts_implementation", "auto_map", "quantization_config", "transformers_weights"),
        *("configuration_files", "name_or_path", "base_model_name_or_path", "distributed_config", "fusion_config"),
        *("device_map", "kernel_config", "use_kernels", "extra_files", "extra_config_files", "gguf_file"),
    }
)
"""Never let through, whatever names them. Nor are names that start with `_`, which are transformers' own."""
COMMON = frozenset({"num_labels", "id2label", "label2id", "problem_type", "dtype", "torch_dtype", "model_type"})
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
    passed_over = sorted(key for key in values if key not in known and not key.startswith("_"))
    if passed_over:
        console.log(f"{name}: config.json has keys that this model does not use: {', '.join(passed_over)}", 1)
    return kind.from_dict({key: _harmless(value) for key, value in values.items() if key in known})


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
