"""The trigger that waits for the tasks of a batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.hub import Waiter
from airflow_horsies.client.waiting import POLL_SECONDS
from airflow_horsies.core.batch import FailureCount
from airflow_horsies.core.submission import TaskInstanceKey, is_lost
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.triggers.base import HorsiesTrigger, Reason
from airflow_horsies.triggers.task_log import StoredSeen


class HorsiesBatchTrigger(HorsiesTrigger):
    """
    Wait for the tasks of a batch. They may be many, so they are found by the task instance that submitted them.

    :param task_instance: dag_id, run_id, task_id and map_index of the task instance.
    :param life: the life whose submissions belong to the batch.
    :param size: the number of items; fewer are an error.
    :param results: what the operator returns.
    :param max_failures: fire as soon as more items than this have not completed.
    :param kept: how many of them had not completed before and were not to run again.
    """

    numbers_tasks: ClassVar[bool] = True

    def __init__(
        self,
        *,
        task_instance: Mapping[str, Any],
        life: int,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        queue_deadline: str | None = None,
        cancel_on_kill: bool = True,
        max_failures: int | None = None,
        size: int | None = None,
        namespace: str | None = None,
        seen: StoredSeen | None = None,
        deferred_at: str | None = None,
        results: str = "values",
        kept: int = 0,
    ) -> None:
        super().__init__(
            task_ids=[],
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            queue_deadline=queue_deadline,
            cancel_on_kill=cancel_on_kill,
            task_instance=task_instance,
            namespace=namespace,
            seen=seen,
            deferred_at=deferred_at,
        )
        self.size = size
        self.life = life
        self.max_failures = max_failures
        self.results = results
        self.kept = kept
        self._failures = FailureCount((), POLL_SECONDS)
        self._counts_items = False
        self._is_chunked = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesBatchTrigger", {
            "task_instance": self.submitter,
            "life": self.life,
            "max_failures": self.max_failures,
            **({} if self.size is None else {"size": self.size}),
            # A triggerer of an older release does not know these.
            **({} if self.results == "values" else {"results": self.results}),
            **({"kept": self.kept} if self.kept else {}),
            **self._common(),
        }

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        agreed = {"life": self.life, "size": self.size, "max_failures": self.max_failures}
        asked = {"results": self.results, "kept": self.kept}
        return {**super()._payload(reason, message), **agreed, **asked}

    async def _wait_for_news(self, waiter: Waiter, until: datetime | None) -> None:
        if not self._counts_items:
            await waiter.news(until=until)
            return
        # Items fail while their chunk goes on.
        try:
            async with asyncio.timeout(POLL_SECONDS) as pause:
                await waiter.news(until=until)
        except TimeoutError:
            if not pause.expired():
                raise

    async def _decide(self, client: AsyncClient, waiter: Any, ended: Mapping[str, Any]) -> bool:
        if self.max_failures is None:
            return False
        to_count = self._failures.to_count(ended, time.monotonic())
        counts = await client.count_items(to_count) if to_count else {}
        failures = self._failures.total(counts)
        return is_lost(failures, allowed=self.max_failures, kept=self.kept)

    async def _find_task_ids(self, client: AsyncClient) -> list[str]:
        found = await client.read_batch_tasks(self._batch, life=self.life, size=self.size)
        self._failures = FailureCount(found.chunk_ids, POLL_SECONDS)
        self._counts_items = bool(found.chunk_ids) and self.max_failures is not None
        self._is_chunked = bool(found.chunk_ids)
        return list(found.task_ids)

    async def _places_of_items(self, client: AsyncClient) -> Mapping[tuple[str, int], int]:
        if not self._is_chunked:
            return {}
        return await client.read_item_places(self._batch, life=self.life, size=self.size)

    @property
    def _batch(self) -> TaskInstanceKey:
        return TaskInstanceKey(**self.submitter or {})
