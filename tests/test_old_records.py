"""Records that version 0.1 wrote are still read, and columns that came later are null (docs/records-of-0.1.md).

tests/records-of-0.1 holds what that version wrote for a tiny model, byte for byte.
"""

import json
import re
from pathlib import Path

import pytest

from conftest import CONFORMANCE, Cli

OLD = Path(__file__).parent / "records-of-0.1"
CASE = CONFORMANCE / "bert-questions"


def test_mcog_weighs_them_as_it_did_and_does_not_know_whether_they_are_valid(cli: Cli) -> None:
    files = [OLD / f"{name}.jsonl" for name in ("swap", "retrain", "grads", "probe")]
    found = {record["tool"]: record for record in cli("mcog", *files).records}
    before = json.loads((OLD / "mcog.jsonl").read_text())
    assert {name: found["swap"][name] for name in before} == before
    assert [found[tool]["widths"] for tool in ("swap", "retrain", "grads", "probe")] == ["1-4", "1-4", None, None]
    assert all((record["valid"], record["valid_reason"]) == (None, None) for record in found.values())
    assert found["swap"]["m_cog_solved"] == pytest.approx(1.927, abs=1e-3)


def test_new_records_of_the_same_model_have_the_same_numbers(cli: Cli) -> None:
    new = cli("swap", CASE / "noisy", CASE / "clean", CASE / "noisy.jsonl", "--max-length", 64, "--tag", "seed=1")
    for line, record in zip((OLD / "swap.jsonl").read_text().splitlines(), new.records, strict=True):
        old = {name: value for name, value in json.loads(line).items() if name != "run"}
        assert {name: record[name] for name in old} == old


def test_the_other_readers_take_them(cli: Cli) -> None:
    swap, grads = OLD / "swap.jsonl", OLD / "grads.jsonl"
    (record,) = cli("score", swap, "--truth", "1", "-k", 1).records
    assert (record["accuracy"], record["valid"]) == (1.0, None)
    (record,) = cli("correlate", swap, grads, "--value", "score", "--pivot", "tool", "--on", "seed").records
    assert (record["n"], record["correlation"], record["valid"]) == (4, 1.0, None)
    for kind, name in (("heatmap", "swap"), ("layers", "grads"), ("probe", "probe")):
        done = cli("plot", kind, OLD / f"{name}.jsonl")
        assert done.code == 0 and name in done.out, done.err
    assert "epoch" in cli("inspect", OLD / "finetune.jsonl").out


def test_a_sweep_of_another_version_is_not_gone_on_with(cli: Cli) -> None:
    """Digests have changed: such records are refused by name, not mixed with new ones in silence."""
    command = ("swap", CASE / "noisy", CASE / "clean", CASE / "noisy.jsonl", "--max-length", 64, "--tag", "seed=1")
    resumed = cli(*command, "--resume", OLD / "swap.jsonl")
    assert resumed.code == 3 and '"run" is 80071a78ae30' in resumed.err
    merged = cli("merge", OLD / "swap.jsonl")
    assert merged.code == 3 and 'no "item_digest"' in merged.err


def test_the_page_reads_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = OLD.parents[1]
    (block,) = re.findall(r"```python\n(.*?)```", (root / "docs/records-of-0.1.md").read_text(), flags=re.S)
    monkeypatch.chdir(root)
    exec(block, {})
    assert "null" in capsys.readouterr().out
