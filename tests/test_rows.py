"""Rows in: every format, and every complaint with its place."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from conftest import Cli, marked, toy_rows, write_jsonl
from mltools.commands.perturb import Settings as PerturbSettings
from mltools.commands.perturb.work import perturb
from mltools.errors import MltoolsError, NotFoundError, RowsError
from mltools.io import source as io_source
from mltools.io.columns import Columns, table_ids
from mltools.io.examples import Examples, read_examples
from mltools.io.inputs import Rows
from mltools.io.rows import iter_rows
from mltools.io.source import Source
from mltools.spec import bare

Tiny = Callable[..., Path]
ROWS = [{"text": "tall king", "label": "HUM"}, {"text": "old city", "label": "LOC"}]


def write(path: Path, data: bytes | bytearray) -> Path:
    path.write_bytes(data)
    return path


def failure(path: Path, columns: Columns = Columns()) -> MltoolsError:
    with pytest.raises(MltoolsError) as caught:
        read_examples(path, columns)
    return caught.value


def labels_of(path: Path, *labels: object) -> Path:
    return write_jsonl(path, [{"text": "a", "label": label} for label in labels])


# -- bytes --------------------------------------------------------------------------------------------
def test_b32_byte_order_mark_is_stripped(tmp_path: Path) -> None:
    path = write(tmp_path / "bom.jsonl", b'\xef\xbb\xbf{"text":"a","label":0}\n{"text":"b","label":1}\n')
    assert read_examples(path).labels == [0, 1]


def test_b33_not_utf8_names_line_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "latin.jsonl", b'{"text":"ok","label":0}\n{"text":"caf\xe9","label":0}\n')
    error = failure(path)
    assert str(error) == f"{path}:2: not UTF-8 (byte 13 of the line is 0xe9); convert it first"
    assert error.exit_code == 3


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_b35_only_newlines_end_lines(tmp_path: Path, separator: str) -> None:
    text = f"before{separator}after"
    raw = text if separator in "\u2028\u2029\x85" else json.dumps(text)[1:-1]
    path = write(tmp_path / "lines.jsonl", f'{{"text":"{raw}","label":0}}\n{{"text":"b","label":1}}\n'.encode())
    assert read_examples(path).fields == [(text,), ("b",)]


def test_crlf_blank_lines_and_a_missing_last_newline(tmp_path: Path) -> None:
    path = write(tmp_path / "crlf.jsonl", b'{"text":"a","label":0}\r\n\r\n \t\n\n{"text":"b","label":1}\r')
    assert [(number, line) for number, line, _ in iter_rows(Source(path))] == [
        (1, b'{"text":"a","label":0}'),
        (5, b'{"text":"b","label":1}'),
    ]
    assert read_examples(path).ids == [0, 1]


def test_bad_json_names_the_line_counting_blank_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", b'{"text":"a","label":0}\n\n{"text":"b","label":1\n')
    assert str(failure(path)).startswith(f"{path}:3: not JSON: ")


@pytest.mark.parametrize(
    ("line", "kind"), [(b"[1]", "list"), (b'"a"', "text"), (b"3", "number"), (b"null", "null"), (b"true", "true/false")]
)
def test_a_line_that_is_no_object(tmp_path: Path, line: bytes, kind: str) -> None:
    path = write(tmp_path / "list.jsonl", b'{"text":"a","label":0}\n' + line + b"\n")
    assert str(failure(path)).startswith(f"{path}:2: a {kind}")


def test_nan_is_not_json(tmp_path: Path) -> None:
    path = write(tmp_path / "nan.jsonl", b'{"text":"a","label":NaN}\n')
    assert str(failure(path)).startswith(f"{path}:1: not JSON")


@given(st.lists(st.dictionaries(st.text(), st.integers(-9, 9) | st.text() | st.none(), min_size=1)), st.integers(1, 40))
def test_blocks_of_any_size_give_the_same_rows(rows: Sequence[dict[str, Any]], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io_source, "BLOCK", size)
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogatepass")
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert [values for _, _, values in iter_rows(Source("-"))] == list(rows)


# -- columns ------------------------------------------------------------------------------------------
def test_a_very_long_line_is_read_in_linear_time(tmp_path: Path) -> None:
    """A JSON array in one line, given by mistake: its pieces were once joined one by one, for minutes."""
    path = write(tmp_path / "array.jsonl", b"[1" + b" " * 50_000_000 + b"]")
    start = time.process_time()
    assert "a number, not an object" in str(failure(path))
    assert time.process_time() - start < 2


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_source, "LONGEST", 1 << 20)
    path = write(tmp_path / "rows.jsonl", gzip.compress(b" " * (1 << 22)))
    assert "a line longer than 1 MiB" in str(failure(path))
    path = write(tmp_path / "short.jsonl", gzip.compress((b" " * 1000 + b"\n") * 4000 + json.dumps(ROWS[0]).encode()))
    assert read_examples(path).labels == ["HUM"]


def test_b37_late_keys_are_kept(tmp_path: Path, cli: Cli) -> None:
    rows = [{"text": "a", "label": i % 2} for i in range(150)]
    rows += [{"text": "a", "label": i % 2, "late": f"x{i}"} for i in range(50)]
    result = cli("perturb", write_jsonl(tmp_path / "late.jsonl", rows))
    assert [row.get("late") for row in result.records] == [row.get("late") for row in rows]


def test_missing_label_says_what_is_there_and_how_to_name_it(tmp_path: Path, cli: Cli) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", [{"text": "a", "label": 1}, {"text": "a", "lbl": 1}])
    result = cli("perturb", path)
    assert result.code == 3
    assert result.err == f'mltools: {path}:2: no "label" (found: text, lbl); name it with --label lbl\n'
    assert result.out == ""


def test_missing_text_says_what_is_there_and_how_to_name_it(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", [{"txt": "a", "label": 1}])
    assert str(failure(path)) == f'{path}:1: no "text" (found: txt, label); name it with --text txt'
    assert read_examples(path, Columns(text=("txt",))).fields == [("a",)]


def test_text_that_is_no_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", [{"text": 3, "label": 1}])
    assert str(failure(path)) == f'{path}:1: "text" is a number, not text'


def test_several_text_columns_in_the_given_order(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "wic.jsonl", [{"a": "second", "label": 1, "b": "first"}])
    assert read_examples(path, Columns(text=("b", "a"))).texts("|") == ["first | second"]


def test_duplicate_ids(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "ids.jsonl", [{"id": i, "text": "a", "label": 1} for i in (7, 8, "7", 7)])
    assert str(failure(path)) == f"{path}:4: id 7 is also line 1's; ids must differ"


def test_an_id_that_is_the_number_of_a_row_without_one(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "ids.jsonl", [*ROWS, {"id": 1, "text": "a", "label": "HUM"}])
    assert str(failure(path)) == f"{path}:3: id 1 is the number of a row without an id"
    path = write_jsonl(tmp_path / "ids2.jsonl", [{"id": 1, "text": "a", "label": "HUM"}, *ROWS])
    assert str(failure(path)) == f"{path}:2: id 1 is also line 1's; ids must differ"


@pytest.mark.parametrize("row_id", [1.5, True, None, [1]])
def test_an_id_of_another_type(tmp_path: Path, row_id: object) -> None:
    path = write_jsonl(tmp_path / "ids.jsonl", [{"id": row_id, "text": "a", "label": 1}])
    assert "not an integer or text" in str(failure(path))


def test_noisy_is_taken_from_labels_where_there_is_no_column(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "x", "original_label": original} for original in ("x", "y")]
    assert read_examples(write_jsonl(tmp_path / "rows.jsonl", rows)).noisy == [False, True]


def test_noisy_that_is_neither_true_nor_false(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a", "label": 1, "noisy": "maybe"}])
    assert str(failure(path)) == f'{path}:1: "noisy" is "maybe", not true or false'


# -- labels -------------------------------------------------------------------------------------------
def test_b06_labels_of_several_types_are_listed(tmp_path: Path, cli: Cli) -> None:
    path = write(tmp_path / "types.jsonl", b"".join(b'{"text":"a","label":%s}\n' % x for x in SIX))
    error = failure(path)
    assert str(error) == (
        f"{path}:3: labels of another type than line 1's 0 "
        '(line 3: "1", line 4: true); --label-type str reads all as text'
    )
    assert error.exit_code == 3
    assert cli("perturb", path).code == 3


SIX = (b"0", b"1", b'"1"', b"true", b"-1", b"null")


def test_label_type_str_reads_all_as_text(tmp_path: Path, cli: Cli) -> None:
    path = write(tmp_path / "types.jsonl", b"".join(b'{"text":"a","label":%s}\n' % x for x in SIX))
    examples = read_examples(path, Columns(label_type="str"))
    assert examples.labels == ["0", "1", "1", "true"]
    assert examples.n_unlabelled == 2
    result = cli("perturb", path, "--label-type", "str", "--rate", "0")
    assert result.code == 0
    assert [row["label"] for row in result.records] == ["0", "1", "1", "true", -1, None]
    assert [row.get("original_label") for row in result.records] == ["0", "1", "1", "true", None, None]


def test_true_and_whole_numbers_become_integers(tmp_path: Path) -> None:
    assert read_examples(labels_of(tmp_path / "b.jsonl", True, False)).labels == [1, 0]
    assert read_examples(labels_of(tmp_path / "f.jsonl", 1.0, 0.0, 2)).labels == [1, 0, 2]
    assert {type(x) for x in read_examples(labels_of(tmp_path / "c.jsonl", True, False)).labels} == {int}


def test_text_labels_are_never_guessed(tmp_path: Path) -> None:
    assert read_examples(labels_of(tmp_path / "s.jsonl", "1", "01", " 2")).labels == ["1", "01", " 2"]


def test_regression_labels_are_refused(tmp_path: Path) -> None:
    path = labels_of(tmp_path / "r.jsonl", 1.0, 2.5)
    assert str(failure(path)) == f"{path}:2: label 2.5 is not whole; regression labels are not supported"


def test_a_label_that_is_a_list(tmp_path: Path) -> None:
    path = labels_of(tmp_path / "l.jsonl", "a", ["a"])
    assert str(failure(path)) == f"{path}:2: label is a list, not text or an integer"


def test_no_labelled_rows(tmp_path: Path) -> None:
    path = labels_of(tmp_path / "u.jsonl", None, -1)
    assert str(failure(path)) == f"{path}: no labelled rows"


# -- files --------------------------------------------------------------------------------------------
def test_compressed_rows(tmp_path: Path) -> None:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
    gz = write(tmp_path / "rows.jsonl.gz", gzip.compress(data[:20]) + gzip.compress(data[20:]))
    compress = zstandard.ZstdCompressor().compress
    zst = write(tmp_path / "rows.jsonl.zst", compress(data[:20]) + compress(data[20:]))
    assert read_examples(gz).labels == read_examples(zst).labels == ["HUM", "LOC"]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_compressed_rows(tmp_path: Path, ending: str, damage: str) -> None:
    data = b"".join(b'{"text":"a%d","label":0}\n' % i for i in range(1000))
    packed = bytearray(pack(data, ending))
    if damage == "cut":
        del packed[-9:]
    else:
        packed[len(packed) // 2] ^= 0xFF
    assert "damaged compressed file" in str(failure(write(tmp_path / f"rows.jsonl{ending}", packed)))


def pack(data: bytes, form: str) -> bytes:
    if form == ".parquet":
        file = io.BytesIO()
        pl.DataFrame([json.loads(line) for line in data.splitlines()]).write_parquet(file)
        return file.getvalue()
    if form == ".zst":
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)
    return gzip.compress(data) if form == ".gz" else data


@pytest.mark.parametrize("form", ["", ".gz", ".zst", ".parquet"])
@pytest.mark.parametrize("way", ["stdin", "another name", "pipe"])
def test_the_form_shows_in_the_first_bytes(tmp_path: Path, cli: Cli, form: str, way: str) -> None:
    data = b"".join(b'{"text":"a%d","label":%d}\n' % (i, i % 2) for i in range(200))
    path = write(tmp_path / "rows.jsonl", data)
    expected = cli("perturb", path)
    other = write(tmp_path / "rows.txt", pack(data, form))
    if way == "stdin":
        result = cli("perturb", "--provenance", tmp_path / "how.json", stdin=other.read_bytes())
    elif way == "another name":
        result = cli("perturb", "--provenance", tmp_path / "how.json", other)
    else:
        os.mkfifo(tmp_path / "pipe")
        with subprocess.Popen(["cp", other, tmp_path / "pipe"]):
            result = cli("perturb", "--provenance", tmp_path / "how.json", tmp_path / "pipe")
    assert (result.code, result.records) == (0, expected.records)
    how = json.loads((tmp_path / "how.json").read_text())
    assert how["inputs"]["rows"]["sha256"] == hashlib.sha256(other.read_bytes()).hexdigest()


def test_missing_file_and_folder(tmp_path: Path, cli: Cli) -> None:
    assert isinstance(failure(tmp_path / "none.jsonl"), NotFoundError)
    assert isinstance(failure(tmp_path), NotFoundError)
    assert isinstance(failure(tmp_path / "none.parquet"), NotFoundError)
    missing = cli("perturb", tmp_path / "none.jsonl")
    assert (missing.code, missing.err) == (5, f"mltools: no such file: {tmp_path / 'none.jsonl'}\n")
    folder = cli("perturb", tmp_path)
    message = f"mltools: {tmp_path}: no file (such as train.jsonl, .parquet, .csv or .tsv)\n"
    assert (folder.code, folder.err) == (5, message)


def test_empty_input(tmp_path: Path, cli: Cli) -> None:
    path = write(tmp_path / "empty.jsonl", b"")
    assert (cli("perturb", path).code, cli("perturb", "-", stdin=b"\n\n").code) == (3, 3)
    assert str(failure(path)) == f"{path}: no labelled rows"


def test_stdin_is_named_in_complaints(cli: Cli) -> None:
    result = cli("perturb", stdin=b'{"text":"a","label":0}\n{\n')
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("mltools: stdin:2: not JSON")


def test_named_pipe(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    command = f"{sys.executable} -m mltools perturb --rate 0 <(cat {path}) | wc -l"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout.strip() == b"2"


# -- Parquet ------------------------------------------------------------------------------------------
def labels_and_names(path: Path) -> tuple[list[object], list[str] | None]:
    examples: Examples = read_examples(path)
    return list(examples.labels), examples.names


def test_parquet_equals_jsonl(tmp_path: Path) -> None:
    rows = [{"id": i, "text": f"a{i}", "label": i % 3, "original_label": 0} for i in range(300)]
    pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
    one, other = read_examples(write_jsonl(tmp_path / "rows.jsonl", rows)), read_examples(tmp_path / "rows.parquet")
    assert (one.ids, one.labels, one.fields, one.noisy) == (other.ids, other.labels, other.fields, other.noisy)


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["yes", "no"]), pl.String])
def test_parquet_categories_are_text(tmp_path: Path, kind: Any) -> None:
    frame = pl.DataFrame({"text": ["a", "b", "c"], "label": pl.Series(["no", "yes", None], dtype=kind)})
    frame.write_parquet(tmp_path / "rows.parquet")
    examples = read_examples(tmp_path / "rows.parquet")
    assert (examples.labels, examples.n_unlabelled) == (["no", "yes"], 1)


def test_parquet_dictionary_column_of_arrow(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    labels = arrow.array(["no", "yes", "no"]).dictionary_encode()
    text = arrow.array(["a", "b", "c"], type=arrow.large_string())
    parquet.write_table(arrow.table({"text": text, "label": labels}), tmp_path / "rows.parquet")
    assert read_examples(tmp_path / "rows.parquet").labels == ["no", "yes", "no"]


def test_b40_parquet_class_names_of_datasets(tmp_path: Path) -> None:
    names = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    frame = pl.DataFrame({"text": ["a", "b", "c"], "label": [1, 0, -1]})
    frame.write_parquet(tmp_path / "rows.parquet", metadata={"huggingface": json.dumps(names)})
    assert labels_and_names(tmp_path / "rows.parquet") == (["yes", "no"], ["no", "yes"])


@pytest.mark.parametrize("metadata", ["not JSON", "{}", "[]", '{"info": {"features": {"label": {"names": 3}}}}'])
def test_parquet_metadata_without_class_names(tmp_path: Path, metadata: str) -> None:
    frame = pl.DataFrame({"text": ["a", "b"], "label": [1, 0]})
    frame.write_parquet(tmp_path / "rows.parquet", metadata={"huggingface": metadata})
    assert labels_and_names(tmp_path / "rows.parquet") == ([1, 0], None)


def test_parquet_complaints_name_the_row(tmp_path: Path) -> None:
    pl.DataFrame({"text": ["a", None], "label": [1, 0]}).write_parquet(tmp_path / "rows.parquet")
    assert str(failure(tmp_path / "rows.parquet")) == f'{tmp_path}/rows.parquet:2: "text" is a null, not text'


def test_parquet_that_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", b'{"text":"a"}\n')
    assert isinstance(error := failure(path), RowsError)
    assert str(error).startswith(f"{path}: not a readable Parquet file")


# -- nothing in silence -------------------------------------------------------------------------------
def reference_doubled(line: bytes) -> bool:
    """Whether an object of the line has a key twice, by a parser that is told of every pair."""
    doubled = []
    json.loads(line, object_pairs_hook=lambda pairs: doubled.append(len({key for key, _ in pairs}) < len(pairs)))
    return any(doubled)


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> str:
    """A JSON object, some keys of which may stand twice, with blanks and colons in odd places."""
    leaf = st.sampled_from(["1", "null", '"a"', '" :"', '"\\":"', '"a\\" : b"', "[]"])
    inner = objects(depth - 1) if depth else st.nothing()
    value = leaf | inner | inner.map(lambda text: f"[1, {text}]")
    key = st.sampled_from(['"a"', '"\\u0061"', '"b:"', '"c\\":"', '"text"'])
    colon = st.just(":") | st.sampled_from([":", " :", ": ", "\t: ", " \r:"])
    members = st.lists(st.builds(lambda k, c, v: k + c + v, key, colon, value), max_size=4)
    return "{" + draw(st.sampled_from([",", ", "])).join(draw(members)) + "}"


@settings(max_examples=40)
@given(st.lists(objects(), min_size=1, max_size=4))
@example(['{"a":1,"a":2}'])
@example(['{"a":1}', '{"a":1,"\\u0061":2}'])
@example(['{"a" :1,"a":"\\":"}'])
@example(['{"x":[[{"a":{"b":1, "b":2}}]]}'])
@example(['{"x":{"a":1},"a":2,"y":[{"a":3},{"a":4}],"z":"\\":"}'])
def test_a_key_that_stands_twice_is_refused(lines: list[str]) -> None:
    bad = [number for number, line in enumerate(lines, 1) if reference_doubled(line.encode())]
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes("".join(line + "\n" for line in lines).encode())
        if not bad:
            assert [row[2] for row in iter_rows(Source(file.name))] == [json.loads(line) for line in lines]
            return
        with pytest.raises(RowsError, match=rf":{bad[0]}: the key .* stands twice"):
            list(iter_rows(Source(file.name)))


def test_a_doubled_key_in_rows_and_records(tmp_path: Path, cli: Cli) -> None:
    path = write(tmp_path / "r.jsonl", b'{"text":"a","label":0}\n{"text":"b","label":0,"label":1}\n')
    for command in ("perturb", "mcog"):
        result = cli(command, path)
        assert (result.code, result.out) == (3, "")
        assert result.err == f'mltools: {path}:2: the key "label" stands twice in one object; keep one\n'


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"label": "x", "original_label": "x", "noisy": True}, '"noisy" is true, but label and original_label are'),
        ({"label": "x", "original_label": "y", "noisy": False}, '"noisy" is false, but label is "x" and original_lab'),
        ({"label": 1, "original_label": 1, "noisy": 1}, '"noisy" is true, but'),
    ],
)
@pytest.mark.parametrize("command", [("swap", "M", "C"), ("retrain", "M", "P"), ("grads", "M"), ("states", "M")])
def test_columns_that_contradict_each_other(
    tmp_path: Path, cli: Cli, tiny: Tiny, command: tuple[str, ...], row: dict[str, Any], words: str
) -> None:
    path = write_jsonl(tmp_path / "r.jsonl", [{"text": "a", "label": row["label"]}, {"text": "a", **row}])
    models = [tiny("bert", 1) for _ in command[1:]]
    result = cli(command[0], *models, path, *(("-o", tmp_path / "s") if command[0] == "states" else ()))
    assert result.code == 3 and f"{path}:2: {words}" in result.err


def test_columns_that_agree(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"label": "x", "original_label": "y", "noisy": True},
        {"label": "x", "original_label": "x", "noisy": False},
        {"label": "x", "noisy": True},
        {"label": "x", "original_label": "y"},
    ]
    found = read_examples(write_jsonl(tmp_path / "r.jsonl", [{"text": "a", **row} for row in rows]))
    assert found.noisy == [True, False, True, True] and not found.original_known


@pytest.mark.parametrize("command", ["swap", "retrain", "grads", "states", "probe", "centroid"])
def test_unlabelled_rows_are_counted_once(tmp_path: Path, cli: Cli, tiny: Tiny, command: str) -> None:
    rows = [
        *toy_rows(40),
        *({"id": f"u{i}", "text": "who", "label": label} for i, label in enumerate((None, -1, -1.0))),
    ]
    path = write_jsonl(tmp_path / "r.jsonl", rows)
    models = [tiny("bert", seed) for seed in ((1, 2) if command in ("swap", "retrain") else (1,))]
    more = {
        "states": ("-o", tmp_path / "s"),
        "swap": ("--layers", "1"),
        "retrain": ("--layers", "1"),
        "probe": ("--epochs", 1, "--allow-absent"),
    }
    result = cli(command, *models, path, *more.get(command, ()))
    assert result.code == 0, result.err
    assert result.err.count(f"mltools: note: {path}: 3 rows without a label are left out\n") == 1


def test_unlabelled_rows_after_a_full_part_are_counted(
    tmp_path: Path, cli: Cli, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mltools.model import states

    monkeypatch.setattr(states, "PART_ROWS", 8)
    path = write_jsonl(tmp_path / "r.jsonl", [*toy_rows(16), {"id": "u", "text": "who", "label": None}])
    assert "1 rows without a label" in cli("states", tiny("bert"), path, "-o", tmp_path / "s").err


@pytest.mark.parametrize("label_type", ["auto", "str"])
@pytest.mark.parametrize("label", [b"1180591620717411303424", b"-9223372036854775809", b"9007199254740993.0"])
def test_labels_that_may_be_rounded(tmp_path: Path, cli: Cli, label: bytes, label_type: str) -> None:
    path = write(tmp_path / "r.jsonl", b'{"text":"a","label":1}\n{"text":"a","label":%s}\n' % label)
    result = cli("perturb", path, "--label-type", label_type)
    assert result.code == 3 and f"{path}:2: label " in result.err and "write it as text" in result.err


def test_labels_that_differ_in_the_last_bit(tmp_path: Path) -> None:
    labels = [2**53, 2**53 + 1, 2**64 - 1, 2**64 - 2]
    assert read_examples(labels_of(tmp_path / "r.jsonl", *labels)).labels == labels


def test_ids_beyond_64_bits(tmp_path: Path, cli: Cli) -> None:
    path = write_jsonl(tmp_path / "r.jsonl", [{"id": 2**70 + i, "text": "a", "label": i} for i in range(2)])
    result = cli("perturb", path)
    assert result.code == 3
    assert f"{path}:1: id is a number, not an integer or text (integers have at most 64 bits; write it as" in result.err


@pytest.mark.parametrize("command", ["perturb", "finetune"])
def test_labels_that_differ_by_blanks_only(tmp_path: Path, cli: Cli, tiny: Tiny, command: str) -> None:
    path = labels_of(tmp_path / "r.jsonl", "a", "b", "A", "a\u00a0", "b")
    result = cli("perturb", path) if command == "perturb" else cli("finetune", tiny(), path, "-o", tmp_path / "m")
    assert result.code == 3 and f'{path}:4: label "a' in result.err
    assert 'is line 1\'s "a" but for blanks around it; write both alike' in result.err


def test_a_name_that_is_not_utf8(tmp_path: Path, cli: Cli) -> None:
    path = labels_of(Path(os.fsdecode(bytes(tmp_path / "r") + b"\xff.jsonl")), "a", "b")
    result = cli("perturb", path)
    assert result.code == 2 and "the name of the file is not UTF-8; rename it" in result.err


KINDS = [
    st.text(max_size=3),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([2**53, 2**53 + 1, 2**64 - 1]),
    st.sampled_from([1, "1", True, 1.0]),
    st.integers(-(2**70), 2**70) | st.booleans() | st.none() | st.floats(),
]
identities = st.sampled_from(KINDS).flatmap(lambda kind: st.lists(kind, min_size=2, max_size=6))


@given(identities, identities)
@settings(deadline=None)
def test_ids_and_labels_keep_their_identity_or_are_refused(ids: list[Any], labels: list[Any]) -> None:
    """Through perturb, reading and the column of a table: what differs stays apart, or a line is named."""
    rows = [{"id": row_id, "text": "a", "label": label} for row_id, label in zip(ids, labels, strict=False)]
    with tempfile.TemporaryDirectory() as folder:
        path, out = write_jsonl(Path(folder, "r.jsonl"), rows), Path(folder, "n.jsonl")
        try:
            lines = list(perturb(Rows(path), bare(PerturbSettings, rate=0)))
            found = read_examples(write(out, b"\n".join(lines)))  # type: ignore[arg-type]
        except RowsError as error:
            assert re.search(r"\.jsonl(:\d+)?: ", str(error))
            return
    kept = [row for row in rows if row["label"] is not None and row["label"] != -1]
    assert [(type(x), x) for x in found.ids] == [(type(row["id"]), row["id"]) for row in kept]
    assert found.labels == [row["label"] for row in kept]
    column = pl.Series(table_ids(found.ids))
    assert column.n_unique() == len(found.ids)


@pytest.mark.parametrize(
    ("ids", "written"),
    [([1, 2], [1, 2]), (["1", "é"], ["1", "é"]), ([1, "1"], ["1", '"1"']), ([2**63, 1], [str(2**63), "1"]), ([], [])],
)
def test_ids_in_a_table(ids: list[Any], written: list[Any]) -> None:
    assert table_ids(ids) == written


@pytest.mark.parametrize("command", ["swap", "centroid"])
def test_per_row_files_keep_1_and_text_1_apart(tmp_path: Path, cli: Cli, tiny: Tiny, command: str) -> None:
    rows = [{**row, "id": str(row["id"]) if row["id"] % 2 else row["id"] + 1} for row in toy_rows(40)]
    path, out = write_jsonl(tmp_path / "r.jsonl", rows), tmp_path / "rows.parquet"
    models = [tiny("bert", seed) for seed in ((1, 2) if command == "swap" else (1,))]
    result = cli(command, *models, path, "--per-row", out)
    assert result.code == 0, result.err
    assert set(pl.read_parquet(out)["id"]) == {json.dumps(row["id"]) for row in rows}


def test_integers_of_64_bits_reach_parquet_that_others_read(tmp_path: Path, cli: Cli) -> None:
    rows = [{"id": 2**63 + i, "text": "a", "label": 2**63 + i % 2} for i in range(8)]
    path, out = write_jsonl(tmp_path / "r.jsonl", rows), tmp_path / "n.parquet"
    assert cli("perturb", path, "--rate", ".5", "-o", out).code == 0
    assert read_examples(out).ids == [row["id"] for row in rows]
    write_jsonl(path, [{**row, "id": -i} for i, row in enumerate(rows)] + [{**rows[0], "id": 2**63}])
    result = cli("perturb", path, "-o", out, "--force")
    assert result.code == 3 and "write JSONL instead" in result.err


def test_states_of_rows_whose_original_label_is_unknown(tmp_path: Path, cli: Cli, tiny: Tiny) -> None:
    """They tell noise; what needs the right label is refused. States whose columns disagree are none of ours."""
    path, out = write_jsonl(tmp_path / "r.jsonl", marked(toy_rows(40), lambda i: i % 4 == 0)), tmp_path / "s"
    assert cli("states", tiny("bert"), path, "-o", out).code == 0
    short = ("--epochs", 1, "--allow-absent")
    assert cli("probe", out, *short).code == 0
    for target in (("--events",), ("--target", "original_label")):
        result = cli("probe", out, *short, *target)
        assert result.code == 3 and "10 noisy rows have no other original_label (first: row id 0)" in result.err
    label, n = np.arange(20) % 2, 20
    tensors: dict[str, Any] = {
        "hidden_states": np.zeros((n, 3, 4), np.float32),
        "label": label,
        "original_label": 1 - label,
    }
    save_file({**tensors, "noisy": np.arange(n) != 7}, out)
    result = cli("probe", out)
    assert result.code == 3 and "row id 7 is not noisy, though its label differs" in result.err


@pytest.mark.parametrize(
    "label", ["e\u0301t\u00e9", "\u00e9t\u00e9\u200b", "\ufeff\u00e9t\u00e9", "\u00e9t\u00e9\u0007"]
)
def test_labels_that_look_alike(label: str, tmp_path: Path, cli: Cli) -> None:
    """An accent of its own, a space without width, a byte-order mark, a bell: two classes that look like one."""
    result = cli("perturb", labels_of(tmp_path / "r.jsonl", "\u00e9t\u00e9", "b", label))
    assert (
        result.code == 3
        and 'is line 1\'s "\\u00e9t\\u00e9" but for blanks, characters that do not show or' in result.err
    )
