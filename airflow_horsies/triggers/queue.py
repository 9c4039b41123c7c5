"""The trigger that waits for capacity in a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.waiting import POLL_SECONDS
from airflow_horsies.core.cluster import QueueDepth
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.triggers.base import HorsiesTrigger, Reason, _seconds_until


class HorsiesQueueTrigger(HorsiesTrigger):
    """
    Wait until a queue is served and contains few enough tasks.

    :param queue: the horsies queue.
    :param min_workers: how many live workers must serve it.
    :param max_depth: fewer tasks than this must be ready to run; None sets no limit.
    :param poll_seconds: the interval between checks.
    :param horsies_conn_id: the connection to its database.
    :param deadline: the ISO time of the time-out.
    """

    def __init__(
        self,
        *,
        queue: str,
        min_workers: int = 1,
        max_depth: int | None = None,
        poll_seconds: float = POLL_SECONDS,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__(
            task_ids=[],
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            cancel_on_kill=False,
            deferred_at=deferred_at,
        )
        self.queue = queue
        self.min_workers = min_workers
        self.max_depth = max_depth
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesQueueTrigger", {
            "queue": self.queue,
            "min_workers": self.min_workers,
            "max_depth": self.max_depth,
            "poll_seconds": self.poll_seconds,
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            **self._stored_deferral(),
        }

    async def _watch(self, client: AsyncClient) -> Reason:
        while True:
            depth = depth_of(self.queue, await client.read_queues())
            if is_open(depth, min_workers=self.min_workers, max_depth=self.max_depth):
                return Reason.ENDED
            if self._is_over():
                return Reason.TIMED_OUT
            left = _seconds_until(datetime.fromisoformat(self.deadline)) if self.deadline else self.poll_seconds
            await asyncio.sleep(min(self.poll_seconds, left))


def depth_of(queue: str, queues: Iterable[QueueDepth]) -> QueueDepth:
    """The depth of one queue. A queue without tasks and workers is not listed."""
    for depth in queues:
        if depth.queue == queue:
            return depth
    return QueueDepth(queue=queue, ready=0, delayed=0, claimed=0, running=0, oldest_ready_at=None, served_by=0)


def is_open(depth: QueueDepth, *, min_workers: int, max_depth: int | None) -> bool:
    """Whether enough workers serve the queue and it can take more tasks."""
    return depth.served_by >= min_workers and (max_depth is None or depth.ready < max_depth)
