"""Every family of text classifiers that transformers has: the tools agree with stock transformers, or say why not.

The oracle uses transformers and torch alone: rows one at a time, weights mixed by hand, a plain training loop. Each
family's result goes to a folder (MLTOOLS_FAMILIES, or a temporary one); `docs/architectures.md` is made of a whole run.
"""

import json
import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from conftest import LABELS, Cli, toy_rows, write_jsonl
from families import BLOCKS, FAMILIES, TOOLS, WORKS, page, save_family
from mltools.errors import CheckpointError
from mltools.hashing import ranked
from mltools.model.runner import Runner
from mltools.model.training import Training, epoch_batches, purpose_seed

PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
ROWS = [{**row, "text": f"the {row['text']}"} for row in toy_rows(28)]
WINDOWS = {"1": (1,), "4": (4,), "2-3": (2, 3), "1-4": (1, 2, 3, 4)}
DELTA_RULE = ("qwen3_5", "qwen3_5_text", "qwen3_next")
"""Their linear attention goes by chunks of a padded length, and so rounds a row otherwise in a batch than alone."""
MARGIN = 1e-5
RATE = 1e-3


def tokens(folder: Path, texts: Sequence[str]) -> list[torch.Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]


def stock(folder: Path) -> Any:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.use_cache = False
    return model


def alone(model: Any, rows: Sequence[torch.Tensor], **options: Any) -> list[Any]:
    return [model(input_ids=ids, attention_mask=torch.ones_like(ids), **options) for ids in rows]


