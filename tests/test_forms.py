"""Rows in every form that people have them in: one loader, the same rows, the same noise."""

import bz2
import gzip
import json
import lzma
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import zstandard

from conftest import COMMANDS, Cli, write_jsonl
from mltools.io.columns import Columns
from mltools.io.examples import read_examples
from mltools.io.inputs import Rows

NAMES = ("ABBR", "HUM", "LOC", "NUM")
ROWS = [
    {"id": 100 + i, "text": f'who, "what"\nand {i}' if i % 7 == 0 else f"how é {i}", "label": NAMES[i % 4]}
    for i in range(40)
]
Write = Callable[[Path, Sequence[dict[str, Any]]], Sequence[str]]


def lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def one(ending: str, content: Callable[[Sequence[dict[str, Any]]], bytes]) -> Write:
    def write(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
        path = folder / f"rows{ending}"
        path.write_bytes(content(rows))
        return [str(path)]

    return write


def data_set(rows: Sequence[dict[str, Any]]) -> Any:
    """The rows as `datasets` holds them, with a ClassLabel."""
    from datasets import ClassLabel, Dataset, Features, Value

    classes = ClassLabel(names=list(NAMES))
    features = Features({"id": Value("int64"), "text": Value("string"), "label": classes})
    if "gold" in rows[0]:
        features["gold"] = classes
    columns = {name: [row[name] for row in rows] for name in features}
    return Dataset.from_dict(columns, features=features)


def class_labels(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    data_set(rows).to_parquet(str(folder / "rows.parquet"))
    return [str(folder / "rows.parquet")]


def shards(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """As the hub has them: numbered files of a split in data/, beside other splits and a page about them."""
    (folder / "data").mkdir()
    (folder / "README.md").write_text("about")
    (folder / "dataset_infos.json").write_text("{}")
    for number, part in enumerate((rows[:15], rows[15:])):
        pl.DataFrame(part).write_parquet(folder / f"data/train-0000{number}-of-00002.parquet")
    pl.DataFrame(rows[:3]).write_parquet(folder / "data/test-00000-of-00001.parquet")
    return [f"{folder}:train"]


def saved(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    data_set(rows).save_to_disk(folder / "saved")
    return [str(folder / "saved")]


def saved_splits(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    from datasets import DatasetDict

    DatasetDict({"train": data_set(rows), "test": data_set(rows[:4])}).save_to_disk(folder / "splits")
    return [f"{folder / 'splits'}:train"]


def pipe(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    os.mkfifo(folder / "pipe")
    write_jsonl(folder / "whole.jsonl", rows)
    subprocess.Popen(["cp", folder / "whole.jsonl", folder / "pipe"])
    return [str(folder / "pipe")]


def several(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    paths = [folder / "a.jsonl", folder / "b.csv", folder / "c.parquet"]
    write_jsonl(paths[0], rows[:10])
    pl.DataFrame(rows[10:20]).write_csv(paths[1])
    pl.DataFrame(rows[20:]).write_parquet(paths[2])
    return [str(path) for path in paths]


def separated(separator: str, rows: Sequence[dict[str, Any]]) -> bytes:
    quotes: Any = "never" if separator == "\t" else "necessary"
    return str(pl.DataFrame(rows).write_csv(separator=separator, quote_style=quotes)).encode()


def parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    import io

    file = io.BytesIO()
    pl.DataFrame(rows).write_parquet(file)
    return file.getvalue()


FORMS: dict[str, Write] = {
    "JSON lines": one(".jsonl", lines),
    ".jsonl.gz": one(".jsonl.gz", lambda rows: gzip.compress(lines(rows))),
    ".jsonl.zst": one(".jsonl.zst", lambda rows: zstandard.compress(lines(rows))),
    ".jsonl.bz2": one(".jsonl.bz2", lambda rows: bz2.compress(lines(rows))),
    ".jsonl.xz": one(".jsonl.xz", lambda rows: lzma.compress(lines(rows))),
    "JSON array": one(".json", lambda rows: json.dumps(rows, indent=2).encode()),
    "CSV": one(".csv", lambda rows: b"\xef\xbb\xbf" + separated(",", rows)),
    ".csv.gz": one(".csv.gz", lambda rows: gzip.compress(separated(",", rows))),
    "TSV": one(".tsv", lambda rows: separated("\t", rows)),
    "Parquet": one(".parquet", parquet),
    "Parquet, ClassLabel": class_labels,
    "several files": several,
    "files as on the hub, :split": shards,
    "saved by datasets": saved,
    "saved by datasets, :split": saved_splits,
    "named pipe": pipe,
}


def rows_for(form: str) -> list[dict[str, Any]]:
    """TSV has no quotes, so no text may hold one or a new line."""
    return [{**row, "text": f"how é {row['id']}"} for row in ROWS] if form == "TSV" else ROWS


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_give_the_same_noise(form: str, cli: Cli, tmp_path: Path) -> None:
    rows = rows_for(form)
    expected = cli("perturb", write_jsonl(tmp_path / "expected.jsonl", rows)).records
    done = cli("perturb", *FORMS[form](tmp_path, rows))
    assert done.code == 0 and done.records == expected, done.err


@pytest.mark.parametrize("ending", [".csv", ".tsv", ""])
def test_forms_on_stdin_without_a_name(ending: str, cli: Cli, tmp_path: Path) -> None:
    rows = rows_for("TSV")
    data = separated("\t", rows) if ending == ".tsv" else separated(",", rows) if ending else json.dumps(rows).encode()
    done = cli("perturb", "-", stdin=data)
    assert done.records == cli("perturb", write_jsonl(tmp_path / "rows.jsonl", rows)).records, done.err


def test_an_id_that_reads_as_an_integer_is_one(cli: Cli, tmp_path: Path) -> None:
    """Text ids of digits draw the same noise as integers, so that it does not matter what a table made of them."""
    drawn = {}
    for kind in (int, str):
        rows = [{"id": kind(i), "label": "ab"[i % 2]} for i in range(40)]
        done = cli("perturb", write_jsonl(tmp_path / f"{kind.__name__}.jsonl", rows))
        drawn[kind] = [int(row["id"]) for row in done.records if row["noisy"]]
    assert drawn[int] == drawn[str] and len(drawn[int]) == 6


# -- columns ------------------------------------------------------------------------------------------
def test_columns_by_option(tmp_path: Path) -> None:
    rows = [
        {"key": f"r{i}", "text": "x", "given": "ab"[i % 2], "gold": "ab"[i % 2 ^ (i < 2)], "id": 5} for i in range(6)
    ]
    columns = Columns(label="given", id="key", original_label="gold")
    for path in (write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "rows.csv"):
        if path.suffix == ".csv":
            pl.DataFrame(rows).write_csv(path)
        read = read_examples(path, columns)
        assert (read.ids[0], read.labels[:2], read.original_labels[:2]) == ("r0", ["a", "b"], ["b", "a"])
        assert read.noisy == [True, True, *[False] * 4]


@pytest.mark.parametrize("option", ["id", "original-label", "noisy"])
def test_a_named_column_that_lacks(option: str, cli: Cli, tmp_path: Path, tiny: Callable[..., Path]) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "x", "label": "HUM", "Gold": "LOC"}] * 2)
    done = cli("swap", tiny("bert"), tiny("bert"), path, f"--{option}", "gold")
    assert done.code == 3 and f'no "gold" (found: text, label, Gold); name it with --{option} Gold' in done.err


def test_perturb_writes_the_columns_named(cli: Cli, tmp_path: Path) -> None:
    rows = [{"key": f"r{i}", "label": "ab"[i % 2], "noisy": 0.5} for i in range(20)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    names = ("--id", "key", "--noisy", "is_noisy", "--original-label", "right")
    plain, packed = cli("perturb", path, *names), cli("perturb", path, *names, "-o", tmp_path / "o.parquet")
    assert packed.code == 0 and list(plain.records[0]) == ["key", "label", "noisy", "right", "is_noisy"]
    assert pl.read_parquet(tmp_path / "o.parquet").to_dicts() == plain.records
    assert sum(row["is_noisy"] for row in plain.records) == 2
    assert cli("perturb", path).code == 3


# -- ClassLabel ---------------------------------------------------------------------------------------
def test_class_labels_in_and_out(cli: Cli, tmp_path: Path) -> None:
    """Labels are the names; Parquet keeps the numbers with their names, original labels too."""
    from datasets import Dataset

    (path,) = class_labels(tmp_path, ROWS)
    assert read_examples(path).names == list(NAMES)
    assert cli("perturb", path, "-o", tmp_path / "noisy.parquet").code == 0
    back = Dataset.from_parquet(str(tmp_path / "noisy.parquet"), cache_dir=str(tmp_path / "cache"))
    assert back.features["label"] == back.features["original_label"] == data_set(ROWS).features["label"]
    assert pq.read_schema(tmp_path / "noisy.parquet").field("label").type == pq.read_schema(path).field("label").type
    again = read_examples(tmp_path / "noisy.parquet")
    assert again.original_labels == [row["label"] for row in ROWS] and sum(again.noisy) == 4
    expected = cli("perturb", path).records
    assert again.labels == [row["label"] for row in expected]


# -- complaints ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            b"id,text,label\n1,a,x\n2,b,c,y\n",
            "a.csv:3: 4 fields, but the first line of the CSV names 3 columns",
        ),
        ("a.csv", b"label,label\n1,2\n", 'a.csv:1: the CSV has two columns "label"; keep one'),
        ("a.csv", b'text,label\n"a,1\n', "not CSV"),
        ("a.tsv", b"text\tlabel\na\t1\t2\n", "a.tsv:2: 3 fields, but the first line of the TSV names 2 columns"),
        ("a.csv", b"text\tlabel\na\t1\n", "a.csv: fields between tabs, not commas; name it .tsv"),
        ("a.csv", b"text,label\ra,1\r", "a.csv:1: not CSV (a CR alone ends a line; end lines with LF)"),
        ("a.csv", "text,label\na,1\n".encode("utf-16"), "a.csv: text in UTF-16, not rows"),
        ("a.gz", gzip.compress(b"rows".ljust(257, b"\0") + b"ustar\n"), "a.gz: a tar archive, not rows"),
        ("a.arrow", b"\xff\xff\xff\xff\x10", "a.arrow: an Arrow stream, not rows"),
        ("a.parquet.gz", gzip.compress(b"PAR1aaaa"), "Parquet that is packed once more, not rows"),
        ("a.json", b'{\n "text": "a",\n "label": 1\n}\n', "write an object on one line (jq -c . does), or an array"),
        ("a.json", b'[{"text": "a", "label": 1},\n{"text": ]', "a.json:2: not JSON"),
        ("a.json", b'[{"label": 1, "label": 2}]', 'the key "label" stands twice'),
        ("a.jsonl", b"text,label\na,1\n", "CSV and TSV are read from files that are named so"),
        ("a.xlsx", b"PK\x03\x04aaaa", "a ZIP file or Excel workbook, not rows; save it as JSON lines, CSV or Parquet"),
    ],
)
def test_k11_complaints_name_the_form(name: str, content: bytes, message: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    done = cli("perturb", tmp_path / name)
    assert (done.code, done.out) == (3, "") and message in done.err, done.err
    assert done.err.count("\n") == 1


def test_complaints_about_several_files_name_the_right_one(cli: Cli, tmp_path: Path) -> None:
    one, two = write_jsonl(tmp_path / "one.jsonl", ROWS[:3]), write_jsonl(tmp_path / "two.jsonl", [*ROWS[3:5], ROWS[0]])
    done = cli("perturb", one, two)
    assert done.code == 3 and f"{two}:3: id 100 is also {one}:1's; ids must differ" in done.err
    assert cli("perturb", "-", "-", stdin=lines(ROWS)).code == 2


def test_a_file_named_twice_is_one(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the names: rows without ids would count twice, unseen."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", [{"label": "a"}, {"label": "b"}])
    (tmp_path / "link.jsonl").symlink_to("rows.jsonl")
    for other in ("rows.jsonl", "./rows.jsonl", str(tmp_path / "rows.jsonl"), "link.jsonl"):
        done = cli("perturb", "rows.jsonl", other)
        assert (done.code, done.out) == (2, "") and "is named twice; its rows count once" in done.err


def test_two_inputs_share_no_stdin(cli: Cli, tiny: Callable[..., Path], tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    for words in (
        ("perturb", "--transition", "-"),
        ("perturb", "-", "--transition", "-"),
        ("finetune", tiny("bert", 2), "--validation", "-", "-o", tmp_path / "out"),
        ("finetune", tiny("bert", 2), rows, "--validation", "-", "--aux", "-", "-o", tmp_path / "out"),
    ):
        done = cli(*words, stdin=lines(ROWS))
        assert done.code == 2 and "cannot both come from stdin: name a file for one" in done.err, done.err


def test_semicolons_where_numbers_have_commas(cli: Cli, tmp_path: Path) -> None:
    """As spreadsheets write CSV in most of Europe."""
    one, other = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_bytes(separated(",", ROWS))
    other.write_bytes(separated(";", ROWS))
    assert cli("perturb", other).out == cli("perturb", one).out == cli("perturb", stdin=other.read_bytes()).out


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl.zst"])
def test_texts_come_back_to_the_byte(ending: str, cli: Cli, tmp_path: Path) -> None:
    texts = [
        "a\r\nb",
        "a\rb",
        "\r",
        "a\n",
        "\na",
        " a ",
        '"a"',
        '"',
        "a\u2028b\x85\x0b\x1c",
        "\t",
        "NA",
        "1.0",
        "[1]",
        "a;b",
    ]
    rows = [{"id": f"r{i}", "text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
    out = tmp_path / f"noisy.{ending}"
    assert cli("perturb", write_jsonl(tmp_path / "rows.jsonl", rows), "-o", out).code == 0
    assert read_examples(out).fields == [(text,) for text in texts]


def test_what_json_cannot_hold_is_text_in_csv_as_it_is_there(cli: Cli, tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS).with_columns(when=pl.datetime(2020, 2, 1), d=pl.lit("1.10").cast(pl.Decimal(9, 2)))
    frame.write_parquet(tmp_path / "rows.parquet")
    assert cli("perturb", tmp_path / "rows.parquet", "-o", tmp_path / "noisy.csv").code == 0
    expected = cli("perturb", tmp_path / "rows.parquet").records
    found = pl.read_csv(tmp_path / "noisy.csv", infer_schema=False)
    assert found["when"].to_list() == [row["when"] for row in expected] == ["2020-02-01T00:00:00"] * len(ROWS)
    assert found["d"].to_list() == [row["d"] for row in expected] == ["1.10"] * len(ROWS)


def test_class_names_of_several_files_are_put_together(cli: Cli, tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    def write(name: str, names: Sequence[str], topics: Sequence[str], start: int) -> str:
        features = {
            "id": Value("int64"),
            "label": ClassLabel(names=list(names)),
            "topic": ClassLabel(names=list(topics)),
        }
        n = len(names) * 4
        columns = {"id": range(start, start + n), "label": [i % len(names) for i in range(n)], "topic": [0] * n}
        Dataset.from_dict(columns, features=Features(features)).to_parquet(str(tmp_path / name))
        return str(tmp_path / name)

    files = write("one.parquet", "abc", "xy", 0), write("two.parquet", "dcb", "xy", 50)
    assert cli("perturb", *files, "-o", tmp_path / "noisy.parquet").code == 0
    back = Dataset.from_parquet(str(tmp_path / "noisy.parquet"), cache_dir=str(tmp_path / "cache"))
    named = back.features["label"]
    assert named == back.features["original_label"] and named.names == ["a", "b", "c", "d"]
    shown = [(row["id"], named.int2str(row["original_label"]), named.int2str(row["label"])) for row in back]
    assert shown == [(row["id"], row["original_label"], row["label"]) for row in cli("perturb", *files).records]

    other = cli("perturb", files[0], write("three.parquet", "abc", "yx", 90), "-o", tmp_path / "x.parquet")
    assert other.code == 3 and 'class names of "topic" differ; take the files one by one' in other.err
    topics = {row["id"]: row["topic"] for row in cli("perturb", files[0], tmp_path / "three.parquet").records}
    assert (topics[0], topics[90]) == ("x", "y"), "number 0 is another class in each file"


@pytest.mark.parametrize(
    ("head", "cell", "told"), [("text", '"so ""it"" is"', 2), ('"text"', "so", 1), ("text", '"a" or "b"', 0)]
)
def test_tsv_says_once_that_quotes_are_text(head: str, cell: str, told: int, cli: Cli, tmp_path: Path) -> None:
    """pandas quotes cells of TSV, and R all texts."""
    path = tmp_path / "a.tsv"
    path.write_text("\n".join([f"{head}\tlabel", *(f"{cell}\t{label}" for label in "abab")]) + "\n")
    result = cli("perturb", path)
    assert [row[head] for row in result.records] == [cell] * 4
    said = [line for line in result.err.splitlines() if "double quotes" in line]
    assert [line.split(" a cell ")[0] for line in said] == ([f"mltools: note: {path}:{told}:"] if told else [])
    assert "double quotes" not in cli("perturb", path, "-q").err


def test_folders_that_are_not_clear(cli: Cli, tmp_path: Path) -> None:
    shards(tmp_path, ROWS)
    several = cli("perturb", tmp_path)
    assert several.code == 2 and f"name {tmp_path}:train or {tmp_path}:test" in several.err
    assert cli("perturb", f"{tmp_path}:validation").code == 5
    (tmp_path / "data/train-00001-of-00002.parquet").unlink()
    assert "1 of 2 shards" in cli("perturb", f"{tmp_path}:train").err
    saved_splits(tmp_path, ROWS)
    splits = cli("perturb", tmp_path / "splits")
    assert splits.code == 2 and f"name {tmp_path}/splits:train or {tmp_path}/splits:test" in splits.err


def test_an_output_does_not_replace_a_file_of_an_input_folder(cli: Cli, tmp_path: Path) -> None:
    shards(tmp_path, ROWS)
    done = cli("perturb", f"{tmp_path}:train", "-o", tmp_path / "data/test-00000-of-00001.parquet", "--force")
    assert done.code == 2 and "lies in the input" in done.err


def test_a_data_set_of_the_hub_that_is_not_here(cli: Cli) -> None:
    done = cli("perturb", "hf://nobody/nothing:train")
    assert done.code == 5 and done.err.count("\n") == 1 and "not available from the hub" in done.err


def test_a_data_set_of_the_hub_that_datasets_has_loaded_before(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's cache, as loading from the hub leaves it: the same as of a folder but for the owner's name."""
    import datasets

    (tmp_path / "asked").mkdir()
    write_jsonl(tmp_path / "asked/test.jsonl", ROWS[:4])
    rows = write_jsonl(tmp_path / "asked/train.jsonl", ROWS)
    datasets.load_dataset(str(tmp_path / "asked"), cache_dir=str(tmp_path / "cache"))
    (tmp_path / "cache/asked").rename(tmp_path / "cache/nobody___asked")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    several = cli("perturb", "hf://nobody/asked")
    assert several.code == 2 and "name hf://nobody/asked:train or hf://nobody/asked:test" in several.err
    assert cli("perturb", "hf://nobody/asked:dev").code == 2
    done = cli("perturb", "hf://nobody/asked:train")
    assert (done.code, done.records) == (0, cli("perturb", rows).records), done.err
    assert len(cli("perturb", "hf://nobody/asked/default:test").records) == 4


def test_numbers_of_rows_go_on_from_file_to_file(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", ROWS[i * 5 : i * 5 + 5]) for i in range(3)]

    def numbers(rows: Rows) -> Iterator[str]:
        return (rows.place(number) for block in rows.blocks() for number in block.numbers)

    assert [*numbers(Rows(paths))] == [f"{path}:{n}" for path in paths for n in range(1, 6)]
    unnamed = [write_jsonl(tmp_path / f"u{i}.jsonl", [{"text": "x", "label": i}] * 2) for i in range(2)]
    assert read_examples(Rows(unnamed)).ids == [0, 1, 2, 3]


# -- the table in docs/formats.md ---------------------------------------------------------------------
READERS = {
    "perturb": "perturb {rows}",
    "finetune": "finetune {model} {rows} -o {out} -n",
    "generalise": "generalise {model} {rows} --runs 1 -n",
    "swap": "swap {model} {other} {rows} --original-label gold -n",
    "attribute": "attribute {model} {other} {rows} --original-label gold -n",
    "shapley": "shapley {model} {other} {rows} --original-label gold -n",
    "retrain": "retrain {model} {other} {rows} --original-label gold -n",
    "grads": "grads {model} {rows} --original-label gold -n",
    "states": "states {model} {rows} -n",
    "probe": "probe {model} {rows} --original-label gold -n",
    "centroid": "centroid {model} {rows} --original-label gold",
    "prepare": "prepare trec --from {rows}",
    "inspect": "inspect {rows}",
}
"""Every command that reads rows, with a line that reads all of them and does little more."""
ONE_FILE = ("several files", "files as on the hub, :split", "saved by datasets", "saved by datasets, :split")
NOT_READ = {
    *((form, "inspect") for form in (*ONE_FILE, "named pipe")),  # looks at one file, or at stdin
    *((form, "prepare") for form in ("several files", "saved by datasets")),  # takes official splits, or a file of one
}
MARKS = {True: "+", False: ""}


def table() -> str:
    """The table that the page shows: a line a form, a column a command."""
    head = f"| | {' | '.join(f'`{name}`' for name in READERS)} |\n|---|{'---|' * len(READERS)}\n"
    marks = {form: [MARKS[(form, name) not in NOT_READ] for name in READERS] for form in FORMS}
    return head + "".join(f"| {form} | {' | '.join(cells)} |\n" for form, cells in marks.items())


def test_the_page_shows_the_table() -> None:
    page = Path(__file__).parents[1] / "docs/formats.md"
    assert table() in page.read_text(), table()


def read_by(name: str, form: str, cli: Cli, tiny: Callable[..., Path], folder: Path) -> bool:
    """Whether a command does its work on the rows in a form."""
    rows = [{**row, "gold": row["label"] if i % 5 else NAMES[(i + 1) % 4]} for i, row in enumerate(rows_for(form))]
    (folder / "rows").mkdir()
    given = " ".join(FORMS[form](folder / "rows", rows))
    line = READERS[name].format(rows=given, model=tiny("bert", 1), other=tiny("bert", 2), out=folder / "out")
    return cli(*line.split()).code == 0


def test_readers_are_all_commands_that_take_rows() -> None:
    assert {name for name, command in COMMANDS.items() if "[ROWS]..." in command.usage} <= READERS.keys()


@pytest.mark.parametrize("name", READERS)
def test_every_command_reads_several_files(name: str, cli: Cli, tiny: Callable[..., Path], tmp_path: Path) -> None:
    form = "several files" if ("several files", name) not in NOT_READ else "CSV"
    assert read_by(name, form, cli, tiny, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", READERS)
def test_every_form_in_every_command(name: str, form: str, cli: Cli, tiny: Callable[..., Path], tmp_path: Path) -> None:
    assert read_by(name, form, cli, tiny, tmp_path) == ((form, name) not in NOT_READ)
