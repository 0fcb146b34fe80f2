"""Every command line of README.md, docs/ and help, and every Python block, runs as printed, on a tiny model."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import COMMANDS, Shell, make_tokenizer, write_jsonl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FROM_SCRATCH = ("README.md", "tutorial.md")
CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
ROWS_PER_CLASS = 20
SETTING_UP = ("make ", "pip ")
NOT_HERE = {"mltools prepare trec > trec.jsonl": 5}
"""Examples that need the network, with the exit status without it."""


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def commands(page: Path) -> str:
    """All command lines of a page, without those that install."""
    lines = "".join(blocks(page, "sh")).splitlines()
    return "\n".join(line for line in lines if not line.startswith(SETTING_UP))


def run_page(shell: Shell, page: Path, folder: Path) -> None:
    done = shell(f"set -x\n{commands(page)}", folder, timeout=240)
    assert done.code == 0, f"{page.name}: {done.err[-3000:]}"
    assert "a fault in mltools" not in done.err and "Traceback" not in done.err


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages start from: questions.jsonl and model/, 6 layers."""
    folder = tmp_path_factory.mktemp("docs") / "bare"
    folder.mkdir()
    rows = [json.loads(line) for line in (ROOT / "examples/questions.jsonl").read_text().splitlines()]
    chosen = [row for name in CLASSES for row in [r for r in rows if r["label"] == name][:ROWS_PER_CLASS]]
    write_jsonl(folder / "questions.jsonl", sorted(chosen, key=lambda row: int(row["id"])))
    save_quick_learner(folder / "model", [row["text"] for row in chosen])
    return folder


def save_quick_learner(folder: Path, texts: list[str]) -> None:
    """Save a small GPT-2 of 6 layers, scaled so that it memorises 120 rows at the demo's learning rate and epochs."""
    import torch
    from transformers import AutoModelForSequenceClassification, GPT2Config

    tokenizer = make_tokenizer(words=sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)}))
    shape = {"n_layer": 6, "n_embd": 64, "n_head": 4, "n_positions": 64, "initializer_range": 0.02}
    config = GPT2Config(vocab_size=len(tokenizer), pad_token_id=0, bos_token_id=2, eos_token_id=3, **shape)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" in name and name.endswith("weight"):
                parameter.fill_(8.0)
            elif "wte" in name:
                parameter.normal_(0, 1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def done_tutorial(shell: Shell, bare: Path) -> Path:
    """The folder after the tutorial."""
    folder = bare.parent / "tutorial"
    shutil.copytree(bare, folder)
    run_page(shell, DOCS / "tutorial.md", folder)
    return folder


@pytest.fixture
def folder(done_tutorial: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(done_tutorial, tmp_path / "folder"))


def test_tutorial(done_tutorial: Path) -> None:
    made = {path.name for path in done_tutorial.iterdir()}
    assert made >= {"noisy", "clean", "swap.jsonl", "retrain.jsonl", "grads.jsonl", "probe.jsonl", "centroid.jsonl"}
    assert read(done_tutorial / "noisy-epochs.jsonl")[-1]["noisy_accuracy"] > 0.9
    full = next(record for record in read(done_tutorial / "swap.jsonl") if record["window"] == "1-6")
    assert full["memorisation_error"] > 0.9 and full["reverted"] > 0.9 and full["clean_accuracy"] > 0.9
    assert (done_tutorial / "noisy/memorised/config.json").exists()


def test_readme(shell: Shell, bare: Path, tmp_path: Path) -> None:
    run_page(shell, ROOT / "README.md", Path(shutil.copytree(bare, tmp_path / "folder")))


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in FROM_SCRATCH and commands(p)], ids=lambda p: p.name)
def test_page(shell: Shell, folder: Path, page: Path) -> None:
    run_page(shell, page, folder)


def test_python_page(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    namespace: dict[str, Any] = {}
    for block in blocks(DOCS / "api.md", "python"):
        exec(compile(block, "docs/api.md", "exec"), namespace)
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[:2]] == ["1-2", "3"]
    assert out[-1] == "no such folder: ./nowhere 5"


# -- the examples in help -----------------------------------------------------------------------------
EXAMPLES = [(command.name, example) for command in COMMANDS.values() for example in command.spec.examples]


