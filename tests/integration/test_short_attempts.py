"""Attempts that are reported only when they have ended, and what horsies has done with their tasks meanwhile."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.client.reporting import (
    AttemptNews,
    Claim,
    ClaimState,
    EndedAttempt,
    StartedAttempt,
    WorkerClient,
)
from airflow_horsies.core.attempts import Source, attempts_of
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AttemptRecord, LogChunk, RetryPolicy, TaskSpec, TaskState, TaskView
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED, keeps_history

HERE = Path(__file__).parent
WAIT_SECONDS = 120
STARTED = datetime(2026, 3, 1, 12, tzinfo=UTC)
ENDED = STARTED + timedelta(milliseconds=3)


def until(holds: Callable[[], Any], what: str) -> Any:
    give_up = time.monotonic() + WAIT_SECONDS
    while not (found := holds()):
        assert time.monotonic() < give_up, f"{what} did not come"
        time.sleep(0.02)
    return found


def records(hook: HorsiesHook, task_id: str) -> tuple[AttemptRecord, ...]:
    return hook.read_attempts([task_id]).get(task_id, ())


def send(hook: HorsiesHook, name: str, /, *, retry_for: list[str] | None = None, **given: Any) -> str:
    policy = RetryPolicy.fixed([1], auto_retry_for=retry_for, jitter=False) if retry_for else None
    return hook.enqueue_task(TaskSpec(task_name=name, kwargs=given, retry_policy=policy))


def wait(hook: HorsiesHook, task_id: str) -> TaskView:
    (task,) = hook.wait([task_id], timeout_seconds=WAIT_SECONDS)
    return task


# -- what a report finds, on the tables and with the workers of both generations


@pytest.fixture
def served(make_hook: MakeHook, served_database: str) -> HorsiesHook:
    hook = make_hook(served_database)
    migrate_ledger(hook.client)
    return hook


@pytest.fixture
def client(served: HorsiesHook) -> Iterator[WorkerClient]:
    client = WorkerClient(served.settings.database)
    yield client
    client.close()


def started(task: TaskView, **changed: Any) -> StartedAttempt:
    assert task.worker_id
    claim = Claim(task_id=task.id, worker_id=task.worker_id, claimed_at=task.claimed_at)
    return StartedAttempt(claim=replace(claim, **changed), hostname="node", pid=42, started_at=STARTED)


def test_a_success_is_recorded_under_its_number_after_horsies_has_ended_the_task(
    served: HorsiesHook, client: WorkerClient, tmp_path: Path
) -> None:
    first = wait(served, send(served, "add", a=1, b=2))
    second = wait(
        served, send(served, "die_once", retry_for=["WORKER_CRASHED"], marker=str(tmp_path / uuid.uuid4().hex))
    )
    assert (first.state, second.state, second.retry_count) == (TaskState.COMPLETED, TaskState.COMPLETED, 1)
    for _ in range(2):
        client.record_completed([(started(task), ENDED) for task in (first, second)])
    for task, number in ((first, 1), (second, 2)):
        (record,) = records(served, task.id)
        assert (record.number, record.worker_id, record.hostname, record.pid) == (number, task.worker_id, "node", 42)
        assert (record.started_at, record.finished_at, record.outcome) == (STARTED, ENDED, "COMPLETED")


def test_a_success_of_an_earlier_claim_is_not_recorded(served: HorsiesHook, client: WorkerClient) -> None:
    task = wait(served, send(served, "add", a=1, b=2))
    assert task.claimed_at
    others = [{"worker_id": "another"}, {"claimed_at": task.claimed_at - timedelta(seconds=1)}]
    client.record_completed([(started(task, **changed), ENDED) for changed in others[:1]])
    client.record_completed([(started(task, **changed), ENDED) for changed in others[1:]])
    client.record_completed([(started(task, task_id=str(uuid.uuid4())), ENDED)])
    assert records(served, task.id) == ()


def test_an_earlier_run_of_an_attempt_does_not_replace_a_later_one(served: HorsiesHook, client: WorkerClient) -> None:
    task = wait(served, send(served, "add", a=1, b=2))
    later = replace(started(task), started_at=STARTED + timedelta(minutes=1), pid=43)
    client.record_completed([(later, later.started_at)])
    client.record_completed([(started(task), ENDED)])
    (record,) = records(served, task.id)
    assert (record.pid, record.started_at) == (43, later.started_at)


def running(served: HorsiesHook, seconds: float) -> TaskView:
    task_id = send(served, "sleep", seconds=seconds)
    until(lambda: served.read_states([task_id])[task_id] is TaskState.RUNNING, "the start")
    return served.read_task(task_id)


def lines(*texts: str) -> list[LogChunk]:
    return [LogChunk(1, STARTED + timedelta(seconds=1), "INFO", texts)]


def test_start_lines_and_end_are_one_report_and_may_be_written_twice(served: HorsiesHook, client: WorkerClient) -> None:
    task = running(served, 3)
    news = AttemptNews(lines=lines("one", "two"), ended=EndedAttempt(finished_at=ENDED, outcome="FAILED"))
    for _ in range(2):
        begun = client.begin_attempt(started(task), news)
        assert begun and (begun.number, begun.lines_written, begun.state) == (1, 0, ClaimState.HELD)
    (record,) = records(served, task.id)
    assert (record.outcome, record.started_at, record.finished_at) == ("FAILED", STARTED, ENDED)
    assert [(line.number, line.text) for line in served.read_lines(task.id)] == [(1, "one"), (2, "two")]

    again = replace(started(task), started_at=STARTED + timedelta(hours=1))
    later = [LogChunk(1, again.started_at, "INFO", ["three"])]
    for _ in range(2):
        begun = client.begin_attempt(again, AttemptNews(lines=later))
        assert begun and begun.lines_written == 2
    assert [(line.number, line.text) for line in served.read_lines(task.id)][2:] == [(3, "three")]
    assert records(served, task.id)[0].outcome is None


def test_the_first_report_of_a_cancelled_task_keeps_its_lines_and_says_so(
    served: HorsiesHook, client: WorkerClient, release: str
) -> None:
    task = running(served, 3)
    served.cancel_task(task.id)
    begun = client.begin_attempt(started(task), AttemptNews(lines=lines("before")))
    if not keeps_history(release):
        # A cancel removes the claim from the row.
        assert begun is None
        return
    assert begun and (begun.number, begun.state) == (1, ClaimState.CANCELLED)
    assert [line.text for line in served.read_lines(task.id)] == ["before"]
    assert [attempt.outcome for attempt in attempts_of(served.read_task(task.id), records(served, task.id))] == [
        "CANCELLED"
    ]


# -- our own workers


class Rig:
    """A worker of ours without Spark."""

    def __init__(self, postgres: EmbeddedPostgres, name: str, folder: Path, hook: HorsiesHook) -> None:
        self.hook = hook
        self.worker = HorsiesWorker(
            "short_worker_tasks:app",
            conninfo=postgres.conninfo(name),
            log=folder / "worker.log",
            folder=HERE,
            command=SPARK_WORKER,
        )


@pytest.fixture
def rig(postgres: EmbeddedPostgres, make_hook: MakeHook, database: str, tmp_path: Path) -> Iterator[Rig]:
    pytest.importorskip("horsies")
    made = Rig(postgres, database, tmp_path, make_hook(database))
    migrate_ledger(made.hook.client)
    with made.worker:
        yield made


ours = pytest.mark.parametrize("release", [MOVED], indirect=True)


@ours
def test_every_success_of_a_worker_is_recorded_also_of_one_that_stops_at_once(rig: Rig) -> None:
    ids = rig.hook.enqueue_tasks([TaskSpec(task_name="add", kwargs={"a": n, "b": 1}) for n in range(200)])
    tasks = rig.hook.wait(ids, timeout_seconds=WAIT_SECONDS)
    os.kill(rig.worker.process.pid, signal.SIGTERM)
    until(lambda: not rig.worker.process.running, "the end of the worker")
    assert [task.result and task.result.ok for task in tasks] == [n + 1 for n in range(200)]
    found = rig.hook.read_attempts(ids)
    assert sorted(found) == sorted(ids)
    for task in tasks:
        (record,) = found[task.id]
        assert (record.number, record.outcome, record.worker_id) == (1, "COMPLETED", task.worker_id)
        assert (record.hostname, record.pid) == (task.hostname, task.pid)
        assert record.finished_at and record.started_at <= record.finished_at


@ours
def test_a_failure_is_recorded_before_its_retry_starts(rig: Rig, tmp_path: Path) -> None:
    task_id = send(rig.hook, "fail_once", retry_for=["UNHANDLED_EXCEPTION"], marker=str(tmp_path / "failed"))
    assert wait(rig.hook, task_id).state is TaskState.COMPLETED
    found = until(lambda: len(records(rig.hook, task_id)) == 2 and records(rig.hook, task_id), "both attempts")
    assert [(record.number, record.outcome) for record in found] == [(1, "FAILED"), (2, "COMPLETED")]
    assert found[0].finished_at and found[0].finished_at <= found[1].started_at
    assert any("LookupError: not yet" in line.text for line in rig.hook.read_lines(task_id))


@ours
def test_an_attempt_that_was_killed_before_anything_was_written_is_shown(rig: Rig, tmp_path: Path) -> None:
    task_id = send(rig.hook, "die_once", retry_for=["WORKER_CRASHED"], marker=str(tmp_path / "died"))
    task = wait(rig.hook, task_id)
    assert task.state is TaskState.COMPLETED
    until(lambda: records(rig.hook, task_id), "the record of the second attempt")
    assert [record.number for record in records(rig.hook, task_id)] == [2]
    shown = attempts_of(task, records(rig.hook, task_id))
    assert [(attempt.number, attempt.error_code, attempt.source) for attempt in shown] == [
        (1, "WORKER_CRASHED", Source.HORSIES),
        (2, None, Source.HORSIES),
    ]


@ours
def test_a_silent_task_is_shown_while_it_runs_and_stops_when_it_is_cancelled(rig: Rig) -> None:
    task_id = send(rig.hook, "nap", seconds=60)
    until(lambda: records(rig.hook, task_id), "the start")
    (record,) = records(rig.hook, task_id)
    assert record.outcome is None
    rig.hook.cancel_task(task_id)
    until(lambda: records(rig.hook, task_id)[0].outcome == "CANCELLED", "the end")


@ours
@pytest.mark.parametrize("text", ["", "a line"])
def test_a_task_that_is_cancelled_in_its_first_moments_stops(rig: Rig, text: str) -> None:
    wait(rig.hook, send(rig.hook, "add", a=1, b=1))
    task_id = send(rig.hook, "nap", seconds=60, text=text)
    until(lambda: rig.hook.read_states([task_id])[task_id] is TaskState.RUNNING, "the start")
    rig.hook.cancel_task(task_id)
    began = time.monotonic()
    assert wait(rig.hook, send(rig.hook, "add", a=1, b=1)).state is TaskState.COMPLETED
    assert time.monotonic() - began < 30
    assert [attempt.outcome for attempt in attempts_of(rig.hook.read_task(task_id), records(rig.hook, task_id))] == [
        "CANCELLED"
    ]
    texts = [line.text for line in rig.hook.read_lines(task_id)]
    assert (not text or text in texts) and "Stopping this attempt because it was cancelled." in texts


@ours
def test_reports_wait_while_their_table_is_locked_and_tasks_do_not(
    rig: Rig, postgres: EmbeddedPostgres, database: str
) -> None:
    wait(rig.hook, send(rig.hook, "add", a=1, b=1))
    with psycopg.connect(**postgres.conninfo(database)) as locker:
        locker.execute("LOCK TABLE airflow_horsies.attempts IN ACCESS EXCLUSIVE MODE")
        ids = rig.hook.enqueue_tasks([TaskSpec(task_name="add", kwargs={"a": n, "b": 1}) for n in range(20)])
        rig.hook.wait(ids, timeout_seconds=WAIT_SECONDS)
        locker.rollback()
    until(lambda: len(rig.hook.read_attempts(ids)) == 20, "the reports")
