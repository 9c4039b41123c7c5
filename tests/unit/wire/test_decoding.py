from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_horsies.exceptions import WireError
from airflow_horsies.models import TaskException, TaskFailure, TaskResult, TaskState
from airflow_horsies.wire.decoding import (
    decode_attempts,
    decode_command,
    decode_kwargs,
    decode_result,
    decode_retention_class,
    decode_state,
    decode_task,
    decode_worker,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_IN_INDIA = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
MARKS = ["__h_task_result__", "__task_result__"]


def result(envelope: Any, *, error_code: str | None = None) -> TaskResult | None:
    return decode_result("t", json.dumps(envelope), error_code=error_code)


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("value", [None, 5, {"rows": [1]}])
def test_envelope_without_error_is_its_value(mark: str, value: Any) -> None:
    assert result({mark: True, "ok": value, "err": None}) == TaskResult(ok=value)


@pytest.mark.parametrize("mark", MARKS)
def test_envelope_with_error_tells_code_message_data_and_exception(mark: str) -> None:
    envelope = {
        mark: True,
        "ok": None,
        "err": {
            "error_code": "FLAKY",
            "message": "try later",
            "data": {"after": 5},
            "exception": {"type": "IOError", "module": "m", "message": "no", "repr": "r", "traceback": "tb"},
        },
    }
    assert result(envelope) == TaskResult(
        error=TaskFailure(
            error_code="FLAKY",
            message="try later",
            data={"after": 5},
            exception=TaskException(type="IOError", message="no", traceback="tb"),
        )
    )


@pytest.mark.parametrize(
    ("in_envelope", "column", "code"),
    [
        ({"__builtin_task_code__": "WORKER_CRASHED"}, None, "WORKER_CRASHED"),
        ({"__builtin_task_code__": "WORKER_CRASHED"}, "TASK_TIMEOUT", "TASK_TIMEOUT"),
        ("FLAKY", "FLAKY", "FLAKY"),
        ({}, None, None),
        (None, None, None),
        (7, None, None),
    ],
)
def test_error_code_is_the_column_or_the_plain_code_of_the_envelope(
    in_envelope: Any, column: str | None, code: str | None
) -> None:
    decoded = result({MARKS[0]: True, "err": {"error_code": in_envelope}}, error_code=column)
    assert decoded is not None and decoded.error is not None
    assert (decoded.error.error_code, decoded.error.exception) == (code, None)


def test_no_result_is_none() -> None:
    assert decode_result("t", None, error_code="TASK_CANCELLED") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read as JSON"),
        ("5", "not a horsies result envelope"),
        ("[]", "not a horsies result envelope"),
        ('{"ok": 1, "err": null}', "not a horsies result envelope"),
        ('{"__h_task_result__": false, "ok": 1}', "not a horsies result envelope"),
        ('{"__h_task_result__": true, "err": "no"}', "error of task t is not a JSON object"),
    ],
)
def test_result_that_is_none_of_upstreams_is_a_wire_error(text: str, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        decode_result("t", text, error_code=None)


FAILED_ATTEMPT = [1, "FAILED", True, 1_000_001, 2_500_001, "FLAKY", "no", "because", "w", "host", 42, "main"]


def test_attempts_are_read_from_rows_of_twelve() -> None:
    done = [2, "COMPLETED", False, 3_000_000, 4_000_000, *[None] * 7]
    first, second = decode_attempts("t", json.dumps([FAILED_ATTEMPT, done]))
    assert (first.number, first.outcome, first.will_retry, first.error_code) == (1, "FAILED", True, "FLAKY")
    assert (first.error_message, first.failed_reason, first.process_name) == ("no", "because", "main")
    assert (first.worker_id, first.hostname, first.pid) == ("w", "host", 42)
    assert first.started_at == datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)
    assert first.duration_seconds == 1.5
    assert (second.number, second.will_retry, second.error_code, second.pid) == (2, False, None, None)


def test_no_attempts_are_an_empty_tuple() -> None:
    assert decode_attempts("t", None) == decode_attempts("t", "[]") == ()


@pytest.mark.parametrize("text", ["[", "{}", "[[1, 2]]", json.dumps([[*FAILED_ATTEMPT, "more"]]), "[1]"])
def test_attempts_of_another_shape_are_a_wire_error(text: str) -> None:
    with pytest.raises(WireError, match="attempts of task t"):
        decode_attempts("t", text)


