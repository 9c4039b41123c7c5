from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_horsies.exceptions import HorsiesError, SchemaUnsupported, TaskNotCancellable, TaskNotFound, WireError
from airflow_horsies.models import CancelOutcome, TaskState
from airflow_horsies.wire import cancelling
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import MOVED, drive

FIRST = "0198a0de-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ([("APPLIED", "PENDING")], (CancelOutcome.CANCELLED, TaskState.PENDING)),
        ([("APPLIED", "RUNNING")], (CancelOutcome.CANCELLED, TaskState.RUNNING)),
        ([("ALREADY_APPLIED", "CANCELLED")], (CancelOutcome.ALREADY_CANCELLED, TaskState.CANCELLED)),
        ([("SOURCE_STATE_CONFLICT", "CANCELLED")], (CancelOutcome.ALREADY_CANCELLED, TaskState.CANCELLED)),
        ([("SOURCE_STATE_CONFLICT", "COMPLETED")], (CancelOutcome.ALREADY_FINISHED, TaskState.COMPLETED)),
        ([("SOURCE_STATE_CONFLICT", "EXPIRED")], (CancelOutcome.ALREADY_FINISHED, TaskState.EXPIRED)),
        ([("SOURCE_STATE_CONFLICT", "PENDING")], (TaskNotCancellable, "belongs to a horsies workflow")),
        ([("SOURCE_STATE_CONFLICT", "RUNNING")], (TaskNotCancellable, "is RUNNING")),
        ([("TASK_ABSENT", None)], (TaskNotFound, f"Task {FIRST} is not in this database")),
        ([], (TaskNotFound, f"Task {FIRST} is not in this database")),
        ([("EXPLODED", "PENDING")], (WireError, "returned 'EXPLODED'")),
        ([("APPLIED", "PAUSED")], (WireError, "'PAUSED'")),
    ],
    ids=str,
)
def test_cancel_tells_what_it_found(rows: list[tuple[str, str | None]], outcome: tuple[Any, Any]) -> None:
    answers = {"moved/cancel_task": [{"outcome": each, "observed_status": status} for each, status in rows]}
    permitted = {TaskState.PENDING, TaskState.CLAIMED}
    if isinstance(outcome[0], CancelOutcome):
        assert drive(cancelling.cancel_task(Wire(MOVED), FIRST), answers).outcome == outcome
    else:
        kind: type[HorsiesError] = outcome[0]
        with pytest.raises(kind, match=outcome[1]):
            drive(cancelling.cancel_task(Wire(MOVED), FIRST, states=permitted), answers)


def test_cancel_needs_a_schema_that_a_worker_has_completed() -> None:
    with pytest.raises(SchemaUnsupported, match="No horsies worker has ever started"):
        drive(cancelling.cancel_task(Wire(replace(MOVED, worker_has_started=False)), FIRST))