def logits_alone(model: Any, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    logits = [output.logits for output in alone(model, rows)]
    return torch.cat(logits)


class Family:
    """Two tiny checkpoints of a family, and what the tools say of them."""

    def __init__(self, name: str, folder: Path, cli: Cli) -> None:
        self.noisy, self.clean = (save_family(folder / part, name, seed) for seed, part in ((1, "noisy"), (2, "clean")))
        self.rows = write_jsonl(folder / "rows.jsonl", ROWS)
        self.folder, self.cli = folder, cli
        self.blocks = ("--blocks", BLOCKS[name]) if name in BLOCKS else ()
        self.notes = ""
        self.noise = 5 if name in DELTA_RULE else 1
        self.texts = tokens(self.noisy, [row["text"] for row in ROWS])
        self.targets = torch.tensor([LABELS.index(row["label"]) for row in ROWS])

    def run(self, *words: object) -> Any:
        done = self.cli(*words, *self.blocks)
        self.notes += done.err
        if done.code:
            raise Refused(done.code, done.err.strip().splitlines()[-1])
        return done

    @property
    def alone(self) -> bool:
        """Whether padding changes a row's result whatever the mask says."""
        return "padding changes a row's result" in self.notes

    def turn_dropout_off(self) -> None:
        for folder in (self.noisy, self.clean):
            text = (folder / "config.json").read_text()
            (folder / "config.json").write_text(re.sub(r'("\w*drop\w*": )[0-9.]+', r"\g<1>0.0", text))

    def padded(self, model: Any, rows: Any) -> torch.Tensor:
        """Logits of a padded batch."""
        ids, mask = torch.zeros((2, len(rows), max(self.texts[row].shape[1] for row in rows)), dtype=torch.long)
        for place, row in enumerate(rows):
            length = self.texts[row].shape[1]
            ids[place, :length], mask[place, :length] = self.texts[row][0], 1
        logits: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits
        return logits

    @cached_property
    def prefix(self) -> str:
        from mltools.model.checkpoint_loading import open_meta

        return open_meta(str(self.noisy), self.blocks[1] if self.blocks else None).stack.path + "."


class Refused(Exception):
    """A tool ended with another status than 0."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"status {code}: {message}")
        self.code, self.message = code, message


def check_swap(family: Family) -> None:
    per_row = family.folder / "rows.parquet"
    layers = [word for window in WINDOWS for word in ("--layers", window)]
    paths = (family.noisy, family.clean, family.rows)
    family.run("swap", *paths, *layers, "--per-row", per_row, "--min-noisy-accuracy", 0)
    found = {(r["id"], r["window"]): r for r in pq.read_table(per_row).to_pylist()}
    own, other = stock(family.noisy).state_dict(), stock(family.clean).state_dict()
    mixed, prefix = stock(family.noisy), family.prefix
    for window, chosen in WINDOWS.items():
        inside = tuple(f"{prefix}{layer - 1}." for layer in chosen)
        mixed.load_state_dict({name: (other if name.startswith(inside) else own)[name] for name in own})
        with torch.no_grad():
            logits = logits_alone(mixed, family.texts)
        best = logits.topk(2).values
        for i in range(len(ROWS)):
            ours = found[i, window]
            assert ours["predicted"] == LABELS[int(logits[i].argmax())], (window, i)
            gap = abs(ours["margin"] - float(best[i, 0] - best[i, 1]))
            assert gap <= family.noise * MARGIN * max(1.0, float(best[i].abs().max())), (window, i, gap)


def check_states(family: Family) -> None:
    path = family.folder / "states.safetensors"
    family.run("states", family.noisy, family.rows, "-o", path, *position(family))
    ours = load_file(path)["hidden_states"]
    with torch.no_grad():
        outputs = alone(stock(family.noisy), family.texts, output_hidden_states=True)
    for i, output in enumerate(outputs):
        wanted = [states[0].numpy() for states in hidden_states(output, family)]
        assert len(wanted) == ours.shape[1], (len(wanted), ours.shape)
        gaps = [min(np.abs(ours[i, layer] - states[at]).max() for at in (0, -1)) for layer, states in enumerate(wanted)]
        assert max(gaps) <= 1e-4 * max(1, np.abs(ours[i]).max()), gaps


def position(family: Family) -> tuple[str, ...]:
    from mltools.model.checkpoint_loading import open_checkpoint

    blocks = family.blocks[1] if family.blocks else None
    try:
        found = open_checkpoint(str(family.noisy), blocks=blocks, fresh_head=LABELS)
    except CheckpointError as error:
        raise Refused(4, str(error)) from None
    return ("--position", "last") if found.runner.pooling == "all" else ()


def hidden_states(output: Any, family: Family) -> Any:
    if not family.blocks:
        return output.hidden_states
    side = "decoder" if "decoder" in family.blocks[1] else "encoder"
    return getattr(output, f"{side}_hidden_states", None) or output.hidden_states


def check_grads(family: Family) -> None:
    path = family.folder / "gradients.safetensors"
    family.run("grads", family.noisy, family.rows, "--noisy-only", "--save", path, "--min-noisy-accuracy", 0)
    ours = {name.removeprefix("noisy/"): tensor for name, tensor in load_file(path).items()}
    model = stock(family.noisy)
    noisy = [i for i, row in enumerate(ROWS) if row["noisy"]]
    logits = logits_alone(model, [family.texts[i] for i in noisy])
    (-torch.nn.functional.cross_entropy(logits, family.targets[noisy])).backward()  # type: ignore[no-untyped-call]
    wanted = {n: p.grad for n, p in model.named_parameters() if n.startswith(family.prefix)}
    assert ours.keys() == wanted.keys()
    largest = max(float(np.abs(g).max()) for g in ours.values())
    for name, gradient in wanted.items():
        reference = np.zeros_like(ours[name]) if gradient is None else gradient.numpy()
        assert np.abs(ours[name] - reference).max() <= family.noise * 1e-4 * max(largest, 1e-3), name


def check_finetune(family: Family) -> None:
    """The last block whole: for one position of it, dropout would draw fewer numbers than the stock loop does."""
    out = family.folder / "tuned"
    options = ("--epochs", 1, "--lr", RATE, "--freeze", "none", "--warmup", 0, "--batch-size", 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_can_pool_last_block", lambda _: False)
        family.run("finetune", family.noisy, family.rows, "-o", out, *options)
    model = stock(family.noisy)
    model.train()
    order = np.array(ranked([row["id"] for row in ROWS], "rows", 1), dtype=np.int64)
    train(family, model, dict(model.named_parameters()), order)
    model.eval()
    with torch.no_grad():
        wanted, ours = logits_alone(model, family.texts), logits_alone(stock(out), family.texts)
    assert float((ours - wanted).abs().max()) <= 1e-3 * max(1.0, float(wanted.abs().max()))


def check_retrain(family: Family) -> None:
    """Window 2-3, head and all else fixed: the loss of each step, dropout in the window alone."""
    options = ("--epochs", 1, "--lr", RATE, "--warmup", 0, "--batch-size", 8, "--layers", "2-3", "--no-train-head")
    losses: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        update = Training.update

        def kept(loss: float) -> float:
            losses.append(loss)
            return loss

        patch.setattr(Training, "update", lambda *given: kept(update(*given)))
        done = family.run("retrain", family.noisy, family.clean, family.rows, *options, "--min-noisy-accuracy", 0)
    model, other = stock(family.noisy), stock(family.clean)
    inside = tuple(f"{family.prefix}{layer}." for layer in (1, 2))
    state = {n: t for n, t in other.state_dict().items() if n.startswith(inside)}
    model.load_state_dict(model.state_dict() | state)
    logits_alone(model, family.texts[:1])  # some families make modules in their first pass
    for name, module in model.named_modules():
        module.training = f"{name}.".startswith(inside)
    order = [i for i in ranked([row["id"] for row in ROWS], "retrain", 1) if not ROWS[i]["noisy"]]
    train_rows = np.array(order[sum(row["noisy"] for row in ROWS) :])
    window = {n: p for n, p in model.named_parameters() if n.startswith(inside)}
    wanted = train(family, model, window, train_rows)
    assert np.abs(np.array(losses) - wanted).max() <= 1e-4 * max(wanted), (losses, wanted)
    model.eval()
    with torch.no_grad():
        hits = (logits_alone(model, family.texts).argmax(dim=1) == family.targets)[[row["noisy"] for row in ROWS]]
    assert done.records[0]["noisy_accuracy"] == pytest.approx(float(hits.float().mean()))


def train(family: Family, model: Any, parameters: dict[str, Any], rows: Any) -> list[float]:
    """The stock loop: AdamW, linear decay, clipping at 1; one epoch. Gives each step's loss."""
    lengths = np.array([ids.shape[1] for ids in family.texts])
    batches = epoch_batches(rows, lengths, 8, 1, 1)
    optimiser = torch.optim.AdamW(parameters.values(), lr=RATE, weight_decay=0.01)
    losses = []
    for step, batch in enumerate(batches):
        torch.manual_seed(purpose_seed(1, "dropout", step, 0))
        logits = (
            logits_alone(model, [family.texts[row] for row in batch]) if family.alone else family.padded(model, batch)
        )
        loss = torch.nn.functional.cross_entropy(logits, family.targets[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / len(batches))
        optimiser.step()
        optimiser.zero_grad()
    return losses


CHECKS = {
    "swap": check_swap,
    "states": check_states,
    "grads": check_grads,
    "finetune": check_finetune,
    "retrain": check_retrain,
}


def examine(name: str, folder: Path, cli: Cli, tools: Sequence[str] = TOOLS) -> dict[str, str]:
    """Say of each tool whether it works, or its reason for refusing; and what was said of the way it ran."""
    try:
        family = Family(name, folder, cli)
    except ImportError as error:
        return dict.fromkeys(tools, str(error).split(" but ")[0])
    found: dict[str, str] = {}
    for tool in tools:
        if family.alone:  # row by row it would draw other numbers than in a batch
            family.turn_dropout_off()
        try:
            CHECKS[tool](family)
            found[tool] = WORKS
        except Refused as refused:
            assert refused.code == 4, refused
            found[tool] = refused.message.split(f"{family.noisy}", 1)[-1].lstrip(": ")
    found["note"] = family.blocks[-1] if family.blocks else ""
    if "cannot be run block by block" in family.notes:
        found["note"] += " whole"
    if family.alone:
        found["note"] += " alone"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, tmp_path: Path, cli: Cli) -> None:
    """All tools, and a result for the page; --numprocesses or -k share the families out."""
    found = examine(name, tmp_path, cli)
    folder = os.environ.get("MLTOOLS_FAMILIES")
    if folder:
        Path(folder, f"{name}.json").write_text(json.dumps(found, indent=1))


@pytest.mark.slow
def test_the_page_is_what_a_whole_run_found() -> None:
    """After the families, with MLTOOLS_FAMILIES: writes the page anew."""
    files = sorted(Path(os.environ.get("MLTOOLS_FAMILIES", "/nowhere")).glob("*.json"))
    results = {file.stem: json.loads(file.read_text()) for file in files}
    if results.keys() == set(FAMILIES):
        PAGE.write_text(page(results, f"transformers {transformers.__version__}, torch {torch.__version__}"))


def test_the_page_is_well_formed() -> None:
    """A line a family, and totals that are those of the lines."""
    text = PAGE.read_text()
    lines = [
        line.split(" | ") for line in text.splitlines() if line.startswith("| ") and not line.startswith("| family")
    ]
    verdicts = [line[1] for line in lines]
    assert set(verdicts) == {"works", "works in part", "refused"} and len({line[0] for line in lines}) == len(lines)
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("works", "works in part", "refused"))
    assert f"{len(lines)} families: {counts}, anything else 0." in text
    assert all(line[2].strip(" |") for line in lines if line[1] != "works")


@pytest.mark.parametrize(
    ("name", "tool"), [("albert", "finetune"), ("bart", "swap"), ("deberta-v2", "swap"), ("fnet", "states")]
)
def test_unusual_families(name: str, tool: str, tmp_path: Path, cli: Cli) -> None:
    """Shared layers, an encoder beside the decoder, a convolution between blocks, padding that counts."""
    assert examine(name, tmp_path, cli, (tool,))[tool] == WORKS


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("funnel", "its 12 layers lie in lists of lists", marks=pytest.mark.slow),
        pytest.param("reformer", "ReformerForSequenceClassification gives gradients in", marks=pytest.mark.slow),
        ("xlm", "a layer is spread over 4 module lists"),
    ],
)
def test_families_that_cannot_be_taken(name: str, reason: str, tmp_path: Path, cli: Cli) -> None:
    """The reason is the true one, and advises nothing that does not help."""
    found = examine(name, tmp_path, cli, ("grads",))["grads"]
    assert found.startswith(reason) and "--blocks" not in found
