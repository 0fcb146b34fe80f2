"""What is fuzzed: each target takes bytes, and may only return or raise an error that is meant for people.

Used by tests/test_fuzz.py, a little, and by scripts/fuzz.py, a lot.
"""

import atexit
import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from mltools.analysis.centre_of_gravity import mcog
from mltools.commands.inspect.file import inspect_file
from mltools.commands.perturb import Settings as PerturbSettings
from mltools.commands.perturb.work import perturb
from mltools.errors import MltoolsError, RowsError
from mltools.io.columns import Columns
from mltools.io.examples import read_examples
from mltools.io.inputs import Rows
from mltools.io.provenance import Provenance
from mltools.io.records import Records
from mltools.io.rewrite import dump_row, write_parquet_rows
from mltools.io.rows import iter_blocks, iter_rows
from mltools.io.source import Source
from mltools.layers import parse_layers, parse_windows
from mltools.spec import bare

CORPUS = Path(__file__).parent / "corpus"


class Memory(Source):
    """A source of rows that are bytes in memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__("/nowhere/rows")
        self._data = data

    def _open_raw(self) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._data))


def rows(data: bytes) -> None:
    """JSON lines, plain or compressed; the first byte chooses the columns that are meant."""
    if data[1:5] != b"PAR1":
        kinds = (Columns(), Columns(label_type="str"), Columns(text=("a", "b"), label="y"))
        _examples(Memory(data[1:]), kinds[data[0] % len(kinds)] if data else Columns())


def parquet(data: bytes) -> None:
    """A Parquet file; the first byte chooses who reads it."""
    readers = (*FROM_STREAM, *FROM_FILE)
    reader = readers[data[0] % len(readers)] if data else _examples
    if reader in FROM_STREAM:
        return reader(Memory(data[1:]))
    with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=".parquet", dir=_memory()) as file:
        file.write(data[1:])
        file.flush()
        reader(Source(file.name))


def _examples(source: Source, columns: Columns = Columns()) -> None:
    examples = read_examples(Rows(source, columns))
    assert len(examples) == len(examples.texts("|")) == len(set(examples.ids))


def _records(source: Source) -> None:
    for record, tags in mcog(Records(source, block.numbers, block.values) for block in iter_blocks(source)):
        json.dumps([record.m_cog, tags], allow_nan=False)


def _inspected(source: Source) -> None:
    json.dumps(asdict(inspect_file(source.path)), allow_nan=False)


def _prepared(source: Source) -> None:
    read = Rows(source)
    assert all(read.place(number) for block in read.blocks() for number in block.numbers)


def _perturbed(source: Source) -> None:
    """As JSON lines, and as Parquet again, which must be readable."""
    given = Rows(source)
    rows = list(perturb(given, bare(PerturbSettings)))
    with contextlib.suppress(RowsError):
        b"\n".join(dump_row(row) for row in rows if isinstance(row, dict))
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_memory()) as name:
        path = Path(name) / "noisy.parquet"
        write_parquet_rows(path, rows, given, Provenance("perturb", {}))
        assert len(list(iter_rows(Source(path)))) == len(rows)


FROM_STREAM: tuple[Callable[[Source], None], ...] = (
    _examples,
    partial(_examples, columns=Columns(text=("a", "b"), label="y", label_type="str")),
)
FROM_FILE = (_records, _inspected, _prepared, _perturbed)


def layers(data: bytes) -> None:
    """A layer list; the first byte is the number of layers."""
    text, n_layers = data[1:].decode("utf-8", "replace"), (data[0] if data else 0) or None
    found = parse_layers(text, n_layers)
    assert found == tuple(sorted(set(found))) and found[0] >= 1
    assert n_layers is None or (found[-1] <= n_layers and len(parse_windows([text], n_layers)) == 1)


def records(data: bytes) -> None:
    """Records in JSON lines, of which centres of gravity are made, grouped as the first byte says."""
    if data[1:5] == b"PAR1":
        return
    by = (None, [], ["model"], ["tool", "model"])[data[0] % 4] if data else None
    for record, tags in mcog(_blocks(data[1:]), by):
        json.dumps([record.m_cog, tags], allow_nan=False)


def _blocks(data: bytes) -> Iterator[Records]:
    source = Memory(data)
    for block in iter_blocks(source):
        yield Records(source, block.numbers, list(block.values))


def tensors(data: bytes) -> None:
    """A safetensors file: as states, and as whatever it may be."""
    from mltools.io.states import open_states

    with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=".safetensors", dir=_memory()) as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(MltoolsError):
            inspect_file(file.name)
        with open_states(Source(file.name)) as states:
            for layer in range(states.layers + 1):
                assert states.layer(layer).shape == (len(states), states.width)


def index(data: bytes) -> None:
    """The index of a checkpoint in shards."""
    from mltools.model.checkpoint_files import check_files

    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_memory()) as name:
        (Path(name) / "config.json").write_text("{}")
        (Path(name) / "model.safetensors.index.json").write_bytes(data)
        check_files(Path(name), name)


def config(data: bytes) -> None:
    """The config.json of a tiny checkpoint, opened without reading its weights."""
    from mltools.model.checkpoint_loading import open_meta

    open_meta(str(_with_config(data)))


def _with_config(data: bytes) -> Path:
    (checkpoint() / "config.json").write_bytes(data)
    return checkpoint()


_made: list[Path] = []


def checkpoint() -> Path:
    """A tiny checkpoint to spoil, made once."""
    if not _made:
        from conftest import save_tiny

        folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_memory()))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _made.append(save_tiny(folder / "model", "bert"))
    return _made[0]


def _memory() -> str | None:
    """A folder in memory, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


TARGETS: dict[str, Callable[[bytes], None]] = {
    "rows": rows,
    "parquet": parquet,
    "layers": layers,
    "records": records,
    "tensors": tensors,
    "index": index,
    "config": config,
}


def run(name: str, data: bytes) -> MltoolsError | None:
    """Give an input to a target; whatever is raised that is not meant for people is a fault."""
    try:
        TARGETS[name](data)
    except MltoolsError as error:
        assert str(error), type(error)
        return error
    return None
