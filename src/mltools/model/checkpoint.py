"""An opened checkpoint: its model, tokenizer, blocks and classes, and how it turns text into tokens."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mltools import console
from mltools.errors import CheckpointError
from mltools.io.examples import Examples
from mltools.io.provenance import Provenance, folder_digest, folder_stamp
from mltools.model.anatomy import BlockStack, Part, call_order
from mltools.model.batches import Encoded
from mltools.model.checkpoint_files import FLOATS, Stored
from mltools.model.runner import Runner

NO_LIMIT = 1_000_000


@dataclass
class CheckpointMeta:
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
        own = (p.numel() for p in self.stack.modules[0].parameters() if p.dim() == 1)  # biases and norms
        return int(getattr(text_config(self.model), "hidden_size", None) or Counter(own).most_common(1)[0][0])

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
        return encode(self.tokenizer, examples.texts(separator), self.limit(max_length), vocabulary_size(self.model))

    def limit(self, max_length: int) -> int:
        """Give the longest row, in tokens, that neither the option nor the model forbids."""
        limits = [max_length]
        if 0 < (self.tokenizer.model_max_length or 0) < NO_LIMIT:
            limits.append(int(self.tokenizer.model_max_length))
        positions = getattr(text_config(self.model), "max_position_embeddings", None)
        if isinstance(positions, int) and positions > 0:
            limits.append(positions - _position_offset(self.model, positions))
        return min(limits)


@dataclass
class Checkpoint(CheckpointMeta):
    """An opened checkpoint: the live model in float32 (or as asked), its tokenizer, blocks and parts."""

    runner: Runner
    parts: dict[str, Part]
    stored: Mapping[str, Stored]
    """The tensors of the files, whose types they are written back in; none: float32."""
    saved_settings: list[tuple[Any, str, Any]]
    """What the configuration (and that of its text part) said before the model was made to run as we need it."""
    fresh: frozenset[str] = frozenset()
    """Weights that were not in the files, or of another size there, so are random: of a fresh head."""
    stamp: Sequence[object] = ()
    """Tells the files as they were just before they were read."""

    @property
    def saved_dtype(self) -> torch.dtype:
        """The type that holds all of the files' weights."""
        kinds = sorted({tensor.kind for tensor in self.stored.values()} & FLOATS.keys())
        types: list[torch.dtype] = [getattr(torch, FLOATS[kind]) for kind in kinds] or [torch.float32]
        return reduce(torch.promote_types, types)

    def stored_dtype(self, key: str) -> torch.dtype:
        """Give the type that a weight came in, by its name with or without what is in front; else `saved_dtype`."""
        tensor = self.stored.get(key) or self.stored.get(key.partition(".")[2])
        kind = FLOATS.get(tensor.kind) if tensor is not None else None
        found: torch.dtype = getattr(torch, kind) if kind is not None else self.saved_dtype
        return found

    def head_modules(self) -> list[nn.Module]:
        """Find the modules that run after the last block: final norm, pooler, dropout, classifier."""
        with self.runner.trial():
            _, after = call_order(self.model, self.stack, lambda: short_pass(self.runner))
        return [module for name, module in self.model.named_modules() if name in after]

    def digest(self) -> dict[str, str]:
        """Name and digest of this input, for provenance.

        Raises:
            CheckpointError: the files are not those that were read.
        """
        digest = folder_digest(self.folder)
        self.check_files()
        return {"path": self.name, "sha256": digest}

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check that the files stay those that were opened, since blocks on disk are read to the end of a run.

        Raises:
            CheckpointError: they changed; in place of whatever error came of that.
        """
        try:
            yield
        except Exception:
            self.check_files()
            raise
        self.check_files()

    def check_files(self) -> None:
        """Raise CheckpointError if the files are not those that were opened."""
        if folder_stamp(self.folder) != self.stamp:
            raise CheckpointError(f"{self.name}: its files changed while they were read; run again")


def text_config(model: Any) -> Any:
    """Give the configuration of the part of a model that reads text."""
    return model.config.get_text_config(decoder=True if model.config.is_encoder_decoder else None)


def vocabulary_size(model: Any) -> int:
    """Number of tokens that a model has embeddings for; any number of characters where it hashes them."""
    return int(getattr(text_config(model), "vocab_size", None) or NO_LIMIT)


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
    n_cut = _count_cut(tokenizer, texts, ids, max_length)
    if n_cut:
        console.warn(f"{n_cut} rows are longer than {max_length} tokens and are cut (--max-length, or the model's own)")
    encoded = Encoded(ids, tokenizer.pad_token_id, vocabulary, empty, n_cut)
    if encoded.n_empty:
        console.warn(f"{encoded.n_empty} rows without a token are kept, as one special token")
    return encoded


def _count_cut(tokenizer: Any, texts: Sequence[str], ids: Sequence[Sequence[int]], max_length: int) -> int:
    """Count the rows that have more tokens than were kept: only those that fill the length can."""
    full = [text for text, row in zip(texts, ids, strict=True) if len(row) >= max_length]
    whole = tokenizer(full, verbose=False, return_attention_mask=False)["input_ids"] if full else []
    return sum(len(row) > max_length for row in whole)


def short_pass(runner: Runner) -> Tensor:
    """Run the model whole on one short row: its logits."""
    return runner.stock_logits(runner.trial_batch())


def check_unchanged(checkpoint: Checkpoint, provenance: Provenance | None, role: str) -> None:
    """Check that the files opened are those whose digest the provenance has.

    Raises:
        CheckpointError: they changed since.
    """
    known = provenance.inputs.get(role) if provenance is not None else None
    if known is not None and known["sha256"] != checkpoint.digest()["sha256"]:
        raise CheckpointError(f"{checkpoint.name}: its files changed while they were read; run again")
