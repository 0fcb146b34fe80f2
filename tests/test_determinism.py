"""Same seed, same bytes, for every tool; and every output says the command line that makes it again."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import COMMANDS, Cli, toy_rows, write_jsonl
from mltools.cli.command_line import command_line

Tiny = Callable[..., Path]
TRAIN = "--epochs 2 --lr 1e-3"

RUNS = {
    "perturb rows.jsonl -o OUT.jsonl": "OUT.jsonl",
    "perturb rows.jsonl --seed 3 -o OUT.parquet": "OUT.parquet",
    "finetune model noisy.jsonl --epochs 3 --lr 3e-3 --memorised-at 0.3 -o OUT": "OUT",
    "swap noisy clean noisy.jsonl -o OUT.jsonl": "OUT.jsonl",
    "swap noisy clean noisy.jsonl --tag model=bert --out=OUT.parquet": "OUT.parquet",
    "swap noisy clean noisy.jsonl --layers 2-3 --write OUT": "OUT",
    "swap noisy clean noisy.jsonl -q --layers 2-3 --layers 4 --per-row OUT.parquet": "OUT.parquet",
    f"retrain noisy model noisy.jsonl --layers 2-4 --layers 1 {TRAIN} -qo OUT.parquet": "OUT.parquet",
    "grads noisy noisy.jsonl --frozen model -oOUT.parquet": "OUT.parquet",
    "grads noisy noisy.jsonl --save OUT.safetensors": "OUT.safetensors",
    "states noisy noisy.jsonl -o OUT.safetensors": "OUT.safetensors",
    "probe states.safetensors --epochs 30 --seeds 2 -o OUT.parquet": "OUT.parquet",
    "centroid states.safetensors -o OUT.parquet": "OUT.parquet",
    "centroid states.safetensors --events --per-row OUT.parquet": "OUT.parquet",
    "mcog swap.jsonl grads.jsonl -o OUT.parquet": "OUT.parquet",
    "correlate swap.jsonl grads.jsonl --value score --on layer -o OUT.parquet": "OUT.parquet",
    "score grads.jsonl --truth 2-3 -o OUT.parquet": "OUT.parquet",
    f"generalise model noisy.jsonl --run 1 --run 2 --runs 3 {TRAIN} -o OUT.parquet": "OUT.parquet",
    "plot layers grads.jsonl -o OUT.svg": "OUT.svg",
    "plot layers grads.jsonl -o OUT.png": "OUT.png",
    "prepare sst2 --from sst2.jsonl -o OUT.parquet": "OUT.parquet",
}
"""A run of each tool, and what it writes."""
TO_STDOUT = ("windows 6", "schema window", "completion bash", "inspect noisy", "help swap")
SILENT_ON_COMMANDS = (".jsonl", ".svg", ".png")
"""Forms that have no place for provenance; --provenance writes it beside them."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    """A folder with rows, checkpoints (links), records and states."""
    from mltools.cli import main

    folder = tmp_path_factory.mktemp("inputs")
    write_jsonl(folder / "noisy.jsonl", toy_rows(40))
    write_jsonl(folder / "rows.jsonl", [{"text": row["text"], "label": row["original_label"]} for row in toy_rows(60)])
    write_jsonl(folder / "sst2.jsonl", [{"sentence": f"film {i}", "label": i % 2} for i in range(40)])
    for name, seed in (("noisy", 1), ("clean", 2), ("model", 3)):
        (folder / name).symlink_to(tiny("bert", seed))
    models, rows = [str(folder / name) for name in ("noisy", "clean")], str(folder / "noisy.jsonl")
    for words in (
        ["swap", *models, rows, "-o", str(folder / "swap.jsonl")],
        ["grads", models[0], rows, "-o", str(folder / "grads.jsonl")],
        ["states", models[0], rows, "-o", str(folder / "states.safetensors")],
    ):
        assert main([*words, "-q"]) == 0
    return folder


@pytest.fixture
def place(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with links to the inputs, where the program runs."""
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path.resolve())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(path: Path) -> dict[str, bytes]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("line", RUNS)
def test_same_bytes_and_the_command_that_makes_them_again(line: str, cli: Cli, place: Path) -> None:
    """Two runs under two names give the same bytes, and so does the printed line, run again."""
    results = []
    for name in ("one", "two"):
        result = cli(*shlex.split(line.replace("OUT", name)))
        assert result.code == 0, result.err
        results.append((result.out, content(place / RUNS[line].replace("OUT", name))))
    assert results[0] == results[1] and results[0][1]
    written = RUNS[line].replace("OUT", "one")
    printed = cli("inspect", written, "--command")
    if written.endswith(SILENT_ON_COMMANDS):
        assert (printed.code, printed.out) == (2, "")
        return
    assert printed.code == 0 and printed.out.startswith(f"mltools {line.split()[0]} "), printed.err
    words = shlex.split(printed.out)
    assert not {"-q", "--force", "two", "OUT"} & set(words)
    (place / "moved").mkdir()
    (place / written).rename(place / "moved" / written)
    assert cli(*words[1:]).code == 0
    assert content(place / written) == content(place / "moved" / written) == results[0][1]


