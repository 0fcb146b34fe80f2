"""Fuzz the readers: `fuzz.py rows --runs 400000`. No input may end in anything but an error meant for people.

With atheris (coverage-guided) where it is installed, else with mutations of the corpus at random, in child processes.
An input that takes over 5 s or 2 GiB, or ends its process, ends the run too. What atheris finds interesting goes to
--keep DIR; faults to the folder it runs in.
"""

import argparse
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from multiprocessing import get_context
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
    "mltools.layers",
    "mltools.analysis.carried",
    "mltools.analysis.centre_of_gravity",
    "mltools.analysis.layer_scores",
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


def with_mutations(target: str, runs: int, seed: int, jobs: int) -> None:
    """Feed mutations at random to child processes, so that an input that ends its process is known too."""
    context = get_context("spawn")
    start = time.monotonic()
    shares = [range(job * runs // jobs, (job + 1) * runs // jobs) for job in range(jobs)]
    children = []
    for share in shares:
        state = context.Array("q", [share.start, 0])
        child = context.Process(target=feed, args=(target, share, seed, state))
        child.start()
        children.append((child, state))
    faults = []
    for child, state in children:
        child.join()
        if child.exitcode:
            faults.append(Path(f"fault-{target}-{seed}-{state[0]}"))
            faults[-1].write_bytes(mutation(target, seed, state[0]))
    refused, peak = sum(state[1] for _, state in children), _peak(resource.RUSAGE_CHILDREN)
    print(f"{target}: {runs} inputs, {refused} refused, {time.monotonic() - start:.0f} s, peak {peak} MiB")
    if faults:
        raise SystemExit(f"faults: {' '.join(map(str, faults))}")


def feed(target: str, share: range, seed: int, state: Any) -> None:
    """Feed some inputs to the target; `state` tells the number of the present one, and how many were refused."""
    import fuzz_targets

    fuzz_targets.run(target, corpus_of(target)[0])  # the first one imports
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever library it is in
    for number in share:
        state[0] = number
        signal.alarm(SECONDS)
        state[1] += fuzz_targets.run(target, mutation(target, seed, number)) is not None
        signal.alarm(0)
        assert _peak(resource.RUSAGE_SELF) < MEBIBYTES


def _peak(who: int) -> int:
    return resource.getrusage(who).ru_maxrss // 1024


@cache
def corpus_of(target: str) -> list[bytes]:
    """Read the corpus of a target."""
    import fuzz_targets

    return [path.read_bytes() for path in sorted((fuzz_targets.CORPUS / target).iterdir())]


def mutation(target: str, seed: int, number: int) -> bytes:
    """Make the input of a number, which is always the same."""
    changes = BINARY_CHANGES if target == "parquet" else TEXT_CHANGES
    return mutate(random.Random(f"{seed}-{number}"), corpus_of(target), changes)


def mutate(generator: random.Random, corpus: list[bytes], changes: Sequence["Change"]) -> bytes:
    """Change an input of the corpus a few times: bytes, cuts, repetitions, pieces of others, odd numbers."""
    data = bytearray(generator.choice(corpus))
    for _ in range(generator.choice((1, 1, 1, 2, 3, 4, 5, 6))):
        at = generator.randint(0, len(data))
        generator.choice(changes)(generator, data, at, corpus)
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


def _flip(generator: random.Random, data: bytearray, at: int, _: list[bytes]) -> None:
    data[at : at + 1] = bytes(byte ^ 1 << generator.randrange(8) for byte in data[at : at + 1])


def _number(generator: random.Random, data: bytearray, at: int, _: list[bytes]) -> None:
    """Put a whole number of any size in the place of another, seven bits a byte, as Parquet's headers have them."""
    end = next((i + 1 for i in range(at, len(data)) if data[i] < 128), len(data))
    value = generator.getrandbits(generator.choice((3, 8, 16, 31, 32, 33, 63, 64)))
    digits = [value >> shift & 127 for shift in range(0, max(1, value.bit_length()), 7)]
    data[at:end] = bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]])


def _first(generator: random.Random, data: bytearray, _: int, __: list[bytes]) -> None:
    data[:1] = bytes([generator.randrange(256)])


TEXT_CHANGES: tuple[Change, ...] = (_byte, _cut, _repeat, _splice, _odd, _odd)
BINARY_CHANGES: tuple[Change, ...] = (_byte, _flip, _flip, _number, _number, _number, _cut, _repeat, _splice, _first)


def main() -> None:
    """Read the command line and fuzz one target."""
    parser = argparse.ArgumentParser(description="Fuzz a reader of mltools.")
    parser.add_argument("target", choices=("rows", "parquet", "layers", "records", "tensors", "index", "config"))
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes for mutations at random")
    parser.add_argument("--keep", type=Path, help="folder for inputs that atheris finds interesting")
    parser.add_argument("--plain", action="store_true", help="mutations at random, even if atheris is there")
    options = parser.parse_args()
    if not options.plain:
        try:
            return with_atheris(options.target, options.runs, options.seed, options.keep)
        except ImportError:
            sys.stderr.write("atheris is not installed: mutations at random\n")
    with_mutations(options.target, options.runs, options.seed, options.jobs)


if __name__ == "__main__":
    main()
