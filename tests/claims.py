"""What README and docs claim beside a command, checked against what the command prints.

A claim is a comment after a command, on its line or on lines of its own:

    tail -1 epochs.jsonl      # → noisy_accuracy > 0.95, memorised = true
    mltools swap noisy/ clean/ noisy.jsonl > swap.jsonl
    # → 21 lines
    # demo → memorisation_error = 1.00 ± 0.1

Names are columns of the last record printed, or written to the file that the command's output goes to. A number after
`=` holds if it rounds to the same, or within `±`. A claim behind `demo →` is about the demo's rows and model, and is
checked where these are at hand; any other holds for whatever model a page is run with.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLAIM = re.compile(r"#\s*(demo )?→\s*(.+)$")
TERM = re.compile(r"(?P<name>\w+) (?P<sign>[=<>]) (?P<value>\S+)(?: ± (?P<within>[\d.]+))?")
LINES = re.compile(r"(\d+) lines?")
TARGET = re.compile(r">>?\s*(\S+)\s*$")


@dataclass(frozen=True)
class Step:
    """A command line and the claims about it: (text, whether it is about the demo's model alone)."""

    command: str
    claims: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def target(self) -> str | None:
        """The file that its output goes to, if it does not go to stdout."""
        found = TARGET.search(self.command)
        return found[1] if found else None


def steps(text: str) -> list[Step]:
    """Cut a script into its commands, without comments, each with its claims."""
    found: list[Step] = []
    begun = ""
    for line in text.splitlines():
        claim = CLAIM.search(line)
        assert claim is not None or "→" not in line, f"no claim: {line}"
        code = re.sub(r"(^|\s+)#\s.*$", "", line)
        begun = f"{begun}\n{code}" if begun else code
        if begun.strip() and not begun.endswith(("|", "\\")):
            found.append(Step(begun))
            begun = ""
        elif not begun.strip():
            begun = ""
        if claim is not None:
            assert found and not begun, f"a claim about no command: {line}"
            found[-1].claims.extend((term.strip(), claim[1] is not None) for term in claim[2].split(","))
    return found


def script(found: list[Step], ready: frozenset[str] = frozenset()) -> str:
    """Give the bash script that runs the steps and keeps what claims are about in files of its own.

    Args:
        found: the steps.
        ready: commands that have been run in the folder, and whose output is in the file that it went to.
    """
    return "\n".join(line for number, step in enumerate(found) for line in _lines(number, step, step.command in ready))


def _lines(number: int, step: Step, is_ready: bool) -> Iterator[str]:
    output = shlex.quote(kept(number))
    if not step.claims:
        yield ":" if is_ready and step.target else step.command
    elif step.target is None:
        yield f"{{\n{step.command}\n}} | tee {output}"
    else:
        yield ":" if is_ready else step.command
        yield f"cp {step.target} {output}"


def kept(number: int) -> str:
    """The file that a step's output is kept in."""
    return f"claimed-{number}.out"


def faults(found: list[Step], folder: Path, *, demo: bool = False) -> list[str]:
    """Say which claims do not hold in a folder in which the script was run; those about the demo only if it was."""
    return [
        f"{step.command}\n  claimed: {claim}\n  printed: {shown}"
        for number, step in enumerate(found)
        for claim, is_demo in step.claims
        if demo or not is_demo
        for shown in [_fault(claim, (folder / kept(number)).read_text())]
        if shown is not None
    ]


def _fault(claim: str, printed: str) -> str | None:
    """What was printed in place of what is claimed; None if the claim holds."""
    lines = printed.splitlines()
    if (count := LINES.fullmatch(claim)) is not None:
        return None if len(lines) == int(count[1]) else f"{len(lines)} lines"
    term = TERM.fullmatch(claim)
    assert term is not None, f"not a claim: {claim}"
    record: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if term["name"] not in record:
        return f"no {term['name']}"
    value = record[term["name"]]
    return None if _holds(value, term["sign"], term["value"], term["within"]) else f"{term['name']} = {value}"


def _holds(value: Any, sign: str, claimed: str, within: str | None) -> bool:
    wanted = json.loads(claimed)
    if isinstance(value, bool | str | None) or isinstance(wanted, bool | str | None):
        return bool(sign == "=" and type(value) is type(wanted) and value == wanted)
    if sign == "=":
        digits = len(claimed.partition(".")[2])
        return bool(abs(value - wanted) <= (float(within) if within else 0.5 * 10**-digits) + 1e-9)
    return bool(value > wanted if sign == ">" else value < wanted)