@pytest.mark.parametrize("line", TO_STDOUT)
def test_text_is_the_same_each_time(line: str, cli: Cli, place: Path) -> None:
    first, second = (cli(*line.split()) for _ in range(2))
    assert first.code == 0 and first.out and first == second


def test_every_command_is_tried() -> None:
    tried = {line.split()[0] for line in (*RUNS, *TO_STDOUT)}
    assert tried == set(COMMANDS)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("perturb rows.jsonl -o out", "perturb rows.jsonl"),
        ("perturb -oout.jsonl rows.jsonl", "perturb rows.jsonl"),
        ("perturb -qo out - --force", "perturb -"),
        ("perturb --out=out -q -vv --no-color --debug", "perturb"),
        ("swap a b c --write d --per-row=e --tag k=v --provenance p", "swap a b c --tag k=v"),
        ("finetune m r -o out --resume", "finetune m r"),
        ("retrain a b c --resume done.jsonl", "retrain a b c --resume done.jsonl"),
        ("swap a b -- c", "swap a b -- c"),
    ],
)
def test_command_line_without_outputs(line: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/mltools", *line.split()])
    assert command_line() == ("mltools", *kept.split())


def test_provenance_file_names_the_command_too(cli: Cli, place: Path) -> None:
    """What has no place for provenance itself has it in a file beside it."""
    assert cli("swap", "noisy", "clean", "noisy.jsonl", "-o", "s.jsonl", "--provenance", "s.json").code == 0
    assert cli("inspect", "s.json", "--command").out == "mltools swap noisy clean noisy.jsonl --provenance s.json\n"
    before = (place / "s.json").read_bytes()
    assert cli("swap", "noisy", "clean", "noisy.jsonl", "--provenance", "s.json", "--force").code == 0
    assert (place / "s.json").read_bytes() == before


def test_checkpoints_own_provenance_file_names_the_checkpoint(cli: Cli, place: Path) -> None:
    assert cli("swap", "noisy", "clean", "noisy.jsonl", "--layers", "2", "--write", "mixed").code == 0
    for name in ("mixed", "mixed/mltools.json"):
        printed = cli("inspect", name, "--command").out
        assert printed == "mltools swap noisy clean noisy.jsonl --layers 2 --write mixed\n"


def test_outputs_of_models_name_the_libraries(cli: Cli, place: Path) -> None:
    """Bytes are the same for the same versions; so the versions are there, but not where no model was run."""
    import torch
    import transformers

    assert cli("states", "noisy", "noisy.jsonl", "-o", "s.safetensors").code == 0
    assert cli("perturb", "rows.jsonl", "-o", "p.parquet").code == 0
    made = [cli("inspect", name, "--json").records[0]["provenance"] for name in ("s.safetensors", "p.parquet")]
    versions = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
    assert {name: version.partition("+")[0] for name, version in made[0]["libraries"].items()} == versions
    assert "libraries" not in made[1]
