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
from airflow_horsies.operators.base import CANCELLED, MAX_LOGGED_ITEMS, HorsiesTaskOperator
from airflow_horsies.operators.outcomes import (
    end_sentence,
    failure_text,
    plural,
    value_of,
)
from airflow_horsies.operators.rendering import integer, is_final
from airflow_horsies.triggers.base import HorsiesTrigger
from airflow_horsies.triggers.batch import HorsiesBatchTrigger


class HorsiesBatchOperator(HorsiesTaskOperator):
    """
    Send many tasks to horsies in one Airflow task, wait for all of them, and return their values in order.

    The tasks are sent in one transaction, one trigger waits for them, and a retry reattaches item by item. The value of
    a task that did not complete is None.

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
    :param max_failures: how many tasks may fail, expire or be cancelled. If there are more, the unfinished tasks are
        cancelled and the Airflow task fails. The default is 0, unless ``min_success`` allows some.
    :param min_success: how many tasks must complete. If both are given, the stricter one applies.
    :param show_logs: show the log lines and output of the tasks while they run, each line with the position of its task
        in ``items``. A large batch writes a lot.

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
        # An empty batch ends at once. The submission has cancelled what an earlier try sent.
        return super()._wait(client, deadline) if self._sent_ids else []

    def _specs(self, context: Context) -> list[TaskSpec]:
        if isinstance(self.items, str) or not isinstance(self.items, Sequence):
            raise InvalidTask("items", f"must be a list of dicts, not {type(self.items).__name__}")
        # Checks the bounds before anything is sent.
        self._allowed_failures(len(self.items))
        return [self._spec(context, item) for item in self.items]

    def _ids_to_return(self) -> list[str]:
        return self._sent_ids

    def _announce(self, context: Context, sent: Sequence[SubmitResult]) -> None:
        counts = {outcome: sum(result.outcome is outcome for result in sent) for outcome in SubmitOutcome}
        self.log.info(
            "Sent %s to horsies queue %s, reattached to %s and adopted %s.",
            plural(counts[SubmitOutcome.SENT], "task"),
            self.horsies_queue,
            counts[SubmitOutcome.REATTACHED],
            counts[SubmitOutcome.ADOPTED],
        )

    def _trigger(self, context: Context, deadline: datetime | None) -> HorsiesTrigger:
        return HorsiesBatchTrigger(
            life=self._life,
            size=len(self._sent_ids),
            max_failures=self._allowed_failures(len(self._sent_ids)),
            **self._trigger_kwargs(deadline),
        )

    def _find_sent_ids(self, client: Client, event: Mapping[str, Any]) -> list[str]:
        return batch_task_ids(client.read_submissions(self._instance), life=event.get("life"), size=event.get("size"))

    def _restore_settings(self, event: Mapping[str, Any]) -> None:
        super()._restore_settings(event)
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
                raise InvalidTask("min_success", f"must be at most {size}, the number of items, not {wanted}")
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
            problem = self._release(client, try_number=self._try_number)
            position, first = failed[0]
            raise BatchFailed(
                f"{len(failed)} of {plural(len(tasks), 'task')} did not complete, more than the {allowed} allowed. "
                f"The first is item {position}: {end_sentence(failure_text(first))} "
                + (f"{plural(len(live), 'task')} had not ended. {problem or CANCELLED} " if live else "")
                + "Open the Horsies tab of the task instance to see all items.",
                task_id=first.id,
                queue=first.queue,
                error_code=first.error_code,
            )
        return [value_of(task) if _completed(task) else None for task in tasks]

    def _log_items(self, tasks: Sequence[TaskView]) -> None:
        """A line per item, those that did not complete first; a large batch is cut."""
        ordered = sorted(enumerate(tasks), key=lambda item: (_completed(item[1]), item[0]))
        if not tasks:
            self.log.info("The batch is empty. Nothing is sent.")
            return
        self.log.info("%6s  %-10s %8s  %-36s  %s", "item", "state", "attempts", "task", "error")
        for position, task in ordered[:MAX_LOGGED_ITEMS]:
            error = "" if _completed(task) else failure_text(task)
            self.log.info("%6d  %-10s %8d  %-36s  %s", position, task.state, len(task.attempts), task.id, error)
        if len(tasks) > MAX_LOGGED_ITEMS:
            self.log.info("… and %s more.", len(tasks) - MAX_LOGGED_ITEMS)


def _count_of(name: str, value: Any) -> int:
    number = integer(name, value)
    if number < 0:
        raise InvalidTask(name, f"must be 0 or more, not {number}")
    return number


def _completed(task: TaskView) -> bool:
    return task.state is TaskState.COMPLETED
