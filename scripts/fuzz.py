"""Fuzz the readers: `fuzz.py rows --runs 400000`. No input may end in anything but an error meant for people.

With atheris (coverage-guided) where it is installed, else with mutations of the corpus at random. An input that takes
over 5 s or 2 GiB ends the run too. What atheris finds interesting goes to --keep DIR; faults to the folder it runs in.
"""

import argparse
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

SECONDS, MEBIBYTES = 5, 2048
GUIDED = (
    "mltools.io.source",
    "mltools.io.rows",
    "mltools.io.records",
    "mltools.io.columns",
    "mltools.io.examples",
    "mltools.io.groups",
    "mltools.windows",
    "mltools.tools.mcog",
)


def with_atheris(target: str, runs: int, seed: int, keep: Path | None) -> None:
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=list(GUIDED)):
        import fuzz_targets

    def one(data: bytes) -> None:
        fuzz_targets.run(target, data)

    folders = [str(folder) for folder in (keep, fuzz_targets.CORPUS / target) if folder is not None]
    limits = [f"-timeout={SECONDS}", f"-rss_limit_mb={MEBIBYTES}", f"-runs={runs}", f"-seed={seed}", "-max_len=2048"]
    atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", *folders], one)
    atheris.Fuzz()


def with_mutations(target: str, runs: int, seed: int) -> None:
    import fuzz_targets

    def too_slow(*_: object) -> None:
        raise TimeoutError(f"over {SECONDS} s")

    signal.signal(signal.SIGALRM, too_slow)
    generator = random.Random(seed)
    corpus = [path.read_bytes() for path in sorted((fuzz_targets.CORPUS / target).iterdir())]
    fuzz_targets.run(target, corpus[0])  # the first one imports
    start, refused = time.monotonic(), 0
    for number in range(runs):
        data = mutate(generator, corpus)
        signal.alarm(SECONDS)
        try:
            refused += fuzz_targets.run(target, data) is not None
        except BaseException:
            Path(f"fault-{target}-{number}").write_bytes(data)
            raise
        signal.alarm(0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    assert peak < MEBIBYTES, f"{peak} MiB"
    print(f"{target}: {runs} inputs, {refused} refused, {time.monotonic() - start:.0f} s, peak {peak} MiB")


def mutate(generator: random.Random, corpus: list[bytes]) -> bytes:
    """Change an input of the corpus a few times: bytes, cuts, repetitions, pieces of others, odd numbers."""
    data = bytearray(generator.choice(corpus))
    for _ in range(generator.randint(1, 6)):
        at = generator.randint(0, len(data))
        CHANGES[generator.randrange(len(CHANGES))](generator, data, at, corpus)
    return bytes(data[:4096])


Change = Callable[[random.Random, bytearray, int, list[bytes]], None]
ODD = (
    b"",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"9" * 30,
    b"\xff",
    b"\x00",
    b'"\\ud800"',
)


def _byte(generator: random.Random, data: bytearray, at: int, _: list[bytes]) -> None:
    data[at : at + 1] = bytes([generator.randrange(256)])


def _cut(generator: random.Random, data: bytearray, at: int, _: list[bytes]) -> None:
    del data[at : at + generator.randint(1, 32)]


def _repeat(generator: random.Random, data: bytearray, at: int, _: list[bytes]) -> None:
    data[at:at] = data[at : at + generator.randint(1, 64)] * generator.randint(1, 4)


def _splice(generator: random.Random, data: bytearray, at: int, corpus: list[bytes]) -> None:
    other = generator.choice(corpus)
    start = generator.randint(0, len(other))
    data[at : at + generator.randint(0, 16)] = other[start : start + generator.randint(1, 64)]


def _odd(generator: random.Random, data: bytearray, at: int, _: list[bytes]) -> None:
    """Put an odd value in the place of a JSON value."""
    colon = data.find(b":", at)
    end = min((i for i in (data.find(b",", colon), data.find(b"}", colon)) if i > colon), default=len(data))
    if colon >= 0:
        data[colon + 1 : end] = generator.choice(ODD)


CHANGES: tuple[Change, ...] = (_byte, _cut, _repeat, _splice, _odd, _odd)


def main() -> None:
    """Read the command line and fuzz one target."""
    parser = argparse.ArgumentParser(description="Fuzz a reader of mltools.")
    parser.add_argument("target", choices=("rows", "parquet", "layers", "records", "tensors", "index", "config"))
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for inputs that atheris finds interesting")
    parser.add_argument("--plain", action="store_true", help="mutations at random, even if atheris is there")
    options = parser.parse_args()
    if not options.plain:
        try:
            return with_atheris(options.target, options.runs, options.seed, options.keep)
        except ImportError:
            sys.stderr.write("atheris is not installed: mutations at random\n")
    with_mutations(options.target, options.runs, options.seed)


if __name__ == "__main__":
    main()
