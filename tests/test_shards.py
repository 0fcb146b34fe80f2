"""A sweep in parts: shards, what an item is known by, and the merge that gives the bytes of one run."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Cli, Result, Shell
from mltools.errors import TimeLeftError, UsageError
from mltools.shards import in_shard, item_digest, parse_duration, parse_shard

Tiny = Callable[..., Path]
Swept = Callable[..., Result]
FAST = ("--epochs", 1, "--batch-size", 16)


@given(st.lists(st.floats(0, 1e6), max_size=30), st.integers(1, 40))
def test_every_item_is_in_one_shard_and_shards_are_runs_of_neighbours(costs: list[float], total: int) -> None:
    items = list(range(len(costs)))
    shards = [in_shard(items, costs, (place, total)) for place in range(1, total + 1)]
    assert [item for shard in shards for item in shard] == items


@given(st.lists(st.floats(1, 100), min_size=1, max_size=60), st.integers(1, 6))
def test_no_shard_costs_more_than_its_share_and_one_item(costs: list[float], total: int) -> None:
    for place in range(1, total + 1):
        mine = in_shard(costs, costs, (place, total))
        assert sum(mine) <= sum(costs) / total + max(costs) + 1e-6


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "m", "1x", "1h30", "-1m", "1 h", "5m5", "nan", "٣m"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(UsageError, match="--time-left"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1/", "１/２"])
def test_wrong_shards(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        parse_shard(text)


def test_an_item_is_known_by_run_and_options() -> None:
    assert item_digest("a", "--layers 1") == item_digest("a", "--layers 1") != item_digest("a", "--layers 2")
    assert item_digest(None, "--layers 1") is None


LAYERS = 3
"""Of the models that are swept: six windows."""


def sweep(tool: str, tiny: Tiny, rows: Path, *options: object) -> list[object]:
    pair = (tiny("bert", seed, num_hidden_layers=LAYERS) for seed in (1, 2))
    return [tool, *pair, rows, "-q", *options, *(FAST if tool == "retrain" else ())]


SWEPT: dict[str, Result] = {}


@pytest.fixture
def swept(cli: Cli, tiny: Tiny, noisy_rows: Path) -> Swept:
    """What a tool's whole sweep gives, made once for all tests."""

    def run(tool: str = "swap") -> Result:
        if tool not in SWEPT:
            SWEPT[tool] = cli(*sweep(tool, tiny, noisy_rows))
            assert SWEPT[tool].code == 0, SWEPT[tool].err
        return SWEPT[tool]

    return run


