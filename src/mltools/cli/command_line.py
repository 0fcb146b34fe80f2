"""The command line of a run as its outputs keep it: the same for the same work."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from mltools.io.partial import PARTIAL

OUTPUT_OPTIONS = ("--out", "--provenance", "--per-row", "--save", "--write")
SWITCHES = ("--force", "--quiet", "--verbose", "--debug", "--no-color")
SHORT = re.compile(r"-[qv]*(o.*)?")
"""Short options in one word, of which only -o takes a value: the rest of the word, or the next one."""


def command_line() -> tuple[str, ...]:
    """Give the command line without where outputs go and how much is said, so that it is the same for the same work."""
    kept: list[str] = ["mltools"]
    switches = (*SWITCHES, "--resume") if sys.argv[1:2] == ["finetune"] else SWITCHES
    arguments = iter(without_resume(lambda records: records.endswith(PARTIAL)))
    for argument in arguments:
        short = SHORT.fullmatch(argument) if len(argument) > 1 else None
        if argument in OUTPUT_OPTIONS or (short is not None and short[1] == "o"):
            next(arguments, None)
        elif short is None and argument not in switches and argument.partition("=")[0] not in OUTPUT_OPTIONS:
            kept.append(argument)
    return tuple(kept)


def without_resume(which: Callable[[str], bool]) -> list[str]:
    """Give the arguments without --resume RECORDS, of those records that are meant."""
    kept: list[str] = []
    for word in sys.argv[1:]:
        option, _, records = f"--resume={word}".partition("=") if kept[-1:] == ["--resume"] else word.partition("=")
        if option != "--resume" or not records or not which(records):
            kept.append(word)
        elif word == records:
            kept.pop()
    return kept


def going_on(records: Path) -> str:
    """Say which command line goes on from the records that this one has made."""
    kept = without_resume(lambda _: True)
    return f"go on with: {shlex.join(['mltools', *kept, '--resume', str(records)])}"
