"""The public surface: names, laziness, and that functions give what the command line gives."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mltools
from conftest import Cli, tiny_of
from mltools.cli.registry import ABOUT_COMMANDS, command_names

Tiny = Callable[..., Path]
tiny = tiny_of(2)


def test_exported_names() -> None:
    commands = set(command_names()) - set(ABOUT_COMMANDS)
    assert commands <= set(mltools.__all__) and len(set(mltools.__all__)) == len(mltools.__all__)
    others = {"Results", "read_rows", "open_checkpoint", "Window", "all_windows", "parse_layers", "layer_scores"}
    assert set(mltools.__all__) - commands == others | {
        *("__version__", "centre_of_gravity", "solve_additive", "MltoolsError")
    }
    assert all(getattr(mltools, name) is not None for name in mltools.__all__)
    with pytest.raises(AttributeError):
        _ = mltools.nonsense


def test_import_is_light_and_commands_do_not_hide_names() -> None:
    program = (
        "import sys, mltools; assert not {'torch', 'polars', 'typer', 'numpy'} & set(sys.modules); "
        "import mltools.layers, mltools.cli; print(list(mltools.windows(2)), callable(mltools.swap))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['1', '1-2', '2'] True\n"


def plain(records: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(json.dumps(records.rows()))
    return rows


def without(records: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in names} for record in records]


def test_swap_of_names_checkpoints_and_models(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folders = [tiny("bert", seed, num_hidden_layers=3) for seed in (1, 2)]
    expected = cli("swap", *folders, noisy_rows, "--layers", "2-3", "--layers", "1").records
    by_name = mltools.swap(*folders, noisy_rows, layers=["2-3", "1"])
    assert plain(by_name) == expected
    opened, digests = [mltools.open_checkpoint(str(folder)) for folder in folders], ("run", "item_digest")
    by_checkpoint = plain(mltools.swap(*opened, mltools.read_rows(noisy_rows), layers=["2-3", "1"]))
    assert without(by_checkpoint, *digests) == without(expected, *digests) and by_checkpoint[0]["run"] is None
    live = [
        (AutoModelForSequenceClassification.from_pretrained(folder).train(), AutoTokenizer.from_pretrained(folder))
        for folder in folders
    ]
    by_model = plain(mltools.swap(*live, noisy_rows, layers=["2-3", "1"]))
    assert without(by_model, *digests, "twins") == without(expected, *digests, "twins")
    assert all(model.training for model, _ in live)


def test_a_lent_checkpoint_stays_whole(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    checkpoint = mltools.open_checkpoint(str(tiny("bert", 1)))
    expected = cli("grads", tiny("bert", 1), noisy_rows).records
    for _ in range(2):
        assert plain(mltools.grads(checkpoint, noisy_rows)) == expected


def test_frames_go_in_and_records_go_on(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    import polars as pl

    frame = pl.read_ndjson(noisy_rows)
    found = mltools.swap(tiny("bert", 1), tiny("bert", 2), frame)
    assert found.to_frame().height == 3 and found.to_frame()["memorisation_error"].is_between(0, 1).all()
    (cog,) = mltools.mcog(found).rows()
    (same,) = cli("mcog", stdin="".join(json.dumps(row) + "\n" for row in plain(found))).records
    assert (cog["m_cog"], cog["m_cog_solved"]) == (same["m_cog"], same["m_cog_solved"])
    assert mltools.mcog([found, found], by=["part"]).rows()[0]["n_records"] == 6
    assert "width" in mltools.plot("heatmap", found) and len(mltools.score(found, truth="1")) == 2
    mltools.plot("heatmap", found, out=tmp_path / "a.svg")
    assert (tmp_path / "a.svg").exists()


def test_perturb_of_a_frame(cli: Cli, tmp_path: Path) -> None:
    import polars as pl

    rows = [{"id": i, "text": "a", "label": "ab"[i % 2]} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = cli("perturb", tmp_path / "rows.jsonl").records
    assert mltools.perturb(pl.DataFrame(rows)) == mltools.perturb(tmp_path / "rows.jsonl") == expected


def test_wrong_use(noisy_rows: Path) -> None:
    with pytest.raises(mltools.MltoolsError, match="--rate 2: write a number from 0 to 1"):
        mltools.perturb(noisy_rows, rate=2)
    with pytest.raises(mltools.MltoolsError, match="perturb takes 1 operands: rows"):
        mltools.perturb(noisy_rows, noisy_rows)
    with pytest.raises(TypeError, match="no setting nonsense"):
        mltools.perturb(noisy_rows, nonsense=1)


def test_a_string_for_a_repeated_setting_is_one_word(tiny: Tiny, noisy_rows: Path) -> None:
    """It was taken letter by letter: layers="12" gave windows 1 and 2."""
    with pytest.raises(mltools.MltoolsError, match="12"):
        mltools.swap(tiny("bert", 1), tiny("bert", 2), noisy_rows, layers="12")
    (only,) = mltools.swap(tiny("bert", 1), tiny("bert", 2), noisy_rows, layers="1-2").rows()
    assert only["window"] == "1-2"


def test_resume_dry_run_provenance_and_tags_count(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    folders, made = (tiny("bert", 1), tiny("bert", 2)), tmp_path / "provenance.json"
    whole = cli("swap", *folders, noisy_rows, "--tag", "task=x").records
    found = mltools.swap(*folders, noisy_rows, tag=["task=x"], provenance=made)
    assert plain(found) == whole and json.loads(made.read_text())["tool"] == "swap"
    assert [row["task"] for row in mltools.mcog(found, by=["task"]).rows()] == ["x"]
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text("".join(f"{json.dumps(record)}\n" for record in whole[:4]))
    rest = mltools.swap(*folders, noisy_rows, tag=["task=x"], resume=str(earlier))
    assert without(plain(rest), "memorisation_error_scaled") == without(whole[4:], "memorisation_error_scaled")
    planned = mltools.swap(*folders, noisy_rows, dry_run=True).rows()
    assert len(planned) == len(cli("swap", *folders, noisy_rows, "--dry-run").records) and "seconds" in planned[0]


def test_an_open_thing_counts_or_is_refused(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """Where a command would go by its name, it would read the files instead of what was handed over."""
    import torch

    expected = mltools.grads(tiny("bert", 1), noisy_rows, frozen=str(tiny("bert", 2))).rows()
    other = mltools.open_checkpoint(str(tiny("bert", 2)))
    same = mltools.grads(tiny("bert", 1), noisy_rows, frozen=other).rows()
    assert without(same, "run") == without(expected, "run")
    with torch.no_grad():
        for parameter in other.stack.modules[0].parameters():
            parameter.mul_(3)
    changed = mltools.grads(tiny("bert", 1), noisy_rows, frozen=other).rows()
    assert without(changed, "run") != without(expected, "run")
    calls: list[Callable[[], Any]] = [
        lambda: mltools.finetune(other, noisy_rows, folder=str(tmp_path / "new")),
        lambda: mltools.inspect(other),
        lambda: mltools.perturb(mltools.read_rows(noisy_rows), rate=0.1),
        lambda: mltools.generalise(other, noisy_rows),
    ]
    for call in calls:
        with pytest.raises(mltools.MltoolsError, match="takes no open one"):
            call()
