"""The submissions of task instances, in memory: the rules of the ledger for a single process that is never killed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from airflow_horsies.client.rules import (
    NO_LONGER_REQUESTED,
    Item,
    Submitter,
    continues_life,
    follows_success,
    is_of_same_try,
    items_of,
    key_of_other_work,
    make_result,
    needs_next_round,
    repairs_by_setting,
    require_derived_ids,
    require_distinct_keys,
)
from airflow_horsies.core.chunk import CHUNK_SUFFIX
from airflow_horsies.core.submission import AirflowTry, OnClear, Submission, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskState
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.testing.memory import Memory
from airflow_horsies.testing.plan import NewTask, locked


@dataclass(slots=True)
class Row:
    """A submission, with the try that recorded it and the newest try that asked for it.

    :param slot: the number of the item in its life. Its position is its current place in the list.
    :param is_taken_up: the task was sent by somebody else, under the same idempotency key.
    """

    submission: Submission
    tried: AirflowTry
    item: Item
    slot: int
    last_try: int
    key: bytes | None = None
    is_taken_up: bool = False
    is_released: bool = False

    @property
    def task_id(self) -> str:
        return self.submission.horsies_task_id

    @property
    def is_wanted(self) -> bool:
        return self.submission.is_latest and not self.is_released

    @property
    def columns(self) -> dict[str, Any]:
        """What the rule of lives reads of a row."""
        return {
            "base_url": self.submission.base_url,
            "horsies_task_id": self.task_id,
            "try_number": self.submission.try_number,
            "seen_try": self.last_try,
            "run_key": self.tried.run_key,
            "run_started_at": self.tried.run_started_at,
            "clear_number": self.tried.clear_number,
            "max_tries": self.tried.max_tries,
            "place": self.submission.position if self.submission.is_latest else NO_LONGER_REQUESTED,
        }


@dataclass(slots=True)
class Request:
    """One item of a submission: the row of its earlier round, and the task it gets.

    :param state: the state of a task that exists already; None sends a new one.
    """

    place: int
    item: Item
    task: NewTask
    key: bytes | None
    row: Row | None
    task_id: str | None = None
    state: TaskState | None = None


class FakeLedger:
    """The submissions of a test."""

    def __init__(self, memory: Memory) -> None:
        self.plan = memory.plan
        self.rows: dict[TaskInstanceKey, list[Row]] = {}
        self.memory = memory

    @locked
    def read_submissions(self, task_instance: TaskInstanceKey) -> list[Submission]:
        found = [row.submission for row in self.rows.get(task_instance, ())]
        return sorted(self._by_task(found), key=lambda item: (item.life, item.round, item.position))

    @locked
    def read_all_items(self) -> list[Submission]:
        return [row.submission for row in self._all_rows()]

    def _by_task(self, submissions: Sequence[Submission]) -> list[Submission]:
        """One for each chunk, at the place of its first requested item."""
        found: dict[tuple[str, int, int], Submission] = {}
        for item in submissions:
            chunk_id, _ = self.memory.chunk_of.get(item.horsies_task_id, (None, 0))
            if chunk_id is None:
                found[item.horsies_task_id, item.life, item.round] = item
                continue
            name = f"{item.task_name}{CHUNK_SUFFIX}"
            chunk = replace(item, horsies_task_id=chunk_id, task_name=name, round=1)
            other = found.get((chunk_id, item.life, 1), chunk)
            found[chunk_id, item.life, 1] = min(chunk, other, key=lambda one: (not one.is_latest, one.position))
        return list(found.values())

    @locked
    def locate(self, task_instance: TaskInstanceKey) -> list[tuple[str, int, int, list[int] | None]]:
        """The requested tasks of a task instance: id, life, place, and the places of the items of a chunk."""
        found: dict[str, tuple[str, int, int, list[int] | None]] = {}
        for row in self.rows.get(task_instance, ()):
            item = row.submission
            if not item.is_latest:
                continue
            chunk_id, number = self.memory.chunk_of.get(row.task_id, (row.task_id, 0))
            size = len(self.memory.chunks.get(chunk_id, ()))
            places = found.setdefault(chunk_id, (chunk_id, item.life, item.position, [-1] * size if size else None))[3]
            if places is not None:
                places[number] = item.position
        return list(found.values())

    @locked
    def count_replaced(self, task_ids: Collection[str], among: Collection[str]) -> int:
        """How many of the tasks of items did not complete and were sent again in none of the given tasks."""
        count = 0
        for rows in self.rows.values():
            requested = {row.item: row.task_id for row in rows if row.submission.is_latest}
            lost = {row.task_id: row.item for row in rows if row.task_id in task_ids and not row.submission.is_latest}
            for task_id, item in lost.items():
                again = requested.get(item)
                if again in (None, task_id) or self.memory.tasks[task_id].state is TaskState.COMPLETED:
                    continue
                count += self.memory.chunk_of.get(again, (again, 0))[0] not in among
        return count

    @locked
    def has_later_submission(self, task_instance: TaskInstanceKey, *, life: int, try_number: int) -> bool:
        rows = self.rows.get(task_instance, [])
        return any((row.submission.life, row.last_try) > (life, try_number) for row in rows)

    @locked
    def read_all_submissions(self) -> list[Submission]:
        return [item for rows in self.rows.values() for item in self._by_task([row.submission for row in rows])]

    @locked
    def submit_tasks(
        self,
        tasks: Sequence[NewTask],
        submitter: Submitter,
        *,
        uses_items: bool = False,
        on_clear: OnClear = OnClear.ALL,
        max_failures: int = 0,
    ) -> list[SubmitResult]:
        """Reattach to, adopt or send each task, and cancel tasks that are no longer needed.

        :param uses_items: also use the items of chunks.
        :param on_clear: whether a clear keeps what has completed.
        :param max_failures: how many may fail in a try that succeeds.
        """
        require_derived_ids([task.encoded for task in tasks])
        for task in tasks:
            self.plan.outcome_of(task)
        rows = self.rows.setdefault(submitter.task_instance, [])
        last_life = max((row.submission.life for row in rows), default=0)
        newest = {row.slot: row for row in rows if row.submission.life == last_life}
        columns = [row.columns for row in newest.values()]
        continues = continues_life(submitter, columns)
        repairs = bool(newest) and not continues and repairs_by_setting(submitter, columns, on_clear)
        usable = [row for row in newest.values() if uses_items or row.task_id not in self.memory.chunk_of]
        requests = _make_requests(tasks, usable if continues or repairs else ())
        if not (continues and self._follows_success(submitter.tried, newest.values(), max_failures)):
            self._find_earlier_tasks(requests, submitter.tried if continues else None)
        self._find_shared_tasks(requests, is_clear=bool(rows) and not continues)
        self._release_unwanted(newest.values(), requests, submitter.task_instance)
        if repairs:
            # The new life records its own rows, also of the tasks that it keeps.
            for request in requests:
                request.row = None
        life = last_life if continues else last_life + 1
        rows.extend(self._record(requests, newest if continues else {}, submitter, life))
        _place(rows, requests, life=life if requests else last_life, try_number=submitter.tried.try_number)
        return [
            make_result(row.task_id, request.state, life, row.submission.round, request.place)
            for request in requests
            if (row := request.row) is not None
        ]

    @locked
    def release_tasks(
        self,
        task_ids: Collection[str],
        task_instance: TaskInstanceKey,
        *,
        try_number: int | None,
        life: int | None = None,
    ) -> dict[str, CancelOutcome]:
        """Cancel tasks that nothing else waits for, unless a later try or life of the task instance does."""
        chunks = self.memory.chunks
        if any(task_id in chunks for task_id in task_ids):
            return self._release_chunks(task_ids, task_instance, try_number=try_number, life=life)
        if self._has_later_try(task_ids, task_instance, try_number, life):
            return dict.fromkeys(task_ids, CancelOutcome.STILL_WANTED)
        return self._release(task_ids, task_instance)

    def _release_chunks(
        self,
        task_ids: Collection[str],
        task_instance: TaskInstanceKey,
        *,
        try_number: int | None,
        life: int | None,
    ) -> dict[str, CancelOutcome]:
        outcomes: dict[str, CancelOutcome] = {}
        for task_id in task_ids:
            items = self.memory.chunks.get(task_id, [task_id])
            of_items = self.release_tasks(items, task_instance, try_number=try_number, life=life)
            if task_id in self.memory.chunks and CancelOutcome.STILL_WANTED not in of_items.values():
                outcomes[task_id] = self.memory.cancel_task(task_id)
            else:
                outcomes |= dict.fromkeys([task_id], next(iter(of_items.values())))
        return outcomes

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _follows_success(self, tried: AirflowTry, newest: Collection[Row], max_failures: int) -> bool:
        states = {row.task_id: self.memory.read_task(row.task_id).state for row in newest} if tried.is_traced else {}
        return follows_success(tried, [row.columns for row in newest], states, max_failures=max_failures)

    def _find_earlier_tasks(self, requests: Sequence[Request], tried: AirflowTry | None) -> None:
        """Find the live and completed tasks of these requests, and all that the same try sent.

        :param tried: None if their rows are of an earlier life.
        """
        for request in requests:
            if request.row is None:
                continue
            if tried is not None and is_of_same_try(tried, request.row.columns):
                request.task_id = request.row.task_id
                request.state = self.memory.read_task(request.task_id).state
            else:
                self._take(request, [request.row.task_id])

    def _find_shared_tasks(self, requests: Sequence[Request], *, is_clear: bool) -> None:
        """Find the tasks that others sent under the same key. A clear asks for the work again, without its key."""
        keyed = [request for request in requests if request.task_id is None and request.key is not None]
        if not is_clear:
            require_distinct_keys([request.task.encoded for request in keyed])
            keyed = [request for request in keyed if self._share(request)]
        for request in keyed:
            encoded = request.task.encoded._replace(idempotency_digest=None)
            request.task = replace(request.task, encoded=encoded)

    def _share(self, request: Request) -> bool:
        """Find the task of somebody else with the same key; returns whether the key is in use."""
        owner = self.memory.find_owner(request.task)
        if owner is None:
            return False
        if owner.encoded.work != request.item.work:
            raise key_of_other_work(owner.id)
        newest_first = sorted(self._all_rows(), key=lambda row: row.submission.submitted_at, reverse=True)
        asked = (request.key, request.item.work)
        later = [row.task_id for row in newest_first if row.is_wanted and (row.key, row.item.work) == asked]
        self._take(request, [owner.id, *later])
        return True

    def _take(self, request: Request, task_ids: Sequence[str]) -> None:
        for task_id in task_ids:
            state = self.memory.read_task(task_id).state
            if not needs_next_round(task_id, state):
                request.task_id, request.state = task_id, state
                return

    def _release_unwanted(
        self, newest: Collection[Row], requests: Sequence[Request], task_instance: TaskInstanceKey
    ) -> None:
        wanted = {request.row.slot for request in requests if request.row is not None}
        unwanted = [row.task_id for row in newest if row.submission.is_latest and row.slot not in wanted]
        self._release([task_id for task_id in unwanted if not self._has_ended(task_id)], task_instance)

    def _has_ended(self, task_id: str) -> bool:
        task = self.memory.tasks.get(task_id)
        return task is None or task.state.is_terminal

    def _record(
        self, requests: Sequence[Request], slots: Mapping[int, Row], submitter: Submitter, life: int
    ) -> Iterator[Row]:
        """Send the tasks that do not exist yet; a new row for each request whose task is not that of its row."""
        rounds: dict[int, int] = {}
        for row in slots.values():
            rounds[row.submission.position] = max(rounds.get(row.submission.position, 0), row.submission.round)
        free = count(max(slots, default=-1) + 1)
        for request in requests:
            before = request.row
            if before is not None and before.task_id == request.task_id:
                continue
            if request.task_id is None:
                self.memory.insert(request.task)
            earlier = before.submission.round if before else rounds.get(request.place, 0)
            request.row = Row(
                submission=_make_submission(request, submitter, life, earlier + 1),
                tried=submitter.tried,
                item=request.item,
                slot=before.slot if before else next(free),
                last_try=submitter.tried.try_number,
                key=request.key,
                is_taken_up=request.task_id is not None,
            )
            yield request.row

    # -- releasing -----------------------------------------------------------------------------------------------------

    def _has_later_try(
        self, task_ids: Collection[str], task_instance: TaskInstanceKey, try_number: int | None, life: int | None
    ) -> bool:
        """Whether a later life has taken over one of these tasks, or a later try has submitted in a life that has."""
        rows = self.rows.get(task_instance, [])
        lives = {row.submission.life for row in rows if row.task_id in task_ids}
        if life is not None and any(found > life for found in lives):
            return True
        tries = [row.last_try for row in rows if row.submission.life in lives]
        return try_number is not None and any(found > try_number for found in tries)

    def _release(self, task_ids: Collection[str], task_instance: TaskInstanceKey) -> dict[str, CancelOutcome]:
        for row in self.rows.get(task_instance, ()):
            row.is_released |= row.task_id in task_ids
        wanted = self._find_wanted_by_others(task_instance)
        return {
            task_id: CancelOutcome.STILL_WANTED if task_id in wanted else self.memory.cancel_task(task_id)
            for task_id in task_ids
            if task_id in wanted or task_id in self.memory.tasks
        }

    def _find_wanted_by_others(self, task_instance: TaskInstanceKey) -> set[str]:
        """The tasks of other task instances, and of senders without a record here."""
        rows = self._all_rows()
        others = {row.task_id for row in rows if row.is_wanted and row.submission.task_instance != task_instance}
        return others | {row.task_id for row in rows} - {row.task_id for row in rows if not row.is_taken_up}

    def _all_rows(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]


def _make_requests(tasks: Sequence[NewTask], newest: Collection[Row]) -> list[Request]:
    known = {row.item: row for row in newest}
    items = items_of([task.encoded for task in tasks])
    return [
        Request(place, item, task, task.key, known.get(item))
        for place, (item, task) in enumerate(zip(items, tasks, strict=True))
    ]


def _make_submission(request: Request, submitter: Submitter, life: int, round_: int) -> Submission:
    spec = request.task.spec
    return Submission(
        horsies_task_id=request.task_id or request.task.id,
        namespace=submitter.namespace,
        task_instance=submitter.task_instance,
        position=request.place,
        life=life,
        round=round_,
        try_number=submitter.tried.try_number,
        task_name=spec.task_name,
        queue=spec.queue,
        good_until=spec.good_until,
        submitted_at=datetime.now(UTC),
        base_url=submitter.base_url,
        kind=WorkKind.TASK if request.task.graph is None else WorkKind.WORKFLOW,
    )


def _place(rows: Sequence[Row], requests: Sequence[Request], *, life: int, try_number: int) -> None:
    """All rounds of an item are at its current place, and the newest of a requested item is the latest."""
    latest = {request.row.slot: request for request in requests if request.row is not None}
    for row in rows:
        row.submission = replace(row.submission, is_latest=False)
        if row.submission.life == life:
            place = latest[row.slot].place if row.slot in latest else row.slot
            row.submission = replace(row.submission, position=place)
    for request in requests:
        if request.row is not None:
            request.row.submission = replace(request.row.submission, is_latest=True)
            request.row.last_try, request.row.is_released = try_number, False
