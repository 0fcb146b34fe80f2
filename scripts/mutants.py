#!/usr/bin/env python3
"""Change what the code means, one line at a time, and see whether a test fails: `mutants.py [--fixed] [WORD...]`.

tests/mutants.toml lists the changes, each with the tests that must fail. Heavy libraries are imported once; each change
is tried in a child forked before mltools is imported, whose sys.path begins with a changed copy of src. First the tests
run on the code as it is. Ends with 1 if one fails then, or if fewer than 95 % of the changes make one fail; a change
whose line was rewritten since makes none fail, until it is rewritten too (or taken out, if it means nothing now).

--fixed   only the ten that the slow tests try, less those out of date, and no tests on the code as it is
--check   try none, but see that 95 % can be tried
--jobs N  children at a time (default: one a processor)
--verbose say what pytest said of those that lived
WORD      only changes whose file or description holds it
"""

import argparse
import gc
import importlib
import os
import shutil
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests/mutants.toml"
ENOUGH = 0.95
PYTEST = ("-qx", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
PRELOADED = (
    *("accelerate", "jsonschema", "numpy", "orjson", "pytest", "rich.console", "scipy.stats", "sklearn.metrics"),
    *("tokenizers", "torch", "transformers.models.auto.modeling_auto", "transformers.models.bert.modeling_bert"),
    *("transformers.tokenization_utils_tokenizers", "typer", "yaml"),
)
FOUND = {0: "lived", 1: "killed"}  # pytest's exit status; any other means that the entry itself is wrong


@dataclass(frozen=True)
class Mutant:
    """A change: `old`, which occurs once in `file` (under src/mltools), becomes `new`, and one of `tests` must fail."""

    file: str
    wrong: str
    old: str
    new: str
    tests: tuple[str, ...]
    fixed: bool = False

    def apply(self, source: Path) -> None:
        """Change a copy of src."""
        path = source / "mltools" / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()


def read() -> list[Mutant]:
    """Read the list."""
    files = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [
        Mutant(file, entry.pop("wrong"), entry.pop("old"), entry.pop("new"), tuple(entry.pop("tests")), **entry)
        for file, entries in files.items()
        for entry in entries
    ]


def out_of_date(mutant: Mutant) -> str | None:
    """Say why a change cannot be tried: its line is not there exactly once, or a test is not there."""
    if (ROOT / "src/mltools" / mutant.file).read_text(encoding="utf-8").count(mutant.old) != 1:
        return f"not there exactly once: {mutant.old}"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        if f"\ndef {name.partition('[')[0]}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8"):
            return f"no test {test}"
    return None


def preload() -> None:
    """Import what is slow to import, but nothing of mltools; let Hypothesis stop at the first example that fails."""
    for name in PRELOADED:
        importlib.import_module(name)
    from hypothesis import Phase, settings

    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")  # the profile of tests/conftest.py is made from it
    gc.freeze()


def start(mutant: Mutant | None, tests: Sequence[str], folder: Path) -> int:
    """Run tests on a copy of src in a child; its process id. What pytest says goes to `folder`/log."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        source = shutil.copytree(ROOT / "src", folder / "src")
        log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if mutant is not None:
            mutant.apply(source)
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)  # of processes that tests start
        os.chdir(ROOT)
        import pytest

        names = [f"tests/{test}" for test in tests]
        status = int(pytest.main([*PYTEST, f"--basetemp={folder / 'tmp'}", *names]))
    except BaseException:  # noqa: BLE001 (whatever it is, the child ends here)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(mutants: Sequence[Mutant | None], jobs: int) -> Iterator[tuple[Mutant | None, str, float, str]]:
    """Try some changes (None: the code as it is): yields each with what came of it, seconds, and what pytest said."""
    preload()
    waiting = list(mutants)
    running: dict[int, tuple[Mutant | None, Path, float]] = {}
    every = list(dict.fromkeys(test for mutant in mutants if mutant for test in mutant.tests))
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        while waiting or running:
            if waiting and len(running) < jobs:
                mutant = waiting.pop(0)
                folder = Path(name) / str(len(waiting))
                folder.mkdir()
                child = start(mutant, mutant.tests if mutant else every, folder)
                running[child] = mutant, folder, time.monotonic()
                continue
            child, status = os.wait()
            mutant, folder, began = running.pop(child)
            found = FOUND.get(os.waitstatus_to_exitcode(status), "wrong entry")
            said = (folder / "log").read_text(encoding="utf-8", errors="replace")
            yield mutant, found, time.monotonic() - began, said
            shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    mutants = read()
    old = {mutant: why for mutant in mutants if (why := out_of_date(mutant))}
    for stale, why in old.items():
        print(f"out of date {stale.file}: {stale.wrong} ({why})")
    if options.check:
        print(f"{len(mutants) - len(old)} of {len(mutants)} can be tried")
        return int(len(old) > (1 - ENOUGH) * len(mutants))
    chosen = [
        mutant
        for mutant in mutants
        if (mutant.fixed and mutant not in old if options.fixed else True)
        and (not options.words or any(word in f"{mutant.file} {mutant.wrong}" for word in options.words))
    ]
    tried, killed, sound = len(chosen), 0, True
    todo: list[Mutant | None] = [
        *([] if options.fixed else [None]),
        *(mutant for mutant in chosen if mutant not in old),
    ]
    for mutant, found, seconds, said in run(todo, options.jobs):
        if mutant is None:
            sound = found == "lived"
            print(f"{'passed' if sound else 'FAILED':11} {seconds:5.1f} s  the tests on the code as it is", flush=True)
        else:
            killed += found == "killed"
            print(f"{found:11} {seconds:5.1f} s  {mutant.file}: {mutant.wrong}", flush=True)
        if options.verbose and (not sound if mutant is None else found != "killed"):
            print(said)
    print(f"killed {killed} of {tried}")
    return 0 if sound and tried and killed >= ENOUGH * tried else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
