"""`mltools schema`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from mltools.spec import CommandSpec, Operand


def _names() -> list[str]:
    from mltools.cli.registry import learn_kinds
    from mltools.schemas import schema_names

    learn_kinds()
    return schema_names()


@dataclass(frozen=True)
class Settings:
    """Print the JSON Schema of a kind of record, or the names of all.

    Writes the schema of one line of the file: each column with its type, range, unit and meaning, and when it is null.
    """

    name: Annotated[str | None, Operand("[NAME]", "A kind of record, rows or provenance.", choices=_names)] = None


def run(run: Any) -> Iterator[str]:
    """Print the schema asked for, or the names."""
    from mltools.schemas import schema

    if run.settings.name is None:
        yield from _names()
    else:
        yield json.dumps(schema(run.settings.name), ensure_ascii=False, indent=2)


SPEC = CommandSpec(
    Settings,
    heading="Utilities",
    rank=30,
    examples=("mltools schema", "mltools schema window | jq '.properties | keys'"),
    text=True,
)
