"""The routes of the overview page: queues, workers, failures, activity and figures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Generic, TypeVar

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.crypto import get_fernet
from cryptography.fernet import InvalidToken
from fastapi import APIRouter, HTTPException, Query, Response

from airflow_horsies.client import ledger
from airflow_horsies.client.pages import LIMITS
from airflow_horsies.core.cluster import QueueDepth, WorkerState
from airflow_horsies.core.paging import PageCursor
from airflow_horsies.core.report import Report
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.task import TaskView
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.exceptions import DatabaseBusy, InvalidTask
from airflow_horsies.ui import payloads
from airflow_horsies.ui.access import MAY_SEE_CLUSTER, Rights, RightsDep, may_read_connection
from airflow_horsies.ui.airflow_side import read_states
from airflow_horsies.ui.answers import error_url, json_answer, shown_text
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.routes.monitoring import is_installed
from airflow_horsies.ui.routes.report import report_payload
from airflow_horsies.ui.statistics import Event, attempts_over_time, events, throughput
from airflow_horsies.ui.threads import OwnThreadRoute

RECENT_TASKS = 2_000
# Many users may have the page open. Its data is read once for all of them in this time.
SHARED_SECONDS = 2.0
FAILED_WINDOW = 10_000
FAILED_PAGE = 200
EVENTS = 60
REPORTS = 10
# Some events belong to DAGs that the user may not see, and a batch repeats an event many times.
EVENTS_LOOKED_AT = 1_000

T = TypeVar("T")
router = APIRouter(route_class=OwnThreadRoute)


class Shared(Generic[T]):
    """A value that is read again after a moment."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._value: tuple[float, T] | None = None

    def get(self) -> T:
        if not self._lock.acquire(timeout=LIMITS.lock_seconds):
            raise DatabaseBusy("Another request waits for the horsies database. Try again later.")
        try:
            if self._value is None or time.monotonic() - self._value[0] > SHARED_SECONDS:
                # Cleared first, so that a failure does not return the old value.
                self._value = None
                self._value = (time.monotonic(), self._read())
            return self._value[1]
        finally:
            self._lock.release()


def _read_cluster() -> tuple[list[QueueDepth], list[WorkerState], tuple[TaskView, ...], list[Report]]:
    with page_client() as client:
        recent = client.list_recent_tasks(limit=RECENT_TASKS)
        return client.read_queues(), client.read_workers(), recent.tasks, ledger.list_reports(client, limit=REPORTS)


cluster = Shared(_read_cluster)


@router.get("/api/overview", dependencies=MAY_SEE_CLUSTER)
def read_overview(rights: RightsDep, user: GetUserDep) -> Response:
    """Queues and workers, latest events, and outcomes of attempts."""
    queues, workers, recent, reports = cluster.get()
    sees_all = may_read_connection(user)
    now = datetime.now(UTC)
    per_minute = throughput(recent, now)
    width, buckets = attempts_over_time(recent)
    return json_answer(
        payloads.Overview(
            now=now,
            queues=[_queue(queue, per_minute.get(queue.queue, 0.0)) for queue in queues],
            workers=[_worker(worker) for worker in workers],
            recent_tasks=len(recent),
            recent_is_cut=len(recent) == RECENT_TASKS,
            bucket_seconds=width,
            buckets=buckets,
            activity=_activity(recent, rights, sees_all=sees_all),
            can_monitor=is_installed() and sees_all,
            reports=[report_payload(report) for report in reports] if sees_all else [],
            can_read_reference=sees_all,
        )
    )