@pytest.mark.parametrize("tool", ["swap", pytest.param("retrain", marks=pytest.mark.slow)])
def test_merged_shards_are_the_bytes_of_one_run(
    tool: str, cli: Cli, swept: Swept, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    whole = swept(tool)
    parts = []
    for place in (2, 3, 1):
        part = tmp_path / f"{place}.jsonl"
        part.write_text(cli(*sweep(tool, tiny, noisy_rows, "--shard", f"{place}/3")).out)
        parts.append(part)
    assert all(part.read_text().count("\n") in range(1, 6) for part in parts)
    merged = cli("merge", *parts, parts[0])
    assert (merged.code, merged.out) == (0, whole.out), merged.err
    assert "items=6 duplicates=" in merged.err
    lost = cli("merge", *parts[:2])
    assert lost.code == 3 and lost.out == ""
    first = json.loads(parts[2].read_text().splitlines()[0])["window"]
    assert f"--layers {first}\n" in lost.err and "items are missing" in lost.err


def test_a_command_of_one_item_says_what_to_deal_instead(cli: Cli) -> None:
    result = cli("grads", "noisy", "rows.jsonl", "--shard", "1/2")
    assert result.code == 2 and "No such option: --shard" in result.err and "a model, a task or a seed" in result.err
    assert "a seed" not in cli("grads", "noisy", "rows.jsonl", "--shart", "1/2").err


def test_merge_prints_lines_that_run_as_they_are(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """From --provenance of a part, or from Parquet records; what they print makes the sweep whole."""
    command = sweep("swap", tiny, noisy_rows, "--min-noisy-accuracy", 0)
    whole = cli(*command)
    made, part = tmp_path / "made.json", tmp_path / "part.jsonl"
    chosen = [word for window in ("1-2", "1-3", "3") for word in ("--layers", window)]
    part.write_text(cli(*command, *chosen, "--provenance", made).out)
    assert cli(*command, *chosen, "-o", tmp_path / "part.parquet").code == 0
    told = [cli("merge", *more) for more in ((part, "--made-by", made), (tmp_path / "part.parquet",))]
    for result in told:
        assert result.code == 3 and result.err.endswith("items are missing (their commands are printed)\n")
    lines = [shlex.split(line) for line in told[0].err.splitlines()[:-1]]
    assert lines == [shlex.split(line) for line in told[1].err.splitlines()[:-1]] and len(lines) == 3
    found = tmp_path / "found.jsonl"
    found.write_text("".join(cli(*words[1:], "-q").out for words in lines))
    assert cli("merge", part, found).out == whole.out
    assert "mltools swap NOISY CLEAN ROWS --layers 1\n" in (unknown := cli("merge", part)).err
    assert "--made-by says of what" in unknown.err
    other = tmp_path / "other.json"
    other.write_text('{"tool":"retrain","command":["mltools","retrain"]}')
    for wrong in (other, part):
        assert cli("merge", part, "--made-by", wrong).code == 3
    assert cli("merge", part, "--made-by", tmp_path / "none").code == 5


def test_dry_run_and_resume_list_what_is_left(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    command = sweep("swap", tiny, noisy_rows)
    items = cli(*command, "-n")
    parts = [cli(*command, "-n", "--shard", f"{place}/3").records for place in range(1, 4)]
    assert [item["item"] for part in parts for item in part] == [item["item"] for item in items.records]
    done = tmp_path / "done.jsonl"
    done.write_text(cli(*command, "--layers", "1-2", "--layers", "3").out)
    left = cli(*command, "-n", "--resume", done)
    assert [each["item"] for each in left.records] == [
        each["item"] for each in items.records if each["item"] not in ("--layers 1-2", "--layers 3")
    ]
    listed = tmp_path / "items.jsonl"
    listed.write_text(items.out)
    missing = cli("merge", done, "--items", listed, "-o", tmp_path / "whole.jsonl")
    assert missing.code == 3 and not (tmp_path / "whole.jsonl").exists()
    assert missing.out.splitlines() == [each["command"] for each in left.records]
    assert all(each["command"].endswith(each["item"]) and " -n" not in each["command"] for each in left.records)


def edited(path: Path, **columns: Any) -> Path:
    """A copy of a file of records whose last one says something else."""
    *lines, last = path.read_text().splitlines()
    other = path.with_name(f"other-{abs(hash(str(columns)))}.jsonl")
    other.write_text("\n".join([*lines, json.dumps({**json.loads(last), **columns})]) + "\n")
    return other


def test_merge_refuses(cli: Cli, swept: Swept, tmp_path: Path) -> None:
    path = tmp_path / "swap.jsonl"
    path.write_text(swept().out)
    for other, message in (
        (edited(path, noisy_accuracy=0.123), 'the same item as .*"noisy_accuracy" differs'),
        (edited(path, run="0" * 12), '"run" is "000000000000"'),
        (edited(path, model="x"), '"model" is "x", in .* null: of another sweep'),
        (edited(path, item_digest="f" * 12), "is no item of the sweep"),
        (edited(path, item_digest=None), '"item_digest" is null'),
    ):
        found = cli("merge", path, other)
        assert found.code == 3 and found.out == ""
        assert re.search(message, found.err), found.err
    layers = tmp_path / "layers.jsonl"
    layers.write_text('{"tool":"grads","run":"a","item_digest":"b","layer":1,"layers":1,"score":1}\n')
    assert "name its items with --items" in cli("merge", layers).err


def test_time_left_ends_at_an_edge_and_goes_on(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """Each start does one item at least, and the starts together are the run that was not stopped."""
    pair = (tiny("bert", seed, num_hidden_layers=2) for seed in (1, 2))
    command = ("retrain", *pair, noisy_rows, "--epochs", 1, "-q")
    whole = cli(*command)
    records = tmp_path / "records.jsonl"
    records.touch()
    statuses = []
    for _ in range(4):
        found = cli(*command, "--time-left", "0.001s", "--resume", records)
        with records.open("a") as file:
            file.write(found.out)
        statuses.append(found.code)
        if found.code == 0:
            break
    assert statuses == [75, 75, 0]
    assert cli("merge", records).out == whole.out


def test_finetune_ends_at_an_epochs_edge(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    command = ["finetune", tiny("bert", 1, num_hidden_layers=2), noisy_rows, "--epochs", 3, "--batch-size", 16, "-q"]
    assert cli(*command, "-o", tmp_path / "whole").code == 0
    statuses = [cli(*command, "-o", tmp_path / "parts", "--resume", "--time-left", "0.001s").code for _ in range(3)]
    assert statuses == [75, 75, 0]
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_time_that_is_left_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item is begun if the longest so far would still fit."""
    from mltools.cli.registry import command_spec
    from mltools.run import Run

    spec = command_spec("retrain")
    clock = iter([0.0, 1.0, 4.0, 7.0, 10.0])
    monkeypatch.setattr("mltools.run.time.monotonic", lambda: next(clock))
    run = Run("retrain", spec, spec.settle({"noisy": "a", "pretrained": "b", "rows": "c", "time_left": "10s"}))
    run.edge()
    run.edge()
    run.edge()
    with pytest.raises(TimeLeftError):
        run.edge()


@pytest.mark.parametrize("tool", ["swap", pytest.param("retrain", marks=pytest.mark.slow)])
def test_windows_are_served_as_they_come(
    tool: str, cli: Cli, swept: Swept, shell: Shell, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    """A record is there before the next window is asked for; together they are the sweep."""
    whole = swept(tool)
    line = " ".join(map(str, sweep(tool, tiny, noisy_rows, "--layers", "-")))
    served = shell(
        f"mkfifo ask tell; mltools {line} < ask > tell & exec 3> ask 4< tell; "
        f'for w in $(mltools windows {LAYERS}); do echo $w >&3; read -r record <&4; echo "$record"; done; '
        "exec 3>&-; wait $!; cat <&4",
        tmp_path,
    )
    assert served.code == 0, served.err
    (tmp_path / "again.jsonl").write_text(served.out)
    assert cli("merge", tmp_path / "again.jsonl").out == whole.out


def test_piped_windows_go_with_little_else(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    for options, message in (
        (["--layers", "-", "--layers", 1], "name no others"),
        (["--layers", "-", "--shard", "1/2"], "no --shard"),
        (["--layers", "-", "-n"], "no --shard, no --dry-run"),
        (["--layers", "-", "--per-row", "x.parquet"], "--per-row"),
    ):
        found = cli(*sweep("swap", tiny, noisy_rows, *options))
        assert found.code == 2 and message in found.err, found.err
    both = cli("swap", tiny("bert", 1), tiny("bert", 2), "-", "--layers", "-")
    assert both.code == 2 and "both come from stdin" in both.err


def test_swap_ends_at_the_edge_of_a_start(cli: Cli, swept: Swept, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    command = sweep("swap", tiny, noisy_rows)
    records = tmp_path / "records.jsonl"
    statuses: list[int] = []
    records.touch()
    while len(statuses) < 9 and (not statuses or statuses[-1] == 75):
        found = cli(*command, "--time-left", "0.001s", "--resume", records)
        with records.open("a") as file:
            file.write(found.out)
        statuses.append(found.code)
    assert statuses == [75, 75, 0]
    assert cli("merge", records).out == swept().out


@pytest.mark.parametrize(
    ("change", "twice", "said"),
    [
        ({"memorisation_error": "0.5"}, False, '"memorisation_error" is "0.5", not a number'),
        ({"id": [1]}, False, '"id" is [1], not one value'),
        ({"clean_accuracy": 7}, True, 'and yet "clean_accuracy" differs'),
    ],
)
def test_merge_names_what_is_wrong_in_a_record(
    change: dict[str, object], twice: bool, said: str, cli: Cli, swept: Swept, tmp_path: Path
) -> None:
    """Records that somebody changed ended as faults of ours."""
    records = swept().records
    file = tmp_path / "records.jsonl"
    given = [{**records[-1], **change}, *records[:-1], *records[-1:] * twice]
    file.write_text("".join(json.dumps(record) + "\n" for record in given))
    result = cli("merge", file)
    assert result.code == 3 and said in result.err and len(result.err.splitlines()) == 1


def test_merge_takes_an_absent_column_as_null(cli: Cli, swept: Swept, tmp_path: Path) -> None:
    """As Parquet reads it, where another record of the file has the column."""
    whole = swept()
    file = tmp_path / "records.jsonl"
    lacking = {name: value for name, value in whole.records[0].items() if name != "n_rerun"}
    assert whole.records[0]["n_rerun"] is None
    file.write_text(f"{whole.out}{json.dumps(lacking)}\n")
    assert cli("merge", file).out == whole.out
