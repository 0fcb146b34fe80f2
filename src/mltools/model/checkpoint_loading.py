"""Opening checkpoints strictly.

safetensors only: nothing is unpickled, no code from a checkpoint runs, and a missing or unexpected weight is
an error, never a fresh random one (except a head that is asked for).
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import cpu_offload
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from mltools import console
from mltools.errors import CheckpointError, UsageError, brief, lacks_memory
from mltools.io.provenance import folder_stamp
from mltools.io.rows import json_preview
from mltools.model.anatomy import HEAD, find_blocks, find_parts
from mltools.model.checkpoint import Checkpoint, CheckpointMeta, short_pass, text_config, vocabulary_size
from mltools.model.checkpoint_config import build_config, check_sizes
from mltools.model.checkpoint_faults import check_classes, weight_faults
from mltools.model.checkpoint_files import FLOATS, Stored, check_files, locate, read_json
from mltools.model.classes import set_classes
from mltools.model.runner import Runner

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()

SLACK = 100_000_000
"""Numbers that a model may need beyond twice those of its files: fresh heads, tables that are not saved."""


def open_checkpoint(
    name: str,
    *,
    device: torch.device | None = None,
    fresh_head: Sequence[str] | None = None,
    blocks: str | None = None,
    offload: bool = False,
) -> Checkpoint:
    """Open a checkpoint as a sequence classifier in float32, eval mode.

    Args:
        name: a folder or a hub repository.
        device: where the model goes; CPU by default.
        fresh_head: class names for a new head (drawn from torch's global generator, which the caller seeds).
            A head of that very size in the checkpoint is taken instead; `fresh` of the result tells.
            None requires the checkpoint to have its head.
        blocks: module path of the block list (`--blocks`).
        offload: leave the blocks in the mapped files and read each weight of them as it is used (`--offload`), for
            forward passes of a model larger than memory. These weights are on the meta device at other times.

    Raises:
        NotFoundError: no such folder or repository.
        CheckpointError: files, weights or architecture that cannot be used.
    """
    checkpoint, info = _open(name, device or torch.device("cpu"), fresh_head, blocks, offload)
    fault = next(weight_faults(checkpoint, info, fresh_head is not None), None)
    if fault is not None:
        raise CheckpointError(f"{name}: {fault}")
    check_classes(checkpoint)
    if fresh_head is None and checkpoint.stack.shares:
        raise CheckpointError(
            f"{name}: layers share weights ({checkpoint.stack.path}), so none of them can be changed or scored alone; "
            "finetune, states, probe and centroid can be had"
        )
    return checkpoint


def open_meta(name: str, blocks: str | None = None) -> CheckpointMeta:
    """Open a checkpoint without reading a weight, for its shapes and its tokenizer.

    Raises:
        NotFoundError, CheckpointError: as `open_checkpoint`, where no weight need be looked at.
    """
    folder = locate(name)
    stored = check_files(folder, name)
    config = _load_config(folder, name, stored)
    model = _build_on_meta(config, stored, name)
    with _checkpoint_errors(name, "cannot be loaded as a sequence classifier"):
        stack = find_blocks(model, getattr(text_config(model), "num_hidden_layers", None), blocks)
    return CheckpointMeta(name, folder, model, _load_tokenizer(folder, name, config), stack)


def examine_checkpoint(name: str, blocks: str | None = None) -> tuple[Checkpoint, list[str]]:
    """Open a checkpoint for a look at it, with or without a head, on the CPU; else as `open_checkpoint`.

    Returns:
        The checkpoint, and what makes its weights unusable: missing, unexpected or not finite.

    Raises:
        NotFoundError, CheckpointError: there is nothing to look at.
    """
    checkpoint, info = _open(name, torch.device("cpu"), None, blocks)
    headless = bool(checkpoint.fresh) and all(checkpoint.parts.get(key, HEAD) == HEAD for key in checkpoint.fresh)
    return checkpoint, list(weight_faults(checkpoint, info, headless))


def _open(
    name: str, device: torch.device, fresh_head: Sequence[str] | None, blocks: str | None, offload: bool = False
) -> tuple[Checkpoint, dict[str, Any]]:
    """Open a checkpoint as `open_checkpoint`, and give what loading said of its weights, unchecked."""
    folder = locate(name)
    stamp = folder_stamp(folder)
    stored = check_files(folder, name)
    config = _load_config(folder, name, stored)
    _build_on_meta(config, stored, name)
    if fresh_head is not None:
        set_classes(config, fresh_head)
        config.problem_type = "single_label_classification"
    tokenizer = _load_tokenizer(folder, name, config)
    model, info = _load_model(folder, name, config)
    needed = {"use_cache": False, "output_hidden_states": False, "return_dict": True}
    both = {id(each): each for each in (model.config, text_config(model))}.values()
    saved = [(each, key, getattr(each, key, None)) for each in both for key in needed]
    for each, key, _ in saved:
        setattr(each, key, needed[key])
    if model.config.pad_token_id != tokenizer.pad_token_id:
        if model.config.pad_token_id is not None:
            console.warn(
                f"{name}: config.json pads with token {model.config.pad_token_id}, the tokenizer with "
                f"{tokenizer.pad_token_id}; pooling goes by the attention mask, so neither matters"
            )
        model.config.pad_token_id = tokenizer.pad_token_id
    with _checkpoint_errors(name, "the model cannot be run"):
        stack = find_blocks(model, getattr(text_config(model), "num_hidden_layers", None), blocks)
        if offload:
            cpu_offload(stack.modules, execution_device=device)
        _own_weights(model.float(), device)
        model.eval()
        row = tokenizer("a b c")["input_ids"]
        runner = Runner(model, stack, model.config, device, [min(token, vocabulary_size(model) - 1) for token in row])
        with runner.trial():
            parts = find_parts(model, stack, lambda: short_pass(runner))
    replaced = {key for key, *_ in info["mismatched_keys"]} if fresh_head is not None else set()
    fresh = frozenset(info["missing_keys"]) | replaced
    checkpoint = Checkpoint(name, folder, model, tokenizer, stack, runner, parts, stored, saved, fresh, stamp)
    return checkpoint, info


@torch.no_grad()
def _own_weights(model: nn.Module, device: torch.device) -> None:
    """Copy weights out of the mapped files: whoever writes into those must not change a running model.

    Weights that are to stay there are on the meta device.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            tensor.data = tensor.data.to(device, copy=True)


@contextlib.contextmanager
def _checkpoint_errors(name: str, what: str) -> Iterator[None]:
    """Turn whatever transformers raises over a checkpoint into an error that names the checkpoint."""
    try:
        yield
    except (UsageError, MemoryError, torch.OutOfMemoryError):
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from None
    except Exception as error:  # a broken checkpoint can make it raise anything
        if lacks_memory(error):
            raise MemoryError from error
        raise CheckpointError(f"{name}: {what} ({brief(error, 200)})") from error


def _load_config(folder: Path, name: str, stored: Mapping[str, Stored]) -> Any:
    values = read_json(folder / "config.json", name)
    check_sizes(values, stored, name)
    with _checkpoint_errors(name, "config.json cannot be used"):
        return build_config(values, name)


def _build_on_meta(config: Any, stored: Mapping[str, Stored], name: str) -> Any:
    """Build the model without memory for its weights, unless config.json says a far larger one than the files hold.

    Args:
        config: the configuration.
        stored: the tensors of the files.
        name: of the checkpoint.

    Raises:
        CheckpointError: as said, or it cannot be built; a weight is stored in a type that holds no such numbers.
    """
    sizes = [math.prod(tensor.shape) for tensor in stored.values()]
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > len(sizes):
        raise CheckpointError(f"{name}: config.json says {layers} layers, but the files hold {len(sizes)} weights")
    with _checkpoint_errors(name, "cannot be loaded as a sequence classifier"), torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if needed > 2 * sum(sizes) + SLACK:
        raise CheckpointError(f"{name}: config.json says {needed:,} numbers, but the files hold {sum(sizes):,}")
    _check_kinds(model, stored, name)
    return model


def _check_kinds(model: Any, stored: Mapping[str, Stored], name: str) -> None:
    """Check that weights are stored as floats of 16 bits or more; buffers may be of any type."""
    others = {key: tensor.kind for key, tensor in stored.items() if tensor.kind not in FLOATS}
    weights = [weight for weight, _ in model.named_parameters()] if others else []
    bad = [key for key in others if any(weight == key or weight.endswith(f".{key}") for weight in weights)]
    if bad:
        raise CheckpointError(
            f"{name}: {len(bad)} weights are stored as {others[bad[0]]} (first: {bad[0]}): they are quantised or "
            "converted, and their scales are not known; save the model in float32, float16 or bfloat16"
        )


def _load_tokenizer(folder: Path, name: str, config: Any) -> Any:
    with _checkpoint_errors(name, "no usable tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False, local_files_only=True)
        _check_tokenizer(tokenizer)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
        return tokenizer


def _check_tokenizer(tokenizer: Any) -> None:
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise CheckpointError(f"no tokenizer, but {type(tokenizer).__name__} (tokenizer_config.json says so)")
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise CheckpointError("no tokenizer (its vocabulary holds special tokens only); is a file missing?")
    longest = tokenizer.model_max_length
    if longest and not (type(longest) in (int, float) and float(longest).is_integer()):
        raise CheckpointError(
            f"tokenizer_config.json says model_max_length {json_preview(longest)}, not a whole number"
        )


def _load_model(folder: Path, name: str, config: Any) -> tuple[Any, dict[str, Any]]:
    with _checkpoint_errors(name, "cannot be loaded as a sequence classifier"):
        model, info = AutoModelForSequenceClassification.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,  # whatever config.json says, so that nothing is rounded
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # a head's size may change; `weight_faults` refuses all else
        )
        return model, info