@router.get("/api/failures", dependencies=MAY_SEE_CLUSTER)
def read_failures(
    session: SessionDep,
    rights: RightsDep,
    before_at: Annotated[datetime | None, Query()] = None,
    before_id: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Task instances whose last submission failed or expired, newest first, one period at a time."""
    before = _cursor(before_at, before_id)
    with page_client() as client:
        found = client.find_failed(window=FAILED_WINDOW, limit=FAILED_PAGE, before=before)
        own = client.deployment
        sent = [
            submission
            for submission in client.read_submissions_of_tasks(found.ids)
            if submission.is_latest and own.owns(submission) and rights.may_read(submission.task_instance.dag_id)
        ]
        tasks = client.read_summaries([submission.horsies_task_id for submission in sent])
    of_instance: dict[TaskInstanceKey, list[Submission]] = {}
    for submission in sent:
        if submission.horsies_task_id in tasks:
            of_instance.setdefault(submission.task_instance, []).append(submission)
    states = read_states(session, of_instance)
    return json_answer(
        payloads.Failures(
            now=datetime.now(UTC),
            failures=[
                _failure(
                    failed,
                    tasks,
                    exists=key in states,
                    airflow_state=states.get(key),
                    can_act=rights.may_act(key.dag_id),
                )
                for key, failed in of_instance.items()
            ],
            searched_to=found.searched_to,
            next=None if found.next is None else _next_failures(found.next),
        )
    )


def _cursor(at: datetime | None, task_id: str | None) -> PageCursor | None:
    if at is None or task_id is None:
        return None
    if at.utcoffset() is None:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "before_at must have a time zone.")
    try:
        given = get_fernet().decrypt(task_id.encode("ascii")).decode()
        return PageCursor(at=at.astimezone(UTC), task_id=require_task_id(given))
    except (InvalidTask, InvalidToken, UnicodeError):
        raise HTTPException(
            HTTPStatus.UNPROCESSABLE_ENTITY, "before_id must be the id from an earlier response."
        ) from None
    except OverflowError:
        raise HTTPException(
            HTTPStatus.UNPROCESSABLE_ENTITY, "before_at must be a time that UTC can represent."
        ) from None


def _next_failures(cursor: PageCursor) -> payloads.NextFailures:
    """Encrypted, because the last task may belong to a DAG that the user may not see."""
    return payloads.NextFailures(at=cursor.at, id=get_fernet().encrypt(cursor.task_id.encode()).decode())


def _activity(recent: Sequence[TaskView], rights: Rights, *, sees_all: bool) -> list[payloads.Event]:
    newest = sorted(events(recent), key=lambda event: event.at, reverse=True)[:EVENTS_LOOKED_AT]
    with page_client() as client:
        own = client.deployment
        submissions = client.read_submissions_of_tasks(list({event.task.id for event in newest}))
    sent_by = {submission.horsies_task_id: submission for submission in submissions}
    shown = []
    for event in newest:
        submission = sent_by.get(event.task.id)
        if submission is None:
            # A DAG that the user may not see may have sent it, with a notifier or without a record left.
            is_shown = sees_all
        else:
            is_shown = own.owns(submission) and rights.may_read(submission.task_instance.dag_id)
        if is_shown:
            shown.append(_event(event, submission))
    return _grouped(shown)[:EVENTS]


def _grouped(shown: Sequence[payloads.Event]) -> list[payloads.Event]:
    """Combine the same event of several items of a batch into one, with its count."""
    grouped: list[payloads.Event] = []
    for event in shown:
        last = grouped[-1] if grouped else None
        if last and replace(last, at=event.at, count=event.count) == event:
            grouped[-1] = replace(last, count=last.count + 1)
        else:
            grouped.append(event)
    return grouped


def _event(event: Event, submission: Submission | None) -> payloads.Event:
    return payloads.Event(
        at=event.at,
        what=event.what,
        task_name=event.task.task_name,
        queue=event.task.queue,
        error_code=shown_text(event.attempt.error_code) if event.attempt else None,
        instance=submission.task_instance if submission else None,
    )


def _failure(
    failed: Sequence[Submission],
    tasks: dict[str, TaskView],
    *,
    exists: bool,
    airflow_state: str | None,
    can_act: bool,
) -> payloads.Failure:
    newest = failed[0]
    task = tasks[newest.horsies_task_id]
    last = task.attempts[-1] if task.attempts else None
    return payloads.Failure(
        **asdict(newest.task_instance),
        items=len(failed),
        task_name=task.task_name,
        queue=task.queue,
        state=task.state,
        error_code=shown_text(task.error_code),
        error_message=shown_text(last.error_message if last else task.failed_reason, max_chars=500),
        attempts=len(task.attempts),
        hostname=task.hostname,
        finished_at=task.finished_at,
        exists=exists,
        airflow_state=airflow_state,
        can_act=can_act,
        error_url=error_url(task.error_code),
    )


def _queue(queue: QueueDepth, per_minute: float) -> payloads.Queue:
    return payloads.Queue(**asdict(queue), per_minute=round(per_minute, 2))


def _worker(worker: WorkerState) -> payloads.Worker:
    values = asdict(worker)
    return payloads.Worker(worker_id=values.pop("id"), **values)