@pytest.fixture(scope="session")
def full(shell: Shell, done_tutorial: Path) -> Path:
    """The folder after the tutorial, with fewer rows, and all the files that examples name."""
    folder = done_tutorial.parent / "full"
    shutil.copytree(done_tutorial, folder)
    add_tags(folder)
    rows = read(folder / "noisy.jsonl")
    few = [row for row in rows if row["noisy"]][:3] + [row for row in rows if not row["noisy"]][:13]
    write_jsonl(folder / "rte.jsonl", [{**row, "text_pair": row["text"]} for row in few[:8]])
    for task, columns in {
        "wic": {"sentence1": "Run far.", "sentence2": "A run.", "word": "run"},
        "reuters": {"text": "Oil rose."},
    }.items():
        (folder / "data" / task).mkdir(parents=True)
        labels: list[Any] = [["earn"], ["acq"]] if task == "reuters" else [0, 1]
        key = "topics" if task == "reuters" else "label"
        first = next(iter(columns))
        made = [{**columns, first: f"{columns[first]} {i}", key: labels[i % 2]} for i in range(20)]
        for split in ("train", "validation", "test"):
            write_jsonl(folder / "data" / task / f"{split}.jsonl", made)
    script = f"""
        mltools perturb -q {ROOT}/examples/questions.jsonl -o many.jsonl
        mltools states -q noisy/ many.jsonl -o states.safetensors --force
        mltools generalise -q model/ rte.jsonl --runs 2 --epochs 1 --run 1 > half-1.jsonl
        mltools generalise -q model/ rte.jsonl --runs 2 --epochs 1 --run 2 > half-2.jsonl
        mltools mcog -q swap.jsonl > mcog.jsonl
    """
    done = shell(script, folder)
    assert done.code == 0, done.err
    write_jsonl(folder / "noisy.jsonl", few)
    return folder


def add_tags(folder: Path) -> None:
    """Give records of swap, retrain and grads for four tasks and two models."""
    records = {name: read(folder / f"{name}.jsonl") for name in ("swap", "retrain", "grads")}
    for name, found in records.items():
        rows = []
        for number, dataset in enumerate(("rte", "wic", "trec", "sst2"), start=1):
            for model in ("bert", "opt"):
                tags = {"dataset": dataset, "model": model}
                rows += [{**record, **tags, **shifted(record, number)} for record in found]
        write_jsonl(folder / f"{name}.jsonl", rows)
        write_jsonl(folder / f"{name}-1.jsonl", rows)
        write_jsonl(folder / f"control-{name}.jsonl", [{**row, "planted": "1-2"} for row in rows])


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def shifted(record: dict[str, Any], number: int) -> dict[str, Any]:
    """Change a record a little, as if it were another task's."""
    if "memorisation_error" in record:
        return {"memorisation_error": record["memorisation_error"] / number + record["start"] * number / 100}
    return {"score": record["score"] + number * record["layer"] / 100}


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(EXAMPLES)])
def test_example(shell: Shell, full: Path, tmp_path: Path, name: str, example: str) -> None:
    for program in ("jq", "parallel"):
        if re.search(rf"\b{program}\b", example) and shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    folder = Path(shutil.copytree(full, tmp_path / "folder"))
    for written in re.findall(r" (?:-o|--write|--per-row) (\S+)", example):  # is not there before
        remove(folder / written)
    done = shell(example, folder)
    assert done.code == NOT_HERE.get(example, 0), done.err
    assert "a fault in mltools" not in done.err


# -- what pages must name -----------------------------------------------------------------------------
def test_paper_and_code_names_every_switch() -> None:
    page = (DOCS / "paper-and-code.md").read_text()
    for command in COMMANDS.values():
        released = command.spec.released if not callable(command.spec.released) else {}
        flags = {option.name: option.flags[0] for option in command.options}
        for name in released:
            assert flags[name] in page, (command.name, name)
            assert f"`{command.name}`" in page or command.name in page


def test_performance_page_shows_the_figures_kept() -> None:
    done = subprocess.run([sys.executable, ROOT / "benchmarks/table.py", "--check"], check=False)
    assert done.returncode == 0, "run benchmarks/table.py"


def test_every_page_is_listed_and_every_link_leads_somewhere() -> None:
    index = (DOCS / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (DOCS / target).exists(), (page.name, target)
