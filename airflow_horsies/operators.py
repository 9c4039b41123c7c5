"""Operators: send tasks to horsies, wait for them, and tell Airflow how they ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, assert_never

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_horsies.exceptions import BatchFailed, HorsiesError, InvalidTask
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import (
    SubmitOutcome,
    SubmitResult,
    TaskSpec,
    TaskState,
    TaskView,
    batch_task_ids,
)
from airflow_horsies.outcomes import (
    cancellation_of,
    expiry_of,
    fail_or_skip,
    failure_of,
    failure_text,
    named,
    value_of,
)
from airflow_horsies.rendering import is_final, task_ids_of, whole_number
from airflow_horsies.task_operator import MAX_LOGGED_ITEMS, HorsiesTaskOperator
from airflow_horsies.triggers import HorsiesBatchTrigger, HorsiesTrigger

XCOM_TASK_ID = "horsies_task_id"


class HorsiesOperator(HorsiesTaskOperator):
    """
    Send one task to horsies, wait for it, and return its value.

    The task is sent exactly once per life of the task instance: a retry reattaches to a task that still runs and adopts
    one that completed; clearing the task instance runs it again.

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
    :param idempotency_key: several task instances with the same key share the first one's task (horsies 0.5 and newer).

    Further parameters: see :class:`HorsiesTaskOperator`. The task's id is pushed as XCom ``horsies_task_id``.
    """

    template_fields: Sequence[str] = (*HorsiesTaskOperator.template_fields, "task_kwargs", "idempotency_key")
    template_fields_renderers: ClassVar[dict[str, str]] = {"task_kwargs": "json", "horsies_retry_policy": "json"}

    def __init__(
        self, *, kwargs: Mapping[str, Any] | None = None, idempotency_key: str | None = None, **base: Any
    ) -> None:
        super().__init__(**base)
        # Airflow keeps "kwargs" of an operator for itself.
        self.task_kwargs = kwargs or {}
        self.idempotency_key = idempotency_key

    def _specs(self, context: Any) -> list[TaskSpec]:
        return [self._spec(context, self.task_kwargs, idempotency_key=self.idempotency_key)]

    def _announce(self, context: Any, sent: Sequence[SubmitResult]) -> None:
        super()._announce(context, sent)
        context["ti"].xcom_push(key=XCOM_TASK_ID, value=sent[0].task_id)

    def _ids_to_return(self) -> str:
        return self._sent_ids[0]

    def _trigger(self, context: Any, deadline: datetime | None) -> HorsiesTrigger:
        return HorsiesTrigger(task_ids=self._sent_ids, **self._waiting_for(deadline))

    def _finish(self, hook: HorsiesHook, tasks: Sequence[TaskView], context: Any) -> Any:
        (task,) = tasks
        self._log_attempts(hook, task)
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
                raise HorsiesError(f"{named(task)} is {task.state} though its end was announced")
            case _:
                assert_never(task.state)


class HorsiesBatchOperator(HorsiesTaskOperator):
    """
    Send many tasks to horsies in one Airflow task, wait for all, and return their values in order.

    Sent in one transaction, waited for with one trigger, reattached item by item. A task that did not complete has None
    among the values.

    .. code-block:: python

        HorsiesBatchOperator(
            task_id="per_airport",
            task_name="flights.aggregate",
            items=[{"airport": code} for code in ("JFK", "LGA", "EWR")],
            max_failures=1,
            deferrable=True,
        )

    :param task_name: the name under which the task is registered on the workers.
    :param items: the arguments of each task; templated, or the output of an upstream task.
    :param max_failures: how many tasks may fail, expire or be cancelled; with more, the rest is cancelled and the
        Airflow task fails. None, unless ``min_success`` allows some.
    :param min_success: how many tasks must complete; where both are given, the stricter of the two counts.
    :param show_logs: show what the tasks log and print while they run, each line with the place of its task in
        ``items``; a large batch writes a lot.

    Further parameters: see :class:`HorsiesTaskOperator`.
    """

    template_fields: Sequence[str] = (*HorsiesTaskOperator.template_fields, "items", "max_failures", "min_success")
    template_fields_renderers: ClassVar[dict[str, str]] = {"items": "json", "horsies_retry_policy": "json"}
    numbers_tasks: ClassVar[bool] = True

    def __init__(
        self,
        *,
        items: Sequence[Mapping[str, Any]],
        max_failures: int | None = None,
        min_success: int | None = None,
        show_logs: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(show_logs=show_logs, **base)
        self.items: Any = items
        self.max_failures = max_failures
        self.min_success = min_success
        self._agreed_failures: int | None = None
        for name in ("max_failures", "min_success"):
            if getattr(self, name) is not None and is_final(getattr(self, name)):
                _count_of(name, getattr(self, name))

    def _wait(self, hook: HorsiesHook, deadline: datetime | None) -> list[TaskView] | None:
        # An empty batch ends at once; what an earlier try sent was cancelled, as it is no longer asked for.
        return super()._wait(hook, deadline) if self._sent_ids else []

    def _specs(self, context: Any) -> list[TaskSpec]:
        if isinstance(self.items, str) or not isinstance(self.items, Sequence):
            raise InvalidTask("items", f"must be a list of arguments, not {type(self.items).__name__}")
        # What is wrong with the bounds is found before anything is sent.
        self._allowed_failures(len(self.items))
        return [self._spec(context, item) for item in self.items]

    def _ids_to_return(self) -> list[str]:
        return self._sent_ids

    def _announce(self, context: Any, sent: Sequence[SubmitResult]) -> None:
        counts = {outcome: sum(each.outcome is outcome for each in sent) for outcome in SubmitOutcome}
        self.log.info(
            "%s task(s) sent to horsies queue %s, %s reattached to, %s adopted",
            counts[SubmitOutcome.SENT],
            self.horsies_queue,
            counts[SubmitOutcome.REATTACHED],
            counts[SubmitOutcome.ADOPTED],
        )

    def _trigger(self, context: Any, deadline: datetime | None) -> HorsiesTrigger:
        return HorsiesBatchTrigger(
            life=self._life,
            size=len(self._sent_ids),
            max_failures=self._allowed_failures(len(self._sent_ids)),
            **self._waiting_for(deadline),
        )

    def _ids_of(self, hook: HorsiesHook, event: Mapping[str, Any]) -> list[str]:
        return batch_task_ids(hook.submissions_of(self._instance), life=event.get("life"), size=event.get("size"))

    def _take_over(self, event: Mapping[str, Any]) -> None:
        super()._take_over(event)
        self._life = event.get("life") or 0
        self._agreed_failures = event.get("max_failures")

    def _is_decided(self, ended: Mapping[str, TaskState]) -> bool:
        failures = sum(state is not TaskState.COMPLETED for state in ended.values())
        return failures > self._allowed_failures(len(self._sent_ids))

    def _allowed_failures(self, size: int) -> int:
        if self._agreed_failures is not None:
            return self._agreed_failures
        bounds = []
        if self.max_failures is not None:
            bounds.append(_count_of("max_failures", self.max_failures))
        if self.min_success is not None:
            wanted = _count_of("min_success", self.min_success)
            if wanted > size:
                raise InvalidTask("min_success", f"is {wanted}, more than the {size} item(s) of the batch")
            bounds.append(size - wanted)
        return min(bounds, default=0)

    def _finish(self, hook: HorsiesHook, tasks: Sequence[TaskView], context: Any) -> list[Any]:
        failed = [
            (position, task) for position, task in enumerate(tasks) if task.state.is_terminal and not _completed(task)
        ]
        live = [task.id for task in tasks if not task.state.is_terminal]
        self._log_items(tasks)
        allowed = self._allowed_failures(len(tasks))
        if len(failed) > allowed:
            problem = self._let_go(hook, try_number=self._try_number)
            position, first = failed[0]
            raise BatchFailed(
                f"{len(failed)} of {len(tasks)} tasks did not complete, more than the {allowed} allowed; "
                f"{len(live)} others {problem or 'were cancelled'}. The first is item {position}: "
                f"{failure_text(first)}",
                task_id=first.id,
                queue=first.queue,
                error_code=first.error_code,
            )
        return [value_of(task) if _completed(task) else None for task in tasks]

    def _log_items(self, tasks: Sequence[TaskView]) -> None:
        """A line per item, those that did not complete first; a large batch is cut."""
        ordered = sorted(enumerate(tasks), key=lambda each: (_completed(each[1]), each[0]))
        if not tasks:
            self.log.info("The batch is empty: nothing is sent")
            return
        self.log.info("%6s  %-10s %8s  %-36s  %s", "item", "state", "attempts", "task", "error")
        for position, task in ordered[:MAX_LOGGED_ITEMS]:
            error = "" if _completed(task) else failure_text(task)
            self.log.info("%6d  %-10s %8d  %-36s  %s", position, task.state, len(task.attempts), task.id, error)
        if len(tasks) > MAX_LOGGED_ITEMS:
            self.log.info("… and %s more", len(tasks) - MAX_LOGGED_ITEMS)


class HorsiesCancelOperator(BaseOperator):
    """
    Cancel horsies tasks and return the outcome of each.

    .. code-block:: python

        HorsiesCancelOperator(task_id="stop", horsies_task_ids="{{ ti.xcom_pull('load', key='horsies_task_id') }}")

    :param horsies_task_ids: one id or several; templated.
    :param horsies_conn_id: the connection to horsies' database.
    """

    template_fields: Sequence[str] = ("horsies_task_ids",)

    def __init__(
        self,
        *,
        horsies_task_ids: str | Sequence[str],
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.horsies_task_ids = horsies_task_ids
        self.horsies_conn_id = horsies_conn_id

    def execute(self, context: Any) -> dict[str, str]:
        ids = task_ids_of(self.horsies_task_ids)
        with HorsiesHook(self.horsies_conn_id) as hook:
            outcomes = hook.cancel_many(ids)
        for task_id, outcome in outcomes.items():
            self.log.info("Task %s: %s", task_id, outcome.lower().replace("_", " "))
        for task_id in ids:
            if task_id not in outcomes:
                self.log.warning("There is no task %s: it never existed, or it is past its retention", task_id)
        return {task_id: outcome.value for task_id, outcome in outcomes.items()}


def _count_of(name: str, value: Any) -> int:
    number = whole_number(name, value)
    if number < 0:
        raise InvalidTask(name, f"must be 0 or more, not {number}")
    return number


def _completed(task: TaskView) -> bool:
    return task.state is TaskState.COMPLETED
