"""The plain ways: straightforward loops after the paper's protocol, for timing ours against.

Batch 8, unsorted, padded to the longest row of the batch; a window at a time, a probe at a time, a row at a time.
They use stock transformers and PyTorch only and nothing of mltools.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def batches(
    tokenizer: Any, texts: Sequence[str], order: Sequence[int], size: int = 8
) -> Iterator[tuple[Any, list[int]]]:
    """Yield stock-padded batches in the given order."""
    for start in range(0, len(order), size):
        rows = list(order[start : start + size])
        yield (
            tokenizer([texts[i] for i in rows], padding=True, truncation=True, max_length=512, return_tensors="pt"),
            rows,
        )


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
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            scheduler.step()
        if evaluate:
            predict(model, tokenizer, texts)


def trainer_epochs(
    folder: Path,
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    targets: Tensor,
    frozen: str,
    epochs: int,
    learning_rate: float,
) -> None:
    """Fine-tune with transformers' own Trainer on the same schedule, which measures the training rows each epoch."""
    from transformers import DataCollatorWithPadding, PrinterCallback, Trainer, TrainingArguments

    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    rows = [
        {**tokenizer(text, truncation=True, max_length=512), "labels": label}
        for text, label in zip(texts, targets.tolist(), strict=True)
    ]
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=learning_rate,
        warmup_steps=0.1,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        arguments,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
    )
    trainer.remove_callback(PrinterCallback)  # it writes to stdout
    trainer.train()


def retrain(
    noisy: nn.Module,
    pretrained: nn.Module,
    prefix: str,
    tokenizer: Any,
    texts: Sequence[str],
    targets: Tensor,
    train: Sequence[int],
    measured: Sequence[int],
    layers: int,
    epochs: int,
    after_epochs: Sequence[int] = (),
) -> None:
    """Every window anew: reset it, train it with head on the whole model's forward and backward, predict.

    The rows `after_epochs` are predicted after every epoch too: training and held-out rows, as was run.
    """
    from transformers import get_linear_schedule_with_warmup

    base, reset = noisy.state_dict(), pretrained.state_dict()
    for start in range(layers):
        for end in range(start, layers):
            model, inside = copy.deepcopy(noisy), set()
            state = dict(base)
            for name in base:
                number = name.removeprefix(prefix + ".").split(".")[0]
                if name.startswith(prefix + ".") and start <= int(number) <= end:
                    state[name] = reset[name]
                    inside.add(name)
            model.load_state_dict(state)
            trained = [p for n, p in model.named_parameters() if n in inside or not n.startswith(("bert.emb", prefix))]
            optimiser = torch.optim.AdamW(trained, lr=3e-5)
            steps = epochs * -(-len(train) // 8)
            scheduler = get_linear_schedule_with_warmup(optimiser, int(0.1 * steps), steps)
            for _ in range(epochs):
                model.train()
                order = [train[i] for i in torch.randperm(len(train)).tolist()]
                for inputs, rows in batches(tokenizer, texts, order):
                    optimiser.zero_grad()
                    torch.autograd.backward(nn.functional.cross_entropy(model(**inputs).logits, targets[rows]))
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimiser.step()
                    scheduler.step()
                if after_epochs:
                    predict(model, tokenizer, [texts[i] for i in after_epochs])
            predict(model, tokenizer, [texts[i] for i in measured])


def gradients(
    model: nn.Module, prefix: str, tokenizer: Any, texts: Sequence[str], targets: Tensor, rows: Sequence[int]
) -> dict[str, Tensor]:
    """Mean gradient of minus the loss, a row at a time, each row's gradients copied and added up."""
    model.eval()
    sums: dict[str, Tensor] = {}
    for row in rows:
        model.zero_grad()
        inputs = tokenizer([texts[row]], truncation=True, max_length=512, return_tensors="pt")
        torch.autograd.backward(-nn.functional.cross_entropy(model(**inputs).logits, targets[[row]]))
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and name.startswith(prefix):
                gradient = parameter.grad.detach().clone()
                sums[name] = sums[name] + gradient if name in sums else gradient
    return {name: total / len(rows) for name, total in sums.items()}


@torch.inference_mode()
def hidden_states(model: nn.Module, tokenizer: Any, texts: Sequence[str], size: int = 1) -> Tensor:
    """Pooled (first) states of all layers, (rows, layers + 1, width)."""
    model.eval()
    states = [
        torch.stack(model(**inputs, output_hidden_states=True).hidden_states)[:, :, 0].transpose(0, 1)
        for inputs, _ in batches(tokenizer, texts, range(len(texts)), size)
    ]
    return torch.cat(states)


def probe(
    states: Tensor,
    labels: Tensor,
    train: Sequence[int],
    validation: Sequence[int],
    test: Sequence[int],
    seed: int,
    epochs: int,
) -> float:
    """One probe on one layer: one hidden layer, AdamW, batches of 32, best validation F1 after epoch 25, test F1."""
    from sklearn.metrics import f1_score

    torch.manual_seed(seed)
    net = nn.Sequential(nn.Dropout(0.1), nn.Linear(states.shape[1], 128), nn.GELU(), nn.Linear(128, 2))
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=1e-5)
    weight, best, kept = torch.tensor([0.33, 0.67]), 0.0, copy.deepcopy(net.state_dict())
    order = torch.tensor(train)
    for epoch in range(epochs):
        net.train()
        for rows in torch.split(order[torch.randperm(len(order))], 32):
            optimiser.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(net(states[rows]), labels[rows], weight=weight))
            optimiser.step()
        net.eval()
        with torch.no_grad():
            f1 = f1_score(labels[validation], net(states[validation]).argmax(1), zero_division=0)
        if epoch > 25 and f1 > best:
            best, kept = f1, copy.deepcopy(net.state_dict())
    net.load_state_dict(kept)
    net.eval()
    with torch.no_grad():
        return float(f1_score(labels[test], net(states[test]).argmax(1), zero_division=0))


def centroid(
    model: nn.Module, tokenizer: Any, texts: Sequence[str], label: Tensor, original: Tensor, layers: int
) -> dict[tuple[int, int, int], Tensor]:
    """A pass over both classes' rows for every ordered pair and layer, row by row, as released."""
    result = {}
    classes = int(label.max()) + 1
    for a in range(classes):
        for b in range(classes):
            if a == b:
                continue
            for layer in range(1, layers + 1):
                rows = [i for i in range(len(texts)) if label[i] in (a, b) and original[i] in (a, b)]
                states = hidden_states(model, tokenizer, [texts[i] for i in rows])[:, layer]
                clean_a = torch.tensor([label[i] == a and original[i] == a for i in rows])
                clean_b = torch.tensor([label[i] == b and original[i] == b for i in rows])
                noisy = torch.tensor([label[i] == a and original[i] == b for i in rows])
                low, high = states[clean_a].mean(0), states[clean_b].mean(0)
                axis = (high - low) / (high - low).square().sum()
                result[a, b, layer] = (states[noisy] - low) @ axis
    return result
