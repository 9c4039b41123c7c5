"""What became of the items of a batch, gathered item by item, because there may be very many."""

from __future__ import annotations

from collections import Counter
from typing import Any

from airflow_horsies.core.batch import ItemView, count_states
from airflow_horsies.core.task import TaskState, TaskView
from airflow_horsies.core.wording import describe_failure
from airflow_horsies.operators.base import MAX_LOGGED_ITEMS
from airflow_horsies.operators.outcomes import require_storable


class BatchSummary:
    """Counts, the items to log and, if asked for, the values.

    :param keeps_values: keep the value of each item.
    """

    def __init__(self, *, keeps_values: bool) -> None:
        self.values: list[Any] = []
        self.first_failed: ItemView | None = None
        self.first_queue: str | None = None
        self._keeps_values = keeps_values
        self._states: Counter[TaskState] = Counter()
        self._completed: list[ItemView] = []
        self._others: list[ItemView] = []

    def add(self, item: ItemView, task: TaskView) -> None:
        """:param task: the task that runs the item."""
        completed = item.state is TaskState.COMPLETED
        self._states[item.state] += 1
        shown = self._completed if completed else self._others
        if len(shown) < MAX_LOGGED_ITEMS:
            shown.append(item)
        if not completed and item.state.is_terminal and self.first_failed is None:
            self.first_failed, self.first_queue = item, task.queue
        if self._keeps_values:
            if completed:
                require_storable(item.value, task)
            self.values.append(item.value if completed else None)

    @property
    def size(self) -> int:
        return self._states.total()

    @property
    def live(self) -> int:
        return sum(count for state, count in self._states.items() if not state.is_terminal)

    @property
    def failures(self) -> int:
        return self.size - self.live - self._states[TaskState.COMPLETED]

    @property
    def counts(self) -> dict[str, int]:
        return count_states(self._states.elements())

    def log(self, logger: Any) -> None:
        """A line per item, those that did not complete first; a large batch is cut."""
        if not self.size:
            logger.info("The batch is empty. Nothing is sent.")
            return
        logger.info("%6s  %-10s %8s  %-36s  %s", "item", "state", "attempts", "task", "error")
        for item in [*self._others, *self._completed][:MAX_LOGGED_ITEMS]:
            error = "" if item.state is TaskState.COMPLETED else describe_item(item)
            task = item.task_id if item.number is None else f"{item.task_id}[{item.number}]"
            logger.info("%6d  %-10s %8d  %-36s  %s", item.place, item.state, item.tries, task, error)
        if self.size > MAX_LOGGED_ITEMS:
            logger.info("… and %s more.", self.size - MAX_LOGGED_ITEMS)


def describe_item(item: ItemView) -> str:
    """The code and the message of the error, in one line."""
    return describe_failure(item.error_code, item.message or item.state.lower())
