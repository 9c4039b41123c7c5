"""What authors of tasks write for workflows, on a real worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_horsies.core.control import BEGIN, RESUME_WORKFLOW
from airflow_horsies.core.environment import DATABASE_URL
from airflow_horsies.exceptions import TaskRefused
from airflow_horsies.models import TaskState
from tests.integration.worker_rig import HERE, WAIT_SECONDS, MakeRig, Rig, make_rig

__all__ = ["make_rig"]
QUEUES = "flights:1:4,other:2:4"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Iterator[Rig]:
    yield make_rig("workflow_authors", app="workflow_tasks:app", HORSIES_QUEUES=QUEUES)


def start(rig: Rig, key: str, **parameters: Any) -> str:
    command = [sys.executable, str(HERE / "workflow_tasks.py"), key, json.dumps(parameters)]
    url = "postgresql+psycopg://{user}:{password}@{host}:{port}/{dbname}"
    environ = {
        **os.environ,
        DATABASE_URL: url.format_map(rig.hook.settings.database.connect_args),
        "HORSIES_QUEUES": QUEUES,
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()[-1]


def query(rig: Rig, sql: str, **params: Any) -> list[dict[str, Any]]:
    with rig.hook.get_conn() as connection, connection.cursor() as cursor:
        cursor.execute(sql, params)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def tree(rig: Rig, workflow_id: str) -> list[dict[str, Any]]:
    return query(
        rig,
        "SELECT id::text AS id, name, status, result, error FROM horsies_workflows"
        " WHERE root_workflow_id::text = %(id)s OR id::text = %(id)s ORDER BY depth",
        id=workflow_id,
    )


def wait_for(rig: Rig, workflow_id: str, *states: str) -> list[dict[str, Any]]:
    def reached() -> list[dict[str, Any]] | None:
        found = tree(rig, workflow_id)
        return found if found and any(item["status"] in states for item in found[:1]) else None

    found: list[dict[str, Any]] = rig.until(reached, f"the end of {workflow_id}")
    return found


def ok_of(workflow: dict[str, Any]) -> Any:
    assert workflow["status"] == "COMPLETED", workflow
    return json.loads(workflow["result"])["ok"]


def test_functions_are_nodes_and_a_function_is_a_definition(rig: Rig) -> None:
    root, child = wait_for(rig, start(rig, "flights.month", year=2013, month=2), *ENDED)
    assert ok_of(root) == {"counted": 56, "checked": True, "workflow": child["id"]}


def test_a_bare_specification_is_started_and_a_definition_is_a_node_of_it(rig: Rig) -> None:
    root, *below = wait_for(rig, start(rig, "flights.year", year=2013, days=30), *ENDED)
    assert ok_of(root) == 30.0
    assert [item["name"] for item in below] == ["flights.year", "flights.month"]


def test_a_plain_parameter_of_a_failed_node_fails_the_task_with_its_reason(rig: Rig, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    root, *_ = wait_for(rig, start(rig, "flights.handling", marker=str(marker)), *ENDED)
    assert root["status"] == "FAILED"
    (task,) = query(
        rig, "SELECT task_id::text AS id FROM horsies_workflow_tasks WHERE node_id = 'take' AND task_id IS NOT NULL"
    )
    found = rig.hook.read_task(task["id"])
    assert found.error_code == "INPUT_FAILED"
    assert found.result is not None
    assert found.result.error is not None
    assert "value of task 'flights.take_failed' comes from a node that failed" in (found.result.error.message or "")


def test_begin_refuses_a_workflow_that_the_worker_does_not_know(rig: Rig) -> None:
    unknown = rig.wait(rig.send(BEGIN, definition_key="flights.mnth", spec={"queue": "flights"}))
    assert (unknown.state, unknown.error_code) == (TaskState.FAILED, "WORKFLOW_NOT_REGISTERED")
    assert unknown.result is not None and unknown.result.error is not None
    message = unknown.result.error.message or ""
    assert "'flights.mnth'" in message and "flights.handling, flights.month, flights.year" in message
    for given in ({}, {"definition_key": "flights.month"}, {"definition_key": None}):
        assert rig.wait(rig.send(BEGIN, spec={"queue": "other"}, **given)).state is TaskState.COMPLETED


def test_a_workflow_that_is_paused_inside_is_resumed(rig: Rig, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    workflow_id = start(rig, "flights.month", year=2013, marker=str(marker), pauses=True)
    rig.until(lambda: [item["status"] for item in tree(rig, workflow_id)] == ["RUNNING", "PAUSED"], "the pause")
    marker.unlink()
    began = time.monotonic()
    resumed = rig.wait(rig.send(RESUME_WORKFLOW, workflow_id=workflow_id, spec={"queue": "flights"}))
    assert time.monotonic() - began < WAIT_SECONDS
    assert resumed.result is not None
    root, child = wait_for(rig, workflow_id, *ENDED)
    assert resumed.result.ok == [child["id"]]
    # horsies goes on after the failed node and does not run it again.
    assert (root["status"], child["status"]) == ("FAILED", "FAILED")
    again = rig.wait(rig.send(RESUME_WORKFLOW, workflow_id=workflow_id, spec={"queue": "flights"}))
    assert again.result is not None
    assert again.result.ok == []


@pytest.mark.parametrize("failed_run_again", [True, False])
def test_hook_resumes_a_workflow_on_a_worker_at_once(rig: Rig, tmp_path: Path, failed_run_again: bool) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    workflow_id = start(rig, "flights.month", year=2013, marker=str(marker), pauses=True)
    rig.until(lambda: [item["status"] for item in tree(rig, workflow_id)] == ["RUNNING", "PAUSED"], "the pause")
    marker.unlink()
    if failed_run_again:
        assert rig.hook.retry_workflow(workflow_id, queue="flights").retried == ("check",)
    else:
        assert rig.hook.resume_workflow(workflow_id, queue="flights") == [tree(rig, workflow_id)[1]["id"]]
    root, child = wait_for(rig, workflow_id, *ENDED)
    state = "COMPLETED" if failed_run_again else "FAILED"
    assert (root["status"], child["status"]) == (state, state)
    newest = rig.hook.list_tasks(task_name=RESUME_WORKFLOW).tasks[0]
    assert newest.state is TaskState.COMPLETED


def test_only_an_existing_workflow_is_resumed(rig: Rig) -> None:
    absent = "00000000-0000-7000-8000-000000000000"
    codes = [
        rig.wait(rig.send(RESUME_WORKFLOW, workflow_id=given, spec={"queue": "flights"})).error_code
        for given in (absent, "no id")
    ]
    assert codes == ["NO_SUCH_WORKFLOW", "BAD_INPUT"]


def test_parameters_are_refused_by_their_names(rig: Rig) -> None:
    with pytest.raises(AssertionError, match="year: Input should be a valid integer"):
        start(rig, "flights.month", year="soon")
    with pytest.raises(AssertionError, match="unknown kwargs: \\['yaer'\\]"):
        start(rig, "flights.month", year=1, yaer=2013)


def test_a_worker_records_what_it_knows(rig: Rig) -> None:
    known = {entry.name: entry for entry in rig.until(rig.hook.read_catalog, "the record of the worker")}
    assert {"flights.fetch", "flights.month", "flights.year"} <= known.keys()
    assert not any(name.startswith("airflow_horsies.") for name in known)
    fetch, month = known["flights.fetch"], known["flights.month"]
    assert fetch.signature == "start: date, days: integer = 28, sleep: number = 0.0"
    assert (month.kind, month.doc, month.workers) == ("workflow", "The flights of a month.", 1)
    assert month.signature.startswith("year: integer, month: integer = 1")
    assert fetch.served_queues == ("flights", "other")
    with pytest.raises(TaskRefused, match="start is missing"):
        rig.send("flights.fetch", spec={"queue": "flights"})
    with pytest.raises(TaskRefused, match=r"knows the task 'flights\.fecth' \(did you mean flights\.fetch\?\)"):
        rig.send("flights.fecth", spec={"queue": "other"})
    assert rig.ok("flights.half", of=3, spec={"queue": "other"}) == 1.5


def test_they_run_beside_tasks_with_spark_whose_session_never_comes(make_rig: MakeRig) -> None:
    rig = make_rig(
        "control_with_spark",
        app="spark_only_tasks:app",
        HORSIES_QUEUES=QUEUES,
        HORSIES_SPARK_MASTER="sc://127.0.0.1:1",
    )
    began = time.monotonic()
    tasks = [rig.wait(rig.send(BEGIN, spec={"queue": queue})) for queue in ("flights", "other") * 5]
    assert time.monotonic() - began < 20
    assert {task.state for task in tasks} == {TaskState.COMPLETED}
    # They are no attempts of a task of an author: nothing is recorded of them.
    assert not any(rig.records(task.id) for task in tasks)
