from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_horsies.models import Attempt, TaskState, TaskView
from airflow_horsies.ui.statistics import MAX_BUCKETS, attempts_over_time, events, throughput

START = datetime(2026, 1, 2, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def task(sent: float, *attempts: Attempt, state: TaskState = TaskState.COMPLETED, **changed: Any) -> TaskView:
    given = {"finished_at": attempts[-1].finished_at if attempts else None, "queue": "q", **changed}
    return TaskView(
        id="id",
        task_name="n",
        priority=1,
        state=state,
        sent_at=at(sent),
        enqueued_at=at(sent),
        retry_count=0,
        max_retries=0,
        attempts=attempts,
        **given,
    )


def attempt(ended: float, seconds: float = 1, outcome: str = "COMPLETED", will_retry: bool = False) -> Attempt:
    return Attempt(
        number=1, outcome=outcome, will_retry=will_retry, started_at=at(ended - seconds), finished_at=at(ended)
    )


def test_throughput_is_of_the_last_minutes_or_as_far_as_is_known() -> None:
    now = at(600)
    old = [task(0, attempt(10))]
    recent = [task(500, attempt(590)) for _ in range(10)]
    assert throughput([*old, *recent], now) == {"q": 2.0}
    assert throughput([task(570, attempt(590)), task(580, attempt(600), queue="other")], now) == {
        "q": 2.0,
        "other": 2.0,
    }
    assert throughput([], now) == {}


def test_attempts_fall_into_buckets_of_a_width_that_fits_the_span() -> None:
    width, buckets = attempts_over_time([task(0, attempt(0)), task(0, attempt(0.5, 3, "FAILED"), attempt(2, 2))])
    assert width == 1
    assert [(each.ended, each.failed) for each in buckets] == [(2, 1), (0, 0), (1, 0)]
    assert (buckets[0].p50_seconds, buckets[0].p95_seconds) == (1, 3)
    assert buckets[1].p50_seconds is None
    for span in (60, 3_600, 86_400, 30 * 86_400, 10 * 365 * 86_400):
        width, buckets = attempts_over_time([task(0, attempt(0)), task(0, attempt(span))])
        assert len(buckets) <= MAX_BUCKETS
        assert buckets[-1].ended >= 1
    assert attempts_over_time([]) == (1, [])


def test_events_tell_each_thing_once() -> None:
    retried = task(0, attempt(2, outcome="FAILED", will_retry=True), attempt(5))
    assert sorted((each.at, each.what) for each in events([retried])) == [
        (at(0), "sent"),
        (at(2), "failed, will be retried"),
        (at(5), "completed"),
    ]
    failed = task(0, attempt(2, outcome="FAILED"), state=TaskState.FAILED)
    assert [each.what for each in events([failed])] == ["sent", "failed"]
    running = task(0, state=TaskState.RUNNING, started_at=at(1))
    assert [each.what for each in events([running])] == ["sent", "started"]
    expired = task(0, state=TaskState.EXPIRED, finished_at=at(9))
    assert [each.what for each in events([expired])] == ["sent", "expired"]


def test_a_parked_attempt_is_no_failure() -> None:
    parked = replace(attempt(2, outcome="FAILED", will_retry=True), error_code="AWAITING_SIGNAL")
    ended = task(0, parked, attempt(5))
    assert [each.what for each in events([ended])] == ["sent", "parked", "completed"]
    _, buckets = attempts_over_time([ended])
    assert sum(bucket.failed for bucket in buckets) == 0
