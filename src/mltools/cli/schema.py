"""`mltools schema`."""

import json
from typing import Annotated

import typer

from mltools import options
from mltools.cli.app import command
from mltools.io.stdout import write_stdout


def _names() -> list[str]:
    from mltools.tools.schema import schema_names

    return schema_names()


@command("schema", "mltools schema", "mltools schema window | jq '.properties | keys'")
def schema(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", autocompletion=_names, help="A kind of record, rows or provenance."),
    ] = None,
) -> None:
    """Print the JSON Schema of a kind of record, or the names of all.

    Writes the schema of one line of the file: each column with its type, range, unit and meaning, and when it is null.
    """
    from mltools.tools.schema import schema as tool

    if name is None:
        write_stdout("".join(f"{each}\n" for each in _names()).encode())
        return
    chosen = tool(options.one_of("NAME", name, _names()))
    write_stdout(json.dumps(chosen, ensure_ascii=False, indent=2).encode() + b"\n")
