"""Opening checkpoints strictly, and saving them so that stock classes load them.

safetensors only: nothing is unpickled, no code from a checkpoint runs, and a missing or unexpected weight is
an error, never a fresh random one (except a head that is asked for).
"""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from mltools import console
from mltools.errors import OUT_OF_MEMORY, CheckpointError, UsageError
from mltools.io.atomic import atomic_folder
from mltools.io.examples import Examples
from mltools.io.provenance import CHECKPOINT_FILE, Provenance, folder_digest, folder_stamp
from mltools.io.rows import shown
from mltools.model.batches import Batch, Encoded
from mltools.model.blocks import HEAD, BlockStack, Part, call_order, find_blocks, find_parts
from mltools.model.checkpoint_files import check_files, locate
from mltools.model.runner import Runner

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()

NO_LIMIT = 1_000_000

SLACK = 100_000_000
"""Numbers that a model may need beyond twice those of its files: fresh heads, tables that are not saved."""


@dataclass
class Outline:
    """What a checkpoint is without its weights: the model (perhaps on the meta device), its tokenizer and blocks."""

    name: str
    folder: Path
    model: Any
    tokenizer: Any
    stack: BlockStack

    @property
    def n_layers(self) -> int:
        """Number of layers L."""
        return len(self.stack)

    @property
    def width(self) -> int:
        """Width d of the hidden states."""
        return int(self.model.config.hidden_size)

    @property
    def labels(self) -> list[str]:
        """Class names in the order of the logits."""
        return [str(self.model.config.id2label[i]) for i in range(self.model.config.num_labels)]

    @property
    def separator(self) -> str:
        """What joins text columns: the tokenizer's separator, else end-of-sequence if it opens rows, else `|`."""
        if self.tokenizer.sep_token:
            return str(self.tokenizer.sep_token)
        eos = self.tokenizer.eos_token
        opens_with_eos = eos is not None and self.tokenizer("a")["input_ids"][:1] == [self.tokenizer.eos_token_id]
        return str(eos) if opens_with_eos else "|"

    def encode(self, examples: Examples, max_length: int) -> Encoded:
        """Tokenise all rows once, one segment, cut at `max_length` and at what the model can take."""
        separator = examples.columns.separator or self.separator
        return encode(self.tokenizer, examples.texts(separator), self.limit(max_length), self.model.config.vocab_size)

    def limit(self, max_length: int) -> int:
        """Give the longest row, in tokens, that neither the option nor the model forbids."""
        limits = [max_length]
        if (self.tokenizer.model_max_length or NO_LIMIT) < NO_LIMIT:
            limits.append(self.tokenizer.model_max_length)
        positions = getattr(self.model.config, "max_position_embeddings", None)
        if isinstance(positions, int) and positions > 0:
            limits.append(positions - _position_offset(self.model, positions))
        return min(limits)


@dataclass
class Checkpoint(Outline):
    """An opened checkpoint: the live model in float32 (or as asked), its tokenizer, blocks and parts."""

    runner: Runner
    parts: dict[str, Part]
    saved_dtype: torch.dtype
    saved_settings: dict[str, Any]
    fresh: frozenset[str] = frozenset()
    """Weights that were not in the files, or of another size there, so are random: of a fresh head."""
    stamp: Sequence[object] = ()
    """Tells the files as they were just before they were read."""

    def head_modules(self) -> list[nn.Module]:
        """Find the modules that run after the last block: final norm, pooler, dropout, classifier."""
        _, after = call_order(self.model, self.stack, lambda: _short_pass(self.runner))
        return [module for name, module in self.model.named_modules() if name in after]

    def digest(self) -> dict[str, str]:
        """Name and digest of this input, for provenance.

        Raises:
            CheckpointError: the files are not those that were read.
        """
        digest = folder_digest(self.folder)
        if folder_stamp(self.folder) != self.stamp:
            raise CheckpointError(f"{self.name}: its files changed while they were read; run again")
        return {"path": self.name, "sha256": digest}


