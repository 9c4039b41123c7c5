"""The content of a horsies database, in memory. A task ends when it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_horsies.core.cluster import QueueDepth
from airflow_horsies.core.log import LogCursor, LogLine, Progress, TaskNews, lines_of_each
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.task import LIVE_STATES, AttemptRecord, CancelOutcome, TaskState, TaskView
from airflow_horsies.exceptions import TaskIdTaken, TaskNotCancellable, TaskNotFound
from airflow_horsies.testing.outcomes import Outcome, play, records_of


class UndeclaredTask(AssertionError):
    """The code under test uses a task or a queue that the test does not declare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The declared outcome of tasks with a name, or with a name and certain arguments."""

    task_name: str
    kwargs: Mapping[str, Any]
    outcome: Outcome

    def covers(self, task: NewTask) -> bool:
        return task.spec.task_name == self.task_name and self.kwargs.items() <= task.kwargs.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to send; ``kwargs`` are its arguments as a worker receives them."""

    id: str
    id_is_given: bool
    spec: TaskSpec
    kwargs: Mapping[str, Any]
    work: bytes
    key: bytes | None


class Memory:
    """The tables that the clients of a test share, and the declarations of the test."""

    def __init__(self) -> None:
        self.declared: list[Declared] = []
        self.declared_lines: dict[str, list[tuple[str, str]]] = {}
        self.declared_progress: dict[str, Progress] = {}
        self.undeclared: list[UndeclaredTask] = []
        self.sent: dict[str, NewTask] = {}
        self.tasks: dict[str, TaskView] = {}
        self.records: dict[str, tuple[AttemptRecord, ...]] = {}
        self.lines: dict[str, list[LogLine]] = {}
        self.progress: dict[str, Progress] = {}
        self.queues: dict[str, QueueDepth] = {}
        self._failures: Counter[bytes] = Counter()

    # -- sending -----------------------------------------------------------------------------------------------------

    def enqueue_task(self, task: NewTask) -> str:
        """Send a task. An id or a key that was already used for the same work returns the first task."""
        if task.id in self.sent and self.sent[task.id].work == task.work:
            return task.id
        shared = self.find_shared(task)
        if not shared:
            self.insert(task)
        return shared[0] if shared else task.id

    def enqueue_tasks(self, tasks: Sequence[NewTask]) -> list[str]:
        """Send all of them, or none."""
        for task in tasks:
            self.require_declared(task)
            for task_id in self.find_shared(task):
                raise TaskIdTaken(
                    f"Task {task_id} already uses the idempotency key {task.spec.idempotency_key!r}. Use another key.",
                    task_id=task_id,
                )
            self._require_new(task)
        for task in tasks:
            self.insert(task)
        return [task.id for task in tasks]

    def find_shared(self, task: NewTask) -> list[str]:
        """The tasks that were sent under the same idempotency key."""
        found = [other for other in self.sent.values() if task.key is not None and other.key == task.key]
        for other in found:
            if other.work != task.work:
                raise TaskIdTaken(
                    f"The idempotency key {task.spec.idempotency_key!r} belongs to task {other.id}, which was sent "
                    "with other arguments. Use another key for other arguments.",
                    task_id=other.id,
                )
        return [other.id for other in found]

    def insert(self, task: NewTask) -> None:
        self.require_declared(task)
        self._require_new(task)
        now = datetime.now(UTC)
        spec = task.spec
        self.sent[task.id] = task
        self.tasks[task.id] = TaskView(
            id=task.id,
            task_name=spec.task_name,
            queue=spec.queue,
            priority=spec.priority,
            state=TaskState.PENDING,
            sent_at=now,
            enqueued_at=now,
            retry_count=0,
            max_retries=spec.retry_policy.max_retries if spec.retry_policy else 0,
            good_until=spec.good_until,
            kwargs=task.kwargs,
        )

    def require_declared(self, task: NewTask) -> None:
        if not any(declared.covers(task) for declared in self.declared):
            name = task.spec.task_name
            arguments = ", ".join(f"{key}={value!r}" for key, value in task.kwargs.items()) or "no arguments"
            self._refuse(
                f"The horsies task {name!r} was sent with {arguments}, and the test does not say how it ends. "
                f"Declare it before it is sent, for example with horsies.returns({name!r}, value)."
            )

    def _require_new(self, task: NewTask) -> None:
        if task.id in self.tasks:
            raise TaskIdTaken(
                f"The task id {task.id} is already used. Leave it out, or use another one.", task_id=task.id
            )

    def _refuse(self, message: str) -> None:
        # Airflow only logs exceptions of tasks and callbacks, so FakeHorsies raises it again at its end.
        self.undeclared.append(UndeclaredTask(message))
        raise self.undeclared[-1]

    # -- reading -----------------------------------------------------------------------------------------------------

    def look(self, task_id: str) -> TaskView | None:
        """The current task. If its queue is served, its declared outcome applies now."""
        task, new = self.tasks.get(task_id), self.sent.get(task_id)
        if task is None or new is None or task.state.is_terminal or not self._is_served(task.queue):
            return task
        outcome = next(declared.outcome for declared in reversed(self.declared) if declared.covers(new))
        task = play(task, new.spec.retry_policy, outcome, failed_before=self._failures[new.work])
        self._failures[new.work] += sum(attempt.outcome == "FAILED" for attempt in task.attempts)
        self._keep(task)
        return task

    def read_task(self, task_id: str) -> TaskView:
        task = self.look(task_id)
        if task is None:
            raise TaskNotFound(
                f"Task {task_id} does not exist: this test has not sent it. Check the id.", task_id=task_id
            )
        return task

    def read_queues(self) -> list[QueueDepth]:
        live = [task for task in self.tasks.values() if not task.state.is_terminal]
        names = sorted({*self.queues, *(task.queue for task in live)})
        if not names:
            self._refuse(
                "The test does not say which horsies queues are served. Declare them, for example with "
                "horsies.queue('spark')."
            )
        return [self._depth(name, [task.state for task in live if task.queue == name]) for name in names]

    def read_news(self, seen: Mapping[str, LogCursor]) -> dict[str, TaskNews]:
        news = {}
        for task_id, cursor in seen.items():
            lines = [line for line in self.lines.get(task_id, ()) if line.cursor > cursor]
            progress = self.progress.get(task_id)
            if lines or progress:
                news[task_id] = TaskNews(lines=tuple(lines[: lines_of_each(len(seen))]), progress=progress)
        return news

    def _depth(self, name: str, states: Collection[TaskState]) -> QueueDepth:
        declared = self.queues.get(name) or make_queue(name)
        count = Counter(states)
        return replace(
            declared,
            ready=declared.ready + count[TaskState.PENDING],
            claimed=declared.claimed + count[TaskState.CLAIMED],
            running=declared.running + count[TaskState.RUNNING],
        )

    def _is_served(self, queue: str) -> bool:
        return queue not in self.queues or self.queues[queue].served_by > 0

    # -- ending ------------------------------------------------------------------------------------------------------

    def cancel_task(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        task = self.tasks.get(task_id) or self.read_task(task_id)
        if task.state is TaskState.CANCELLED:
            return CancelOutcome.ALREADY_CANCELLED
        if task.state.is_terminal:
            return CancelOutcome.ALREADY_FINISHED
        if task.state not in states:
            raise TaskNotCancellable(
                f"Task {task_id} is {task.state}, which the call does not cancel. Add the state to states.",
                task_id=task_id,
            )
        self._keep(replace(task, state=TaskState.CANCELLED, finished_at=datetime.now(UTC)))
        return CancelOutcome.CANCELLED

    def _keep(self, task: TaskView) -> None:
        self.tasks[task.id] = task
        self.records[task.id] = records_of(task)
        attempt = len(task.attempts) or 1
        if task.started_at is not None and task.id not in self.lines:
            self.lines[task.id] = [
                LogLine(attempt=attempt, number=number, logged_at=task.started_at, level=level, text=text)
                for number, (level, text) in enumerate(self.declared_lines.get(task.task_name, ()), 1)
            ]
        if task.state is TaskState.RUNNING and task.task_name in self.declared_progress:
            self.progress[task.id] = replace(self.declared_progress[task.task_name], attempt=attempt)
        else:
            self.progress.pop(task.id, None)


def make_queue(name: str, *, ready: int = 0, workers: int = 1) -> QueueDepth:
    return QueueDepth(queue=name, ready=ready, delayed=0, claimed=0, running=0, oldest_ready_at=None, served_by=workers)
