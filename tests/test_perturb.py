"""perturb: exact counts, the same draw for any order of rows, and not a byte changed that need not be."""

import hashlib
import io
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import floor
from pathlib import Path
from threading import Thread
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import CONFORMANCE, Cli, settle, write_jsonl
from mltools.commands.perturb import Settings as PerturbSettings
from mltools.commands.perturb.work import Count, perturb
from mltools.errors import RowsError, UsageError
from mltools.hashing import keyed_hash, keyed_hashes, ranked
from mltools.io.columns import Columns, RowId
from mltools.io.inputs import Rows
from mltools.io.rewrite import replace_value
from mltools.spec import bare

MLTOOLS = (sys.executable, "-m", "mltools")
Table = list[dict[str, Any]]


def lines_of(data: bytes, columns: Columns = Columns(), **changes: Any) -> list[bytes]:
    """Perturb JSON lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        result = list(perturb(Rows("-", columns), bare(PerturbSettings, **changes)))
    assert all(isinstance(line, bytes) for line in result)
    return result  # type: ignore[return-value]


def perturbed(rows: Sequence[dict[str, Any]], **changes: Any) -> Table:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return [json.loads(line) for line in lines_of(data, **changes)]


def labelled(*labels: object) -> Table:
    return [{"id": f"r{i}", "label": label} for i, label in enumerate(labels)]


def many(n: int, classes: Sequence[object] = ("a", "b", "c", "d")) -> Table:
    generator = random.Random(5)
    return labelled(*generator.choices(classes, k=n))


def run(*arguments: object, cwd: Path, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    words = [*MLTOOLS, *(str(argument) for argument in arguments)]
    return subprocess.run(words, cwd=cwd, check=False, **{"capture_output": True, **options})


# -- which rows, which labels -------------------------------------------------------------------------
@given(
    st.lists(st.sampled_from("abcde"), min_size=2).filter(lambda labels: len(set(labels)) > 1),
    st.integers(0, 1000).map(lambda thousandth: thousandth / 1000),
    st.integers(0, 2**63 - 1),
)
def test_floor_of_each_class_gets_another_label(labels: list[str], rate: float, seed: int) -> None:
    rows = perturbed(labelled(*labels), rate=rate, seed=seed)
    noisy = Counter(row["original_label"] for row in rows if row["noisy"])
    counts = Counter(labels)
    thousandths = round(rate * 1000)
    assert noisy == Counter({label: n * thousandths // 1000 for label, n in counts.items() if n * thousandths >= 1000})
    assert [row["original_label"] for row in rows] == labels
    assert all(row["noisy"] == (row["label"] != row["original_label"]) for row in rows)
    assert {row["label"] for row in rows} <= set(labels)


def test_counts_do_not_suffer_from_binary_fractions() -> None:
    rows = perturbed(labelled(*["a"] * 100, *["b"] * 100), rate=0.29)  # 0.29 * 100 is 28.999999999999996
    assert sum(row["noisy"] for row in rows) == 58


@given(st.randoms(use_true_random=False))
def test_row_order_does_not_matter(order: random.Random) -> None:
    rows = many(60)
    before = {row["id"]: row for row in perturbed(rows, rate=0.3)}
    order.shuffle(rows)
    assert {row["id"]: row for row in perturbed(rows, rate=0.3)} == before


def test_other_seeds_draw_other_rows() -> None:
    rows = many(400)
    draws = [{row["id"] for row in perturbed(rows, seed=seed) if row["noisy"]} for seed in range(4)]
    for i, draw in enumerate(draws):
        for other in draws[:i]:
            assert len(draw & other) < 0.35 * len(draw)
    assert perturbed(rows, seed=1) == perturbed(rows)
    labels = [[row["label"] for row in perturbed(rows, rate=1, seed=seed)] for seed in (1, 2)]
    assert labels[0] != labels[1]


@pytest.mark.parametrize("stream", [False, True])
def test_new_labels_are_uniform_over_the_others(stream: bool) -> None:
    from scipy.stats import chisquare

    classes = ("a", "b", "c", "d") if stream else None
    rows = perturbed([{"label": row["label"]} for row in many(20_000)], rate=0.5, stream=stream, classes=classes)
    for original in "abcd":
        drawn = Counter(row["label"] for row in rows if row["noisy"] and row["original_label"] == original)
        assert original not in drawn
        assert chisquare(list(drawn.values())).pvalue > 1e-3


def test_rows_are_chosen_uniformly() -> None:
    from scipy.stats import chisquare

    rows = perturbed([{"label": "ab"[i % 2]} for i in range(20_000)], rate=0.15)
    by_tenth = Counter(i // 2000 for i, row in enumerate(rows) if row["noisy"])
    assert chisquare([by_tenth[i] for i in range(10)]).pvalue > 1e-3
    times_drawn = Counter(
        row["id"] for s in range(200) for row in perturbed(labelled(*"ab" * 10), rate=0.5, seed=s) if row["noisy"]
    )
    assert chisquare([times_drawn[f"r{i}"] for i in range(20)]).pvalue > 1e-3


@given(st.lists(st.integers(-(2**63), 2**64 - 1) | st.text(), unique=True), st.integers(0, 9))
def test_hashes_of_many_ids_equal_those_of_one(ids: list[RowId], seed: int) -> None:
    assert keyed_hashes(ids, "purpose", seed).tolist() == list(map(keyed_hash("purpose", seed), ids))
    assert [ids[i] for i in ranked(ids, "purpose", seed)] == sorted(ids, key=keyed_hash("purpose", seed))


def test_hashes_scatter_every_bit() -> None:
    words = keyed_hashes(range(40_000), "purpose", 1)
    for bit in range(64):
        assert 0.485 < float((words >> bit & 1).mean()) < 0.515
    assert (words != keyed_hashes(range(40_000), "other", 1)).all()
    assert (words != keyed_hashes(range(40_000), "purpose", 2)).all()


def test_draw_is_pinned() -> None:
    """The draw of a seed must never change from one version to the next."""
    rows = perturbed([{"label": label} for label in "abcabcabcabcabcabcabc"], rate=0.3)
    assert {row["id"]: row["label"] for row in rows if row["noisy"]} == PINNED


PINNED = {8: "b", 10: "a", 11: "a", 12: "b", 13: "a", 15: "c"}


# -- what is in a row ---------------------------------------------------------------------------------
SPACE = st.sampled_from(["", " ", "  ", "\t"])
TEXT = st.text() | st.sampled_from(['"label"', '"label": "a"', 'label"', "label", "\\", '\\"', "}", ',"label":1}'])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("label") | TEXT, inner, max_size=3),
    max_leaves=6,
)
KEY = st.text(max_size=3) | st.sampled_from(["labels", "Label", 'a"label', "label "])
OURS = ("label", "id", "original_label", "noisy")
SPELLINGS = ('"label"', '"l\\u0061bel"', '"\\u006cabe\\u006C"')


@st.composite
def json_lines(draw: st.DrawFn) -> tuple[str, str, str]:
    """A JSON line in three: before its label's value, the value, after it."""
    members = draw(st.dictionaries(KEY.filter(lambda key: key not in OURS), VALUE, max_size=4))
    parts = [f"{json.dumps(k)}{draw(SPACE)}:{draw(SPACE)}{_spaced(draw, v)}" for k, v in members.items()]
    key = f"{draw(st.sampled_from(SPELLINGS))}{draw(SPACE)}:{draw(SPACE)}"
    place = draw(st.integers(0, len(parts)))
    label = draw(st.sampled_from("ab"))
    spelling = draw(st.sampled_from([f'"{label}"', f'"\\u00{ord(label):02x}"']))
    before = "".join(f"{part},{draw(SPACE)}" for part in parts[:place])
    after = "".join(f",{draw(SPACE)}{part}" for part in parts[place:])
    return draw(SPACE) + "{" + draw(SPACE) + before + key, spelling, draw(SPACE) + after + draw(SPACE) + "}"


