"""The base of the operators that send horsies tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import Context

from airflow_horsies.client.client import Client
from airflow_horsies.core.cluster import is_unserved
from airflow_horsies.core.spec import RetryPolicy, TaskSpec
from airflow_horsies.core.task import TaskView
from airflow_horsies.exceptions import TaskNotFound
from airflow_horsies.operators.rendering import (
    duration,
    instant,
    integer,
    plain_policy,
    policy_of,
    validate_untemplated,
)
from airflow_horsies.operators.waiting import ATTEMPTS_LINK, CANCELLED, FailOrSkip, WaitingOperator
from airflow_horsies.operators.worker_free import START_FIELDS
from airflow_horsies.triggers.base import Reason

__all__ = ["ATTEMPTS_LINK", "CANCELLED", "MAX_LOGGED_ITEMS", "FailOrSkip", "HorsiesTaskOperator", "Reason"]

MAX_LOGGED_ITEMS = 100


class HorsiesTaskOperator(WaitingOperator):
    """
    The base of the operators that send horsies tasks. Use one of its subclasses.

    :param task_name: the name under which the task is registered on the workers.
    :param queue: the horsies queue. It does not set Airflow's own ``queue``, which keeps its default.
    :param horsies_queue: the horsies queue too; overrides ``queue``. Use it in ``partial()`` with an executor that has
        its own queues.
    :param priority: 1 (first) to 100 (last), within the queue.
    :param retry_policy: when horsies runs a failed attempt again: a RetryPolicy of airflow_horsies.models, or a dict of
        its values. A retry policy of Airflow is passed to Airflow.
    :param horsies_retry_policy: the retry policy for horsies only. Use it in ``partial()``, or beside one of Airflow.
    :param good_until: a task that has not started by then expires: a datetime with time zone, a timedelta from the
        submission, or ``"dag_run_deadline"`` for the end of the DAG's ``dagrun_timeout``.
    :param delay: earliest start, counted from the submission.
    :param timeout: the worker stops an attempt that runs longer.
    :param retention: how long horsies keeps the finished task: a retention class, or ``forever``. The default is the
        class that the workers map the queue to, or 30 days.
    :param retain_input: keep the arguments with the finished task too, up to 64 KiB, so that the UI can show those of a
        large batch. Leave it off if they are secret. horsies before 0.5 always keeps them.
    :param wait_for_completion: False sends the task and returns its id.
    :param inline_wait: how long to wait before deferring. A short task then needs no deferral.
    :param deferrable: wait in the triggerer without a worker slot; recommended. Default: Airflow's own setting.
    :param worker_free: the triggerer sends the task, waits, stores its value and ends the Airflow task, and no worker
        process runs unless the task does not complete. Needs Airflow 3.3. What a triggerer cannot do is refused when
        the DAG is parsed: ``xcom_pull`` and outputs of other tasks, outlets, pools, mapping, a success callback …
    :param on_expired: ``fail`` or ``skip`` the Airflow task when the horsies task expires.
    :param on_cancelled: ``fail`` or ``skip`` the Airflow task when the horsies task is cancelled.
    :param cancel_on_kill: cancel the horsies task when the Airflow task is killed, marked or cleared.
    :param fail_fast_codes: error codes after which Airflow does not retry either.
    :param queue_timeout: fail if the task has not started after this time and no live worker serves its queue.
    :param show_logs: show the task's log lines, output and progress in the log of the Airflow task while it runs. This
        needs a worker of ``airflow_horsies.worker``.
    :param horsies_conn_id: the connection to horsies' database.
    """

    template_fields: Sequence[str] = (
        "task_name",
        "horsies_queue",
        "priority",
        "horsies_retry_policy",
        "good_until",
        "delay",
        "timeout",
        "retention",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"horsies_retry_policy": "json"}

    def __init__(
        self,
        *,
        task_name: str,
        retry_policy: RetryPolicy | Mapping[str, Any] | Any = None,
        horsies_retry_policy: RetryPolicy | Mapping[str, Any] | None = None,
        delay: timedelta | None = None,
        timeout: timedelta | None = None,
        retention: str | None = None,
        retain_input: bool = False,
        **base: Any,
    ) -> None:
        if hasattr(retry_policy, "evaluate"):
            base["retry_policy"] = retry_policy
            retry_policy = None
        super().__init__(**base)
        self.task_name = task_name
        self.horsies_retry_policy: Any = plain_policy(horsies_retry_policy or retry_policy)
        self.delay = delay
        self.timeout = timeout
        self.retention = retention
        self.retain_input = retain_input
        validate_untemplated(
            task_name=self.task_name,
            queue=self.horsies_queue,
            priority=self.priority,
            retry_policy=self.horsies_retry_policy,
            delay=self.delay,
            timeout=self.timeout,
            retention=self.retention,
            good_until=self.good_until if isinstance(self.good_until, datetime) else None,
        )

    def _reads_whole_tasks(self) -> bool:
        """Whether the tasks are read with their arguments and results."""
        return True

    def _wait_for_end(
        self, client: Client, timeout_seconds: float | None, meanwhile: Callable[[], None] | None
    ) -> list[TaskView]:
        return client.wait(
            self._sent_ids,
            timeout_seconds=timeout_seconds,
            until=partial(self._is_decided, client),
            meanwhile=meanwhile,
            whole=self._reads_whole_tasks(),
        )

    def _read_works(self, client: Client) -> list[TaskView]:
        return self._read_tasks(client)

    def _start_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in START_FIELDS}

    def _spec(self, context: Context, kwargs: Mapping[str, Any], **more: Any) -> TaskSpec:
        return TaskSpec(
            task_name=self.task_name,
            kwargs=kwargs,
            queue=self.horsies_queue,
            priority=integer("priority", self.priority),
            retry_policy=policy_of(self.horsies_retry_policy),
            good_until=instant(self.good_until, context),
            delay=duration("delay", self.delay),
            timeout=duration("timeout", self.timeout),
            retention=self.retention,
            retain_rerun_input=self.retain_input,
            **more,
        )

    def _read_tasks(self, client: Client, *, whole: bool | None = None) -> list[TaskView]:
        """:param whole: read them with their arguments and results; by default, if the end needs them."""
        read = client.read_tasks if whole or (whole is None and self._reads_whole_tasks()) else client.read_outlines
        found = read(self._sent_ids)
        for task_id in self._sent_ids:
            if task_id not in found:
                raise TaskNotFound(
                    f"Task {task_id}, which this task instance sent, is not in the horsies database: it is past its "
                    f"retention, or {client.settings.name} now leads to another database. Its outcome is unknown. "
                    "Check the connection, or clear the Airflow task to submit it again.",
                    task_id=task_id,
                )
        return [found[task_id] for task_id in self._sent_ids]

    def _waits_unserved(self, client: Client) -> bool:
        queues, now = client.read_queues(), datetime.now(UTC)
        return any(is_unserved(task, queues, now) for task in client.read_outlines(self._sent_ids).values())
