from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.core.wording import describe_attempts, describe_metrics, describe_progress
from airflow_horsies.models import Attempt, AttemptRecord, Progress, TaskState, TaskView

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
ATTEMPT = Attempt(
    number=2,
    outcome="FAILED",
    will_retry=True,
    started_at=BEGAN,
    finished_at=BEGAN + timedelta(seconds=1.5),
    error_code="FLAKY",
    error_message="try\nagain",
    hostname="node",
)
RECORD = AttemptRecord(number=1, worker_id="w-1", hostname="node", pid=7, started_at=BEGAN)


def task(state: TaskState, *attempts: Attempt, **given: Any) -> TaskView:
    return TaskView(
        id="01a1e223-68a7-7210-ad76-a42348fdcb7c",
        task_name="add",
        queue="spark",
        priority=100,
        state=state,
        sent_at=BEGAN,
        enqueued_at=BEGAN,
        retry_count=0,
        max_retries=0,
        attempts=attempts,
        **given,
    )


def describe(view: TaskView, *records: AttemptRecord) -> str:
    (line,) = describe_attempts(view, records)
    return line


ATTEMPT_LINE = "attempt 2: FAILED in 1.50 s on node, FLAKY: try again (will be retried)"


def test_attempt_is_one_line_of_a_log() -> None:
    assert describe(task(TaskState.FAILED, ATTEMPT)) == ATTEMPT_LINE


def test_failed_reason_stands_in_for_a_missing_message() -> None:
    attempt = replace(ATTEMPT, error_message=None, failed_reason="killed", will_retry=False)
    assert describe(task(TaskState.FAILED, attempt)) == "attempt 2: FAILED in 1.50 s on node, FLAKY: killed"


def test_cancelled_attempt_is_described_though_horsies_keeps_none() -> None:
    line = "attempt 1: CANCELLED after 12.3 s on node (worker w-1)"
    end = BEGAN + timedelta(seconds=12.3)
    stopped = replace(RECORD, outcome="CANCELLED", finished_at=end)
    assert describe(task(TaskState.CANCELLED, finished_at=BEGAN), stopped) == line
    # The cancel is known before the worker has stopped.
    assert describe(task(TaskState.CANCELLED, finished_at=end), RECORD) == line


def test_attempt_that_has_not_ended_is_described_with_its_start() -> None:
    assert describe(task(TaskState.RUNNING), RECORD) == (
        "attempt 1: RUNNING, since 2026-01-01 00:00:00 UTC on node (worker w-1)"
    )


def test_attempt_whose_end_nobody_recorded_is_lost() -> None:
    assert describe(task(TaskState.FAILED), RECORD) == (
        "attempt 1: LOST, begun 2026-01-01 00:00:00 UTC on node (worker w-1)"
    )


def test_error_that_only_the_worker_recorded_is_shown() -> None:
    failed = replace(RECORD, outcome="FAILED", finished_at=BEGAN, error_code="BAD_INPUT", error_message="no\nday")
    assert describe(task(TaskState.RUNNING), failed) == (
        "attempt 1: FAILED after 0.0 s on node (worker w-1), BAD_INPUT: no day"
    )


def test_attempt_that_nobody_recorded_yet_is_left_out() -> None:
    assert list(describe_attempts(task(TaskState.RUNNING, started_at=BEGAN), ())) == []


def test_attempts_of_both_sources_come_in_order_with_their_metrics() -> None:
    records = [
        replace(RECORD, number=1, outcome="FAILED", finished_at=BEGAN),
        replace(RECORD, number=2, metrics={"jobs": 3}),
        replace(RECORD, number=3, metrics={"jobs": 1}),
    ]
    assert list(describe_attempts(task(TaskState.RUNNING, ATTEMPT), records)) == [
        "attempt 1: FAILED after 0.0 s on node (worker w-1)",
        ATTEMPT_LINE,
        "attempt 2, metrics: jobs 3",
        "attempt 3: RUNNING, since 2026-01-01 00:00:00 UTC on node (worker w-1)",
        "attempt 3, metrics: jobs 1",
    ]
    assert list(describe_attempts(task(TaskState.COMPLETED, ATTEMPT), [])) == [ATTEMPT_LINE]


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({}, ""),
        ({"jobs": 3, "input_rows": 1_234_567}, "jobs 3, input rows 1,234,567"),
        ({"input_bytes": 0, "spill_bytes": 1_023}, "input 0 B, spill 1,023 B"),
        ({"shuffle_read_bytes": 4 * 1024**2}, "shuffle read 4.0 MiB"),
        ({"peak_memory_bytes": 1.5 * 1024**3, "output_bytes": 3 * 1024**6}, "peak memory 1.5 GiB, output 3,072.0 PiB"),
        ({"executor_seconds": 12.345}, "executor 12.3 s"),
        (
            {"gc_ratio": 0.5, "new_thing": None, "warm": True, "mode": "fast"},
            "gc ratio 0.50, new thing None, warm True, mode fast",
        ),
    ],
    ids=str,
)
def test_metrics_are_one_line_with_units(metrics: dict[str, Any], told: str) -> None:
    assert describe_metrics(metrics) == told


@pytest.mark.parametrize(
    ("done", "total", "stage", "told"),
    [
        (4, 10, "stage 3 of 7", "40 % (4 of 10), stage 3 of 7"),
        (999, 1_000, None, "99 % (999 of 1,000)"),
        (1_200, 1_000, None, "100 % (1,200 of 1,000)"),
        (1_200, None, "reading", "1,200 done, reading"),
        (0, 0, None, "0 done"),
    ],
)
def test_progress_is_a_part_of_a_line(done: int, total: int | None, stage: str | None, told: str) -> None:
    assert describe_progress(Progress(attempt=1, done=done, total=total, stage=stage)) == told


def test_a_parked_attempt_is_no_failure() -> None:
    parked = replace(ATTEMPT, error_code="AWAITING_SIGNAL", error_message="Parked: waits for the signal 'go'.")
    line = "attempt 2: PARKED in 1.50 s on node. Parked: waits for the signal 'go'."
    assert describe(task(TaskState.PENDING, parked)) == line