def _spaced(draw: st.DrawFn, value: object) -> str:
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :  ")]))
    return json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans()))


@given(st.lists(json_lines(), min_size=2, max_size=8), st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=40)
def test_no_other_byte_changes(lines: list[tuple[str, str, str]], rate: float) -> None:
    lines += [('{"label":', '"a"', "}"), ('{"label":', '"b"', "}")]
    data = "".join("".join(line) + "\n" for line in lines).encode("utf-8", "surrogatepass")
    result = lines_of(data, rate=rate)
    for number, ((before, label, after), line) in enumerate(zip(lines, result, strict=True)):
        row = json.loads(line)
        value = json.dumps(row["label"]) if row["noisy"] else label
        added = f',"id":{number},"original_label":{json.dumps(json.loads(label))},"noisy":{json.dumps(row["noisy"])}}}'
        assert line.decode("utf-8", "surrogatepass") == before + value + after[:-1] + added


@given(json_lines(), st.sampled_from(['"c"', "7"]))
def test_replace_value_changes_the_top_level_value_only(line: tuple[str, str, str], value: str) -> None:
    before, label, after = line
    changed = replace_value((before + label + after).encode(), "label", value.encode())
    assert changed.decode() == before + value + after


def test_id_is_added_where_it_is_missing(cli: Cli) -> None:
    result = cli("perturb", "--rate", "0", stdin=b'{"label":0,"id":"x"}\n\n{"label":1}\n')
    assert result.out.splitlines() == [
        '{"label":0,"id":"x","original_label":0,"noisy":false}',
        '{"label":1,"id":1,"original_label":1,"noisy":false}',
    ]
    assert result.err.startswith("perturb: rows=2 noisy=0 ")


