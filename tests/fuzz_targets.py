"""What is fuzzed: each target takes bytes, and may only return or raise an error that is meant for people.

Used by tests/test_fuzz.py, a little, and by scripts/fuzz.py, a lot.
"""

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mltools.errors import MltoolsError
from mltools.io.columns import Columns
from mltools.io.examples import read_examples
from mltools.io.records import Records
from mltools.io.rows import iter_blocks
from mltools.io.source import Source
from mltools.tools.mcog import mcog
from mltools.windows import parse_layers, parse_windows

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
        parquet(data)


def parquet(data: bytes) -> None:
    """Rows of any form. Apart, since polars ends the process at some damaged files (docs/reliability.md)."""
    kinds = (Columns(), Columns(label_type="str"), Columns(text=("a", "b"), label="y"))
    examples = read_examples(Memory(data[1:]), kinds[data[0] % len(kinds)] if data else Columns())
    assert len(examples) == len(examples.texts("|")) == len(set(examples.ids))


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
    from mltools.tools.inspect_file import inspect_file

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
    from mltools.model.checkpoints import open_outline

    open_outline(str(_with_config(data)))


def _with_config(data: bytes) -> Path:
    (checkpoint() / "config.json").write_bytes(data)
    return checkpoint()


_made: list[Path] = []


def checkpoint() -> Path:
    """A tiny checkpoint to spoil, made once."""
    if not _made:
        from conftest import save_tiny

        _made.append(save_tiny(Path(tempfile.mkdtemp(prefix="fuzz-", dir=_memory())) / "model", "bert"))
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
