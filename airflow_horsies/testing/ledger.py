"""The submissions of task instances, in memory: the rules of the ledger for a single process that is never killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from airflow_horsies.core.submission import AirflowTry, Submission, SubmitOutcome, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import LIVE_STATES, CancelOutcome, TaskState
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.testing.memory import Memory, NewTask

# The work, and its number among equal ones.
Item = tuple[bytes, int]


@dataclass(slots=True)
class Row:
    """A submission, with the keys of its life and its item, and its newest try.

    :param slot: the number of the item in its life. Its position is its current place in the list.
    """

    submission: Submission
    life_key: tuple[str | int | None, ...]
    item: Item
    slot: int
    last_try: int
    is_released: bool = False

    @property
    def task_id(self) -> str:
        return self.submission.horsies_task_id

    @property
    def current_place(self) -> int:
        return self.submission.position if self.submission.is_latest else self.slot


class FakeLedger:
    """The submissions of a test."""

    def __init__(self, memory: Memory) -> None:
        self.rows: dict[TaskInstanceKey, list[Row]] = {}
        self._memory = memory

    def read_submissions(self, task_instance: TaskInstanceKey) -> list[Submission]:
        return [row.submission for row in self.rows.get(task_instance, ())]

    def read_all_submissions(self) -> list[Submission]:
        return [row.submission for rows in self.rows.values() for row in rows]

    def submit_tasks(
        self, tasks: Sequence[NewTask], task_instance: TaskInstanceKey, tried: AirflowTry, *, namespace: str
    ) -> list[SubmitResult]:
        """Reattach to, adopt or send each task, and cancel tasks that are no longer needed."""
        if any(task.id_is_given for task in tasks):
            raise InvalidTask("task_id", "must not be set: the task instance determines it")
        for task in tasks:
            self._memory.require_declared(task)
        rows = self.rows.setdefault(task_instance, [])
        newest = {row.slot: row for row in rows if row.life_key == tried.life_key}
        is_clear = bool(rows) and not newest
        life = max((row.submission.life for row in rows), default=1) + is_clear
        rounds: Counter[int] = Counter()
        for row in newest.values():
            rounds[row.current_place] = max(rounds[row.current_place], row.submission.round)
        known = {row.item: row for row in newest.values()}
        before = [row for row in rows if row.submission.is_latest]
        for row in before:
            row.submission = replace(row.submission, is_latest=False)
        results = []
        for place, (item, task) in enumerate(zip(_items(tasks), tasks, strict=True)):
            found = known.get(item)
            task_id, state = self._find_or_send(task, found, may_share=not is_clear)
            if found is None or found.task_id != task_id:
                submission = Submission(
                    horsies_task_id=task_id,
                    namespace=namespace,
                    task_instance=task_instance,
                    position=place,
                    life=life,
                    round=1 + (found.submission.round if found else rounds[place]),
                    try_number=tried.try_number,
                    task_name=task.spec.task_name,
                    queue=task.spec.queue,
                    good_until=task.spec.good_until,
                    submitted_at=datetime.now(UTC),
                )
                slot = found.slot if found else max(newest, default=-1) + 1
                found = newest[slot] = Row(submission, tried.life_key, item, slot, tried.try_number)
                rows.append(found)
            found.submission = replace(found.submission, position=place, is_latest=True)
            found.last_try, found.is_released = tried.try_number, False
            results.append(_result(found.submission, state))
        self._release([row for row in before if not row.submission.is_latest])
        return results

    def release_tasks(
        self, task_ids: Collection[str], task_instance: TaskInstanceKey, *, try_number: int | None
    ) -> dict[str, CancelOutcome]:
        """Cancel tasks that nothing else waits for, unless a later try of the task instance does."""
        rows = [row for row in self.rows.get(task_instance, ()) if row.task_id in task_ids]
        if try_number is not None and any(row.last_try > try_number for row in rows):
            return dict.fromkeys(task_ids, CancelOutcome.STILL_WANTED)
        submitted = {row.task_id for row in rows}
        others = [task_id for task_id in task_ids if task_id not in submitted and task_id in self._memory.tasks]
        return self._release(rows) | {task_id: self._memory.cancel_task(task_id) for task_id in others}

    def _release(self, rows: Sequence[Row]) -> dict[str, CancelOutcome]:
        for row in rows:
            row.is_released = True
        wanted = {
            row.task_id
            for rows in self.rows.values()
            for row in rows
            if row.submission.is_latest and not row.is_released
        }
        return {
            row.task_id: CancelOutcome.STILL_WANTED if row.task_id in wanted else self._memory.cancel_task(row.task_id)
            for row in rows
        }

    def _find_or_send(self, task: NewTask, row: Row | None, *, may_share: bool) -> tuple[str, TaskState | None]:
        """A live or completed task with this work, and its state; else a new task, without a state."""
        shared = self._memory.find_shared(task) if may_share else []
        for task_id in [*([row.task_id] if row else []), *shared]:
            state = self._memory.read_task(task_id).state
            if state in LIVE_STATES or state is TaskState.COMPLETED:
                return task_id, state
        self._memory.insert(task)
        return task.id, None


def _items(tasks: Sequence[NewTask]) -> Iterator[Item]:
    seen: Counter[bytes] = Counter()
    for task in tasks:
        yield task.work, seen[task.work]
        seen[task.work] += 1


def _result(submission: Submission, state: TaskState | None) -> SubmitResult:
    if state is None:
        outcome = SubmitOutcome.SENT
    else:
        outcome = SubmitOutcome.ADOPTED if state is TaskState.COMPLETED else SubmitOutcome.REATTACHED
    return SubmitResult(
        task_id=submission.horsies_task_id,
        outcome=outcome,
        state=state or TaskState.PENDING,
        life=submission.life,
        round=submission.round,
        position=submission.position,
    )
