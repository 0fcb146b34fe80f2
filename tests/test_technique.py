"""A technique is one module: put among the commands, everything takes it up with no other edit."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from conftest import Cli, write_jsonl
from mltools import commands
from mltools.cli import registry
from mltools.io import groups, kinds
from mltools.schemas import schema

Tiny = Callable[..., Path]

MODULE = '''"""`mltools drift`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from mltools.io.kinds import amount, column
from mltools.options import CheckpointOperand, DeviceOptions, DryRun, OutputOptions
from mltools.spec import CommandSpec, Operand


@dataclass(frozen=True)
class DriftRecord:
    """How far one layer's weights are apart in two checkpoints."""

    tool: str = column("drift")
    layer: int = amount("layer, from 1")
    layers: int = amount("number of layers, L")
    score: float = amount("L2 norm of the difference over that of the first")
    tensors_moved: int = amount("tensors that differ")


@dataclass(frozen=True)
class Settings:
    """Measure how far each layer moved.

    Writes one record a layer: the distance of its weights in two checkpoints.
    """

    checkpoint: CheckpointOperand
    other: Annotated[str, Operand("OTHER", "The checkpoint it is compared with.", opens="checkpoint")]
    device: DeviceOptions = DeviceOptions()
    dry_run: DryRun = False
    output: OutputOptions = OutputOptions()


def items(run: Any) -> Iterator[Any]:
    from mltools.model.cost import WorkItem, shape_of_states

    outline = run.model("checkpoint").outline()
    run.shape = shape_of_states(outline.n_layers, outline.width)
    yield WorkItem(rows=0)


def run(run: Any) -> Iterator[DriftRecord]:
    one, other = (run.model(role).open() for role in ("checkpoint", "other"))
    tensors = dict(other.model.named_parameters())
    for layer in range(1, one.n_layers + 1):
        pairs = [(p, tensors[name]) for name, p in one.model.named_parameters() if one.parts[name] == layer]
        moved = [float((a - b).detach().square().sum()) for a, b in pairs]
        whole = sum(float(a.detach().square().sum()) for a, _ in pairs)
        yield DriftRecord("drift", layer, one.n_layers, (sum(moved) / whole) ** 0.5, sum(each > 0 for each in moved))


SPEC = CommandSpec(
    Settings,
    heading="Localise",
    examples=("mltools drift noisy/ clean/", "mltools drift noisy/ clean/ | mltools mcog"),
    writes=(DriftRecord, "work"),
)
'''


@pytest.fixture
def drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the module among the commands; afterwards it was never there."""
    folder = tmp_path / "more-commands"
    folder.mkdir()
    (folder / "drift.py").write_text(MODULE)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(folder)])
    monkeypatch.setattr(kinds, "_learnt", dict(kinds._learnt))
    yield
    registry.command_spec.cache_clear()
    groups._no_tags.cache_clear()
    sys.modules.pop("mltools.commands.drift", None)
    vars(commands).pop("drift", None)


@pytest.fixture
def records(drift: None, cli: Cli, tiny: Tiny, tmp_path: Path) -> list[Path]:
    """Its records of two pairs of checkpoints, told apart by a tag."""
    files = []
    for seed in (2, 3):
        done = cli("drift", tiny("bert", 1), tiny("bert", seed), "--tag", f"seed={seed}")
        assert done.code == 0 and len(done.records) == 4, done.err
        files.append(write_jsonl(tmp_path / f"{seed}.jsonl", done.records))
    return files


def test_help_and_completions_know_it(drift: None, cli: Cli) -> None:
    assert "\n  drift " in cli().out
    text = cli("help", "drift").out
    assert text.startswith("Usage: mltools drift [OPTIONS] CHECKPOINT OTHER\n") and "mltools schema drift" in text
    for shell in ("bash", "zsh", "fish"):
        assert "drift" in cli("completion", shell).out


def test_its_records_have_a_schema_and_tags(records: list[Path], cli: Cli, tiny: Tiny) -> None:
    contents = cli("inspect", records[0], "--json").records[0]["contents"]
    assert (contents["kinds"], contents["tags"]) == (["drift"], {"seed": ["2"]})
    assert "drift" in cli("schema").out.split()
    described = json.loads(cli("schema", "drift").out)
    assert described == schema("drift") and described["properties"]["tensors_moved"]["minimum"] == 0
    for file in records:
        for line in file.read_text().splitlines():
            jsonschema.Draft202012Validator(described).validate(json.loads(line))
            assert json.loads(line)["seed"] == int(file.stem) and json.loads(line)["score"] > 0
    clash = cli("drift", tiny("bert", 1), tiny("bert", 2), "--tag", "tensors_moved=1")
    assert clash.code == 2 and "is a column of the records already" in clash.err


def test_it_is_planned_checked_and_repeated(drift: None, cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    words = ("drift", tiny("bert", 1), tiny("bert", 2))
    (item,) = cli(*words, "-n").records
    assert (item["tool"], item["layers"]) == ("drift", 4)
    assert cli("drift", tiny("bert", 1), tmp_path / "none").code == 5
    assert cli(*words, "-o", tmp_path / "d.parquet").code == 0
    assert cli(*words, "-o", tmp_path / "d.parquet").code == 2
    command = shlex.split(cli("inspect", tmp_path / "d.parquet", "--command").out)
    assert command[:2] == ["mltools", "drift"]
    before = (tmp_path / "d.parquet").read_bytes()
    assert cli(*command[1:], "--force").code == 0 and (tmp_path / "d.parquet").read_bytes() == before


def test_records_are_summarised(records: list[Path], cli: Cli) -> None:
    """A column of its own kind is no tag, so that each sweep is one group."""
    centres = cli("mcog", *records).records
    assert [(r["tool"], r["seed"], r["n_records"]) for r in centres] == [("drift", 2, 4), ("drift", 3, 4)]
    assert all(1 <= r["m_cog"] <= 4 and "tensors_moved" not in r for r in centres)
    scores = cli("score", *records, "--truth", "2-3", "-k", "1").records
    assert [(r["tool"], r["n_groups"]) for r in scores] == [("drift", 2)]
    (pair,) = cli("correlate", *records, "--pivot", "seed", "--on", "layer", "--value", "score").records
    assert (pair["n"], pair["value"], {pair["a"], pair["b"]}) == (4, "score", {"2", "3"})
    drawn = cli("plot", "layers", *records, "--overlay", "seed")
    assert drawn.code == 0 and "drift" in drawn.out, drawn.err


def test_nothing_of_it_stays(cli: Cli) -> None:
    """The other tests see the commands that there are."""
    assert "drift" not in cli().out and "drift" not in cli("schema").out


def test_two_kinds_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_learnt", {})
    with pytest.raises(TypeError, match="two kinds of record are named window"):
        kinds.learn_kind(type("WindowRecord", (), {}))
