"""Hostile input: whatever bytes the readers get, they return or say in one line what is wrong. See scripts/fuzz.py."""

import bz2
import json
import lzma
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conftest import Cli
from fuzz_targets import CORPUS, TARGETS, run

SEEDS = [path for target in TARGETS for path in sorted((CORPUS / target).iterdir())]
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SLOW = settings(QUICK, max_examples=15)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
row_columns = st.sampled_from(["text", "label", "original_label", "noisy", "id", "a", "b", "y"])
record_columns = st.sampled_from(
    ["tool", "layer", "layers", "score", "start", "end", "width", "window", "memorisation_error", "model", "part"]
)


def lines(columns: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """JSON lines of odd values in the columns that count, after the byte that chooses."""
    line = st.dictionaries(columns, values, max_size=6).map(lambda row: json.dumps(row).encode())
    return st.builds(lambda first, rows: first + b"\n".join(rows), st.binary(min_size=1, max_size=1), st.lists(line))


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_corpus(path: Path) -> None:
    """Inputs that were interesting once: they return, or are refused in one line."""
    error = run(path.parent.name, path.read_bytes())
    assert error is None or "Traceback" not in str(error)


@QUICK
@given(st.binary(max_size=300) | lines(row_columns))
@example(b"\x00" + b'{"text":"a","label":' + b"[" * 100_000)
def test_rows(data: bytes) -> None:
    run("rows", data)


@QUICK
@given(st.binary(max_size=60) | st.text("0123456789,- \u0663x", max_size=30).map(lambda text: b"\x0c" + text.encode()))
@example(b"\x001-99999999999999999999")
def test_layers(data: bytes) -> None:
    run("layers", data)


@QUICK
@given(st.binary(max_size=300) | lines(record_columns))
def test_records(data: bytes) -> None:
    run("records", data)


@QUICK
@given(
    st.integers(0, 5),
    st.sampled_from(["plain", "nested", "deltas", "version-2"]),
    st.integers(4, 2000),
    st.binary(min_size=1, max_size=40),
)
def test_parquet(reader: int, name: str, at: int, piece: bytes) -> None:
    """Bytes written over a file, for each reader."""
    data = bytearray((CORPUS / "parquet" / name).read_bytes())
    at %= len(data)
    data[at : at + len(piece)] = piece
    run("parquet", bytes([reader]) + bytes(data[1:]))


@pytest.mark.parametrize("words", ["perturb", "mcog", "inspect", "prepare sst2 --from"])
@pytest.mark.parametrize("name", sorted(path.name for path in (CORPUS / "parquet").glob("ends-polars-*")))
def test_damaged_parquet_is_one_line_and_status_3(cli: Cli, tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes((CORPUS / "parquet" / name).read_bytes()[1:])
    result = cli(*words.split(), path)
    assert (result.code, result.out, result.err.count("\n")) == (3, "", 1), result.err
    assert "rows.parquet: not a readable Parquet file" in result.err


def many_rows(path: Path) -> None:
    rows = pa.nulls(3_000_000, pa.int64())
    pq.write_table(pa.table({"text": rows, "label": rows}), path)


def long_texts(path: Path, *, categories: bool = False) -> None:
    """8 MiB once, and ten thousand rows that have it."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array(["a" * (1 << 23)]))
    table = pa.table({"text": texts, "label": ["a", "b"] * 5_000})
    pq.write_table(table, path, compression="zstd", store_schema=categories, dictionary_pagesize_limit=1 << 30)


BOMBS: dict[str, Callable[[Path], None]] = {
    "rows": many_rows,
    "texts": long_texts,
    "categories": partial(long_texts, categories=True),
}


@pytest.mark.parametrize("name", ["rows", "categories", pytest.param("texts", marks=pytest.mark.slow)])
def test_parquet_that_unpacks_to_far_too_much(tmp_path: Path, name: str) -> None:
    """In a process of its own, whose memory is looked at: under 2 GiB, though 80 GB are asked for."""
    path = tmp_path / "rows.parquet"
    BOMBS[name](path)
    assert path.stat().st_size < 20_000
    code = (
        "import resource, sys; from mltools.cli import main; status = main(['perturb', sys.argv[1]]);"
        "print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    status, peak = map(int, done.stdout.split())
    assert status == 3 and "it asks for more memory than 1000 times its size" in done.stderr
    assert peak < 2 << 20


headers = st.dictionaries(
    st.sampled_from(["hidden_states", "label", "ids", "noisy", "__metadata__", "x"]),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "I64", "BOOL", "U8", "F16", "BF16", "nonsense"]),
            "shape": st.lists(st.integers(-1, 1 << 62) | st.integers(0, 4), max_size=4),
            "data_offsets": st.lists(st.integers(-1, 64), min_size=2, max_size=2),
        }
    )
    | values,
)


@QUICK
@given(
    st.builds(
        lambda head, body: len(head).to_bytes(8, "little") + head + body,
        headers.map(lambda h: json.dumps(h).encode()),
        st.binary(max_size=64),
    )
)
def test_tensors(data: bytes) -> None:
    run("tensors", data)


@QUICK
@given(
    st.binary(max_size=100)
    | st.dictionaries(st.sampled_from(["weight_map", "metadata"]), values).map(lambda v: json.dumps(v).encode())
    | st.dictionaries(st.text(max_size=3), st.text(max_size=9)).map(lambda v: json.dumps({"weight_map": v}).encode())
)
def test_index(data: bytes) -> None:
    run("index", data)


@SLOW
@given(
    st.dictionaries(
        st.sampled_from(sorted(json.loads((CORPUS / "config" / "bert").read_bytes()))), values, min_size=1, max_size=2
    )
)
def test_config(changes: dict[str, object]) -> None:
    config = json.loads((CORPUS / "config" / "bert").read_bytes())
    run("config", json.dumps({**config, **changes}).encode())


def test_text_from_files_cannot_command_the_terminal(cli: Cli, tmp_path: Path) -> None:
    """Escapes in rows, records, names of columns and of files come out escaped on stderr."""
    escape = "\x1b]0;owned\x07\x1b[31m\u202e"
    rows = tmp_path / f"rows{escape}.jsonl"
    rows.write_text(json.dumps({escape: "x", "label": escape}) + "\n")
    records = tmp_path / "records.jsonl"
    records.write_text(json.dumps({"tool": escape, "layer": 1, "layers": 1, "score": 0, escape: escape}) + "\n")
    for words in (
        ("perturb", rows, "--label", "y"),
        ("perturb", rows),
        ("mcog", records),
        ("mcog", records, "--by", escape),
    ):
        result = cli(*words)
        assert result.code == 3 or "--by" in words, result.err
        assert not any((ord(c) < 32 and c != "\n") or c == "\u202e" for c in result.err), result.err


PACKERS: dict[str, Callable[[], Any]] = {
    "gz": partial(zlib.compressobj, 9, zlib.DEFLATED, 31),
    "zst": lambda: zstandard.ZstdCompressor().compressobj(),
    "bz2": bz2.BZ2Compressor,
    "xz": partial(lzma.LZMACompressor, preset=0),
}


@pytest.mark.parametrize("form", PACKERS)
def test_k10_a_small_file_that_unpacks_to_gigabytes(form: str, cli: Cli, tmp_path: Path) -> None:
    """Bounded memory and time, whatever packed it; a real file of any such kind is read."""
    packer, block = PACKERS[form](), bytes(1 << 24)
    rows = b"".join(b'{"text":"t %d","label":"%c"}\n' % (i, 97 + i % 2) for i in range(40))
    good = PACKERS[form]()
    (tmp_path / f"good.{form}").write_bytes(good.compress(rows) + good.flush())
    done = cli("perturb", tmp_path / f"good.{form}")
    assert done.code == 0 and len(done.records) == 40, done.err
    packed = b"".join(packer.compress(block) for _ in range(5)) + packer.flush()
    assert len(packed) < 1 << 17
    bomb = tmp_path / f"bomb.{form}"
    bomb.write_bytes(packed)
    tracemalloc.start()
    done = cli("perturb", bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (done.code, done.out) == (3, "") and done.err.endswith("unpack it first if that is meant\n"), done.err
    assert peak < 1 << 28
