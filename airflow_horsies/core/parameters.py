"""Checks arguments against the parameters that a worker has recorded, before they are sent.

Only what every worker would refuse is a problem. Workers convert values: the text "5" is a valid integer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

# Keys of ours in a JSON schema: the type accepts more than the schema says; only workflows fill the parameter.
UNCHECKED = "x-unchecked"
FILLED_BY_WORKFLOW = "x-filled-by-workflow"

MAX_DEPTH = 20
MAX_CHECKED_ITEMS = 100
MAX_SHOWN_CHARS = 80
INTEGER = re.compile(r"\s*[+-]?\d[\d_]*(\.0*)?\s*")
TRUTH = frozenset({"0", "1", "off", "on", "f", "t", "n", "y", "no", "yes", "false", "true"})
NAMES = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def find_problems(schema: Mapping[str, Any], given: Mapping[str, Any], *, is_secret: bool = True) -> list[str]:
    """
    What is wrong with the arguments; empty if nothing certainly is.

    :param schema: a JSON schema of an object, with a property for each parameter.
    :param is_secret: leave values out.
    """
    if schema.get(UNCHECKED):
        return []
    properties: Mapping[str, Any] = schema.get("properties", {})
    problems = [f"{name} is missing" for name in schema.get("required", ()) if name not in given]
    for name, value in given.items():
        if name not in properties:
            if schema.get("additionalProperties") is False:
                problems.append(f"{name} is unknown{suggest(name, properties)}")
            continue
        wanted = _mismatch(properties[name], value, schema.get("$defs", {}), 0)
        if wanted is not None:
            problems.append(f"{name} must be {wanted}{'' if is_secret else f', not {_shown(value)}'}")
    return problems


def suggest(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """Empty if nothing is similar."""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def describe_parameters(schema: Mapping[str, Any]) -> str:
    """``path: string, rows: integer = 5``"""
    required = set(schema.get("required", ()))
    shown = []
    for name, parameter in schema.get("properties", {}).items():
        text = f"{name}: {describe_type(parameter)}"
        if "default" in parameter:
            text += f" = {_shown(parameter['default'])}"
        elif name not in required:
            text += " = …"
        shown.append(text)
    return ", ".join(shown)


def describe_type(schema: Mapping[str, Any]) -> str:
    if FILLED_BY_WORKFLOW in schema:
        return "result of another node"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(describe_type(choice) for choice in schema[key]))
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"][:5]))
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping) and schema["items"]:
        return f"array of {describe_type(schema['items'])}"
    return str(schema.get("format") or schema.get("type") or "any")


def _mismatch(schema: Mapping[str, Any], value: Any, defs: Mapping[str, Any], depth: int) -> str | None:
    """What the value should be; None if it may be right."""
    if depth > MAX_DEPTH or not isinstance(schema, Mapping) or UNCHECKED in schema or FILLED_BY_WORKFLOW in schema:
        return None
    if "$ref" in schema:
        found = defs.get(str(schema["$ref"]).rpartition("/")[2])
        return None if found is None else _mismatch(found, value, defs, depth + 1)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            wanted = [_mismatch(choice, value, defs, depth + 1) for choice in schema[key]]
            return None if not wanted or None in wanted else " or ".join(dict.fromkeys(map(str, wanted)))
    kind = schema.get("type")
    # An enumeration may convert what is not among its values.
    if "allOf" in schema or "enum" in schema or "const" in schema or kind not in NAMES:
        return None
    if not _may_be(kind, schema, value):
        return NAMES[kind]
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        for item in value[:MAX_CHECKED_ITEMS]:
            wrong = _mismatch(schema["items"], item, defs, depth + 1)
            if wrong is not None:
                return f"a list in which each item is {wrong}"
    return None


def _may_be(kind: str, schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a worker may convert a JSON value to the type."""
    match value:
        case None:
            return kind == "null"
        case bool():
            return kind in ("boolean", "integer", "number")
        case int() | float():
            if kind == "integer":
                return isinstance(value, int) or value.is_integer()
            if kind == "boolean":
                return value in (0, 1)
            # Dates, times and durations may be numbers.
            return kind == "number" or (kind == "string" and "format" in schema)
        case str():
            return _may_text_be(kind, value)
        case list() | tuple():
            return kind == "array"
        case Mapping():
            return kind == "object"
    return True


def _may_text_be(kind: str, text: str) -> bool:
    match kind:
        case "integer":
            return INTEGER.fullmatch(text) is not None
        case "number":
            try:
                float(text)
            except ValueError:
                return False
            return True
        case "boolean":
            return text.lower() in TRUTH
    return kind == "string"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
