from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_horsies.exceptions import TaskExpired, TaskFailed, WorkerLost
from airflow_horsies.models import TaskException, TaskFailure, TaskResult, TaskState, TaskView
from airflow_horsies.operators.outcomes import (
    TaskFailedForGood,
    TaskTimedOut,
    expiry_of,
    fail_or_skip,
    failure_of,
    failure_text,
)

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def failed(code: str | None, failure: TaskFailure | None = None, **given: Any) -> TaskView:
    return TaskView(
        **{
            "id": "01a1e223-68a7-7210-ad76-a42348fdcb7c",
            "task_name": "add",
            "queue": "spark",
            "priority": 100,
            "state": TaskState.FAILED,
            "sent_at": BEGAN,
            "enqueued_at": BEGAN,
            "retry_count": 0,
            "max_retries": 0,
            "error_code": code,
            "result": TaskResult(error=failure) if failure else None,
            **given,
        }
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("BROKEN", TaskFailed),
        ("WORKER_CRASHED", WorkerLost),
        ("WORKER_RESOLUTION_ERROR", TaskFailedForGood),
        ("WORKER_SERIALIZATION_ERROR", TaskFailedForGood),
        ("SPARK_ANALYSIS_ERROR", TaskFailedForGood),
        ("BAD_INPUT", TaskFailedForGood),
        ("RESULT_TOO_LARGE", TaskFailedForGood),
        ("RESULT_NOT_JSON", TaskFailedForGood),
        ("NO_HOPE", TaskFailedForGood),
        (None, TaskFailed),
    ],
)
def test_code_decides_whether_airflow_tries_again(code: str | None, kind: type[TaskFailed]) -> None:
    error = failure_of(failed(code), fail_fast_codes=["NO_HOPE"])
    assert type(error) is kind
    assert isinstance(error, AirflowFailException) == (kind is TaskFailedForGood)
    assert (error.error_code, error.queue) == (code, "spark")


def test_time_out_is_one_of_airflows_own() -> None:
    assert issubclass(TaskTimedOut, AirflowTaskTimeout)


def test_message_is_the_cause_in_one_line() -> None:
    exception = TaskException(type="ValueError", message="no such\n  column")
    task = failed("UNHANDLED_EXCEPTION", TaskFailure(error_code=None, message="it broke", exception=exception))
    assert failure_text(task) == "UNHANDLED_EXCEPTION: ValueError: no such column"
    assert failure_text(failed("BROKEN", TaskFailure(error_code="BROKEN", message="it broke"))) == "BROKEN: it broke"
    assert failure_text(failed(None, failed_reason="lost")) == "lost"
    assert len(failure_text(failed("LONG", TaskFailure(error_code="LONG", message="x" * 9_999)))) == 500


def test_expiry_fails_or_skips() -> None:
    error = expiry_of(failed("TASK_EXPIRED", state=TaskState.EXPIRED, good_until=BEGAN))
    with pytest.raises(TaskExpired, match="no worker started it by 2026-01-01"):
        fail_or_skip(error, "fail")
    with pytest.raises(AirflowSkipException, match="no worker started it"):
        fail_or_skip(error, "skip")
