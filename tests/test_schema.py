"""Every kind of line that the tools write is as its JSON Schema says, and each schema says what it must."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conftest import Cli, toy_rows, write_jsonl
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


# -- what the tools write -----------------------------------------------------------------------------
@pytest.fixture
def written(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Lines that each command writes, with the kind that they should be."""
    model, noisy, clean = tiny("bert"), tiny("bert", 1), tiny("bert", 2)
    rows = write_jsonl(tmp_path / "rows.jsonl", toy_rows(80))
    lines: list[tuple[str, dict[str, Any]]] = []

    def run(kind: str, *words: object, tags: bool = True) -> Path:
        done = cli(*words, *(["--tag", "dataset=toy"] if tags else []))
        assert done.code == 0 and done.records, done.err
        lines.extend((kind, record) for record in done.records)
        return write_jsonl(tmp_path / f"{kind}-{len(lines)}.jsonl", done.records)

    plain = [{"text": row["text"], "label": row["original_label"]} for row in toy_rows(20)]
    run("rows", "perturb", write_jsonl(tmp_path / "plain.jsonl", plain), tags=False)
    run("epoch", "finetune", model, noisy_rows, "-o", tmp_path / "out", "--epochs", 2, "--validation", noisy_rows)
    run("epoch", "finetune", model, noisy_rows, "-o", tmp_path / "aux", "--epochs", 1, "--aux", noisy_rows)
    tags = [("--tag", f"model={model}", "--tag", f"task={task}") for model in "ab" for task in "cde"]
    swap = [run("window", "swap", noisy, clean, noisy_rows, *words) for words in tags]
    retrain = run("window", "retrain", noisy, model, noisy_rows, "--epochs", 1, "--layers", "1-4", "--layers", 2)
    run("grad", "grads", noisy, noisy_rows, "--noisy-only")
    grads = run("grad", "grads", noisy, noisy_rows, "--frozen", model)
    states = tmp_path / "states.safetensors"
    assert cli("states", noisy, rows, "-o", states).code == 0
    run("probe", "probe", states, "--epochs", 30, "--target", "noise,label", "--allow-absent")
    run("event", "probe", states, "--epochs", 30, "--events", "--allow-absent")
    run("centroid", "centroid", states)
    events = run("event", "centroid", states, "--events")
    cog = run("cog", "mcog", *swap, tags=False)
    run("layer", "mcog", "--by-layer", grads, tags=False)
    run("score", "score", *swap, grads, "--truth", "2-3")
    run("correlation", "correlate", cog, "--pivot", "model", "--on", "task,dataset", tags=False)
    halves = run("half", "generalise", model, noisy_rows, "--runs", 2, "--epochs", 1)
    per_row = tmp_path / "per-row.jsonl"
    run("generalisation-score", "generalise", "--merge", halves, "--per-row", per_row, tags=False)
    lines.extend(("generalisation", json.loads(line)) for line in per_row.read_text().splitlines())
    run("checkpoint", "inspect", noisy, "--json")
    run("difference", "inspect", noisy, clean, "--json")
    for file in (noisy_rows, retrain, states, events):
        run("file", "inspect", file, "--json")
    for words in (
        ("swap", noisy, clean, rows),
        ("retrain", noisy, model, rows),
        ("grads", noisy, rows),
        ("probe", states),
    ):
        run("work", *words, "--dry-run")
    made_by = tmp_path / "made-by.json"
    run("window", "swap", noisy, clean, noisy_rows, "--layers", 1, "--provenance", made_by)
    lines.append(("provenance", json.loads(made_by.read_text())))
    lines.append(("provenance", json.loads((tmp_path / "out/mltools.json").read_text())))
    yield lines


def test_everything_written_is_as_its_schema_says(written: list[tuple[str, dict[str, Any]]]) -> None:
    for kind, line in written:
        errors = [f"{kind}: {error.json_path}: {error.message}" for error in Validator(schema(kind)).iter_errors(line)]
        assert not errors, (errors[:3], line)
    assert {kind for kind, _ in written} == set(schema_names())


def test_rows_of_the_examples() -> None:
    rows = Path(__file__).parents[1] / "examples/questions.jsonl"
    for line in rows.read_text().splitlines():
        Validator(schema("rows")).validate(json.loads(line))
