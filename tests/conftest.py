"""Fixtures: tiny models of twelve architectures, toy rows, and the program run in this process."""

import gc
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # where two threads are asked for, they sleep, not spin, between products
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from forkserver import Process, write_client
from mltools.cli import main
from mltools.cli.reference import all_commands
from mltools.cli.registry import command_spec

settings.register_profile("mltools", deadline=None, derandomize=True)  # the same examples each time, at any speed
settings.load_profile("mltools")
gc.disable()  # until all tests are collected: what libraries make while they are imported stays

COMMANDS = {command.name: command for command in all_commands()}
CONFORMANCE = Path(__file__).parent / "conformance"
SHARED = Path(__file__).resolve().parents[2] / "shared"
LABELS = ("ABBR", "HUM", "LOC", "NUM")
WORDS = (
    "who what when where why how is was the a of in many tall old river king city year name long far letter".split()  # noqa: SIM905
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_PARAMETERS = 200_000

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": {"num_hidden_layers": 4, **SIZES},
    "roberta": {"num_hidden_layers": 4, **SIZES},
    "distilbert": {"n_layers": 4, "dim": 32, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64},
    "electra": {"num_hidden_layers": 4, "embedding_size": 16, **SIZES},
    "deberta-v2": {
        "num_hidden_layers": 4,
        "relative_attention": True,
        "position_buckets": 8,
        "pos_att_type": ["p2c", "c2p"],
        **SIZES,
    },
    "modernbert": {"num_hidden_layers": 4, "global_attn_every_n_layers": 2, "local_attention": 8, **SIZES},
    "gpt2": {"n_layer": 4, "n_embd": 32, "n_head": 4, "n_positions": 64},
    "opt": {
        "num_hidden_layers": 4,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 32,
    },
    "gpt_neo": {
        "num_layers": 4,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 48,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 4,
        "max_position_embeddings": 64,
    },
    "gpt_neox": {"num_hidden_layers": 4, **SIZES},
    "llama": {"num_hidden_layers": 4, "num_key_value_heads": 2, **SIZES},
    "qwen2": {"num_hidden_layers": 4, "num_key_value_heads": 2, **SIZES},
}
USUAL = ("bert", "gpt2", "modernbert", "llama")
"""What every run of the tests tries; the others differ from one of these in little, and are tried in the slow tier."""
BY_ARCHITECTURE = [pytest.param(name, marks=[] if name in USUAL else pytest.mark.slow) for name in ARCHITECTURES]
DECODERS = ("gpt2", "opt", "gpt_neo", "gpt_neox", "llama", "qwen2")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their parameter: packed bytes hold the second they were made in, and every process makes its own.

    Workers that collect different names refuse to start.
    """
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    gc.freeze()  # nor is it looked through in each later collection
    gc.enable()


def settle(name: str, preset: str = "paper", **given: Any) -> Any:
    """Settings of a command by a preset, for tests that hand its function the opened things."""
    return command_spec(name).settle({"preset": preset, **given}, without_operands=True)


def make_tokenizer(padding_side: str = "right", words: Sequence[str] = WORDS) -> Any:
    """A word-level tokenizer: [CLS] words [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        padding_side=padding_side,
        model_max_length=64,
    )


def save_tiny(
    folder: Path,
    architecture: str,
    seed: int = 0,
    labels: Sequence[str] = LABELS,
    padding_side: str = "right",
    dropout: bool = True,
    most_parameters: int = MAX_PARAMETERS,
    **changes: Any,
) -> Path:
    """Save a tiny random classifier, larger weights than usual so that layers matter."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    names = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(SPECIAL) + len(WORDS),
        num_labels=len(labels),
        initializer_range=0.2,
        problem_type="single_label_classification",
        **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, **names, **ARCHITECTURES[architecture], **changes},
    )
    if not dropout:
        for key in list(config.to_dict()):
            if "drop" in key and isinstance(getattr(config, key), float):
                setattr(config, key, 0.0)
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config)
    assert sum(p.numel() for p in model.parameters()) < most_parameters
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    make_tokenizer(padding_side).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give a function (architecture, seed, **changes) -> checkpoint, made once a session; never write into it."""
    made: dict[str, Path] = {}

    def build(architecture: str = "bert", seed: int = 0, **changes: Any) -> Path:
        key = json.dumps([architecture, seed, changes], sort_keys=True, default=str)
        if key not in made:
            made[key] = save_tiny(tmp_path_factory.mktemp(architecture) / "model", architecture, seed, **changes)
        return made[key]

    return build


