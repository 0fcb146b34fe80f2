"""prepare: the paper's twelve tasks from copies with the hub's columns, and the splits that the released code drew."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import CONFORMANCE, SHARED, Cli, write_jsonl
from mltools.commands.prepare.rows import Row
from mltools.commands.prepare.tasks import TASKS
from mltools.commands.prepare.work import cut, filter_reuters, halves

GOLDEN = json.loads((CONFORMANCE / "golden.json").read_text())
PARTS: dict[str, Any] = {
    "wic": {"sentence1": "Run far.", "sentence2": "A run.", "start1": 0, "end1": 3, "idx": 9, "word": "run"},
    "rte": {"sentence1": "A man runs.", "sentence2": "A man moves.", "idx": 4},
    "mrpc": {"sentence1": "He said so.", "sentence2": "So he said.", "idx": 17},
    "cola": {"sentence": "We walked.", "idx": 0},
    "boolq": {"question": "is it so", "passage": "It is so.", "idx": 1},
    "sst2": {"sentence": "a fine film"},
    "sst5": {"text": "a fine film", "label_text": "positive"},
    "emotion": {"text": "i feel fine"},
    "implicithate": {"post": "some post"},
    "stormfront": {"text": "some post", "user_id": 3, "subforum_id": 1, "num_contexts": 0},
    "reuters": {"text": "Oil rose.", "title": "OIL", "places": ["usa"], "new_id": '"7"'},
    "trec": {"text": "Who was he ?", "fine_label": 2},
}
"""A row of each task with the hub's columns, but for the label."""


def hub_rows(name: str, n: int = 12) -> list[dict[str, Any]]:
    """Rows with the hub's columns; every class occurs, and texts differ."""
    task = TASKS[name]
    rows = []
    for i in range(n):
        label: Any = i % max(len(task.names), task.classes)
        if name == "implicithate":
            label = f"kind {i % 7}"
        if name == "reuters":
            label = [["earn"], ["acq"], ["earn", "acq"]][i % 3]
        first = next(iter(task.columns))
        rows.append({**PARTS[name], first: f"{PARTS[name][first]} {i}", task.label: label})
    return rows


def texts(name: str, row: dict[str, Any]) -> dict[str, str]:
    return {ours: row[theirs] for theirs, ours in TASKS[name].columns.items()}


def write_csv(path: Path, rows: Sequence[dict[str, Any]], separator: str = ",") -> Path:
    pl.DataFrame([{k: v for k, v in r.items() if not isinstance(v, list)} for r in rows]).write_csv(
        path, separator=separator, quote_style="never" if separator == "\t" else "necessary"
    )
    return path


@pytest.mark.parametrize("name", TASKS)
def test_hub_columns_become_ours(name: str, cli: Cli, tmp_path: Path) -> None:
    rows = hub_rows(name)
    task = TASKS[name]
    for split in filter(None, ("train", task.pool)):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    result = cli("prepare", name, "--from", tmp_path)
    assert result.code == 0, result.err
    whole = [row for row in rows if not isinstance(row[task.label], list) or len(row[task.label]) == 1]
    expected = {i: texts(name, row) for i, row in enumerate(rows) if row in whole}
    made = {row["id"]: row for row in result.records}
    assert set(made) <= set(expected) and len(made) == {"stormfront": 4, "implicithate": 9}.get(name, len(expected))
    for row_id, row in made.items():
        assert {key: value for key, value in row.items() if key not in ("id", "label")} == expected[row_id]
    labels = {row["label"] for row in made.values()}
    kept: set[Any] = set(task.names) - set(task.left_out) or set(range(task.classes))
    expected_labels = {"implicithate": {f"kind {i}" for i in range(7)}, "reuters": {"earn", "acq"}}
    assert labels <= expected_labels.get(name, kept) and len(labels) > 1
    assert f"{name} has {len(made)} training rows here, about {task.size} in the paper" in result.err


