"""Many tasks are copied into the table, few are inserted: their rows are the same, and so are the refusals."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.exceptions import TaskIdTaken
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, RetryPolicy, TaskInstanceKey, TaskSpec
from airflow_horsies.wire.sending import COPIED_FROM
from tests.integration.conftest import MakeHook
from tests.integration.releases import keeps_history
from tests.integration.test_submit import rows

HOSTILE = "naïve 馬 🐎 \\N \\. a\tb\nc\rd \\x41 'quoted' \"too\" \x7f"
SOON = datetime.now(UTC) + timedelta(hours=3)
# Each sending has its own.
OWN = ("id", "sent_at", "enqueued_at", "created_at", "updated_at", "enqueue_sha")


def variants(release: str) -> list[TaskSpec]:
    newer: dict[str, Any] = {"retain_rerun_input": True} if keeps_history(release) else {}
    return [
        TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}),
        TaskSpec(task_name="nothing"),
        TaskSpec(task_name="echo", kwargs={"value": HOSTILE, "nested": {"list": [1.5, None, True], "text": HOSTILE}}),
        TaskSpec(task_name="echo", kwargs={"value": 1}, good_until=SOON, priority=7, queue="other"),
        TaskSpec(task_name="echo", kwargs={"value": 2}, delay=timedelta(hours=2), **newer),
        TaskSpec(task_name="echo", kwargs={"value": 3}, retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["X"])),
    ]


def row_of(hook: HorsiesHook, task_id: str) -> dict[str, Any]:
    ((row,),) = rows(hook, f"SELECT to_jsonb(t) FROM horsies_tasks AS t WHERE id::text = '{task_id}'")
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_copied_rows_are_those_that_would_be_inserted(
    make_hook: MakeHook, release: str, driver: str, request: pytest.FixtureRequest
) -> None:
    if driver == "psycopg2":
        request.getfixturevalue("with_psycopg2")
    hook = make_hook()
    specs = variants(release)
    inserted = [hook.enqueue_task(spec) for spec in specs]
    many = specs * (COPIED_FROM // len(specs) + 1)
    copied = hook.enqueue_tasks(many)
    assert len(set(copied)) == len(many)
    for one, other in zip(inserted * (len(many) // len(specs)), copied, strict=True):
        expected, found = row_of(hook, one), row_of(hook, other)
        assert {name: value for name, value in found.items() if name not in OWN} == {
            name: value for name, value in expected.items() if name not in OWN
        }
        assert found["created_at"] == found["updated_at"]
    delays = {
        datetime.fromisoformat(row["enqueued_at"]) - datetime.fromisoformat(row["created_at"])
        for row in (row_of(hook, task_id) for task_id in copied)
    }
    assert delays == {timedelta(0), timedelta(hours=2)}


def test_batch_that_is_copied_is_recorded_and_reattached(hook: HorsiesHook) -> None:
    instance = TaskInstanceKey(dag_id="copied", run_id="run", task_id="load")
    specs = [TaskSpec(task_name="add", kwargs={"a": number, "b": 1}) for number in range(COPIED_FROM + 1)]
    sent = hook.submit_tasks(specs, instance, AirflowTry(try_number=1))
    again = hook.submit_tasks(specs, instance, AirflowTry(try_number=2))
    assert [each.task_id for each in again] == [each.task_id for each in sent]
    assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(len(specs),)]
    assert len(hook.read_submissions(instance)) == len(specs)


def test_id_that_exists_refuses_the_whole_copy(hook: HorsiesHook) -> None:
    taken = hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, task_id=str(uuid.uuid4())))
    specs = [TaskSpec(task_name="add", kwargs={"a": number, "b": 1}) for number in range(COPIED_FROM)]
    with pytest.raises(TaskIdTaken, match=taken):
        hook.enqueue_tasks([*specs, TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, task_id=taken)])
    assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(1,)]
