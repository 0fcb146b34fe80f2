"""The command line of a run as its outputs keep it: the same for the same work."""

import re
import sys

OUTPUT_OPTIONS = ("--out", "--provenance", "--per-row", "--save", "--write")
SWITCHES = ("--force", "--quiet", "--verbose", "--debug", "--no-color")
SHORT = re.compile(r"-[qv]*(o.*)?")
"""Short options in one word, of which only -o takes a value: the rest of the word, or the next one."""


def command_line() -> tuple[str, ...]:
    """Give the command line without where outputs go and how much is said, so that it is the same for the same work."""
    kept: list[str] = ["mltools"]
    switches = (*SWITCHES, "--resume") if sys.argv[1:2] == ["finetune"] else SWITCHES
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        short = SHORT.fullmatch(argument) if len(argument) > 1 else None
        if argument in OUTPUT_OPTIONS or (short is not None and short[1] == "o"):
            next(arguments, None)
        elif short is None and argument not in switches and argument.partition("=")[0] not in OUTPUT_OPTIONS:
            kept.append(argument)
    return tuple(kept)
