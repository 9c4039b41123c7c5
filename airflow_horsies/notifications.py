"""HorsiesNotifier: a callback that sends a horsies task."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.common.compat.sdk import BaseNotifier, Context

from airflow_horsies.core.spec import DEFAULT_QUEUE, RetryPolicy, TaskSpec
from airflow_horsies.db.backoff import Backoff
from airflow_horsies.exceptions import TRANSIENT_ERRORS
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.operators.rendering import instant, is_final, plain_policy, policy_of

SENT = "Sent %s to horsies queue %s as task %s."
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 15.0
# How long sending a deadline alert is retried while the database is locked or unreachable.
SEND_SECONDS = 300.0


class HorsiesNotifier(BaseNotifier):
    """
    Send a horsies task when a DAG or a task succeeds, fails, retries or misses its deadline. It does not wait for the
    task.

    .. code-block:: python

        HorsiesOperator(
            task_id="load",
            task_name="sales.load",
            on_failure_callback=HorsiesNotifier(
                task_name="alerts.page",
                kwargs={"dag": "{{ dag.dag_id }}", "task": "{{ ti.task_id }}", "run": "{{ run_id }}"},
                idempotency_key="page/{{ dag.dag_id }}/{{ run_id }}/{{ ti.task_id }}",
            ),
        )

    :param task_name: the name under which the task is registered on the workers; templated.
    :param kwargs: its arguments; templated.
    :param queue: the horsies queue; templated.
    :param priority: 1 (first) to 100 (last), within the queue.
    :param retry_policy: when horsies runs a failed attempt again: a RetryPolicy, or a dict of its values.
    :param good_until: a task that has not started by then expires: a datetime with time zone, or a timedelta from now.
    :param idempotency_key: send the task once, even if Airflow calls back repeatedly; templated (horsies 0.5 and
        newer).
    :param horsies_conn_id: the connection to horsies' database.
    :param context: the context, if Airflow passes it with the arguments (deadline alerts).
    """

    template_fields: Sequence[str] = ("task_name", "kwargs", "queue", "idempotency_key")

    def __init__(
        self,
        *,
        task_name: str,
        kwargs: Mapping[str, Any] | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 100,
        retry_policy: RetryPolicy | Mapping[str, Any] | None = None,
        good_until: datetime | timedelta | None = None,
        idempotency_key: str | None = None,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        context: Context | None = None,
    ) -> None:
        super().__init__(context)
        self.task_name = task_name
        self.kwargs: Mapping[str, Any] = kwargs or {}
        self.queue = queue
        self.priority = priority
        self.retry_policy: Any = plain_policy(retry_policy)
        self.good_until = good_until
        self.idempotency_key = idempotency_key
        self.horsies_conn_id = horsies_conn_id
        if all(is_final(getattr(self, name)) for name in self.template_fields):
            self._spec({})

    def __call__(self, *args: Any) -> None:
        # Rendering replaces the templates, and many tasks of a process may share one notifier.
        BaseNotifier.__call__(copy(self), *args)

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        # Before Airflow 3.3 the base method leaves a template that renders to nothing unrendered, and dag.test() passes
        # it the scheduler's form of the DAG, which has no environment.
        dag = context.get("dag")
        environment = jinja_env or self.get_template_env(dag if hasattr(dag, "get_template_env") else None)
        for name in self.template_fields:
            setattr(self, name, self.render_template(getattr(self, name), context, environment))

    def notify(self, context: Context) -> None:
        with HorsiesHook(self.horsies_conn_id) as hook:
            task_id = hook.enqueue_task(self._spec(context))
        self.log.info(SENT, self.task_name, self.queue, task_id)

    async def async_notify(self, context: Context) -> None:
        """Runs in the event loop of the triggerer, so nothing here may block."""
        # A fixed id sends the task once, even if sending is retried.
        spec = replace(self._spec(context), task_id=str(uuid.uuid4()))
        task_id = await self._send_with_retries(HorsiesHook(self.horsies_conn_id), spec)
        self.log.info(SENT, self.task_name, self.queue, task_id)

    async def _send_with_retries(self, hook: HorsiesHook, spec: TaskSpec) -> str:
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        deadline = time.monotonic() + SEND_SECONDS
        while True:
            try:
                return await hook.enqueue_task_async(spec)
            except TRANSIENT_ERRORS as error:
                pause_seconds = backoff.next_pause()
                if time.monotonic() + pause_seconds > deadline:
                    raise
                self.log.warning("Cannot send %s. Trying again in %.1f s: %s", self.task_name, pause_seconds, error)
                await asyncio.sleep(pause_seconds)

    def _spec(self, context: Context) -> TaskSpec:
        return TaskSpec(
            task_name=self.task_name,
            kwargs=self.kwargs,
            queue=self.queue,
            priority=self.priority,
            retry_policy=policy_of(self.retry_policy),
            good_until=instant(self.good_until, context),
            idempotency_key=self.idempotency_key,
        )
