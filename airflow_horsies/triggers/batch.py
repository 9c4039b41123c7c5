"""The trigger that waits for the tasks of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.core.submission import TaskInstanceKey, batch_task_ids
from airflow_horsies.core.task import TaskState
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.triggers.base import HorsiesTrigger, Reason
from airflow_horsies.triggers.task_log import StoredSeen


class HorsiesBatchTrigger(HorsiesTrigger):
    """
    Wait for the tasks of a batch. They may be many, so they are found by the task instance that submitted them.

    :param task_instance: dag_id, run_id, task_id and map_index of the task instance.
    :param life: the life whose submissions belong to the batch.
    :param size: the number of items; fewer are an error.
    :param max_failures: fire as soon as more tasks than this have not completed.
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

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesBatchTrigger", {
            "task_instance": self.submitter,
            "life": self.life,
            "max_failures": self.max_failures,
            **({} if self.size is None else {"size": self.size}),
            **self._common(),
        }

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        agreed = {"life": self.life, "size": self.size, "max_failures": self.max_failures}
        return {**super()._payload(reason, message), **agreed}

    def _is_decided(self, ended: Mapping[str, TaskState | None]) -> bool:
        if self.max_failures is None:
            return False
        return sum(state is not TaskState.COMPLETED for state in ended.values()) > self.max_failures

    async def _find_task_ids(self, client: AsyncClient) -> list[str]:
        submissions = await client.read_submissions(self._batch)
        return batch_task_ids(submissions, life=self.life, size=self.size)

    @property
    def _batch(self) -> TaskInstanceKey:
        return TaskInstanceKey(**self.submitter or {})