def test_b06_unlabelled_rows_pass_untouched(cli: Cli) -> None:
    lines = ['{ "id" :7, "label" : null }', '{"label":-1,"id":"u","x": [ ] }']
    rows = [*lines, *(json.dumps(row) for row in labelled(*"abababab"))]
    result = cli("perturb", "--rate", "0.5", stdin="\n".join(rows))
    assert result.out.splitlines()[:2] == lines
    assert "rows=10 noisy=4 unlabelled=2" in result.err
    assert json.loads(
        cli("perturb", "--rate", "0", stdin='{"label":null}\n{"label":0}\n{"label":1}').out.split("\n")[0]
    ) == {
        "label": None,
        "id": 0,
    }


def test_integers_stay_integers_and_text_stays_text() -> None:
    assert {type(row["label"]) for row in perturbed(labelled(*[0, 1, 2] * 5), rate=0.5)} == {int}
    assert {row["label"] for row in perturbed(labelled(*["0", "01"] * 5), rate=0.5)} == {"0", "01"}


def test_booleans_and_whole_floats_come_out_as_integers() -> None:
    for labels in ([True, False] * 5, [1.0, 0.0] * 5):
        rows = perturbed(labelled(*labels), rate=0.4)
        assert {type(row[key]) for row in rows for key in ("label", "original_label")} == {int}


def test_another_label_column() -> None:
    columns = Columns(label="gold")
    rows = lines_of(b'{"label":"x","gold":"a"}\n{"gold":"b","label":"x"}\n', columns, rate=1)
    assert [json.loads(row) for row in rows] == [
        {"label": "x", "gold": "b", "id": 0, "original_label": "a", "noisy": True},
        {"label": "x", "gold": "a", "id": 1, "original_label": "b", "noisy": True},
    ]


# -- what is refused ----------------------------------------------------------------------------------
@pytest.mark.parametrize("column", ["original_label", "noisy"])
def test_rows_perturbed_before_are_refused(cli: Cli, column: str) -> None:
    rows = [{"label": 0}, {"label": 1, column: 0}]
    result = cli("perturb", stdin="".join(json.dumps(row) + "\n" for row in rows))
    assert (result.code, result.out) == (3, "")
    assert result.err == f'mltools: stdin:2: has "{column}" already; perturb rows only once\n'


