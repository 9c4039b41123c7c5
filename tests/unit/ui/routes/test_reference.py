from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

from airflow_horsies.models import KnownKind, KnownTask
from tests.unit.ui.rig import NOW, Client

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui.routes import reference as reference_routes
    from airflow_horsies.ui.routes.overview import Shared

URL = "/api/known"
LOAD = KnownTask(
    kind=KnownKind.TASK,
    name="flights.load",
    parameters={
        "properties": {
            "path": {"type": "string", "description": "Where the files are."},
            "rows": {"type": "integer", "default": 5},
            "api_token": {"type": "string", "default": "s3cret-word"},
            "url": {"type": "string", "default": "postgresql://etl:hunter2@db/x"},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    doc="Loads flights.\npassword=hunter2",
    queue=None,
    served_queues=("default", "spark"),
    workers=2,
    releases=("1.0",),
    hosts=("node-1",),
    seen_at=NOW,
    is_live=True,
)
MONTH = replace(LOAD, kind=KnownKind.WORKFLOW, name="flights.month", parameters={"x-unchecked": True}, doc=None)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> list[KnownTask]:
    known = [LOAD, MONTH]
    monkeypatch.setattr(reference_routes, "catalog", Shared(lambda: list(known)))
    return known


def ask(client: Client, **asked: Any) -> Any:
    answer = client.get(URL, params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_parameters_come_with_types_and_defaults_and_without_secrets(client: Client) -> None:
    answer = client.get(URL)
    assert "hunter2" not in answer.text and "s3cret-word" not in answer.text
    load, month = answer.json()["entries"]
    assert [(each["name"], each["type"], each["is_required"], each["default"]) for each in load["parameters"]] == [
        ("path", "string", True, None),
        ("rows", "integer", False, "5"),
        ("api_token", "string", False, '"***"'),
        ("url", "string", False, '"postgresql://etl:***@db/x"'),
    ]
    assert load["parameters"][0]["description"] == "Where the files are."
    assert load["doc"].startswith("Loads flights.")
    assert (load["takes_others"], month["takes_others"], month["parameters"]) == (False, True, [])
    assert (load["workers"], load["hosts"], load["served_queues"]) == (2, ["node-1"], ["default", "spark"])


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, ["flights.load", "flights.month"]),
        ({"search": "LOAD"}, ["flights.load"]),
        ({"search": "rows flights"}, ["flights.load"]),
        ({"search": "spark"}, ["flights.load", "flights.month"]),
        ({"search": "loads"}, ["flights.load"]),
        ({"search": "%"}, []),
        ({"kind": "workflow"}, ["flights.month"]),
        ({"limit": 1}, ["flights.load"]),
        ({"limit": 1, "offset": 1}, ["flights.month"]),
        ({"offset": 5}, []),
    ],
)
def test_search_kind_and_page_choose(client: Client, asked: dict[str, Any], names: list[str]) -> None:
    shown = ask(client, **asked)
    assert [entry["name"] for entry in shown["entries"]] == names
    assert shown["recorded"] == 2
    assert shown["total"] == (2 if {"limit", "offset"} & asked.keys() else len(names))


@pytest.mark.parametrize("asked", [{"limit": 101}, {"limit": 0}, {"offset": -1}, {"kind": "x"}, {"search": "x" * 201}])
def test_what_is_out_of_bounds_is_refused(client: Client, asked: dict[str, Any]) -> None:
    assert client.get(URL, params=asked).status_code == 422


def test_schema_that_is_not_one_is_shown_without_parameters(client: Client, known: list[KnownTask]) -> None:
    odd = [{"properties": 7}, {"properties": {"a": 7}, "required": "a"}, {"properties": {"b": {"anyOf": []}}}]
    known[:] = [replace(LOAD, name=f"odd.{number}", parameters=schema) for number, schema in enumerate(odd)]
    entries = ask(client)["entries"]
    assert [[each["name"] for each in entry["parameters"]] for entry in entries] == [[], ["a"], ["b"]]


def test_long_schemas_and_names_are_bounded(client: Client, known: list[KnownTask]) -> None:
    many = {f"p{number}": {"type": "string", "default": "x" * 10_000} for number in range(1_000)}
    known[:] = [replace(LOAD, parameters={"properties": many}, hosts=tuple(map(str, range(500))))]
    (entry,) = ask(client)["entries"]
    assert (len(entry["parameters"]), len(entry["hosts"])) == (200, 50)
    assert all(len(each["default"]) <= 200 for each in entry["parameters"])
