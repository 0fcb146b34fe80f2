"""Every output says the command line that makes it again; that it does so for every command, test_commands.py sees."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Cli, toy_rows, write_jsonl
from mltools.cli.command_line import command_line

Tiny = Callable[..., Path]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> Path:
    """A folder with rows and checkpoints, where the program runs."""
    write_jsonl(tmp_path / "noisy.jsonl", toy_rows(40))
    write_jsonl(
        tmp_path / "rows.jsonl", [{"text": row["text"], "label": row["original_label"]} for row in toy_rows(60)]
    )
    for name, seed in (("noisy", 1), ("clean", 2)):
        (tmp_path / name).symlink_to(tiny("bert", seed))
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