def test_perturbing_twice_is_refused(tmp_path: Path, cli: Cli) -> None:
    assert cli("perturb", write_jsonl(tmp_path / "rows.jsonl", many(20)), "-o", tmp_path / "noisy.jsonl").code == 0
    assert cli("perturb", tmp_path / "noisy.jsonl").code == 3


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"rate": 1.01}, UsageError, "--rate 1.01: write a number from 0 to 1"),
        ({"rate": float("nan")}, UsageError, "--rate nan: write a number from 0 to 1"),
        ({"stream": True}, UsageError, "name all classes with --classes"),
        ({"stream": True, "classes": ("a", "b"), "top_classes": 2}, UsageError, "leave --top-classes"),
        ({"top_classes": 1}, UsageError, "--top-classes 1: write a whole number from 2 up"),
        ({"top_classes": 3}, RowsError, "2 classes, fewer than --top-classes 3"),
        ({"classes": ("a",)}, RowsError, 'label "b" is not among --classes'),
        ({"split_from": 9}, UsageError, "--draw python"),
        ({"stream": True, "classes": ("a", "c")}, RowsError, 'label "b" (id "r1") is not among --classes'),
    ],
)
def test_what_cannot_be_meant(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        perturbed(labelled("a", "b", "a"), **changes)
    assert text in str(caught.value)


def test_one_class_only(cli: Cli) -> None:
    result = cli("perturb", stdin=b'{"label":"x"}\n{"label":"x"}\n')
    assert (result.code, result.out) == (3, "")
    assert result.err == "mltools: stdin: one class only (x); a wrong label needs two classes\n"
    assert cli("perturb", "--classes", "x,y", "--rate", "1", stdin=b'{"label":"x"}\n').records[0]["label"] == "y"


# -- --stream and --top-classes -----------------------------------------------------------------------
def test_stream_draws_at_the_rate() -> None:
    rows = perturbed(many(20_000), rate=0.15, stream=True, classes=("a", "b", "c", "d"))
    assert 0.14 < sum(row["noisy"] for row in rows) / len(rows) < 0.16
    assert not any(row["noisy"] for row in perturbed(many(99), rate=0, stream=True, classes=("a", "b", "c", "d")))
    assert all(row["noisy"] for row in perturbed(many(99), rate=1, stream=True, classes=("a", "b", "c", "d")))


def test_stream_of_parts_equals_stream_of_the_whole(tmp_path: Path, cli: Cli) -> None:
    rows = many(300)
    parts = [
        cli("perturb", "--stream", "--classes", "a,b,c,d", write_jsonl(tmp_path / f"{i}", rows[i : i + 100]))
        for i in (0, 100, 200)
    ]
    whole = cli("perturb", "--stream", "--classes", "a,b,c,d", write_jsonl(tmp_path / "all", rows))
    assert "".join(part.out for part in parts) == whole.out


def test_stream_writes_before_its_input_ends(tmp_path: Path) -> None:
    words = [*MLTOOLS, "perturb", "--stream", "--classes", "a,b", "--rate", "0"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for i in range(3):
            process.stdin.write(b'{"label":"a"}\n')
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == i
        process.stdin.close()
        assert process.wait(30) == 0


def test_top_classes_keeps_the_most_frequent(tmp_path: Path, cli: Cli) -> None:
    rows = labelled(*"aabbbbccccccd", None)
    result = cli("perturb", "--top-classes", "2", "--rate", "0.5", write_jsonl(tmp_path / "rows.jsonl", rows))
    assert Counter(row["original_label"] for row in result.records) == {"b": 4, "c": 6}
    assert [row["id"] for row in result.records] == [row["id"] for row in rows if row["label"] in ("b", "c")]
    assert {row["label"] for row in result.records} == {"b", "c"}
    assert "left_out=4" in result.err
    ties = perturbed(labelled(*"ddccbb"), top_classes=2, rate=0)
    assert {row["label"] for row in ties} == {"b", "c"}


# -- the released draws -------------------------------------------------------------------------------
def golden() -> Iterator[Any]:
    yield from json.loads((CONFORMANCE / "golden.json").read_text())["perturb"]


def released(labels: Sequence[int], **changes: Any) -> Table:
    config = settle("perturb", "released-code", **changes)
    data = "".join(json.dumps({"label": label}) + "\n" for label in labels).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return [json.loads(bytes(line)) for line in perturb(Rows("-"), config)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "case", [case for case in golden() if "train_labels_all" not in case], ids=lambda c: c["dataset"]
)
def test_released_draws(case: Any) -> None:
    generator = random.Random(7)  # the case's own recipe, where it does not list its labels
    labels = case.get("train_labels") or [generator.randrange(2) for _ in range(case["n"])]
    rows = released(labels)
    noisy = [row["id"] for row in rows if row["noisy"]]
    assert noisy[: len(case["noisy_sorted"])] == case["noisy_sorted"]
    assert len(noisy) == sum(int(0.15 * n) for n in Counter(labels).values())
    assert {key: rows[int(key)]["label"] for key in case["new_labels"]} == case["new_labels"]


def test_released_draw_after_the_80_20_split() -> None:
    (case,) = (case for case in golden() if "train_labels_all" in case)
    labels = [case["train_labels_all"][int(sentence[1:])] for sentence in case["train_sentences"]]
    kept = sum(label < 2 for label in case["train_labels_all"])
    assert len(labels) == int(0.8 * kept)
    rows = released(labels, split_from=kept)
    assert [row["id"] for row in rows if row["noisy"]] == case["noisy_sorted"]
    assert [row["id"] for row in released(labels) if row["noisy"]] != case["noisy_sorted"]


def test_released_preset_through_the_program(tmp_path: Path, cli: Cli) -> None:
    case = next(golden())
    rows = [{"text": f"s{i}", "label": label} for i, label in enumerate(case["train_labels"])]
    path = write_jsonl(tmp_path / "cola.jsonl", rows)
    result = cli("perturb", "--preset", "released-code", path)
    assert [row["id"] for row in result.records if row["noisy"]] == case["noisy_sorted"]
    assert "preset=released-code" in result.err
    assert cli("perturb", "--draw", "python", path).out == result.out != cli("perturb", path).out


# -- a matrix of rates --------------------------------------------------------------------------------
MATRIX = {"a": {"b": 0.2, "c": 0.1}, "b": {"a": 0.05}}


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_matrix_of_rates_gives_exact_counts(form: str, tmp_path: Path, cli: Cli) -> None:
    """floor(rate x size) rows of each class to each label; the same in any order of the rows; c stays as it is."""
    rows = [{"id": f"r{i}", "label": "abc"[i % 3]} for i in range(123)]
    file = tmp_path / f"rates.{form}"
    file.write_text(json.dumps(MATRIX, indent=1) if form == "json" else ",a,b,c\na,.7,.2,.1\nb,.05,.95,0\n")
    done = cli(
        "perturb", write_jsonl(tmp_path / "rows.jsonl", rows), "--transition", file, "--provenance", tmp_path / "p"
    )
    changed = Counter((row["original_label"], row["label"]) for row in done.records if row["noisy"])
    assert changed == {("a", "b"): 8, ("a", "c"): 4, ("b", "a"): 2}, done.err
    back = cli("perturb", write_jsonl(tmp_path / "back.jsonl", rows[::-1]), "--transition", file)
    assert back.records[::-1] == done.records
    how = json.loads((tmp_path / "p").read_text())
    assert how["inputs"]["transition"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    other = cli("perturb", tmp_path / "rows.jsonl", "--transition", file, "--seed", 2)
    assert other.records != done.records and sum(row["noisy"] for row in other.records) == 14


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": {"b": 0.6, "c": 0.5}}', "not 0-1 with a sum up to 1"),
        ('{"a": {"b": -0.1}}', "not 0-1"),
        ('{"a": {"b": "many"}}', "is no number"),
        ('{"z": {"b": 0.1}}', 'no row has the class "z" (there are a, b; --classes'),
        ('{"a": 0.1}', "has no object of rates"),
        ('{"a": {"b"', "not JSON"),
        ('{"a": {"y": 0.1}}', 'no row has the class "y" (there are a, b; --classes names others)'),
        ('{"a": {"b": 0.1, "b": 0.2}}', 'the key "b" stands twice'),
        ("from,a,b\na,0,.1\na,0,.2\n", 'm.csv:3: the class "a" stands there twice'),
        ("from,a,b\na,0,nan\n", "not 0-1"),
        ("", "no rates in it"),
        ("from,a,b\n", "no rates in it"),
    ],
)
def test_a_matrix_that_cannot_be_meant(text: str, message: str, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / f"m.{'json' if text.startswith('{') else 'csv'}"
    file.write_text(text)
    rows = write_jsonl(tmp_path / "rows.jsonl", labelled(*"abab"))
    done = cli("perturb", rows, "--transition", file)
    assert done.code == 3 and message in done.err, done.err
    assert cli("perturb", rows, "--transition", file, "--rate", 0.1).code == 2


def test_a_class_that_only_wrong_labels_have_is_named(tmp_path: Path, cli: Cli) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"id": i, "label": "ab"[i % 2]} for i in range(20)])
    (tmp_path / "m.json").write_text('{"a": {"other": 0.2}}')
    done = cli("perturb", rows, "--transition", tmp_path / "m.json", "--classes", "a,b,other")
    assert Counter(row["label"] for row in done.records) == {"a": 8, "b": 10, "other": 2}, done.err


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize("way", ["stdin", "pipe"])
def test_a_matrix_of_rates_from_a_stream(way: str, form: str, tmp_path: Path, cli: Cli) -> None:
    """Read once, and digested as it was read."""
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"id": i, "label": "abc"[i % 3]} for i in range(60)])
    text = json.dumps(MATRIX).encode() if form == "json" else b",a,b,c\na,.7,.2,.1\nb,.05,.95,0\n"
    name, fed = "-", {"stdin": text}
    if way == "pipe":
        name, fed = str(tmp_path / "pipe"), {}
        os.mkfifo(name)
        Thread(target=(tmp_path / "pipe").write_bytes, args=(text,), daemon=True).start()
    done = cli("perturb", rows, "--transition", name, "--provenance", tmp_path / "p", **fed)
    assert sum(row["noisy"] for row in done.records) == 4 + 2 + 1, done.err
    how = json.loads((tmp_path / "p").read_text())
    assert how["inputs"]["transition"]["sha256"] == hashlib.sha256(text).hexdigest()


