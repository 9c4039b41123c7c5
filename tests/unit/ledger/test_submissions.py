from __future__ import annotations

import uuid
from datetime import UTC, datetime

from airflow_horsies.ledger import submissions
from airflow_horsies.models import TaskInstanceKey
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import MOVED, drive

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WIRE = Wire(MOVED)


SUBMISSION_ROW = {
    "namespace": "n",
    "dag_id": "d",
    "run_id": "r",
    "task_id": "t",
    "map_index": 3,
    "position": 0,
    "life": 1,
    "round": 2,
    "try_number": 3,
    "horsies_task_id": str(uuid.UUID(int=1)),
    "task_name": "load",
    "queue_name": "default",
    "good_until": None,
    "submitted_at": NOON,
    "base_url": "http://airflow",
    "is_latest": True,
}


def test_submissions_are_read_by_instance_and_by_task() -> None:
    instance = TaskInstanceKey(dag_id="d", run_id="r", task_id="t", map_index=3)
    (of_instance,) = drive(
        submissions.read_submissions("n", "http://airflow.test", instance), {"read_submissions": [SUBMISSION_ROW]}
    ).outcome
    (of_task,) = drive(
        submissions.read_submissions_of_task(str(uuid.UUID(int=1))), {"read_submissions_of_task": [SUBMISSION_ROW]}
    ).outcome
    assert of_instance == of_task
    assert (of_task.task_instance, of_task.round, of_task.try_number) == (instance, 2, 3)


def test_change_of_base_url_counts_what_it_changed() -> None:
    driven = drive(submissions.change_base_url("n", old="a", new="b"), {"change_base_url": [{}, {}]})
    assert driven.outcome == 2
    assert driven.params("change_base_url") == {"namespace": "n", "old": "a", "new": "b"}
