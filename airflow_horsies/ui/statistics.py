"""Figures of recent tasks: throughput of queues, outcomes of attempts, latest events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import cast

from airflow_horsies.core.attempts import is_parked
from airflow_horsies.core.task import Attempt, TaskState, TaskView
from airflow_horsies.ui.payloads import Bucket, EventKind

MAX_BUCKETS = 60
BUCKET_SECONDS = (1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800)
THROUGHPUT_OVER = timedelta(minutes=5)
SUCCEEDED = "COMPLETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a task."""

    at: datetime
    what: EventKind
    task: TaskView
    attempt: Attempt | None = None


def throughput(tasks: Sequence[TaskView], now: datetime) -> dict[str, float]:
    """Ended tasks per minute and queue, over the last minutes or as far back as ``tasks`` go."""
    oldest = min((task.enqueued_at for task in tasks), default=now)
    since = max(now - THROUGHPUT_OVER, oldest)
    minutes = max((now - since).total_seconds() / 60, 1 / 60)
    ended = Counter(task.queue for task in tasks if task.finished_at and task.finished_at >= since)
    return {queue: count / minutes for queue, count in ended.items()}


def attempts_over_time(tasks: Sequence[TaskView]) -> tuple[int, list[Bucket]]:
    """The width of a bucket in seconds, and the buckets from the first attempt's end to the last's."""
    attempts = [attempt for task in tasks for attempt in task.attempts]
    if not attempts:
        return BUCKET_SECONDS[0], []
    first = min(attempt.finished_at for attempt in attempts).timestamp()
    last = max(attempt.finished_at for attempt in attempts).timestamp()
    fitting = (seconds for seconds in BUCKET_SECONDS if (last - first) / seconds < MAX_BUCKETS - 1)
    width = next(fitting, BUCKET_SECONDS[-1])
    grouped: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        grouped.setdefault(int(attempt.finished_at.timestamp() // width), []).append(attempt)
    span = range(max(min(grouped), max(grouped) - MAX_BUCKETS + 1), max(grouped) + 1)
    return width, [_bucket(number * width, grouped.get(number, [])) for number in span]


def events(tasks: Sequence[TaskView]) -> Iterator[Event]:
    """The events of the tasks, in no particular order."""
    for task in tasks:
        yield Event(at=task.sent_at or task.enqueued_at, what="sent", task=task)
        for attempt in task.attempts:
            if attempt.outcome != SUCCEEDED:
                what: EventKind = "failed, will be retried" if attempt.will_retry else "failed"
                what = "parked" if is_parked(attempt) else what
                yield Event(at=attempt.finished_at, what=what, task=task, attempt=attempt)
        if task.started_at and task.state is TaskState.RUNNING:
            yield Event(at=task.started_at, what="started", task=task)
        if task.finished_at and not (task.state is TaskState.FAILED and task.attempts):
            yield Event(at=task.finished_at, what=cast("EventKind", task.state.lower()), task=task)


def _bucket(start: int, attempts: Sequence[Attempt]) -> Bucket:
    durations = sorted(attempt.duration_seconds for attempt in attempts)
    return Bucket(
        start=datetime.fromtimestamp(start, UTC),
        ended=len(attempts),
        failed=sum(attempt.outcome != SUCCEEDED and not is_parked(attempt) for attempt in attempts),
        p50_seconds=_percentile(durations, 0.50),
        p95_seconds=_percentile(durations, 0.95),
    )


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(ceil(share * len(ordered)) - 1, 0)] if ordered else None