# -- formats ------------------------------------------------------------------------------------------
def test_jsonl_to_parquet_and_back(tmp_path: Path, cli: Cli) -> None:
    rows = [
        {
            "text": f"né {i}",
            "label": "ab"[i % 2],
            "n": i,
            "f": i / 2,
            "list": [i],
            "deep": {"x": [None, i]},
            "none": None,
        }
        for i in range(40)
    ]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert cli("perturb", path, "-o", tmp_path / "noisy.parquet").code == 0
    pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
    straight = cli("perturb", path).records
    assert pl.read_parquet(tmp_path / "noisy.parquet").to_dicts() == straight
    assert cli("perturb", tmp_path / "rows.parquet").records == straight


def test_late_keys_reach_parquet(tmp_path: Path, cli: Cli) -> None:
    rows = [{"label": i % 2} for i in range(150)] + [{"label": i % 2, "late": i} for i in range(50)]
    assert cli("perturb", write_jsonl(tmp_path / "rows.jsonl", rows), "-o", tmp_path / "noisy.parquet").code == 0
    assert pl.read_parquet(tmp_path / "noisy.parquet")["late"].to_list() == [None] * 150 + list(range(50))


@pytest.mark.parametrize("values", [(1, "a"), (True, 2), ({"a": 1}, 3), ([1], ["a"]), ({"a": 1}, {"a": "b"})])
def test_mixed_types_are_not_forced_into_parquet(tmp_path: Path, cli: Cli, values: tuple[object, object]) -> None:
    rows = [{"label": i, "x": value} for i, value in enumerate(values)]
    result = cli("perturb", write_jsonl(tmp_path / "rows.jsonl", rows), "-o", tmp_path / "noisy.parquet")
    assert result.code == 3
    assert "write JSONL instead" in result.err
    assert not (tmp_path / "noisy.parquet").exists()