def test_columns_stand_in_order(cli: Cli, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", hub_rows("wic"))
    assert list(cli("prepare", "wic", "--from", path).records[0]) == ["id", "text", "text_pair", "word", "label"]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".jsonl.gz"])
@pytest.mark.parametrize("name", ["rte", "boolq", "trec"])
def test_b28_formats_agree(name: str, suffix: str, cli: Cli, tmp_path: Path) -> None:
    import gzip

    rows = hub_rows(name)
    plain = cli("prepare", name, "--from", write_jsonl(tmp_path / "train.jsonl", rows))
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(path)
    elif suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress((tmp_path / "train.jsonl").read_bytes()))
    else:
        write_csv(path, rows, "," if suffix == ".csv" else "\t")
    result = cli("prepare", name, "--from", path)
    assert result.code == 0 and result.out == plain.out


def test_csv_quotes_and_tsv_has_none(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('sentence,label\n"one, ""two""\nthree",1\nfour,True\n')
    assert [(r["text"], r["label"]) for r in cli("prepare", "sst2", "--from", tmp_path / "a.csv").records] == [
        ('one, "two"\nthree', 1),
        ("four", 1),
    ]
    (tmp_path / "a.tsv").write_text('sentence\tlabel\n"one, two\t1\nthree\t0\n')
    assert [r["text"] for r in cli("prepare", "sst2", "--from", tmp_path / "a.tsv").records] == ['"one, two', "three"]


def test_class_labels_of_parquet_and_words_of_json(cli: Cli, tmp_path: Path) -> None:
    """Numbers, names, true and false, and whole floats all mean the class."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x", "coarse_label": c} for c in (3, "HUM", "3", 3.0)])
    assert [r["label"] for r in cli("prepare", "trec", "--from", path).records] == ["HUM"] * 4
    rows = [{"question": "q", "passage": "p", "label": label} for label in (True, "true", "False", 0)]
    path = write_jsonl(tmp_path / "b.jsonl", rows)
    assert [r["label"] for r in cli("prepare", "boolq", "--from", path).records] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    "files",
    [
        ("train.jsonl", "validation.jsonl"),
        ("train.jsonl", "dev.jsonl"),
        ("data/train-00000-of-00001.jsonl", "data/validation-00000-of-00001.jsonl"),
        ("mrpc/train/0000.jsonl", "mrpc/validation/0000.jsonl"),
    ],
)
def test_files_of_a_folder(files: tuple[str, str], cli: Cli, tmp_path: Path) -> None:
    for file, text in zip(files, ("trained", "held out"), strict=True):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / file, [{"sentence1": text, "sentence2": "b", "label": 1}] * 2)
    (tmp_path / "rte").mkdir()
    write_jsonl(tmp_path / "rte" / "notes.jsonl", [])
    for split, text in (("train", "trained"), ("pool", "held out")):
        result = cli("prepare", "mrpc", "--from", tmp_path, "--split", split)
        assert [row["text"] for row in result.records] == [text] * 2, result.err


def test_configurations_side_by_side(cli: Cli, tmp_path: Path) -> None:
    for config in ("mrpc", "rte"):
        (tmp_path / config).mkdir()
        write_jsonl(tmp_path / config / "train.jsonl", hub_rows(config, 4))
    assert cli("prepare", "rte", "--from", tmp_path).records[0]["text"] == "A man runs. 0"


def test_shards_are_one_table(cli: Cli, tmp_path: Path) -> None:
    rows = hub_rows("sst2")
    for i in range(3):
        write_jsonl(tmp_path / f"train-0000{i}-of-00003.jsonl", rows[4 * i : 4 * i + 4])
    result = cli("prepare", "sst2", "--from", tmp_path)
    assert [row["id"] for row in result.records] == list(range(12))
    assert [row["text"] for row in result.records] == [row["sentence"] for row in rows]
    (tmp_path / "train-00001-of-00003.jsonl").unlink()
    assert cli("prepare", "sst2", "--from", tmp_path).code == 5


# -- splits -------------------------------------------------------------------------------------------


def as_rows(ids: Sequence[Any], labels: Sequence[Any] | None = None, topics: Sequence[Any] | None = None) -> list[Row]:
    return [
        Row(row_id, {"text": str(row_id)}, labels[i] if labels else "", tuple(topics[i]) if topics else ())
        for i, row_id in enumerate(ids)
    ]


@given(
    st.lists(st.integers(0, 10**6), max_size=50, unique=True), st.integers(0, 99), st.sampled_from(("hash", "python"))
)
def test_splits_partition(ids: list[int], seed: int, draw: str) -> None:
    rows = as_rows(ids)
    for first, rest, n in ((*cut(rows, seed, draw), int(0.8 * len(ids))), (*halves(rows, seed, draw), len(ids) // 2)):
        assert len(first) == n and sorted(row.id for row in (*first, *rest)) == sorted(ids)


@given(st.lists(st.integers(0, 10**6), max_size=50, unique=True), st.integers(0, 99))
def test_splits_do_not_depend_on_the_order_of_rows(ids: list[int], seed: int) -> None:
    other = random.Random(1).sample(ids, len(ids))
    for split in (cut, halves):
        (one, _), (two, _) = split(as_rows(ids), seed, "hash"), split(as_rows(other), seed, "hash")
        assert {row.id for row in one} == {row.id for row in two}
        assert [row.id for row in one] == [row_id for row_id in ids if row_id in {row.id for row in one}]


@pytest.mark.parametrize("case", [c for c in GOLDEN["perturb"] if c["dataset"] in ("cola", "trec", "sst2")])
def test_released_halves(case: dict[str, Any], cli: Cli, tmp_path: Path) -> None:
    pool = [{"text": f"s{i}", "coarse_label": i % 6} for i in range(21)]
    write_jsonl(tmp_path / "test.jsonl", pool)
    for split in ("validation", "test"):
        result = cli("prepare", "trec", "--from", tmp_path, "--split", split, "--preset", "released-code")
        assert [row["text"] for row in result.records] == case[f"{split}_sentences"]


def test_released_80_20_and_its_noise(cli: Cli, tmp_path: Path) -> None:
    """Stormfront: classes 2 and 3 dropped, shuffled, cut; perturb then goes on with the generator."""
    case = next(c for c in GOLDEN["perturb"] if c["dataset"].startswith("stormfront"))
    labels = case["train_labels_all"]
    path = write_jsonl(tmp_path / "all.jsonl", [{"text": f"s{i}", "label": label} for i, label in enumerate(labels)])
    command = ("prepare", "stormfront", "--from", path, "--preset", "released-code")
    train = cli(*command)
    assert [row["text"] for row in train.records] == case["train_sentences"]
    assert {row["label"] for row in train.records} == {0, 1}
    for split in ("validation", "test"):
        assert [row["text"] for row in cli(*command, "--split", split).records] == case[f"{split}_sentences"]
    n = sum(label < 2 for label in labels)
    assert f"split_from={n}" in train.err
    noisy = cli("perturb", "--preset", "released-code", "--split-from", n, stdin=train.out)
    assert [i for i, row in enumerate(noisy.records) if row["noisy"]] == case["noisy_sorted"]


def test_reuters_filter_of_the_released_code() -> None:
    case = GOLDEN["modify_reuters"]
    train, test = (as_rows(case[f"{s}_in"]["sentence"], topics=case[f"{s}_in"]["labels"]) for s in ("train", "test"))
    for name, rows in zip(("train", "test"), filter_reuters(train, test, carry_over=True), strict=True):
        assert [row.id for row in rows] == case[f"{name}_out"]["sentence"]
        assert [row.label for row in rows] == case[f"{name}_out"]["labels"]
    kept = [row.id for row in filter_reuters(train, test)[1]]
    assert kept == [*"pqrstuv"]


def test_reuters_keeps_eight_topics_and_the_first_of_equal_texts(cli: Cli, tmp_path: Path) -> None:
    topics = [f"topic {i}" for i in range(9) for _ in range(20 - i)]
    rows = [{"text": f"text {i}", "topics": [topic]} for i, topic in enumerate(topics)]
    rows += [{"text": "text 0", "topics": ["topic 1"]}, {"text": "many", "topics": ["topic 0", "topic 1"]}]
    write_jsonl(tmp_path / "train.jsonl", rows)
    pool = [
        {"text": "text 0", "topics": ["topic 7"]},
        {"text": "b", "topics": ["topic 8"]},
        {"text": "c", "topics": []},
    ]
    write_jsonl(tmp_path / "test.jsonl", pool)
    labels = [row["label"] for row in cli("prepare", "reuters", "--from", tmp_path).records]
    assert labels == [topic for topic in topics if topic != "topic 8"]
    result = cli("prepare", "reuters", "--from", tmp_path, "--split", "pool")
    assert [(row["id"], row["label"]) for row in result.records] == [(0, "topic 7")]
    numbers = cli("prepare", "reuters", "--from", tmp_path, "--split", "pool", "--labels", "numbers")
    assert [row["label"] for row in numbers.records] == [7]
    alone = cli("prepare", "reuters", "--from", tmp_path / "test.jsonl", "--split", "pool")
    assert alone.code == 2 and "the train split is needed too; give the folder of both" in alone.err


def test_top_classes(cli: Cli, tmp_path: Path) -> None:
    train = [{"text": str(i), "coarse_label": label} for i, label in enumerate([5, 5, 5, 2, 2, 2, 1, 1, 0])]
    write_jsonl(tmp_path / "train.jsonl", train)
    write_jsonl(tmp_path / "test.jsonl", [{"text": str(i), "coarse_label": i} for i in range(6)])
    command = ("prepare", "trec", "--from", tmp_path, "--top-classes", 2)
    assert [row["label"] for row in cli(*command).records] == ["NUM"] * 3 + ["DESC"] * 3
    assert [row["label"] for row in cli(*command, "--split", "pool").records] == ["DESC", "NUM"]
    released = cli(*command, "--split", "pool", "--preset", "released-code")
    assert [row["label"] for row in released.records] == [0, 1]
    assert cli(*command[:-1], 7).code == 2


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("trec", {"text": "x", "label": 9}, "label 9 is no class of trec"),
        ("trec", {"text": "x"}, 'no "coarse_label" (found: text)'),
        ("wic", {"sentence1": "x", "sentence2": "y", "label": 1}, 'no "word" (found: sentence1, sentence2, label)'),
        ("rte", {"sentence1": None, "sentence2": "y", "label": 1}, "sentence1 is null, not text"),
        ("sst2", {"sentence": "x", "label": -1}, "label -1 is no class of sst2"),
        ("reuters", {"text": "x", "topics": "['earn']"}, "not a list of texts"),
    ],
)
def test_rows_that_cannot_be_read(name: str, row: dict[str, Any], message: str, cli: Cli, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [row])
    result = cli("prepare", name, "--from", path)
    assert result.code == 3 and f"{path}:1: " in result.err and message in result.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"sentence,label\na,1,2\n", "a.csv:2: 3 fields, but the first line of the CSV names 2 columns"),
        (b'sentence,label\n"a,1\n', "not CSV"),
        (b"sentence,label\n\xff,1\n", "a.csv:2: not UTF-8"),
    ],
)
def test_csv_that_cannot_be_read(text: bytes, message: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    result = cli("prepare", "sst2", "--from", tmp_path / "a.csv")
    assert result.code == 3 and message in result.err


def test_usage(cli: Cli, tmp_path: Path) -> None:
    assert "which task? wic, rte" in cli("prepare").err
    assert "did you mean trec?" in cli("prepare", "trek").err
    assert cli("prepare", "trec", "--from", tmp_path / "none").code == 5
    assert "no file of the train split" in cli("prepare", "trec", "--from", tmp_path).err
    for name in ("train.csv", "train.jsonl"):
        (tmp_path / name).write_text("")
    assert "several files could be the train split" in cli("prepare", "trec", "--from", tmp_path).err


def test_list_states_licences(cli: Cli) -> None:
    entries = cli("prepare", "--list").records
    assert [entry["name"] for entry in entries] == list(TASKS) and len(entries) == 12
    assert all(entry["licence"] and entry["hub"].count("/") == 1 for entry in entries)


def test_output_and_provenance(cli: Cli, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", hub_rows("trec"))
    result = cli("prepare", "trec", "--from", path, "-o", tmp_path / "o.parquet", "--provenance", tmp_path / "p.json")
    assert result.code == 0 and pl.read_parquet(tmp_path / "o.parquet").columns == ["id", "text", "label"]
    made = json.loads((tmp_path / "p.json").read_text())
    assert made["inputs"]["train"]["path"] == str(path) and len(made["inputs"]["train"]["sha256"]) == 64


def test_hub_is_read_through_datasets(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the hub's address replaced by a folder's, `datasets` itself reads the Parquet files, ClassLabels and all."""
    import datasets
    from datasets import ClassLabel, Dataset, Features, Value, config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names = ["ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"]
    features = Features({"text": Value("string"), "coarse_label": ClassLabel(names=names)})
    table = Dataset.from_dict({"text": ["a", "b"], "coarse_label": [3, 0]}, features=features)
    (tmp_path / "CogComp/trec/default/train").mkdir(parents=True)
    table.to_parquet(str(tmp_path / "CogComp/trec/default/train/0000.parquet"))
    load, branch = datasets.load_dataset, "@refs%2Fconvert%2Fparquet"

    def load_here(kind: str, data_files: dict[str, str], split: str) -> Any:
        here = {split: f"{tmp_path}/{data_files[split].removeprefix('hf://datasets/').replace(branch, '')}"}
        return load(kind, data_files=here, split=split)

    monkeypatch.setattr(datasets, "load_dataset", load_here)
    result = cli("prepare", "trec", "--provenance", tmp_path / "p.json")
    assert [(row["text"], row["label"]) for row in result.records] == [("a", "HUM"), ("b", "ABBR")], result.err
    assert "CogComp/trec" in json.loads((tmp_path / "p.json").read_text())["inputs"]["train"]["path"]


def test_hub_out_of_reach(cli: Cli) -> None:
    result = cli("prepare", "trec")
    assert result.code == 5 and "CogComp/trec: not available from the hub" in result.err and "--from" in result.err


def test_local_copies_need_no_datasets_and_no_torch(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", hub_rows("trec"))
    code = (
        "import sys; from mltools.cli import main; "
        f"assert main(['prepare', 'trec', '--from', {str(path)!r}]) == 0; "
        "assert not {'datasets', 'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


COUNTS = {
    "wic": (5428, 638),
    "rte": (2490, 277),
    "mrpc": (3668, 408),
    "cola": (8551, 1043),
    "boolq": (9427, 3270),
    "sst2": (6920, 872),
    "sst5": (8544, 1101),
    "emotion": (16000, 2000),
    "reuters": (5031, 2012),
    "trec": (5452, 500),
}


@pytest.mark.skipif(
    not (SHARED / "data").is_dir(), reason="the real data sets are not here: no shared/data beside the project's folder"
)
@pytest.mark.parametrize("name", COUNTS)
def test_real_copies(name: str, cli: Cli) -> None:
    """Sizes and classes are the paper's: nothing is warned of."""
    for split, n in zip(("train", "pool"), COUNTS[name], strict=True):
        result = cli("prepare", name, "--from", SHARED / "data" / name, "--split", split)
        assert result.code == 0 and result.out.count("\n") == n and "note:" not in result.err
        assert len({row["label"] for row in result.records}) == TASKS[name].classes
