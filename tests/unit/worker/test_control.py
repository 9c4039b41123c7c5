from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("horsies")

from horsies import AppConfig, Horsies, PostgresConfig
from pydantic import SecretStr

from airflow_horsies.borrowed.horsies import forget_definition, known_definitions
from airflow_horsies.core.control import BEGIN, RESUME_WORKFLOW
from airflow_horsies.exceptions import DatabaseUnreachable
from airflow_horsies.worker import control, horsies_app
from airflow_horsies.worker.tasks import uses_spark
from airflow_horsies.worker.workflows import workflow

URL = "postgresql+psycopg://u:p@localhost:1/x"
ID = str(uuid.UUID(int=7))


@pytest.fixture
def app() -> Iterator[Horsies]:
    before = known_definitions().keys()
    made = Horsies(AppConfig(broker=PostgresConfig(database_url=SecretStr(URL))))
    control.register_control_tasks(made, Any)  # type: ignore[arg-type]
    yield made
    for key in known_definitions().keys() - before:
        forget_definition(key)


def test_every_app_has_them_whatever_its_queues() -> None:
    for queues in (None, ["flights", "other"]):
        made = horsies_app(URL, queues=queues)
        assert {BEGIN, RESUME_WORKFLOW} <= set(made.tasks)
        assert not uses_spark(made)
        assert made.check() == []


def test_a_worker_begins_only_what_it_knows(app: Horsies) -> None:
    @workflow(app, "flights.month")
    def month(app: Any) -> Any: ...

    begin = app.tasks[BEGIN]
    assert begin().is_ok()
    assert begin(definition_key=None).is_ok()
    assert begin(definition_key="flights.month").is_ok()
    refused = begin(definition_key="flights.mnth")
    assert refused.err.error_code == "WORKFLOW_NOT_REGISTERED"
    assert "does not know the workflow 'flights.mnth'. It knows flights.month" in refused.err.message


def test_very_many_workflows_are_not_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "known_definitions", lambda: {f"flow{number:02}": None for number in range(30)})
    assert "flow19 and 10 more" in control.describe_unknown_workflow("x")
    monkeypatch.setattr(control, "known_definitions", dict)
    assert "It knows no workflows." in control.describe_unknown_workflow("x")


def test_each_paused_workflow_is_resumed(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    resumed: list[str] = []
    problems: dict[str, str] = {}
    found: list[Any] = [["a", "b"]]

    def find(database: Any, workflow_id: str) -> Any:
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def resume(app: Any, workflow_id: str) -> str | None:
        resumed.append(workflow_id)
        return problems.get(workflow_id)

    monkeypatch.setattr(control, "find_paused", find)
    monkeypatch.setattr(control, "resume_workflow", resume)
    task = app.tasks[RESUME_WORKFLOW]
    assert task(workflow_id=ID).ok == ["a", "b"]
    assert resumed == ["a", "b"]
    problems["a"] = "DB_OPERATION_FAILED: gone"
    assert task(workflow_id=ID).err.error_code == "WORKFLOW_NOT_RESUMED"
    assert task(workflow_id="no id").err.error_code == "BAD_INPUT"
    found[0] = None
    assert task(workflow_id=ID).err.error_code == "NO_SUCH_WORKFLOW"
    found[0] = DatabaseUnreachable("gone")
    assert task(workflow_id=ID).err.error_code == "WORKFLOW_NOT_RESUMED"