@pytest.mark.parametrize(
    ("kwargs", "rerun_input", "decoded"),
    [
        ('{"a":1}', None, {"a": 1}),
        ('{"a":1}', '{"kwargs":{"a":2}}', {"a": 1}),
        (None, '{"args":[],"kwargs":{"a":"\\u0000"},"options":{}}', {"a": "\x00"}),
        (None, None, None),
    ],
)
def test_arguments_come_from_the_row_or_from_what_was_kept(
    kwargs: str | None, rerun_input: str | None, decoded: dict[str, Any] | None
) -> None:
    assert decode_kwargs("t", kwargs, rerun_input) == decoded


@pytest.mark.parametrize(
    ("kwargs", "rerun_input"), [("[1]", None), ("{", None), (None, "{}"), (None, "nope"), (None, "[]")]
)
def test_arguments_that_are_no_object_are_a_wire_error(kwargs: str | None, rerun_input: str | None) -> None:
    with pytest.raises(WireError, match="of task t"):
        decode_kwargs("t", kwargs, rerun_input)


def test_unknown_status_is_a_wire_error() -> None:
    assert decode_state("t", "RUNNING") is TaskState.RUNNING
    with pytest.raises(WireError, match="'PAUSED', which this release does not know"):
        decode_state("t", "PAUSED")


def task_row(**given: Any) -> dict[str, Any]:
    return {
        "id": "0198a0de-0000-7000-8000-000000000001",
        "task_name": "add",
        "queue_name": "default",
        "priority": 100,
        "status": "PENDING",
        "sent_at": NOON_IN_INDIA,
        "enqueued_at": NOON_IN_INDIA,
        "good_until": None,
        "claimed_at": None,
        "started_at": None,
        "finished_at": None,
        "next_retry_at": None,
        "retry_count": 0,
        "max_retries": 2,
        "worker_id": None,
        "worker_hostname": None,
        "worker_pid": None,
        "error_code": None,
        "failed_reason": None,
        "is_workflow_task": False,
        "kwargs": None,
        "rerun_input": None,
        "result": None,
        "attempts": None,
        **given,
    }


def test_row_becomes_a_task_whose_times_are_utc() -> None:
    task = decode_task(
        task_row(
            status="FAILED",
            error_code="FLAKY",
            finished_at=NOON_IN_INDIA,
            result='{"__h_task_result__":true,"err":{"message":"no"}}',
            attempts=json.dumps([FAILED_ATTEMPT]),
        )
    )
    assert (task.state, task.error_code, task.sent_at, task.finished_at) == (TaskState.FAILED, "FLAKY", NOON, NOON)
    assert task.sent_at is not None and task.sent_at.tzinfo is UTC
    assert task.result == TaskResult(error=TaskFailure(error_code="FLAKY", message="no"))
    assert [attempt.error_code for attempt in task.attempts] == ["FLAKY"]


def test_command_is_the_fingerprint_or_the_columns_where_none_is_kept() -> None:
    assert decode_command({"command_fingerprint": memoryview(b"\x01\x02")}) == b"\x01\x02"
    columns = {
        "command_fingerprint": None,
        "task_name": "add",
        "queue_name": "default",
        "priority": 1,
        "kwargs": "{}",
        "good_until": NOON_IN_INDIA,
        "task_options": "{}",
    }
    assert decode_command(columns) == ("add", "default", 1, "{}", NOON, "{}")


def test_worker_row_becomes_a_worker() -> None:
    worker = decode_worker(
        {
            "worker_id": "w",
            "hostname": "host",
            "pid": 42,
            "queues": ["default", "reports"],
            "processes": 2,
            "tasks_running": 1,
            "tasks_claimed": 0,
            "worker_started_at": NOON_IN_INDIA,
            "snapshot_at": NOON_IN_INDIA,
            "alive": True,
            "memory_mb": None,
            "cpu_percent": 1.5,
        }
    )
    assert (worker.id, worker.queues, worker.started_at, worker.alive) == ("w", ("default", "reports"), NOON, True)


def test_retention_class_without_a_duration_is_for_ever() -> None:
    assert decode_retention_class({"class_key": "forever", "duration": None}).duration is None
