"""Files others can read: one schema a kind, whatever values occur; CSV and packed lines that come back as they went."""

import dataclasses
import shutil
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import polars as pl
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from conftest import Cli, write_jsonl
from mltools.errors import UsageError
from mltools.io.kinds import record_kinds
from mltools.io.records import read_records
from mltools.io.tables import read_value, record_cells, write_table

KINDS = record_kinds()


def value(hint: Any, name: str) -> Any:
    """A value of a field's type that is not null."""
    origin, arguments = get_origin(hint), [each for each in get_args(hint) if each is not type(None)]
    if origin in (Union, types.UnionType):
        return value(arguments[0], name)
    if origin is list:
        return [value(arguments[0], name)]
    if origin is dict or hint is Any:
        return {"a": 1}
    if origin is Literal:
        return arguments[0]
    if dataclasses.is_dataclass(hint):
        return record(hint)
    return {int: 3, float: 0.5, bool: True, str: f'a, "{name}"'}[hint]


def record(kind: Any, *, full: bool = True) -> dict[str, Any]:
    """A record of a kind: with all values, or with null wherever that may be."""
    hints = get_type_hints(kind)
    return {
        field.name: None
        if not full and type(None) in get_args(hints[field.name])
        else []
        if not full and get_origin(hints[field.name]) is list
        else value(hints[field.name], field.name)
        for field in dataclasses.fields(kind)
    }


def with_polars(paths: list[str]) -> int:
    return pl.read_parquet(paths).height


def with_pyarrow(paths: list[str]) -> int:
    return int(pyarrow.dataset.dataset(paths).to_table().num_rows)


def with_pandas(paths: list[str]) -> int:
    pandas = pytest.importorskip("pandas")
    return len(pandas.concat([pandas.read_parquet(path) for path in paths]))


def with_datasets(paths: list[str]) -> int:
    import datasets

    cache = str(Path(paths[0]).parent / "cache")
    return len(datasets.load_dataset("parquet", data_files=paths, split="train", cache_dir=cache))


def with_duckdb(paths: list[str]) -> int:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed (pip install duckdb)")
    return int(duckdb.sql(f"select count(*) from read_parquet({paths})").fetchall()[0][0])


READERS: dict[str, Callable[[list[str]], int]] = {
    "polars": with_polars,
    "pyarrow": with_pyarrow,
    "pandas": with_pandas,
    "datasets": with_datasets,
    "duckdb": with_duckdb,
}


@pytest.mark.slow
def test_k9_r_reads_records(tmp_path: Path) -> None:
    """jsonlite streams the JSON lines in, lists and nulls among them."""
    if shutil.which("Rscript") is None:
        pytest.skip("no R here (apt install r-cran-jsonlite)")
    for name in ("window", "probe"):
        path = tmp_path / f"{name}.jsonl"
        write_table(path, [record(KINDS[name]), record(KINDS[name], full=False)], None)
        code = f"cat(nrow(jsonlite::stream_in(file('{path}'), verbose = FALSE)))"
        assert subprocess.run(["Rscript", "-e", code], capture_output=True, check=True).stdout == b"2"


def two_files(folder: Path, name: str) -> list[str]:
    """Two files of a kind: one whose nulls are all null, one without any; and one record with an id of another type."""
    paths = [folder / f"{name}-{part}.parquet" for part in ("null", "full")]
    for path, full in zip(paths, (False, True), strict=True):
        row = record(KINDS[name], full=full)
        write_table(path, [{**row, "model": "bert", "lr": 1e-3, "n": 1, "good": True}] * 2, None, [*KINDS.values()])
    return [str(path) for path in paths]


@pytest.mark.parametrize("name", KINDS)
def test_k9_two_files_of_a_kind_are_one_table(name: str, tmp_path: Path) -> None:
    paths = two_files(tmp_path, name)
    one, two = map(pq.read_schema, paths)
    assert one.equals(two) and not any(str(field.type) == "null" for field in one)
    assert with_polars(paths) == with_pyarrow(paths) == 4


@pytest.mark.parametrize("reader", ["pandas", "datasets", "duckdb"])
def test_k9_other_readers(reader: str, tmp_path: Path) -> None:
    for name in ("window", "probe", "m-cog") if reader == "datasets" else KINDS:
        if name in KINDS:
            assert READERS[reader](two_files(tmp_path, name)) == 4


