"""HorsiesBatchOperator: many tasks in one task instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import Context

from airflow_horsies.client.client import Client
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import SubmitOutcome, SubmitResult, batch_task_ids
from airflow_horsies.core.task import TaskState, TaskView
from airflow_horsies.exceptions import BatchFailed, InvalidTask
from airflow_horsies.operators.base import MAX_LOGGED_ITEMS, HorsiesTaskOperator
from airflow_horsies.operators.outcomes import (
    failure_text,
    value_of,
)
from airflow_horsies.operators.rendering import is_final, whole_number
from airflow_horsies.triggers.base import HorsiesTrigger
from airflow_horsies.triggers.batch import HorsiesBatchTrigger


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

    def _wait(self, client: Client, deadline: datetime | None) -> list[TaskView] | None:
        # An empty batch ends at once; what an earlier try sent was cancelled, as it is no longer asked for.
        return super()._wait(client, deadline) if self._sent_ids else []

    def _specs(self, context: Context) -> list[TaskSpec]:
        if isinstance(self.items, str) or not isinstance(self.items, Sequence):
            raise InvalidTask("items", f"must be a list of arguments, not {type(self.items).__name__}")
        # What is wrong with the bounds is found before anything is sent.
        self._allowed_failures(len(self.items))
        return [self._spec(context, item) for item in self.items]

    def _ids_to_return(self) -> list[str]:
        return self._sent_ids

    def _announce(self, context: Context, sent: Sequence[SubmitResult]) -> None:
        counts = {outcome: sum(each.outcome is outcome for each in sent) for outcome in SubmitOutcome}
        self.log.info(
            "%s task(s) sent to horsies queue %s, %s reattached to, %s adopted",
            counts[SubmitOutcome.SENT],
            self.horsies_queue,
            counts[SubmitOutcome.REATTACHED],
            counts[SubmitOutcome.ADOPTED],
        )

    def _trigger(self, context: Context, deadline: datetime | None) -> HorsiesTrigger:
        return HorsiesBatchTrigger(
            life=self._life,
            size=len(self._sent_ids),
            max_failures=self._allowed_failures(len(self._sent_ids)),
            **self._waiting_for(deadline),
        )

    def _ids_of(self, client: Client, event: Mapping[str, Any]) -> list[str]:
        return batch_task_ids(client.read_submissions(self._instance), life=event.get("life"), size=event.get("size"))

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

    def _finish(self, client: Client, tasks: Sequence[TaskView], context: Context) -> list[Any]:
        failed = [
            (position, task) for position, task in enumerate(tasks) if task.state.is_terminal and not _completed(task)
        ]
        live = [task.id for task in tasks if not task.state.is_terminal]
        self._log_items(tasks)
        allowed = self._allowed_failures(len(tasks))
        if len(failed) > allowed:
            problem = self._let_go(client, try_number=self._try_number)
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


def _count_of(name: str, value: Any) -> int:
    number = whole_number(name, value)
    if number < 0:
        raise InvalidTask(name, f"must be 0 or more, not {number}")
    return number


def _completed(task: TaskView) -> bool:
    return task.state is TaskState.COMPLETED