def _position_offset(model: nn.Module, positions: int) -> int:
    """How many of the position embeddings rows cannot use (RoBERTa's padding convention)."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == positions and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


def encode(tokenizer: Any, texts: Sequence[str], max_length: int, vocabulary: int) -> Encoded:
    """Tokenise texts; see `Encoded`. Special tokens on, token types not used."""
    ids = tokenizer(list(texts), truncation=True, max_length=max_length, return_attention_mask=False)["input_ids"]
    candidates = (tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    empty = next((token for token in candidates if token is not None), 0)
    highest = max((max(row) for row in ids if row), default=0)
    if highest >= vocabulary:
        raise CheckpointError(
            f"the tokenizer gives token {highest}, but the model has embeddings for 0-{vocabulary - 1} only; "
            "tokenizer and model do not belong together"
        )
    encoded = Encoded(ids, tokenizer.pad_token_id, vocabulary, empty)
    if encoded.n_empty:
        console.warn(f"{encoded.n_empty} rows without a token are kept, as one special token")
    return encoded


def open_checkpoint(
    name: str,
    *,
    device: torch.device | None = None,
    fresh_head: Sequence[str] | None = None,
    blocks: str | None = None,
) -> Checkpoint:
    """Open a checkpoint as a sequence classifier in float32, eval mode.

    Args:
        name: a folder or a hub repository.
        device: where the model goes; CPU by default.
        fresh_head: class names for a new head (drawn from torch's global generator, which the caller seeds).
            A head of that very size in the checkpoint is taken instead; `fresh` of the result tells.
            None requires the checkpoint to have its head.
        blocks: module path of the block list (`--blocks`).

    Raises:
        NotFoundError: no such folder or repository.
        CheckpointError: files, weights or architecture that cannot be used.
    """
    checkpoint, info = _open(name, device, fresh_head, blocks)
    fault = next(_faults(checkpoint, info, fresh_head is not None), None)
    if fault is not None:
        raise CheckpointError(f"{name}: {fault}")
    _check_classes(checkpoint)
    return checkpoint


def open_outline(name: str, blocks: str | None = None) -> Outline:
    """Open a checkpoint without reading a weight, for its shapes and its tokenizer.

    Raises:
        NotFoundError, CheckpointError: as `open_checkpoint`, where no weight need be looked at.
    """
    folder = locate(name)
    sizes = check_files(folder, name)
    config = _load_config(folder, name)
    model = _outline(config, sizes, name)
    with _blaming(name, "cannot be loaded as a sequence classifier"):
        stack = find_blocks(model, getattr(config, "num_hidden_layers", None), blocks)
    return Outline(name, folder, model, _load_tokenizer(folder, name), stack)


def examine_checkpoint(name: str, blocks: str | None = None) -> tuple[Checkpoint, list[str]]:
    """Open a checkpoint for a look at it, with or without a head, on the CPU; else as `open_checkpoint`.

    Returns:
        The checkpoint, and what makes its weights unusable: missing, unexpected or not finite.

    Raises:
        NotFoundError, CheckpointError: there is nothing to look at.
    """
    checkpoint, info = _open(name, None, None, blocks)
    headless = bool(checkpoint.fresh) and all(checkpoint.parts.get(key, HEAD) == HEAD for key in checkpoint.fresh)
    return checkpoint, list(_faults(checkpoint, info, headless))


def _open(
    name: str, device: torch.device | None, fresh_head: Sequence[str] | None, blocks: str | None
) -> tuple[Checkpoint, dict[str, Any]]:
    """Open a checkpoint as `open_checkpoint`, and give what loading said of its weights, unchecked."""
    folder = locate(name)
    stamp = folder_stamp(folder)
    sizes = check_files(folder, name)
    config = _load_config(folder, name)
    _outline(config, sizes, name)
    if fresh_head is not None:
        config.num_labels = len(fresh_head)
        config.id2label = dict(enumerate(fresh_head))
        config.label2id = {label: i for i, label in enumerate(fresh_head)}
        config.problem_type = "single_label_classification"
    tokenizer = _load_tokenizer(folder, name)
    model, info, dtype = _load_model(folder, name, config)
    saved = {key: getattr(model.config, key, None) for key in ("use_cache", "output_hidden_states", "return_dict")}
    model.config.use_cache = False
    model.config.output_hidden_states = False
    model.config.return_dict = True
    if model.config.pad_token_id != tokenizer.pad_token_id:
        if model.config.pad_token_id is not None:
            console.warn(
                f"{name}: config.json pads with token {model.config.pad_token_id}, the tokenizer with "
                f"{tokenizer.pad_token_id}; pooling goes by the attention mask, so neither matters"
            )
        model.config.pad_token_id = tokenizer.pad_token_id
    model.to(device or torch.device("cpu")).eval()
    _own_weights(model)
    with _blaming(name, "the model cannot be run"):
        stack = find_blocks(model, getattr(config, "num_hidden_layers", None), blocks)
        runner = Runner(model, stack, model.config)
        parts = find_parts(model, stack, lambda: _short_pass(runner))
    runner.applications = runner.passes = 0
    replaced = {key for key, *_ in info["mismatched_keys"]} if fresh_head is not None else set()
    fresh = frozenset(info["missing_keys"]) | replaced
    checkpoint = Checkpoint(name, folder, model, tokenizer, stack, runner, parts, dtype, saved, fresh, stamp)
    return checkpoint, info


def check_unchanged(checkpoint: Checkpoint, provenance: Provenance | None, role: str) -> None:
    """Check that the files opened are those whose digest the provenance has.

    Raises:
        CheckpointError: they changed since.
    """
    known = provenance.inputs.get(role) if provenance is not None else None
    if known is not None and known["sha256"] != checkpoint.digest()["sha256"]:
        raise CheckpointError(f"{checkpoint.name}: its files changed while they were read; run again")


@torch.no_grad()
def _own_weights(model: nn.Module) -> None:
    """Copy weights that still lie in the mapped file: whoever writes into that file must not change a running model."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _short_pass(runner: Runner) -> Tensor:
    ids = torch.ones((1, 2), dtype=torch.long, device=runner.device)
    return runner.forward(Batch(np.zeros(1, dtype=np.int64), ids, torch.ones_like(ids)))


@contextlib.contextmanager
def _blaming(name: str, what: str) -> Iterator[None]:
    """Turn whatever transformers raises over a checkpoint into an error that names the checkpoint."""
    try:
        yield
    except (UsageError, MemoryError, torch.OutOfMemoryError):
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from None
    except Exception as error:  # a broken checkpoint can make it raise anything
        if OUT_OF_MEMORY in str(error):
            raise MemoryError from error
        raise CheckpointError(f"{name}: {what} ({_brief(error)})") from error


def _load_config(folder: Path, name: str) -> Any:
    with _blaming(name, "config.json cannot be used"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def _outline(config: Any, sizes: Sequence[int], name: str) -> Any:
    """Build the model without memory for its weights, unless config.json says a far larger one than the files hold.

    Args:
        config: the configuration.
        sizes: numbers in each stored tensor.
        name: of the checkpoint.

    Raises:
        CheckpointError: as said, or it cannot be built.
    """
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > len(sizes):
        raise CheckpointError(f"{name}: config.json says {layers} layers, but the files hold {len(sizes)} weights")
    with _blaming(name, "cannot be loaded as a sequence classifier"), torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if needed > 2 * sum(sizes) + SLACK:
        raise CheckpointError(f"{name}: config.json says {needed:,} numbers, but the files hold {sum(sizes):,}")
    return model


def _load_tokenizer(folder: Path, name: str) -> Any:
    with _blaming(name, "no usable tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise CheckpointError(f"{name}: no tokenizer (its vocabulary holds special tokens only); is a file missing?")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def _load_model(folder: Path, name: str, config: Any) -> tuple[Any, dict[str, Any], torch.dtype]:
    with _blaming(name, "cannot be loaded as a sequence classifier"):
        model, info = AutoModelForSequenceClassification.from_pretrained(
            folder,
            config=config,
            dtype="auto",
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # a head's size may change; `_faults` refuses all else
        )
        dtype = next(model.parameters()).dtype
        return model.float(), info, dtype


def _brief(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def _faults(checkpoint: Checkpoint, info: dict[str, Any], fresh: bool) -> Iterator[str]:
    """Say what makes the weights unusable; a head may be missing or of another size if a `fresh` one is wanted."""

    def counts(key: str) -> bool:
        return not fresh or checkpoint.parts.get(key, HEAD) != HEAD

    missing = [key for key in sorted(info["missing_keys"]) if counts(key)]
    if fresh and not missing and _looks_untrained(info, checkpoint):
        missing = sorted(info["missing_keys"])
    shapes = {key: (tuple(stored), tuple(wanted)) for key, stored, wanted in info["mismatched_keys"] if counts(key)}
    mismatched = [f"{key} is {shapes[key][0]}, not {shapes[key][1]}" for key in sorted(shapes)]
    unexpected = sorted(info["unexpected_keys"])
    if fresh and not missing:
        unexpected = [key for key in unexpected if _of_a_block(key, checkpoint.stack.path)]
    for what, keys in (("missing", missing), ("of another shape", mismatched), ("not expected", unexpected)):
        if keys:
            hint = _prefix_hint(sorted(info["missing_keys"]), sorted(info["unexpected_keys"]))
            yield f"{len(keys)} weights are {what} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''}){hint}"
    bad = [n for n, p in checkpoint.model.named_parameters() if not bool(torch.isfinite(p).all())]
    if bad:
        yield f"{len(bad)} weights hold NaN or infinity (first: {bad[0]})"


def _of_a_block(key: str, path: str) -> bool:
    """Whether an unexpected weight is that of a block, whether or not the base model's prefix is on it."""
    return any(key.startswith(f"{tail}.") for tail in (path, path.partition(".")[2]) if tail)


def _check_classes(checkpoint: Checkpoint) -> None:
    labels = checkpoint.labels
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise CheckpointError(f"{checkpoint.name}: config.json names two classes {shown(twice)}")
    if len(labels) < 2:
        raise CheckpointError(f"{checkpoint.name}: one output only; a classifier needs two classes")


def _looks_untrained(info: dict[str, Any], checkpoint: Checkpoint) -> bool:
    """Whether nothing but fresh weights is there: every parameter is missing."""
    return len(info["missing_keys"]) >= len(checkpoint.parts)


def _prefix_hint(missing: list[str], unexpected: list[str]) -> str:
    """If unexpected keys are the missing ones under another prefix, say which."""
    for key in missing:
        for other in unexpected:
            if other.endswith("." + key):
                return f'; the file has them with "{other[: -len(key)]}" in front: rename them'
            if key.endswith("." + other):
                return f'; the file has them without "{key[: -len(other)]}" in front: rename them'
            tail = key.partition(".")[2]
            if tail and other.endswith("." + tail):
                return f'; the file has "{other}" where "{key}" is wanted: rename them'
    return ""


def check_same(noisy: Checkpoint, other: Checkpoint) -> None:
    """Check that blocks can go from one checkpoint to the other: shapes, classes and tokenizer are the same.

    Raises:
        CheckpointError: names the first difference.
    """
    names = f"{noisy.name} and {other.name}"
    mine = {n: tuple(p.shape) for n, p in noisy.model.named_parameters()}
    theirs = {n: tuple(p.shape) for n, p in other.model.named_parameters()}
    differ = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    if noisy.labels != other.labels:
        raise CheckpointError(f"{names} differ in their classes: {noisy.labels} and {other.labels}")
    if differ:
        key = differ[0]
        shapes = f"{mine.get(key, 'absent')} and {theirs.get(key, 'absent')}"
        raise CheckpointError(f"{names} differ in {len(differ)} weights: {key} is {shapes}")
    if noisy.stack.path != other.stack.path:
        raise CheckpointError(f"{names} keep their blocks at {noisy.stack.path} and {other.stack.path}")
    check_same_tokenizer(noisy, other)


def check_same_tokenizer(noisy: Checkpoint, other: Checkpoint) -> None:
    """Check that two checkpoints cut text into the same tokens.

    Raises:
        CheckpointError: vocabularies or special tokens differ; names the first difference.
    """
    mine, theirs = noisy.tokenizer.get_vocab(), other.tokenizer.get_vocab()
    token = next((t for t in sorted(mine.keys() | theirs.keys()) if mine.get(t) != theirs.get(t)), None)
    if token is not None:
        raise CheckpointError(
            f"{noisy.name} and {other.name} have other tokenizers: {shown(token)} is token "
            f"{mine.get(token, 'absent')} and {theirs.get(token, 'absent')}"
        )
    probe = "Is 3.5 km far? Él said: «no»!"
    if noisy.tokenizer(probe)["input_ids"] != other.tokenizer(probe)["input_ids"]:
        raise CheckpointError(f"{noisy.name} and {other.name} have tokenizers that cut text in other places")


def save_checkpoint(checkpoint: Checkpoint, path: Path, provenance: Provenance, extra: Path | None = None) -> None:
    """Write a checkpoint folder that stock Auto classes load, all at once.

    Args:
        checkpoint: what to save; weights go out in the type they came in.
        path: the folder to be.
        provenance: goes to `mltools.json`.
        extra: a folder to copy inside (the `memorised` checkpoint).

    Raises:
        UsageError: a folder is there that is no checkpoint of ours to replace.
    """
    if path.exists() and not (path / "config.json").exists():
        raise UsageError(f"{path} is there and is no checkpoint; choose another path")
    with atomic_folder(path) as temporary:
        write_checkpoint(checkpoint, temporary, provenance)
        if extra is not None:
            shutil.copytree(extra, temporary / extra.name)


def write_checkpoint(checkpoint: Checkpoint, folder: Path, provenance: Provenance) -> None:
    """Write a checkpoint's files into a folder that exists."""
    model, config = checkpoint.model, checkpoint.model.config
    in_memory = {key: getattr(config, key, None) for key in checkpoint.saved_settings}
    state = {
        key: value.to(checkpoint.saved_dtype) if value.is_floating_point() else value
        for key, value in model.state_dict().items()
    }
    try:
        for key, value in checkpoint.saved_settings.items():
            setattr(config, key, value)
        model.save_pretrained(folder, state_dict=state)
        config.dtype = checkpoint.saved_dtype  # else it says the type in memory
        config.save_pretrained(folder)
    finally:
        for key, value in in_memory.items():
            setattr(config, key, value)
    checkpoint.tokenizer.save_pretrained(folder)
    (folder / CHECKPOINT_FILE).write_text(provenance.as_json() + "\n", encoding="utf-8")
