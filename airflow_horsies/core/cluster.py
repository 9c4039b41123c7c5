"""Queues, workers and retention classes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_horsies.core.task import TaskState, TaskView


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """The number of tasks that wait and run in one queue."""

    queue: str
    ready: int
    delayed: int
    claimed: int
    running: int
    oldest_ready_at: datetime | None
    served_by: int

    @property
    def is_unserved(self) -> bool:
        """Whether tasks are ready and no live worker serves the queue."""
        return bool(self.ready) and not self.served_by


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The last report of one worker."""

    id: str
    hostname: str
    pid: int
    queues: tuple[str, ...]
    processes: int
    tasks_running: int
    tasks_claimed: int
    started_at: datetime
    seen_at: datetime
    alive: bool
    memory_mb: float | None = None
    cpu_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionClass:
    """How long finished tasks of a class are kept; None means forever."""

    key: str
    duration: timedelta | None


def is_unserved(task: TaskView, queues: Iterable[QueueDepth], now: datetime) -> bool:
    """Whether a task that is ready for its first attempt waits in a queue that no live worker serves."""
    if task.state is not TaskState.PENDING or task.retry_count or task.enqueued_at > now:
        return False
    return all(queue.queue != task.queue or not queue.served_by for queue in queues)
