"""The payloads of the pages as a JSON schema, and as types that the page scripts are checked against.

``python -m tests.docs.payload_types`` writes the types.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from airflow_horsies.ui import payloads

TYPES_FILE = Path(payloads.__file__).parent / "static" / "payloads.d.ts"
HEAD = "// Written by 'make payloads' from ui/payloads.py. Do not edit."
MAX_LINE_CHARS = 120


@cache
def answer_schema() -> dict[str, Any]:
    """Of any JSON answer. An answer has every field of its payload, and no other."""
    schema = TypeAdapter(payloads.Answer).json_schema(mode="serialization")
    for part in schema["$defs"].values():
        if "properties" in part:
            part |= {"required": list(part["properties"]), "additionalProperties": False}
    return schema


def render_types() -> str:
    return "\n\n".join([HEAD, *(_declaration(name, part) for name, part in answer_schema()["$defs"].items())]) + "\n"


def _declaration(name: str, part: dict[str, Any]) -> str:
    return _interface(name, part) if "properties" in part else f"export type {name} = {_type(part)};"


def _interface(name: str, part: dict[str, Any]) -> str:
    fields = [_field(field, _type(schema)) for field, schema in part["properties"].items()]
    return "\n".join([f"export interface {name} {{", *fields, "}"])


def _field(name: str, type_: str) -> str:
    line = f"  {name}: {type_};"
    return line if len(line) <= MAX_LINE_CHARS else "\n    | ".join([f"  {name}:", *f"{type_};".split(" | ")])


def _type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": reference}:
            return str(reference).rpartition("/")[2]
        case {"enum": values}:
            return " | ".join(map(json.dumps, values))
        case {"anyOf": options}:
            return " | ".join(map(_type, options))
        case {"type": "array", "items": items}:
            return f"{_type(items)}[]"
        case {"type": "object", "propertyNames": names, "additionalProperties": values}:
            return f"Partial<Record<{_type(names)}, {_type(values)}>>"
        case {"type": "object", "additionalProperties": True}:
            return "Record<string, unknown>"
        case {"type": "integer" | "number"}:
            return "number"
        case {"type": "string" | "boolean" | "null" as name}:
            return str(name)
    raise ValueError(f"No type is known for the schema {schema}. Add a case for it.")


if __name__ == "__main__":
    TYPES_FILE.write_text(render_types())