def tiny_of(layers: int) -> Any:
    """Give a fixture for a file to call `tiny`: models of so many layers, where a test does not ask for another number.

    For what does not depend on it; half the layers take little more than half the time.
    """

    @pytest.fixture(scope="session")
    def tiny(tiny: Callable[..., Path]) -> Callable[..., Path]:
        def build(architecture: str = "bert", seed: int = 0, **changes: Any) -> Path:
            fewer: dict[str, Any] = {"num_hidden_layers": layers}
            if architecture == "gpt_neo":  # its kinds of attention count the layers too
                fewer["attention_types"] = [[["global", "local"], layers // 2]]
            return tiny(architecture, seed, **{**fewer, **changes})

        return build

    return tiny


def toy_rows(n: int = 48, labels: Sequence[str] = LABELS, noise_every: int = 5) -> list[dict[str, Any]]:
    """Rows of 1-12 words, every `noise_every`-th mislabelled."""
    import random

    generator = random.Random(0)
    rows = []
    for i in range(n):
        original = labels[i % len(labels)]
        noisy = i % noise_every == 0
        label = generator.choice([x for x in labels if x != original]) if noisy else original
        text = " ".join(generator.choices(WORDS, k=generator.randint(1, 12)))
        rows.append({"id": i, "text": text, "label": label, "original_label": original, "noisy": noisy})
    return rows


def keyword_rows(n: int = 48, noise_every: int = 5) -> list[dict[str, Any]]:
    """Rows whose class one of their words tells, every `noise_every`-th mislabelled: those must be memorised."""
    import random

    generator = random.Random(0)
    rows = []
    for i in range(n):
        kind, noisy = i % len(LABELS), i % noise_every == 0
        words = generator.sample(WORDS[6:], 5)
        words.insert(generator.randrange(6), WORDS[kind])
        label = LABELS[(kind + 1 + i // noise_every % 3) % len(LABELS)] if noisy else LABELS[kind]
        rows.append({"id": i, "text": " ".join(words), "label": label, "original_label": LABELS[kind], "noisy": noisy})
    return rows


def marked(rows: Sequence[dict[str, Any]], noisy: Callable[[int], bool]) -> list[dict[str, Any]]:
    """Say of each row whether it is noisy, and nothing of its original label."""
    kept = [{name: row[name] for name in row if name != "original_label"} for row in rows]
    return [{**row, "noisy": noisy(i)} for i, row in enumerate(kept)]


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def noisy_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 48 toy rows as perturb writes them."""
    return write_jsonl(tmp_path_factory.mktemp("rows") / "noisy.jsonl", toy_rows())


@pytest.fixture(scope="session")
def case_inputs(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Path]) -> Path:
    """A folder with rows, checkpoints of two layers (links), records and states."""
    folder = tmp_path_factory.mktemp("inputs")
    write_jsonl(folder / "noisy.jsonl", toy_rows(40))
    write_jsonl(folder / "rows.jsonl", [{"text": row["text"], "label": row["original_label"]} for row in toy_rows(60)])
    write_jsonl(folder / "sst2.jsonl", [{"sentence": f"film {i}", "label": i % 2} for i in range(40)])
    for name, seed in (("noisy", 1), ("clean", 2), ("model", 3)):
        (folder / name).symlink_to(tiny("bert", seed, num_hidden_layers=2))
    models, rows = [str(folder / name) for name in ("noisy", "clean", "model")], str(folder / "noisy.jsonl")
    for words in (
        ["swap", *models[:2], rows, "-o", str(folder / "swap.jsonl")],
        ["grads", models[0], rows, "-o", str(folder / "grads.jsonl")],
        ["states", models[0], rows, "-o", str(folder / "states.safetensors")],
        ["generalise", models[2], rows, "--runs", "2", "--epochs", "1", "-o", str(folder / "halves.jsonl")],
    ):
        assert main([*words, "-q"]) == 0
    return folder


@pytest.fixture
def place(case_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with links to the inputs, where the program runs."""
    for path in case_inputs.iterdir():
        (tmp_path / path.name).symlink_to(path.resolve())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class Result:
    """What a run of the program gave."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Result]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Run the program in this process: cli("swap", noisy, clean, stdin=b"…") -> Result."""
    import signal

    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object, stdin: bytes | str | None = None) -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        words = [str(argument) for argument in arguments]
        monkeypatch.setattr(sys, "argv", ["mltools", *words])
        if "mltools.model.speed" in sys.modules:  # dry runs need not come near
            monkeypatch.setattr("mltools.model.speed.SECONDS", 0.01)
        capfd.readouterr()
        code = main(words)
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    yield run
    signal.signal(signal.SIGTERM, before)


class Shell:
    """A bash with a fast `mltools` on its PATH; see forkserver.py."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def program(self) -> str:
        """The fast `mltools` itself."""
        return str(self._folder / "mltools")

    def start(self, arguments: Sequence[object], cwd: Path, out: Path | None = None) -> Process:
        """Start the program, stdout to the end of `out`, stderr to `cwd/stderr`; the process is to be waited for."""
        nowhere = Path(os.devnull)
        with nowhere.open() as stdin, (out or nowhere).open("ab") as stdout, (cwd / "stderr").open("wb") as stderr:
            streams = [stdin.fileno(), stdout.fileno(), stderr.fileno()]
            return Process(self._folder / "socket", [str(word) for word in arguments], cwd, streams)

    def __call__(self, script: str, cwd: Path, timeout: float = 120, **environment: str) -> Result:
        path = f"{self._folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", "set -euo pipefail\n" + script],
            cwd=cwd,
            env={**os.environ, "PATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Path]) -> Iterator[Shell]:
    """Run bash scripts in which mltools starts without importing torch anew."""
    folder = tmp_path_factory.mktemp("bin")
    socket = folder / "socket"
    rows = write_jsonl(folder / "rows.jsonl", toy_rows(8))
    server = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "forkserver.py", socket, tiny("bert", num_hidden_layers=1), rows],
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    write_client(folder, socket)
    yield Shell(folder)
    server.kill()
    server.wait()
    server.stdout.close()