@pytest.mark.parametrize("reader", ["polars", "duckdb"])
def test_k9_files_with_other_tags_are_put_together_by_name(reader: str, tmp_path: Path) -> None:
    """As docs/formats.md says: tags of other names, places and types, and nulls."""
    tags: list[dict[str, Any]] = [
        {"model": "bert", "lr": 1},
        {"lr": 0.5, "model": "opt"},
        {"model": None, "seed": 3},
        {},
    ]
    paths = [str(tmp_path / f"{i}.parquet") for i in range(len(tags))]
    for path, own in zip(paths, tags, strict=True):
        write_table(Path(path), [{**record(KINDS["window"]), **own}], None, [KINDS["window"]])
    if reader == "polars":
        whole = pl.concat(map(pl.read_parquet, paths), how="diagonal_relaxed")
        found = [tuple(row) for row in whole.select("model", "lr", "seed").rows()]
    else:
        duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed (pip install duckdb)")
        found = duckdb.sql(f"select model, lr, seed from read_parquet({paths}, union_by_name = true)").fetchall()
    assert found == [("bert", 1.0, None), ("opt", 0.5, None), (None, None, 3), (None, None, None)]


@pytest.mark.parametrize("ending", [".csv", ".jsonl.gz", ".ndjson.zst", ".parquet", ".jsonl"])
@pytest.mark.parametrize("name", ["window", "probe", "event", "generalisation"])
def test_k9_records_come_back_as_they_went(name: str, ending: str, tmp_path: Path) -> None:
    """Tags that look like other values stay text; lists, null and numbers are what they were."""
    tags = {"version": "1.10", "seed": 3, "lr": 1e-3, "ok": True, "note": '["x"]', "empty": "", "name": "ü,\n"}
    rows = [{**record(KINDS[name], full=full), **tags} for full in (True, False)]
    path = tmp_path / f"records{ending}"
    write_table(path, rows, None, [*KINDS.values()])
    read = [row for block in read_records([path]) for row in block.values]
    assert read == rows


@pytest.mark.parametrize("text", ["", "1", "1.5", "true", "null", "a", "[1", "[1]", "1e999", '"x"', "-", "007", "NaN"])
def test_cells(text: str) -> None:
    assert record_cells("window")(text) == (text or None)
    made = {"": None, "1": 1, "1.5": 1.5, "true": True, "[1]": [1], '"x"': "x"}
    assert read_value(text) == made.get(text, text)


def test_k9_a_tag_has_one_type(tmp_path: Path, cli: Cli) -> None:
    window = [*map(KINDS.__getitem__, ["window"])]
    row = record(KINDS["window"])
    with pytest.raises(UsageError, match=r'lr has values of several types \(0.1, "none"\)'):
        write_table(tmp_path / "a.parquet", [{**row, "lr": 0.1}, {**row, "lr": "none"}], None, window)
    assert not list(tmp_path.iterdir())
    write_table(tmp_path / "b.parquet", [{**row, "lr": 1}, {**row, "lr": None}, {**row, "lr": 0.5}], None, window)
    assert pl.read_parquet(tmp_path / "b.parquet")["lr"].to_list() == [1.0, None, 0.5]
    scores = [{"tool": "x", "layer": i, "layers": 2, "score": 1.0, "lr": lr} for lr in (1, "a") for i in (1, 2)]
    done = cli("mcog", write_jsonl(tmp_path / "scores.jsonl", scores), "-o", tmp_path / "m.parquet")
    assert done.code == 2 and "lr has values of several types" in done.err


def test_mcog_reads_and_writes_csv(tmp_path: Path, cli: Cli) -> None:
    scores = [{"tool": "grads", "layer": i, "layers": 3, "score": i / 4, "model": "1.0"} for i in (1, 2, 3)]
    plain = cli("mcog", write_jsonl(tmp_path / "scores.jsonl", scores))
    write_table(tmp_path / "scores.csv", scores, None)
    assert cli("mcog", tmp_path / "scores.csv").code == 0
    assert cli("mcog", tmp_path / "scores.jsonl", "-o", tmp_path / "m.csv").code == 0
    assert [row for block in read_records([tmp_path / "m.csv"]) for row in block.values] == plain.records
