"""Parking, signals and checkpoints on the tables and with the workers of both generations, a step at a time.

The task of the contract ends with AWAITING_SIGNAL when the test lets it; the test asks for it what a worker of this
package asks.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.client import signals
from airflow_horsies.client.ledger import migrate_ledger, prune_ledger
from airflow_horsies.client.mailbox import Answer, MailboxClient, ParkedTask, Settled, Verdict, Wait
from airflow_horsies.client.reporting import Claim
from airflow_horsies.exceptions import SignalRefused
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import messages
from airflow_horsies.models import RetryPolicy, TaskSpec, TaskState, TaskView, is_unserved
from tests.integration.conftest import MakeHook

WAIT_SECONDS = 60
AT_ONCE = timedelta(0)


@pytest.fixture
def hook(make_hook: MakeHook, served_database: str) -> HorsiesHook:
    hook = make_hook(served_database)
    migrate_ledger(hook.client)
    return hook


@pytest.fixture
def client(hook: HorsiesHook) -> Iterator[MailboxClient]:
    client = MailboxClient(hook.settings.database)
    yield client
    client.close()


@pytest.fixture
def own(hook: HorsiesHook) -> Iterator[psycopg.Connection]:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        yield connection


def until(holds: Callable[[], Any], what: str) -> Any:
    give_up = time.monotonic() + WAIT_SECONDS
    while not (found := holds()):
        assert time.monotonic() < give_up, f"{what} did not come"
        time.sleep(0.02)
    return found


@dataclass
class Running:
    """A task that runs until the test lets it park."""

    hook: HorsiesHook
    task: TaskView
    marker: Path

    @property
    def wait(self) -> Wait:
        task = self.task
        assert task.worker_id
        claim = Claim(task_id=task.id, worker_id=task.worker_id, claimed_at=task.claimed_at)
        return Wait(claim=claim, targets=(task.id,), name="go")

    def read(self) -> TaskView:
        return self.hook.read_task(self.task.id)

    def let_park(self) -> None:
        self.marker.touch()
        until(lambda: self.read().state is TaskState.PENDING, "the parking")

    def finish(self) -> None:
        Path(f"{self.marker}.done").touch()
        (task,) = self.hook.wait([self.task.id], timeout_seconds=WAIT_SECONDS)
        assert task.state is TaskState.COMPLETED, task


@pytest.fixture
def running(hook: HorsiesHook, tmp_path: Path) -> Iterator[Running]:
    marker = tmp_path / "park"
    spec = TaskSpec(task_name="park", kwargs={"marker": str(marker)}, retry_policy=RetryPolicy.parking())
    task_id = hook.enqueue_task(spec)
    until(lambda: hook.read_states([task_id])[task_id] is TaskState.RUNNING, "the start")
    yield Running(hook, hook.read_task(task_id), marker)
    Path(f"{marker}.done").touch()
    marker.touch()
    if not hook.read_states([task_id])[task_id].is_terminal:
        with psycopg.connect(**hook.settings.database.connect_args) as connection:
            connection.execute(
                "UPDATE horsies_tasks SET next_retry_at = now(), enqueued_at = now() "
                "WHERE id = %s AND status = 'PENDING'",
                [task_id],
            )
        hook.wait([task_id], timeout_seconds=WAIT_SECONDS)


def park(client: MailboxClient, running: Running, *, timeout_seconds: float | None = 3600) -> Answer:
    return client.park(running.wait, timeout_seconds=timeout_seconds, find_interval=lambda _: 60.0)


def parked(running: Running, answer: Answer) -> ParkedTask:
    return ParkedTask(wait=running.wait, attempt=answer.attempt, due_at=answer.due_at, seconds_left=answer.seconds_left)


def test_a_task_parks_until_its_signal(hook: HorsiesHook, client: MailboxClient, running: Running) -> None:
    answer = park(client, running)
    assert (answer.verdict, answer.attempt) == (Verdict.PARKED, 1)
    assert client.settle(parked(running, answer)) == (Settled.NOT_YET, None)
    running.let_park()
    assert client.settle(parked(running, answer)) == (Settled.DONE, "default")
    task = running.read()
    assert (task.retry_count, task.max_retries) == (1, 2), "the parking is no retry of the policy"
    assert task.next_retry_at == answer.due_at
    assert not is_unserved(task, [], datetime.now(UTC) + timedelta(hours=2)), "it has started once"
    Path(f"{running.marker}.done").touch()
    assert hook.signal(task.id, "other").resumed == 0
    assert hook.signal(task.id, "go").resumed == 1
    running.finish()
    with pytest.raises(SignalRefused, match="is COMPLETED"):
        hook.signal(task.id, "go")


def test_a_signal_before_the_parking_makes_the_task_due_as_soon_as_it_is_parked(
    hook: HorsiesHook, client: MailboxClient, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "SETTLE_SECONDS", 0)
    answer = park(client, running)
    assert hook.signal(running.task.id, "go").resumed == 0
    Path(f"{running.marker}.done").touch()
    running.let_park()
    assert client.settle(parked(running, answer)) == (Settled.DONE, None)
    running.finish()


def test_the_sender_resumes_a_task_whose_worker_died_while_it_parked(hook: HorsiesHook, running: Running) -> None:
    with_client = MailboxClient(hook.settings.database)
    park(with_client, running)
    with_client.close()
    Path(f"{running.marker}.done").touch()
    threading.Timer(0.5, running.marker.touch).start()
    assert hook.signal(running.task.id, "go").resumed == 1
    running.finish()


def test_a_signal_that_commits_while_a_task_is_settled_is_seen(
    hook: HorsiesHook, client: MailboxClient, running: Running, own: psycopg.Connection
) -> None:
    answer = park(client, running)
    running.let_park()
    own.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s || ' go', 733))", [running.task.id])
    own.execute(
        "INSERT INTO airflow_horsies.messages (target, name, payload, sent_by) VALUES (%s, 'go', '1', 'a test')",
        [running.task.id],
    )
    found: list[Any] = []
    settling = threading.Thread(target=lambda: found.append(client.settle(parked(running, answer))))
    settling.start()
    settling.join(0.5)
    assert settling.is_alive(), "it waits for the sender"
    Path(f"{running.marker}.done").touch()
    own.commit()
    settling.join(10)
    assert found == [(Settled.DONE, None)], "due at once"
    running.finish()


def test_a_retry_of_the_author_is_not_shortened_by_a_signal(
    hook: HorsiesHook, client: MailboxClient, running: Running, own: psycopg.Connection
) -> None:
    answer = park(client, running)
    running.let_park()
    client.settle(parked(running, answer))
    own.execute("UPDATE horsies_tasks SET retry_count = 2 WHERE id = %s", [running.task.id])
    own.commit()
    assert hook.signal(running.task.id, "go").resumed == 0
    assert running.read().next_retry_at == answer.due_at


def test_the_first_attempt_fixes_the_end_of_a_wait(client: MailboxClient, running: Running) -> None:
    first = park(client, running, timeout_seconds=1000)
    again = park(client, running, timeout_seconds=5)
    assert again.due_at == first.due_at
    assert park(client, replace_name(running, "now"), timeout_seconds=0).verdict is Verdict.TIMED_OUT


def replace_name(running: Running, name: str) -> Any:
    @dataclass
    class Other:
        wait: Wait

    return Other(replace(running.wait, name=name))


def test_only_the_worker_with_the_claim_takes_signals_and_writes_checkpoints(
    hook: HorsiesHook, client: MailboxClient, running: Running
) -> None:
    hook.signal(running.task.id, "go", {"a": 1})
    claim = running.wait.claim
    assert claim.claimed_at
    for stale in (
        replace(claim, worker_id=str(uuid.uuid4())),
        replace(claim, claimed_at=claim.claimed_at - timedelta(seconds=1)),
    ):
        wait = replace(running.wait, claim=stale)
        assert client.receive(wait).verdict is Verdict.CLAIM_LOST
        assert client.park(wait, timeout_seconds=1, find_interval=lambda _: 1.0).verdict is Verdict.CLAIM_LOST
        assert not client.write_checkpoint(stale, None, "1")
    assert client.read_checkpoint(running.task.id, None) is None
    for _ in range(2):
        assert client.receive(running.wait).payload == '{"a":1}', "seen again"
    assert client.receive(replace(running.wait, occurrence=2)).verdict is Verdict.NOTHING
    assert client.write_checkpoint(claim, None, "[1]")
    assert client.write_checkpoint(claim, None, "[2]")
    assert client.write_checkpoint(claim, 7, "7")
    assert (client.read_checkpoint(running.task.id, None), client.read_checkpoint(running.task.id, 7)) == ("[2]", "7")


def test_two_waits_for_one_signal_receive_it_once(
    hook: HorsiesHook, client: MailboxClient, running: Running, own: psycopg.Connection
) -> None:
    """As two nodes of a workflow do."""
    shared = str(uuid.uuid4())
    own.execute(
        "INSERT INTO airflow_horsies.messages (target, name, payload, sent_by) VALUES (%s, 'go', '1', 'a test')",
        [shared],
    )
    own.commit()
    first, second = (replace(running.wait, targets=(running.task.id, shared), occurrence=number) for number in (1, 2))
    assert client.receive(first).verdict is Verdict.RECEIVED
    assert client.receive(second).verdict is Verdict.NOTHING
    assert not client.has_message(second)


def test_what_belongs_to_tasks_that_are_gone_is_pruned(
    hook: HorsiesHook, client: MailboxClient, running: Running, own: psycopg.Connection
) -> None:
    park(client, running)
    client.write_checkpoint(running.wait.claim, None, "1")
    hook.signal(running.task.id, "go")
    gone = str(uuid.uuid4())
    for statement in (
        "INSERT INTO airflow_horsies.messages (target, name, payload, sent_by) VALUES (%s, 'go', '1', 'a test')",
        "INSERT INTO airflow_horsies.parkings (horsies_task_id, name, occurrence, targets, attempt) "
        "VALUES (%s, 'go', 1, '{}', 1)",
        "INSERT INTO airflow_horsies.checkpoints (horsies_task_id, attempt, value) VALUES (%s, 1, '1')",
    ):
        own.execute(statement, [gone])
    own.commit()
    prune_ledger(hook.client, older_than=AT_ONCE)
    for table, column in (("messages", "target"), ("parkings", "horsies_task_id"), ("checkpoints", "horsies_task_id")):
        kept = own.execute(f"SELECT {column}::text FROM airflow_horsies.{table}").fetchall()
        assert (running.task.id,) in kept
        assert (gone,) not in kept


def test_signals_that_nobody_receives_have_a_bound(
    hook: HorsiesHook, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_WAITING", 3)
    for number in range(3):
        hook.signal(running.task.id, f"n{number}")
    with pytest.raises(SignalRefused, match="Let a task receive some first"):
        hook.signal(running.task.id, "n4")
