#!/usr/bin/env python3
"""Write the completions, the man pages and docs/commands from the commands' own signatures.

python scripts/gen.py           writes what differs
python scripts/gen.py --check   says what differs, and ends with status 1
"""

import difflib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mltools import __version__
from mltools.cli.completion_scripts import completion
from mltools.cli.reference import (
    ABOUT,
    EXIT_STATUS,
    OWN,
    PROGRAM_OPTIONS,
    Command,
    Parameter,
    all_commands,
    command_help,
    headed,
    root_help,
)
from mltools.schemas import schema

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("completions", "man", "docs/commands")
WIDTH = 80
ORDERED = all_commands()


def generate() -> dict[str, str]:
    """Give every generated file: path from the project's root to text."""
    files = {
        "completions/mltools.bash": completion("bash", ORDERED),
        "completions/_mltools": completion("zsh", ORDERED),
        "completions/mltools.fish": completion("fish", ORDERED),
        "man/mltools.1": "\n".join(program_page()) + "\n",
        "docs/commands/README.md": "\n".join(index()) + "\n",
    }
    for command in ORDERED:
        files[f"man/mltools-{command.name}.1"] = "\n".join(man_page(command)) + "\n"
        files[f"docs/commands/{command.name}.md"] = "\n".join(markdown(command)) + "\n"
    return files


# -- man pages ----------------------------------------------------------------------------------------
def program_page() -> Iterator[str]:
    summary, *rest = [" ".join(text.split()) for text in ABOUT.split("\n\n")]
    yield title("mltools")
    yield from (".SH NAME", rf"mltools \- {roff(lower_first(summary))}")
    yield from (".SH SYNOPSIS", r".B mltools", r".I COMMAND", r"[OPTIONS] [ARGUMENTS]")
    yield ".SH DESCRIPTION"
    yield from paragraphs(rest)
    for heading, members in headed().items():
        yield f".SH {heading.upper()}"
        for command in members:
            yield from (".TP", rf".BR mltools\-{command.name} (1)", roff(command.summary))
    yield ".SH OPTIONS"
    yield from definitions(PROGRAM_OPTIONS)
    yield from exit_status()


def man_page(command: Command) -> Iterator[str]:
    yield title(f"mltools-{command.name}")
    yield from (".SH NAME", rf"mltools\-{command.name} \- {roff(lower_first(command.summary))}")
    yield from (".SH SYNOPSIS", rf".B mltools {command.name}", "[OPTIONS]")
    yield from (rf".I {roff(argument.metavar)}" for argument in command.arguments)
    yield ".SH DESCRIPTION"
    yield from paragraphs(command.paragraphs[1:] or command.paragraphs)
    if command.arguments:
        yield ".SH ARGUMENTS"
        for argument in command.arguments:
            yield from (".TP", rf".I {roff(argument.bare)}", roff(argument.help))
    yield ".SH OPTIONS"
    for heading, options in command.groups():
        if heading != OWN:
            yield f".SS {heading}"
        yield from definitions(options)
    yield from (".SH EXAMPLES", ".EX", *map(roff, command.spec.examples), ".EE")
    for kind in command.spec.written:
        yield f".SH {kind.upper()} RECORDS"
        record = schema(kind)
        yield roff(record["description"])
        for name, column in record["properties"].items():
            yield from (".TP", rf".BR {roff(name)} \ ({roff(type_name(column)).replace(' ', chr(92) + ' ')})")
            yield roff(column["description"])
    yield from exit_status()
    yield from (".SH SEE ALSO", ".BR mltools (1)")


def title(name: str) -> str:
    return f'.TH "{roff(name.upper())}" 1 "" "mltools {__version__}" "mltools"'


def paragraphs(texts: list[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if number:
            yield ".PP"
        yield roff(text)


def definitions(options: Iterable[Parameter]) -> Iterator[str]:
    for option in options:
        flags = ", ".join(rf"\fB{roff(flag)}\fR" for flag in option.flags)
        value = rf" \fI{roff(option.metavar)}\fR" if option.metavar else ""
        yield from (".TP", flags + value, roff(option.help))


def exit_status() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for status, meaning in EXIT_STATUS:
        yield from (".TP", rf".B {status}", roff(meaning))


def lower_first(text: str) -> str:
    return text[0].lower() + text[1:].removesuffix(".")


def roff(text: str) -> str:
    """Escape text for man(7): backslashes, hyphens that are meant as such, dots and quotes that start a line."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


# -- docs/commands ------------------------------------------------------------------------------------
def index() -> Iterator[str]:
    yield from (
        "# Commands",
        "",
        "Made by `scripts/gen.py` from the program itself. `mltools help COMMAND` says the same.",
    )
    for heading, members in headed().items():
        yield from ("", f"## {heading}", "")
        yield from (f"- [`{command.name}`]({command.name}.md): {command.summary}" for command in members)
    yield from ("", "## `mltools help`", "", "```text", root_help(WIDTH).rstrip(), "```")


def markdown(command: Command) -> Iterator[str]:
    yield from (f"# mltools {command.name}", "", "<!-- made by scripts/gen.py -->", "")
    yield from ("```text", command_help(command, WIDTH).rstrip(), "```")
    for kind in command.spec.written:
        record = schema(kind)
        yield from (
            "",
            f"## Columns: `{kind}`",
            "",
            record["description"],
            "",
            "| column | type | meaning |",
            "|---|---|---|",
        )
        for name, column in record["properties"].items():
            yield f"| `{name}` | {type_name(column)} | {cell(column['description'])} |"


def type_name(column: dict[str, Any]) -> str:
    """Say a column's type and range in words: `number 0-1 or null`."""
    if "anyOf" in column:
        return " or ".join(type_name(part) for part in column["anyOf"])
    if "enum" in column:
        return " or ".join(map(str, column["enum"]))
    if column.get("type") == "array":
        return f"list of {type_name(column['items'])}"
    kinds = column.get("type", "any")
    low, high = column.get("minimum"), column.get("maximum")
    if low is None:
        limits = "" if high is None else f" to {high}"
    else:
        limits = f" from {low}" if high is None else f" {low}-{high}"
    names = [
        kind if kind in ("null", "string", "boolean", "object") else f"{kind}{limits}"
        for kind in ([kinds] if isinstance(kinds, str) else kinds)
    ]
    return " or ".join(names)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- writing ------------------------------------------------------------------------------------------
def stale(files: dict[str, str]) -> list[Path]:
    """List files in the generated folders that are generated no more."""
    there = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*")) if path.is_file()]
    return [path for path in there if path.relative_to(ROOT).as_posix() not in files]


def main(arguments: list[str]) -> int:
    files, check = generate(), "--check" in arguments
    differ = 0
    for path in stale(files):
        differ += 1
        sys.stderr.write(f"{path.relative_to(ROOT)}: not generated any more\n")
        if not check:
            path.unlink()
    for name, text in files.items():
        path = ROOT / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old == text:
            continue
        differ += 1
        if check:
            sys.stderr.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), name, name, n=1))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and differ:
        sys.stderr.write(f"{differ} files differ; run scripts/gen.py\n")
    return 1 if check and differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
