from __future__ import annotations

from typing import Any

import pytest

from airflow_horsies.core.parameters import FILLED_BY_WORKFLOW, UNCHECKED, describe_parameters, find_problems, suggest


def problems(schema: dict[str, Any], value: Any) -> list[str]:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": {"Leg": {"type": "object"}}}
    return find_problems(whole, {"x": value})


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"type": "integer"}, [1, True, 2.0, "7", " +7 ", "1_000", "3.0"], [1.5, "many", None, [], {}]),
        ({"type": "number"}, [1, 1.5, True, "1e3", "nan"], ["many", None, [1], {}]),
        ({"type": "boolean"}, [True, 0, 1.0, "on", "False"], [2, "perhaps", None, []]),
        ({"type": "string"}, ["", "x"], [1, True, None, [], {}]),
        ({"type": "string", "format": "date"}, ["2026-01-01", 17, 1.5], [True, None, []]),
        ({"type": "null"}, [None], [0, "", []]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1, "2"], (1,)], ["1", {}, None, [1, "x"]]),
        ({"type": "array"}, [[object()]], [1]),
        ({"type": "object"}, [{}, {"a": 1}], [[], "x", None]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["x", []]),
        ({"oneOf": [{"$ref": "#/$defs/Leg"}, {"type": "string"}]}, [{}, "x"], [1, None]),
        ({"$ref": "#/$defs/Leg"}, [{}], [1]),
        # Nothing certain is known of these.
        ({"$ref": "#/$defs/Gone"}, [1], []),
        ({}, [1, None, [], {}], []),
        ({"enum": ["a"], "type": "string"}, [1, "b"], []),
        ({"type": "integer", UNCHECKED: True}, ["x"], []),
        ({FILLED_BY_WORKFLOW: True}, ["x"], []),
        ({"allOf": [{"type": "integer"}]}, ["x"], []),
        ({"type": "tuple"}, ["x"], []),
        ({"type": "integer"}, [object()], []),
    ],
    ids=str,
)
def test_only_what_each_worker_refuses_is_a_problem(
    schema: dict[str, Any], accepted: list[Any], refused: list[Any]
) -> None:
    assert [value for value in accepted if problems(schema, value)] == []
    assert [value for value in refused if not problems(schema, value)] == []


def test_a_schema_that_refers_to_itself_ends() -> None:
    endless = {"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert find_problems(endless, {"x": 1}) == []


def test_names_are_checked_with_a_suggestion() -> None:
    schema = {"properties": {"path": {}, "rows": {}}, "required": ["path"], "additionalProperties": False}
    assert find_problems(schema, {"row": 1}) == ["path is missing", "row is unknown (did you mean rows?)"]
    assert find_problems({**schema, "additionalProperties": True}, {"path": 1, "other": 1}) == []
    assert find_problems({UNCHECKED: True, "required": ["x"]}, {}) == []
    assert suggest("zzz", ["path"]) == ""


def test_values_are_shown_only_if_they_are_no_secret() -> None:
    schema = {"properties": {"x": {"type": "integer"}}}
    assert find_problems(schema, {"x": "s3cret"}) == ["x must be an integer"]
    assert find_problems(schema, {"x": "many"}, is_secret=False) == ["x must be an integer, not 'many'"]


def test_parameters_are_described_in_one_line() -> None:
    schema = {
        "properties": {
            "path": {"type": "string"},
            "rows": {"type": "integer", "default": 5},
            "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "legs": {"type": "array", "items": {"$ref": "#/$defs/Leg"}},
            "mode": {"enum": ["fast", "slow"]},
            "other": {FILLED_BY_WORKFLOW: True},
            "any": {},
        },
        "required": ["path", "legs"],
    }
    assert describe_parameters(schema) == (
        "path: string, rows: integer = 5, day: date or null = …, legs: array of Leg, mode: 'fast' or 'slow' = …, "
        "other: result of another node = …, any: any = …"
    )
