"""swap --clean-rows: all noisy rows, clean ones drawn by a hash of their ids, and how well these stand for all."""

from collections.abc import Callable
from math import comb
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from conftest import Cli, toy_rows, write_jsonl
from mltools.analysis.statistics import wilson_of_drawn
from mltools.hashing import draw_clean
from mltools.io.examples import read_examples

Tiny = Callable[..., Path]
FEW = ("--clean-rows", 12)
CLEAN_ONLY = {
    *("n_clean", "clean_accuracy", "clean_accuracy_ci_low", "clean_accuracy_ci_high", "baseline_clean_accuracy"),
    *("donor_clean_accuracy", "run", "item_digest", "n_ties", "valid", "valid_reason"),
}


@pytest.mark.slow
def test_all_is_the_default_and_more_than_there_are_is_all(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows)
    usual, every, many = (cli(*command, *options) for options in ((), ("--clean-rows", "all"), ("--clean-rows", 999)))
    assert usual.code == 0 and usual.out == every.out
    own = {"run": None, "item_digest": None}
    assert [{**record, **own} for record in usual.records] == [{**record, **own} for record in many.records]
    assert all(record["clean_accuracy_ci_low"] is record["clean_accuracy_ci_high"] is None for record in usual.records)


def test_noisy_rows_are_all_there_and_clean_ones_those_drawn(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """Every column of noisy rows is the whole run's; those of clean rows are worked out from the whole run's rows."""
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows)
    parts = [tmp_path / "whole.parquet", tmp_path / "few.parquet"]
    whole = cli(*command, "--per-row", parts[0])
    few = cli(*command, "--per-row", parts[1], *FEW)
    assert few.code == 0 and len(few.records) == 10
    rows, drawn = (pl.read_parquet(path).drop("margin") for path in parts)
    ids = set(drawn["id"])
    assert drawn.equals(rows.filter(pl.col("id").is_in(ids)))
    assert len(set(drawn.filter(~pl.col("noisy"))["id"])) == 12 and drawn["noisy"].sum() == rows["noisy"].sum()
    for record, other in zip(few.records, whole.records, strict=True):
        assert {k: v for k, v in record.items() if k not in CLEAN_ONLY} == {
            k: v for k, v in other.items() if k not in CLEAN_ONLY
        }
        own = drawn.filter((pl.col("window") == record["window"]) & ~pl.col("noisy"))
        assert record["n_clean"] == 12 and record["clean_accuracy"] == (own["predicted"] == own["label"]).mean()
        ends = record["clean_accuracy_ci_low"], record["clean_accuracy_ci_high"]
        assert ends == wilson_of_drawn(record["clean_accuracy"], 12, other["n_clean"])


@pytest.mark.slow
def test_nothing_else_is_measured_of_the_rest(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """NOISY's and CLEAN's own accuracies are of the same rows: those of a file that holds no others."""
    models = tiny("bert", 1), tiny("bert", 2)
    kept = set(draw_clean(read_examples(noisy_rows), 12).ids)
    rows = write_jsonl(tmp_path / "kept.jsonl", [row for row in toy_rows() if row["id"] in kept])
    few, alone = cli("swap", *models, noisy_rows, *FEW).records, cli("swap", *models, rows).records
    own = {"run": None, "item_digest": None, "clean_accuracy_ci_low": None, "clean_accuracy_ci_high": None}
    assert [{**record, **own} for record in few] == [{**record, **own} for record in alone]


def test_the_draw_goes_by_ids_and_fewer_are_part_of_more(
    cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    turned = write_jsonl(tmp_path / "turned.jsonl", toy_rows()[::-1])
    models = tiny("bert", 1), tiny("bert", 2)
    assert cli("swap", *models, noisy_rows, *FEW).out == cli("swap", *models, turned, *FEW).out
    examples = read_examples(noisy_rows)
    five, nine = (draw_clean(examples, most) for most in (5, 9))
    assert set(five.ids) < set(nine.ids) < set(examples.ids)
    assert (five.n_left_out, draw_clean(nine, 5).ids, draw_clean(nine, 5).n_left_out) == (33, five.ids, 33)


@pytest.mark.slow
def test_another_number_is_another_sweep(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "-q")
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text(cli(*command, *FEW, "--shard", "1/2").out)
    for options in ((), ("--clean-rows", 11)):
        other = cli(*command, *options, "--resume", first)
        assert other.code == 3 and not other.out
        second.write_text(cli(*command, *options, "--shard", "2/2").out)
        assert cli("merge", first, second).code == 3
    second.write_text(cli(*command, *FEW, "--shard", "2/2").out)
    assert cli("merge", first, second).out == cli(*command, *FEW).out


def test_the_dry_run_counts_the_rows_measured(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", "2-3", *FEW)
    (item,) = cli(*command, "--dry-run").records
    assert item["rows"] == 22 and f" applications={item['applications']} " in cli(*command).err
    assert item["item_digest"] == cli(*command).records[0]["item_digest"]


@pytest.mark.parametrize("text", ["0", "-1", "some", "1.5", ""])
def test_what_is_no_number_of_rows(text: str, cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    refused = cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, f"--clean-rows={text}")
    assert (refused.code, refused.err) == (
        2,
        f'mltools: --clean-rows "{text}": write a number from 1, or all\n',
    )


@pytest.mark.parametrize(("n", "total"), [(50, 200), (150, 200), (400, 1000)])
def test_the_interval_holds_the_accuracy_on_all(n: int, total: int) -> None:
    """In 95 % of the draws, by the exact chances of each number of hits, over accuracies of every size."""
    held = []
    for right in range(total // 20, total, total // 20):
        chances = np.array(
            [comb(right, hits) * comb(total - right, n - hits) / comb(total, n) for hits in range(n + 1)]
        )
        ends = [wilson_of_drawn(hits / n, n, total) for hits in range(n + 1)]
        held.append(
            sum(chance for chance, (low, high) in zip(chances, ends, strict=True) if low <= right / total <= high)
        )
    assert 0.94 < np.mean(held) < 0.97 and min(held) > 0.9
    assert wilson_of_drawn(0.25, total, total) == (0.25, 0.25)
