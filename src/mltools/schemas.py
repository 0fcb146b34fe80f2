"""Describe each kind of file line as a JSON Schema (draft 2020-12), made from the dataclasses themselves."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mltools.io.kinds import record_kinds

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TAG = {"type": ["string", "number", "boolean", "null"], "description": "a tag: a constant column given by --tag"}
TYPES: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}

_LABEL = {"type": ["string", "integer"]}
ROWS: dict[str, Any] = {
    "title": "rows",
    "description": "One example a line. All other columns pass through unchanged.",
    "properties": {
        "id": {"type": ["string", "integer"], "description": "name of the row; default: its number, from 0"},
        "text": {"type": "string", "description": "the text; or the columns that --text names"},
        "label": {
            "type": ["string", "integer", "null"],
            "description": "the label trained on, of one type in all rows; null or -1: none",
        },
        "original_label": {**_LABEL, "description": "the label before perturb; rows of perturb only"},
        "noisy": {"type": "boolean", "description": "whether perturb changed the label; rows of perturb only"},
    },
    "required": ["label"],
}
PROVENANCE: dict[str, Any] = {
    "title": "provenance",
    "description": "How an output was made. Holds no time, host or output path: the same work gives the same bytes.",
    "properties": {
        "tool": {"type": "string", "description": "the command"},
        "version": {"type": "string", "description": "the version of mltools"},
        "libraries": {
            "type": "object",
            "description": "versions of what runs models; absent where none was run",
            "additionalProperties": {"type": "string"},
        },
        "seed": {"type": "integer", "description": "the seed; absent where nothing is random"},
        "settings": {"type": "object", "description": "every setting, given or by default, and the preset"},
        "inputs": {
            "type": "object",
            "description": "role of each input to its path and digest",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "as given"},
                    "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
                },
                "required": ["path", "sha256"],
            },
        },
        "command": {
            "type": "array",
            "items": {"type": "string"},
            "description": "the command line, less where outputs go and how much is said",
        },
        "threads": {"type": "integer", "description": "threads that torch computed with"},
        "facts": {"type": "object", "description": "what came out, where it is worth knowing"},
    },
    "required": ["tool", "version"],
    "additionalProperties": False,
}


def schema_names() -> list[str]:
    """Name all schemas: every kind of record, `provenance` and `rows`."""
    return sorted([*record_kinds(), "provenance", "rows"])


def schema(name: str) -> dict[str, Any]:
    """Give the JSON Schema of one line of the kind `name`, one of `schema_names`."""
    made = {"rows": ROWS, "provenance": PROVENANCE}.get(name) or _of_record(name, record_kinds()[name])
    return {"$schema": DRAFT, "type": "object", **made}


def _of_record(name: str, kind: type[Any]) -> dict[str, Any]:
    text = " ".join((kind.__doc__ or "").split())
    return {"title": f"{name} record", "description": text, **_of_fields(kind), "additionalProperties": TAG}


def _of_fields(kind: Any) -> dict[str, Any]:
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    return {
        "type": "object",
        "properties": {field.name: _of_field(hints[field.name], field.metadata) for field in fields},
        "required": [field.name for field in fields],
    }


def _of_field(hint: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"minimum": metadata.get("low"), "maximum": metadata.get("high")}
    limits = {key: value for key, value in ends.items() if value is not None}
    return {**of_type(hint, limits), "description": metadata.get("doc", "")}


def of_type(hint: Any, limits: Mapping[str, float]) -> dict[str, Any]:
    """Give the schema of a field's type; the limits are those of its numbers."""
    if dataclasses.is_dataclass(hint):
        return _of_fields(hint)
    if hint in TYPES:
        return {"type": TYPES[hint], **(limits if hint in (int, float) else {})}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        parts = [of_type(argument, limits) for argument in arguments]
        if all(isinstance(part.get("type"), str) and "items" not in part for part in parts):
            return {"type": [part["type"] for part in parts], **limits}
        return {"anyOf": parts}
    if origin is list:
        return {"type": "array", "items": of_type(arguments[0], limits)}
    if origin is dict:
        return {"type": "object", "additionalProperties": of_type(arguments[1], limits)}
    if origin is Literal:
        return {"enum": list(arguments)}
    assert hint is Any, f"no schema for {hint}"
    return {}
