"""Each schema says what it must; that what commands write is as it says, test_commands.py sees."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conftest import Cli
from mltools.io.kinds import amount, column, fraction, record_kinds
from mltools.schemas import of_type, schema, schema_names

Tiny = Callable[..., Path]
Validator = jsonschema.Draft202012Validator


def test_names(cli: Cli) -> None:
    assert cli("schema").out.split() == schema_names()
    assert set(record_kinds()) | {"rows", "provenance"} == set(schema_names())


@pytest.mark.parametrize("name", schema_names())
def test_schema_is_a_schema(cli: Cli, name: str) -> None:
    """It is valid, describes every column, and prints as the library gives it."""
    found = schema(name)
    Validator.check_schema(found)
    assert json.loads(cli("schema", name).out) == found
    assert found["description"] and all(part.get("description") for part in found["properties"].values())


def test_unknown_name(cli: Cli) -> None:
    done = cli("schema", "windos")
    assert done.code == 2 and done.err.endswith("did you mean window?\n")


def test_types_and_ranges() -> None:
    assert of_type(float | None, {"minimum": 0}) == {"type": ["number", "null"], "minimum": 0}
    assert of_type(list[float | None], {}) == {"type": "array", "items": {"type": ["number", "null"]}}
    assert of_type(dict[str, int], {}) == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert (column("a").metadata["low"], amount("a").metadata["low"], fraction("a").metadata["high"]) == (None, 0, 1)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("window", {"noisy_accuracy": 1.5}, "1.5 is greater than the maximum of 1"),
        ("window", {"start": "1"}, "'1' is not of type 'integer'"),
        ("window", {"memorisation_error": None}, "None is not of type 'number'"),
        ("window", {"my-tag": [1]}, "[1] is not of type"),
        ("window", {"width": -1}, "-1 is less than the minimum of 0"),
    ],
)
def test_schema_refuses(
    cli: Cli, tiny: Tiny, noisy_rows: Path, name: str, change: dict[str, Any], message: str
) -> None:
    record = cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", 1, "--tag", "seed=1").records[0]
    Validator(schema(name)).validate(record)
    errors = [error.message for error in Validator(schema(name)).iter_errors({**record, **change})]
    assert errors and message in errors[0]
    missing = {key: value for key, value in record.items() if key != "layers"}
    assert not Validator(schema(name)).is_valid(missing)


def test_rows_of_the_examples() -> None:
    rows = Path(__file__).parents[1] / "examples/questions.jsonl"
    for line in rows.read_text().splitlines():
        Validator(schema("rows")).validate(json.loads(line))
