"""The plain ways: straightforward loops after the paper's protocol, for timing ours against.

Batch 8, unsorted, padded to the longest row of the batch; a window at a time, a probe at a time, a row at a time.
They use stock transformers and PyTorch only and nothing of mltools.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def batches(tokenizer: Any, texts: Sequence[str], order: Sequence[int], size: int = 8) -> Iterator[tuple[Any, list[int]]]:
    """Yield stock-padded batches in the given order."""
    for start in range(0, len(order), size):
        rows = list(order[start : start + size])
        yield tokenizer([texts[i] for i in rows], padding=True, truncation=True, max_length=512, return_tensors="pt"), rows


@torch.inference_mode()
def predict(model: nn.Module, tokenizer: Any, texts: Sequence[str], size: int = 8) -> Tensor:
    """Logits of all rows in order."""
    model.eval()
    return torch.cat([model(**inputs).logits for inputs, _ in batches(tokenizer, texts, range(len(texts)), size)])


def swap(
    noisy: nn.Module, clean: nn.Module, prefix: str, tokenizer: Any, texts: Sequence[str], layers: int
) -> dict[tuple[int, int], Tensor]:
    """Predictions of every row for every window: copy the window's tensors, run everything, next window."""
    base, donor = noisy.state_dict(), clean.state_dict()
    model = copy.deepcopy(noisy)
    predictions = {}
    for start in range(layers):
        for end in range(start, layers):
            mixed = dict(base)
            for name in base:
                number = name.removeprefix(prefix + ".").split(".")[0]
                if name.startswith(prefix + ".") and start <= int(number) <= end:
                    mixed[name] = donor[name]
            model.load_state_dict(mixed)
            predictions[start + 1, end + 1] = predict(model, tokenizer, texts).argmax(1)
    return predictions


def train_epochs(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    targets: Tensor,
    frozen: str,
    epochs: int,
    learning_rate: float,
    evaluate: bool = True,
) -> None:
    """Fine-tune as released: AdamW, warm-up, clipping, batch 8 in random order, training rows measured each epoch."""
    from transformers import get_linear_schedule_with_warmup

    trained = [p for name, p in model.named_parameters() if frozen not in name]
    optimiser = torch.optim.AdamW(trained, lr=learning_rate)
    steps = epochs * -(-len(texts) // 8)
    scheduler = get_linear_schedule_with_warmup(optimiser, int(0.1 * steps), steps)
    for _ in range(epochs):
        model.train()
        for inputs, rows in batches(tokenizer, texts, torch.randperm(len(texts)).tolist()):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(**inputs).logits, targets[rows])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            scheduler.step()
        if evaluate:
            predict(model, tokenizer, texts)
