"""The content of a horsies database, in memory. A task ends when it is read."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from airflow_horsies.client.rules import (
    FoundCommand,
    id_in_use,
    is_same_command,
    key_in_use,
    key_of_other_command,
    not_to_be_cancelled,
    require_distinct_ids,
    require_distinct_keys,
    require_same_command,
)
from airflow_horsies.client.signals import has_ended
from airflow_horsies.core.chunk import CHUNK_SUFFIX, ITEMS, ITEMS_FAILED
from airflow_horsies.core.cluster import QueueDepth
from airflow_horsies.core.log import LogCursor, LogLine, Progress, TaskNews, lines_of_each
from airflow_horsies.core.signals import SentSignal
from airflow_horsies.core.task import (
    LIVE_STATES,
    AttemptRecord,
    CancelOutcome,
    TaskFailure,
    TaskResult,
    TaskState,
    TaskView,
    require_states,
)
from airflow_horsies.exceptions import TaskNotFound, WorkflowNotFound
from airflow_horsies.testing.outcomes import Outcome, play, records_of, resumed
from airflow_horsies.testing.plan import NewTask, Plan, UndeclaredTask, locked


class Memory:
    """The tables that the clients of a connection share.

    :param plan: the declarations of the test.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan = plan or Plan()
        self.queues = self.plan.queues
        self.sent: dict[str, NewTask] = {}
        self.tasks: dict[str, TaskView] = {}
        self.records: dict[str, tuple[AttemptRecord, ...]] = {}
        self.lines: dict[str, list[LogLine]] = {}
        self.progress: dict[str, Progress] = {}
        # The items of each chunk, which are tasks here, and the chunk and number of each of them.
        self.chunks: dict[str, list[str]] = {}
        self.chunk_of: dict[str, tuple[str, int]] = {}
        # Workflows that a user paused, and those that were resumed.
        self.paused: set[str] = set()
        self.resumed: set[str] = set()
        # The signals in the order of sending, each with its payload as JSON.
        self.signals: list[tuple[SentSignal, str]] = []
        self._dedup_keys: dict[tuple[str, str, str], SentSignal] = {}
        self._looked_at: set[str] = set()

    # -- sending -----------------------------------------------------------------------------------------------------

    @locked
    def send_signal(self, target: str, name: str, payload: str, dedup_key: str | None) -> SentSignal:
        """Record a signal. A task that ends only when it is read can always receive it; a cancelled one cannot."""
        known = None if dedup_key is None else self._dedup_keys.get((target, name, dedup_key))
        if known is not None:
            return replace(known, is_new=False, resumed=0)
        task = self.tasks.get(target)
        if task is not None and task.state is TaskState.CANCELLED:
            raise has_ended(f"Task {target}", task.state, target)
        sent = SentSignal(id=str(uuid.uuid4()), target=target, name=name)
        self.signals.append((sent, payload))
        if dedup_key is not None:
            self._dedup_keys[target, name, dedup_key] = sent
        return sent

    @locked
    def enqueue_task(self, task: NewTask) -> str:
        """Send a task. An id or a key that was already used for the same command returns the first task."""
        owner = self.find_owner(task)
        if owner is not None:
            if not is_same_command(task.encoded, self._command_of(owner)):
                raise key_of_other_command(owner.id)
            return owner.id
        if task.id in self.sent:
            require_same_command(task.encoded, self._command_of(self.sent[task.id]))
            return task.id
        self.insert(task)
        return task.id

    @locked
    def enqueue_tasks(self, tasks: Sequence[NewTask]) -> list[str]:
        """Send all of them, or none."""
        encoded = [task.encoded for task in tasks]
        require_distinct_ids(encoded)
        require_distinct_keys(encoded)
        for task in tasks:
            self.plan.outcome_of(task)
            owner = self.find_owner(task)
            if owner is not None and not is_same_command(task.encoded, self._command_of(owner)):
                raise key_of_other_command(owner.id)
            if owner is not None:
                raise key_in_use(task.encoded, owner.id)
            if task.id in self.tasks:
                raise id_in_use(task.id)
        for task in tasks:
            self.insert(task)
        return [task.id for task in tasks]

    def find_owner(self, task: NewTask) -> NewTask | None:
        """The task that was sent first under the idempotency key."""
        if task.key is None:
            return None
        return next((other for other in self.sent.values() if other.key == task.key), None)

    def insert(self, task: NewTask) -> None:
        self.plan.outcome_of(task)
        now = datetime.now(UTC)
        spec = task.spec
        self.sent[task.id] = task
        self.plan.sent.append((self, task))
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

    @locked
    def join(self, item_ids: Sequence[str]) -> str:
        """Make these tasks the items of a new chunk; returns its id."""
        first = self.tasks[item_ids[0]]
        chunk_id = str(uuid.uuid4())
        items = [dict(self.sent[item_id].kwargs) for item_id in item_ids]
        name = f"{first.task_name}{CHUNK_SUFFIX}"
        self.chunks[chunk_id] = list(item_ids)
        self.chunk_of |= {item_id: (chunk_id, number) for number, item_id in enumerate(item_ids)}
        self.tasks[chunk_id] = replace(first, id=chunk_id, task_name=name, kwargs={ITEMS: items})
        return chunk_id

    def _look_at_chunk(self, chunk_id: str) -> TaskView:
        """A chunk completes if all its items do."""
        chunk = self.tasks[chunk_id]
        if chunk.state is TaskState.CANCELLED:
            return chunk
        items = [self.read_task(item_id) for item_id in self.chunks[chunk_id]]
        states = {item.state for item in items}
        failed = sum(item.state is not TaskState.COMPLETED for item in items)
        if any(not state.is_terminal for state in states):
            has_begun = states & {TaskState.RUNNING, TaskState.COMPLETED, TaskState.FAILED}
            state = TaskState.RUNNING if has_begun else TaskState.PENDING
            chunk = replace(chunk, state=state)
        elif not failed:
            summary = TaskResult(ok={"items": len(items), "completed": len(items)})
            chunk = replace(chunk, state=TaskState.COMPLETED, finished_at=datetime.now(UTC), result=summary)
        else:
            message = f"{failed} of {len(items)} items did not complete."
            error = TaskResult(error=TaskFailure(error_code=ITEMS_FAILED, message=message))
            now = datetime.now(UTC)
            chunk = replace(chunk, state=TaskState.FAILED, finished_at=now, error_code=ITEMS_FAILED, result=error)
        self.tasks[chunk_id] = chunk
        return chunk

    def _command_of(self, task: NewTask) -> FoundCommand:
        return FoundCommand(self.tasks[task.id].state, task.encoded.command_fingerprint)

    # -- reading -----------------------------------------------------------------------------------------------------

    @locked
    def look(self, task_id: str) -> TaskView | None:
        """The current task. If its queue is served, its declared outcome applies now."""
        self._looked_at.add(task_id)
        if task_id in self.chunks:
            return self._look_at_chunk(task_id)
        task, new = self.tasks.get(task_id), self.sent.get(task_id)
        if task is None or new is None or task.state.is_terminal or not self._is_served(task.queue):
            return task
        work = new.encoded.work
        failures = self.plan.failures
        task = play(task, new.spec.retry_policy, self.declared_of(new), failed_before=failures[work])
        failures[work] += sum(attempt.outcome == "FAILED" for attempt in task.attempts)
        self._keep(task)
        return task

    def declared_of(self, new: NewTask) -> Outcome:
        """The declared outcome; of a workflow that was paused, what comes after somebody resumed it."""
        declared = self.plan.outcome_of(new)
        return resumed(declared) if declared.is_paused and new.id in self.resumed else declared

    @locked
    def look_at_workflow(self, workflow_id: str, *, has_time: bool = True) -> tuple[TaskView, NewTask, Outcome, bool]:
        """The task that stands for a workflow, what was started, how it is declared, and whether it is paused;
        WorkflowNotFound if there is none.

        :param has_time: False for a wait without time: a workflow that nobody has looked at yet has not ended.
        """
        new = self.sent.get(workflow_id)
        if new is None or new.graph is None:
            raise WorkflowNotFound(
                f"Workflow {workflow_id} does not exist: this test has not started it on this connection. Check the id "
                "and the connection.",
                task_id=workflow_id,
            )
        task = self.read_task(workflow_id) if has_time else self.glance(workflow_id)
        declared = self.declared_of(new)
        is_paused = task.state is TaskState.RUNNING and (declared.is_paused or workflow_id in self.paused)
        return task, new, declared, is_paused

    def is_workflow(self, task_id: str) -> bool:
        new = self.sent.get(task_id)
        return new is not None and new.graph is not None

    @locked
    def glance(self, task_id: str) -> TaskView:
        """The task for a wait without time: a task that nobody has looked at yet has not ended."""
        if task_id in self._looked_at or task_id not in self.tasks:
            return self.read_task(task_id)
        self._looked_at.add(task_id)
        return self.tasks[task_id]

    def read_task(self, task_id: str) -> TaskView:
        task = self.look(task_id)
        if task is None:
            raise TaskNotFound(
                f"Task {task_id} does not exist: this test has not sent it on this connection. Check the id and the "
                "connection.",
                task_id=task_id,
            )
        return task

    @locked
    def read_queues(self) -> list[QueueDepth]:
        live = [task for task in self.tasks.values() if not task.state.is_terminal and task.id not in self.chunk_of]
        names = sorted({*self.queues, *(task.queue for task in live)})
        if not names:
            raise self.plan.refuse(
                UndeclaredTask(
                    "The test does not say which horsies queues are served. Declare them, for example with "
                    "horsies.queue('spark')."
                )
            )
        return [self._depth(name, [task.state for task in live if task.queue == name]) for name in names]

    @locked
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

    @locked
    def cancel_task(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        states = require_states(states)
        task = self.tasks.get(task_id) or self.read_task(task_id)
        if task.state is TaskState.CANCELLED:
            return CancelOutcome.ALREADY_CANCELLED
        if task.state.is_terminal:
            return CancelOutcome.ALREADY_FINISHED
        if task.state not in states:
            raise not_to_be_cancelled(task_id, task.state, states)
        for item_id in self.chunks.get(task_id, ()):
            self.cancel_task(item_id)
        self._keep(replace(task, state=TaskState.CANCELLED, finished_at=datetime.now(UTC)))
        return CancelOutcome.CANCELLED

    def _keep(self, task: TaskView) -> None:
        self.tasks[task.id] = task
        self.records[task.id] = records_of(task)
        attempt = len(task.attempts) or 1
        if task.started_at is not None and task.id not in self.lines:
            self.lines[task.id] = [
                LogLine(attempt=attempt, number=number, logged_at=task.started_at, level=level, text=text)
                for number, (level, text) in enumerate(self.plan.lines.get(task.task_name, ()), 1)
            ]
        if task.state is TaskState.RUNNING and task.task_name in self.plan.progress:
            self.progress[task.id] = replace(self.plan.progress[task.task_name], attempt=attempt)
        else:
            self.progress.pop(task.id, None)


def make_queue(name: str, *, ready: int = 0, workers: int = 1) -> QueueDepth:
    return QueueDepth(queue=name, ready=ready, delayed=0, claimed=0, running=0, oldest_ready_at=None, served_by=workers)