@pytest.mark.parametrize("kind", [pl.Enum(["b", "a"]), pl.Categorical, pl.String])
def test_b40_parquet_keeps_types_columns_and_metadata(tmp_path: Path, cli: Cli, kind: Any) -> None:
    import datetime
    from decimal import Decimal

    n = 40
    frame = pl.DataFrame(
        {
            "label": pl.Series(["a", "b"] * (n // 2), dtype=kind),
            "when": [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)] * n,
            "money": [Decimal("1.50")] * n,
            "raw": [b"\xff\x00"] * n,
            "empty": pl.Series([[]] * n, dtype=pl.List(pl.Int8)),
            "small": pl.Series(range(n), dtype=pl.UInt8),
            "nan": [float("nan")] * n,
        }
    )
    names = json.dumps({"info": {"features": {"label": {"names": ["b", "a"]}}}})
    frame.write_parquet(tmp_path / "rows.parquet", metadata={"huggingface": names, "mine": "é"})
    assert cli("perturb", tmp_path / "rows.parquet", "-o", tmp_path / "noisy.parquet").code == 0
    noisy = pl.read_parquet(tmp_path / "noisy.parquet")
    assert noisy.columns == [*frame.columns, "id", "original_label", "noisy"]
    assert noisy.drop("label", "id", "original_label", "noisy").equals(frame.drop("label"))
    assert noisy.schema["label"] == noisy.schema["original_label"] == frame.schema["label"]
    assert noisy["original_label"].to_list() == frame["label"].to_list()
    assert int(noisy["noisy"].sum()) == 6
    metadata = pl.read_parquet_metadata(tmp_path / "noisy.parquet")
    assert (metadata["huggingface"], metadata["mine"]) == (names, "é")
    provenance = json.loads(metadata["mltools"])
    assert (provenance["tool"], provenance["seed"], provenance["settings"]["rate"]) == ("perturb", 1, 0.15)


def test_parquet_top_classes_and_unlabelled_rows(tmp_path: Path, cli: Cli) -> None:
    frame = pl.DataFrame({"id": range(100, 112), "label": pl.Series([0, 0, 1, 1, 1, 2] * 2, dtype=pl.Int8)})
    frame.write_parquet(tmp_path / "rows.parquet")
    assert cli("perturb", tmp_path / "rows.parquet", "--top-classes", "2", "-o", tmp_path / "two.parquet").code == 0
    two = pl.read_parquet(tmp_path / "two.parquet")
    assert two["id"].to_list() == frame.filter(pl.col("label") < 2)["id"].to_list()
    assert two.schema["original_label"] == pl.Int8
    pl.DataFrame({"label": ["a", None, "b"]}).write_parquet(tmp_path / "rows.parquet")
    rows = cli("perturb", tmp_path / "rows.parquet").records
    assert rows[1] == {"label": None, "id": 1, "original_label": None, "noisy": None}


def test_parquet_values_in_json(tmp_path: Path, cli: Cli) -> None:
    import datetime
    from decimal import Decimal

    frame = pl.DataFrame(
        {
            "label": [0, 1],
            "when": [datetime.date(2020, 1, 2)] * 2,
            "money": [Decimal("1.5")] * 2,
            "f": [float("nan"), 0.1],
        }
    )
    frame.write_parquet(tmp_path / "rows.parquet")
    first, second = cli("perturb", tmp_path / "rows.parquet").records
    assert (first["when"], first["money"], first["f"], second["f"]) == ("2020-01-02", "1.5", None, 0.1)
    frame.with_columns(raw=pl.lit(b"\xff")).write_parquet(tmp_path / "rows.parquet")
    result = cli("perturb", tmp_path / "rows.parquet")
    assert (result.code, "write Parquet" in result.err) == (3, True)


# -- outputs ------------------------------------------------------------------------------------------
def test_output_that_exists(tmp_path: Path, cli: Cli) -> None:
    rows, out = write_jsonl(tmp_path / "rows.jsonl", many(20)), tmp_path / "noisy.jsonl"
    out.write_text("precious")
    result = cli("perturb", rows, "-o", out)
    assert (result.code, result.err) == (
        2,
        f"mltools: {out} exists; overwrite it with --force, or choose another path\n",
    )
    assert out.read_text() == "precious"
    assert cli("perturb", rows, "-o", out, "--force").code == 0
    assert out.read_text() == cli("perturb", rows).out


@pytest.mark.parametrize("link", [False, True])
def test_output_that_is_the_input(tmp_path: Path, cli: Cli, link: bool) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", many(20))
    before = rows.read_bytes()
    out = rows
    if link:
        out = tmp_path / "link.jsonl"
        out.symlink_to(rows)
    result = cli("perturb", rows, "-o", out, "--force")
    assert (result.code, result.err) == (2, f"mltools: {out} is an input; write to another path\n")
    assert rows.read_bytes() == before


def test_hard_link_of_the_input(tmp_path: Path, cli: Cli) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", many(20))
    before = rows.read_bytes()
    os.link(rows, tmp_path / "same.jsonl")
    assert cli("perturb", rows, "-o", tmp_path / "same.jsonl", "--force").code == 0
    assert rows.read_bytes() == before


def test_bad_rows_leave_the_old_output(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "noisy.jsonl"
    out.write_text("precious")
    assert cli("perturb", "-o", out, "--force", stdin=b'{"label":1}\n{"label":0}\nbad\n').code == 3
    assert (out.read_text(), [p.name for p in tmp_path.iterdir()]) == ("precious", ["noisy.jsonl"])


@pytest.mark.parametrize("name", ["noisy.jsonl.gz", "noisy.ndjson.zst", "noisy.csv", "noisy.parquet", "noisy"])
def test_outputs_by_their_names(name: str, tmp_path: Path, cli: Cli) -> None:
    """Whatever form is written is read back as the same rows; another ending is refused before any work."""
    path = write_jsonl(tmp_path / "rows.jsonl", many(40))
    for out in (tmp_path / name, tmp_path / f"again-{name}"):
        assert cli("perturb", path, "-o", out).code == 0
    assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes() or name.endswith("parquet")
    read = [row for block in Rows(tmp_path / name).blocks() for row in block.values]
    assert read == cli("perturb", path).records
    assert cli("perturb", tmp_path / "none.jsonl", "-o", tmp_path / "noisy.txt").code == 2


def test_full_disk(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", many(2000))
    for out in ("/dev/full", "full.parquet"):
        if out.endswith("parquet"):
            (tmp_path / out).symlink_to("/dev/full")
        result = run("perturb", rows, "-o", out, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (6, b"")
        assert result.stderr.count(b"\n") == 1
        assert b"o space left on device" in result.stderr
    with Path("/dev/full").open("wb") as full:
        result = run("perturb", rows, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert (result.returncode, result.stderr.count(b"\n")) == (6, 1)


def test_reader_that_goes_early(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", many(30_000))
    for options in ("", "--stream --classes a,b,c,d", "-o /dev/stdout --force"):
        script = f"{' '.join(MLTOOLS)} perturb {rows} {options} | head -1; echo ${{PIPESTATUS[*]}}"
        result = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
        first, status = result.stdout.splitlines()
        assert json.loads(first)["id"] == "r0"
        assert (status, result.stderr) == (b"0 0", b"")


def test_summary_and_provenance(tmp_path: Path, cli: Cli) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", many(40, ("a", "b")))
    result = cli("perturb", rows, "--seed", "3", "--provenance", tmp_path / "how.json")
    made = json.loads((tmp_path / "how.json").read_text())
    assert made["seed"] == 3
    assert made["inputs"]["rows"]["sha256"] == Rows(rows).digest
    noisy = sum(floor(0.15 * n) for n in Counter(row["label"] for row in many(40, ("a", "b"))).values())
    assert result.err.startswith(f"perturb: rows=40 noisy={noisy} rate=0.15 seed=3 preset=paper seconds=")
    assert cli("perturb", rows, "-q", "--seed", "3").err == ""


@pytest.mark.slow
def test_a_million_rows_in_less_than_a_gibibyte(tmp_path: Path) -> None:
    row = '{"text":"' + "x" * 70 + '","label":"%s"}\n'
    with (tmp_path / "rows.jsonl").open("w") as stream:
        stream.writelines(row % "abcd"[i % 4] for i in range(1_000_000))
    script = f"{' '.join(MLTOOLS)} perturb rows.jsonl -o noisy.jsonl"
    measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1], shell=True, check=True); "
    measure += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    result = subprocess.run([sys.executable, "-c", measure, script], cwd=tmp_path, capture_output=True, check=True)
    assert int(result.stdout) < (1 << 20)
    count = Count()
    assert sum(1 for _ in perturb(Rows(tmp_path / "rows.jsonl"), bare(PerturbSettings), count)) == 1_000_000
    assert count.noisy == 150_000


def test_an_integer_and_its_text_draw_apart(tmp_path: Path, cli: Cli) -> None:
    """Else the order of the rows would decide which of the two is noisy."""
    ids = [each for number in range(10) for each in (number, str(number))]
    rows = [{"id": row_id, "text": "a", "label": "ab"[i // 2 % 2]} for i, row_id in enumerate(ids)]
    found = []
    for ordered in (rows, rows[::-1]):
        done = cli("perturb", write_jsonl(tmp_path / "rows.jsonl", ordered), "--rate", ".3")
        found.append({json.dumps(row["id"]): row["noisy"] for row in done.records})
    assert found[0] == found[1] and sum(found[0].values()) == 6
    assert any(found[0][str(number)] != found[0][json.dumps(str(number))] for number in range(10))
