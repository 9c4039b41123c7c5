"""HorsiesOperator: one task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, assert_never

from airflow.providers.common.compat.sdk import Context

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.client import Client
from airflow_horsies.core.signals import AWAITING_SIGNAL
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, SubmitOutcome, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import AttemptRecord, TaskState, TaskView
from airflow_horsies.core.wording import describe_attempts
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.operators.base import HorsiesTaskOperator
from airflow_horsies.operators.outcomes import (
    cancellation_of,
    describe_task,
    expiry_of,
    fail_or_skip,
    failure_of,
    value_of,
)
from airflow_horsies.operators.worker_free import START_TRIGGER
from airflow_horsies.triggers.base import HorsiesTrigger

XCOM_TASK_ID = "horsies_task_id"


class HorsiesOperator(HorsiesTaskOperator):
    """
    Send one task to horsies, wait for it, and return its value.

    The task is sent exactly once per life of the task instance. A retry reattaches to a task that still runs and adopts
    one that completed. Clearing the task instance sends it again.

    .. code-block:: python

        HorsiesOperator(
            task_id="aggregate",
            task_name="sales.aggregate",
            kwargs={"day": "{{ ds }}"},
            queue="spark",
            retry_policy=RetryPolicy.fixed([10, 60], auto_retry_for=["WORKER_CRASHED"]),
            good_until=timedelta(hours=1),
            deferrable=True,
        )

    :param task_name: the name under which the task is registered on the workers.
    :param kwargs: its arguments; templated.
    :param idempotency_key: task instances with the same key share the task of the first one (horsies 0.5 and newer).

    Further parameters: see :class:`HorsiesTaskOperator`. The task's id is pushed as XCom ``horsies_task_id``.
    """

    template_fields: Sequence[str] = (*HorsiesTaskOperator.template_fields, "task_kwargs", "idempotency_key")
    template_fields_renderers: ClassVar[dict[str, str]] = {"task_kwargs": "json", "horsies_retry_policy": "json"}
    start_trigger = START_TRIGGER

    def __init__(
        self, *, kwargs: Mapping[str, Any] | None = None, idempotency_key: str | None = None, **base: Any
    ) -> None:
        super().__init__(**base)
        # Airflow reserves "kwargs" on an operator.
        self.task_kwargs = kwargs or {}
        self.idempotency_key = idempotency_key
        self._start_from_trigger()

    def _specs(self, context: Context) -> list[TaskSpec]:
        return [self._spec(context, self.task_kwargs, idempotency_key=self.idempotency_key)]

    def _send(self, client: Client | AsyncClient, specs: Sequence[TaskSpec], tried: AirflowTry) -> Any:
        return client.submit_tasks(specs, self._instance, tried)

    def _accept(self, sent: Sequence[SubmitResult], instance: TaskInstanceKey, namespace: str) -> None:
        super()._accept(sent, instance, namespace)
        self._sent_ids = [result.task_id for result in sent]
        self._life = max((result.life for result in sent), default=0)

    def _has_sent(self, sent: Sequence[SubmitResult]) -> bool:
        return any(result.outcome is SubmitOutcome.SENT for result in sent)

    def _announce(self, context: Context, sent: Sequence[SubmitResult]) -> None:
        for result in sent:
            match result.outcome:
                case SubmitOutcome.SENT:
                    text = f"Sent task {result.task_id} to horsies queue {self.horsies_queue}"
                case SubmitOutcome.REATTACHED:
                    text = f"Reattached to task {result.task_id}, which is {result.state}"
                case SubmitOutcome.ADOPTED:
                    text = f"Adopted task {result.task_id}, which had already completed"
                case SubmitOutcome.KEPT:
                    text = f"Kept task {result.task_id}, which is {result.state}"
            self.log.info("%s (life %s, round %s).", text, result.life, result.round)
        policy = self.horsies_retry_policy or {}
        codes = [code for code in policy.get("auto_retry_for", ()) if code != AWAITING_SIGNAL]
        if codes and self.retries:
            self.log.info(
                "Both horsies and Airflow retry: horsies up to %s times for %s, and Airflow up to %s times after that.",
                policy["max_retries"],
                ", ".join(codes),
                self.retries,
            )
        context["ti"].xcom_push(key=XCOM_TASK_ID, value=sent[0].task_id)

    def _ids_to_return(self) -> str:
        return self._sent_ids[0]

    def _trigger(self, context: Context, deadline: datetime | None) -> HorsiesTrigger:
        return HorsiesTrigger(task_ids=self._sent_ids, **self._trigger_kwargs(deadline))

    def _start_fields(self) -> dict[str, Any]:
        own = {"kind": "task", "kwargs": self.task_kwargs, "idempotency_key": self.idempotency_key}
        return {**super()._start_fields(), **own}

    async def _read_success(self, client: AsyncClient) -> Callable[[], Any] | None:
        task = await client.read_task(self._sent_ids[0])
        return partial(self._succeed, task) if task.state is TaskState.COMPLETED else None

    def _succeed(self, task: TaskView) -> Any:
        for line in describe_attempts(task, ()):
            self.log.info("Task %s, %s", task.id, line)
        return value_of(task)

    def _finish(self, client: Client, tasks: Sequence[TaskView], context: Context) -> Any:
        (task,) = tasks
        self._log_attempts(client, task)
        match task.state:
            case TaskState.COMPLETED:
                return value_of(task)
            case TaskState.FAILED:
                raise failure_of(task, fail_fast_codes=self.fail_fast_codes)
            case TaskState.EXPIRED:
                fail_or_skip(expiry_of(task), self.on_expired)
            case TaskState.CANCELLED:
                fail_or_skip(cancellation_of(task), self.on_cancelled)
            case TaskState.PENDING | TaskState.CLAIMED | TaskState.RUNNING:
                raise HorsiesError(
                    f"The {describe_task(task)} is {task.state}, although its end was reported. Clear the Airflow task "
                    "to wait for it again."
                )
            case _:
                assert_never(task.state)

    def _log_attempts(self, client: Client, task: TaskView) -> None:
        records: Sequence[AttemptRecord] = ()
        try:
            records = client.read_attempts([task.id]).get(task.id, ())
        except HorsiesError as error:
            self.log.warning("The workers' records of the attempts cannot be read: %s", error)
        for line in describe_attempts(task, records):
            self.log.info("Task %s, %s", task.id, line)
