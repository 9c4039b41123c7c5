"""What is edited, cleared, deleted, reordered or moved while work is under way, on real databases.

A value that is returned belongs to the arguments that were asked for, a clear runs again, an edit does not, and nothing
is cancelled that somebody else wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_horsies.client.hub import Hub
from airflow_horsies.client.ledger import migrate_ledger, read_ledger_version
from airflow_horsies.core.submission import batch_task_ids
from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Script, Statement
from airflow_horsies.exceptions import (
    DeploymentUnknown,
    LedgerNewer,
    LedgerOutdated,
    StaleSubmission,
    TaskIdTaken,
    TaskNotFound,
    WaitTimeout,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import cancelling
from airflow_horsies.models import (
    AirflowTry,
    CancelOutcome,
    SubmitOutcome,
    TaskInstanceKey,
    TaskSpec,
    TaskState,
    latest_task_ids,
)
from tests.integration.asynchronous import ask
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED
from tests.integration.test_submit import end_task, rows

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="scheduled__2026-01-01T00:00:00+00:00", task_id="load")
OTHER = replace(INSTANCE, run_id="manual__2")
THIRD = replace(INSTANCE, run_id="manual__3")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SENT, REATTACHED, ADOPTED = SubmitOutcome.SENT, SubmitOutcome.REATTACHED, SubmitOutcome.ADOPTED

on_the_newest_release = pytest.mark.parametrize("release", [MOVED], indirect=True)


def spec(a: int, **more: Any) -> TaskSpec:
    return TaskSpec(task_name="add", kwargs={"a": a, "b": 0}, **more)


def tried(number: int = 1, **more: Any) -> AirflowTry:
    return AirflowTry(**{"try_number": number, "max_tries": 2, "run_started_at": NOON, "run_key": "a run", **more})


def state_of(hook: HorsiesHook, task_id: str) -> TaskState:
    return hook.read_task(task_id).state


# -- the life ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("later", "is_new"),
    [
        (tried(2), False),
        (tried(2, run_started_at=NOON + timedelta(hours=1)), False),
        (tried(2, max_tries=4), True),
        (tried(2, max_tries=1), True),
        (tried(2, clear_number=1), True),
        (tried(1, run_key="another run", run_started_at=NOON + timedelta(days=1)), True),
        (tried(1, run_key=None), False),
        (tried(1, run_key=None, run_started_at=NOON + timedelta(days=1)), True),
    ],
    ids=[
        "retry",
        "run queued again",
        "clear",
        "clear after retries were lowered",
        "clear whose worker is dead, or of another task",
        "run made again",
        "the run's key cannot be had",
        "run made again where no key can be had",
    ],
)
@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.RUNNING])
def test_a_clear_and_a_run_made_again_run_again_and_nothing_else_does(
    hook: HorsiesHook, release: str, later: AirflowTry, is_new: bool, state: TaskState
) -> None:
    first = hook.submit_task(spec(1), INSTANCE, tried())
    if state is TaskState.COMPLETED:
        end_task(hook, first.task_id, state, release)
    else:
        with hook.get_conn() as connection:
            connection.execute("UPDATE horsies_tasks SET status = 'RUNNING', started_at = now()")
    again = hook.submit_task(spec(1), INSTANCE, later)
    if is_new:
        assert (again.outcome, again.life, again.task_id == first.task_id) == (SENT, 2, False)
        left = TaskState.COMPLETED if state is TaskState.COMPLETED else TaskState.CANCELLED
        assert state_of(hook, first.task_id) is left
    else:
        kept = ADOPTED if state is TaskState.COMPLETED else REATTACHED
        assert (again.outcome, again.life, again.task_id) == (kept, 1, first.task_id)


@pytest.mark.parametrize("first_try", [1, 2])
def test_tries_that_each_made_a_key_for_the_run_are_of_one_life(hook: HorsiesHook, first_try: int) -> None:
    """A try that was taken for dead goes on beside the next one, and neither saw the other's key in time."""
    keys = {1: "made by the first", 2: "made by the second"}
    tries = {
        number: tried(number, run_key=key, is_key_of_run=lambda asked: asked in keys.values())
        for number, key in keys.items()
    }
    sent = hook.submit_task(spec(1), INSTANCE, tries.pop(first_try))
    ((number, other),) = tries.items()
    if number == 1:
        with pytest.raises(StaleSubmission, match="has already asked for"):
            hook.submit_task(spec(1), INSTANCE, other)
    else:
        again = hook.submit_task(spec(1), INSTANCE, other)
        assert (again.outcome, again.life, again.task_id) == (REATTACHED, 1, sent.task_id)
    assert state_of(hook, sent.task_id) is TaskState.PENDING
    assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(1,)]


@pytest.mark.parametrize(("later", "is_new"), [(NOON, False), (NOON + timedelta(days=1), True)])
def test_a_run_whose_keys_cannot_be_asked_for_is_known_by_its_start(
    hook: HorsiesHook, later: datetime, is_new: bool
) -> None:
    hook.submit_task(spec(1), INSTANCE, tried())
    other = tried(2, run_key="another", run_started_at=later, is_key_of_run=lambda asked: None)
    assert (hook.submit_task(spec(1), INSTANCE, other).life == 2) is is_new


@pytest.mark.parametrize(
    "earlier",
    [
        tried(1),
        tried(1, clear_number=1, max_tries=9),
        tried(3, run_key="the run before", run_started_at=NOON - timedelta(days=1)),
    ],
    ids=["cleared since", "cleared without a number", "of the run that was deleted"],
)
def test_a_process_that_was_left_behind_submits_nothing(hook: HorsiesHook, earlier: AirflowTry) -> None:
    sent = hook.submit_task(spec(1), INSTANCE, tried(2, clear_number=1))
    with pytest.raises(StaleSubmission, match="has been cleared, or its DAG run was created again"):
        hook.submit_task(spec(1), INSTANCE, earlier)
    assert state_of(hook, sent.task_id) is TaskState.PENDING
    assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(1,)]


def test_a_try_that_was_taken_for_dead_does_not_undo_what_the_next_one_asked_for(hook: HorsiesHook) -> None:
    hook.submit_task(spec(1), INSTANCE, tried(1))
    edited = hook.submit_task(spec(2), INSTANCE, tried(2))
    with pytest.raises(StaleSubmission, match="try 2 has already asked for"):
        hook.submit_task(spec(1), INSTANCE, tried(1))
    assert state_of(hook, edited.task_id) is TaskState.PENDING


def test_a_later_try_that_sends_nothing_is_not_undone_by_an_earlier_one(hook: HorsiesHook) -> None:
    first = hook.submit_tasks([spec(1), spec(2)], INSTANCE, tried(1))
    again = hook.submit_tasks([spec(2), spec(1)], INSTANCE, tried(3))
    with pytest.raises(StaleSubmission, match="is in try 2, and try 3 has already asked"):
        hook.submit_tasks([spec(1), spec(2)], INSTANCE, tried(2))
    with pytest.raises(StaleSubmission):
        hook.submit_tasks([spec(7)], INSTANCE, tried(2))
    assert [sent.outcome for sent in again] == [REATTACHED] * 2
    assert latest_task_ids(hook.read_submissions(INSTANCE)) == [sent.task_id for sent in reversed(first)]
    assert {state_of(hook, sent.task_id) for sent in first} == {TaskState.PENDING}
    assert hook.submit_tasks([spec(2), spec(1)], INSTANCE, tried(3)) == again


def test_only_the_newest_try_lets_go_of_its_own_accord(hook: HorsiesHook) -> None:
    sent = hook.submit_task(spec(1), INSTANCE, tried(1)).task_id
    hook.submit_task(spec(1), INSTANCE, tried(2))
    assert hook.client.release_tasks([sent], INSTANCE, try_number=1) == {sent: CancelOutcome.STILL_WANTED}
    assert state_of(hook, sent) is TaskState.PENDING
    assert hook.submit_task(spec(1), INSTANCE, tried(2)).outcome is REATTACHED
    assert hook.client.release_tasks([sent], INSTANCE, try_number=2) == {sent: CancelOutcome.CANCELLED}


def test_a_cleared_run_that_is_deleted_and_made_again_sends_again(hook: HorsiesHook) -> None:
    hook.submit_task(spec(1), INSTANCE, tried())
    cleared = hook.submit_task(spec(1), INSTANCE, tried(2, clear_number=1))
    again = hook.submit_task(spec(1), INSTANCE, tried(run_key="another", run_started_at=NOON + timedelta(days=1)))
    assert (again.outcome, again.life) == (SENT, 3)
    assert state_of(hook, cleared.task_id) is TaskState.CANCELLED


def test_a_life_that_looks_like_an_earlier_one_does_not_get_its_value(hook: HorsiesHook, release: str) -> None:
    """Cleared twice without the run's number being raised: max_tries goes up and comes back."""
    first = hook.submit_task(spec(1), INSTANCE, tried(1, max_tries=2))
    end_task(hook, first.task_id, TaskState.COMPLETED, release)
    hook.submit_task(spec(1), INSTANCE, tried(2, max_tries=5))
    third = hook.submit_task(spec(1), INSTANCE, tried(3, max_tries=2))
    assert (third.outcome, third.task_id == first.task_id) == (SENT, False)


# -- the work ------------------------------------------------------------------------------------------------------


def test_other_arguments_are_other_work(hook: HorsiesHook, release: str) -> None:
    first = hook.submit_task(spec(1), INSTANCE, tried())
    end_task(hook, first.task_id, TaskState.COMPLETED, release)
    second = hook.submit_task(spec(2), INSTANCE, tried(2))
    assert (second.outcome, second.task_id == first.task_id) == (SENT, False)
    third = hook.submit_task(spec(3), INSTANCE, tried(3))
    assert (third.outcome, state_of(hook, second.task_id)) == (SENT, TaskState.CANCELLED)
    back = hook.submit_task(spec(1), INSTANCE, tried(4))
    assert (back.outcome, back.task_id) == (ADOPTED, first.task_id)
    assert latest_task_ids(hook.read_submissions(INSTANCE)) == [first.task_id]
    assert state_of(hook, third.task_id) is TaskState.CANCELLED


def test_queue_priority_and_deadline_are_not_the_work(hook: HorsiesHook) -> None:
    first = hook.submit_task(spec(1), INSTANCE, tried())
    again = hook.submit_task(spec(1, queue="default", priority=7, good_until=datetime.now(UTC)), INSTANCE, tried(2))
    assert (again.outcome, again.task_id) == (REATTACHED, first.task_id)
    turned = TaskSpec(task_name="add", kwargs={"b": 0, "a": 1})
    assert hook.submit_task(turned, INSTANCE, tried(3)).outcome is REATTACHED


def test_items_are_matched_by_what_they_are(hook: HorsiesHook, release: str) -> None:
    first = hook.submit_tasks([spec(1), spec(2), spec(2), spec(3)], INSTANCE, tried())
    ids = [sent.task_id for sent in first]
    end_task(hook, ids[0], TaskState.COMPLETED, release)
    end_task(hook, ids[3], TaskState.FAILED, release)
    again = hook.submit_tasks([spec(3), spec(4), spec(2), spec(1), spec(2)], INSTANCE, tried(2))
    assert [sent.outcome for sent in again] == [SENT, SENT, REATTACHED, ADOPTED, REATTACHED]
    assert [again[2].task_id, again[3].task_id, again[4].task_id] == [ids[1], ids[0], ids[2]]
    assert [sent.position for sent in again] == [0, 1, 2, 3, 4]
    assert again[0].round == 2
    submissions = hook.read_submissions(INSTANCE)
    assert latest_task_ids(submissions) == [sent.task_id for sent in again]
    assert batch_task_ids(submissions, life=1, size=5) == [sent.task_id for sent in again]
    kwargs = [hook.read_task(task_id).kwargs for task_id in latest_task_ids(submissions)]
    assert [None if each is None else each["a"] for each in kwargs if each] == [3, 4, 2, 2] if keeps(hook) else True


def keeps(hook: HorsiesHook) -> bool:
    return "moved" in hook.client.schema.describe()


@pytest.mark.parametrize("fewer", [[spec(2)], []], ids=["one", "none"])
@pytest.mark.parametrize("later", [tried(2), tried(2, clear_number=1)], ids=["retry", "clear"])
def test_items_that_are_no_longer_asked_for_are_cancelled(
    hook: HorsiesHook, fewer: list[TaskSpec], later: AirflowTry
) -> None:
    first = hook.submit_tasks([spec(1), spec(2), spec(3)], INSTANCE, tried())
    again = hook.submit_tasks(fewer, INSTANCE, later)
    states = [state_of(hook, sent.task_id) for sent in first]
    is_kept = bool(fewer) and later.clear_number == 0
    assert states == [TaskState.CANCELLED, TaskState.PENDING if is_kept else TaskState.CANCELLED, TaskState.CANCELLED]
    submissions = hook.read_submissions(INSTANCE)
    assert latest_task_ids(submissions) == [sent.task_id for sent in again]
    of_run = hook.client.read_submissions_of_run(INSTANCE.dag_id, INSTANCE.run_id)
    assert [each.horsies_task_id for each in of_run] == [sent.task_id for sent in again]


def test_a_remade_run_with_a_smaller_batch_knows_nothing_of_the_larger_one(hook: HorsiesHook, release: str) -> None:
    old = hook.submit_tasks([spec(n) for n in range(5)], INSTANCE, tried())
    for sent in old[:4]:
        end_task(hook, sent.task_id, TaskState.COMPLETED, release)
    new = hook.submit_tasks([spec(n) for n in range(3)], INSTANCE, tried(run_key="another"))
    assert batch_task_ids(hook.read_submissions(INSTANCE), life=new[0].life, size=3) == [sent.task_id for sent in new]
    assert state_of(hook, old[4].task_id) is TaskState.CANCELLED


def test_a_batch_of_which_records_are_gone_is_an_error(hook: HorsiesHook) -> None:
    sent = hook.submit_tasks([spec(n) for n in range(3)], INSTANCE, tried())
    with hook.get_conn() as connection:
        connection.execute("DELETE FROM airflow_horsies.submissions WHERE position = 0")
    with pytest.raises(TaskNotFound, match=r"Found 2 items of the batch .* expected 3"):
        batch_task_ids(hook.read_submissions(INSTANCE), life=sent[0].life, size=3)


# -- who else wants it ---------------------------------------------------------------------------------------------


@on_the_newest_release
@pytest.mark.parametrize("how", ["killed", "cleared", "asks for something else"])
def test_a_shared_task_is_cancelled_with_its_last_submission_only(hook: HorsiesHook, how: str) -> None:
    keyed = spec(1, idempotency_key="order-7")
    first = hook.submit_task(keyed, INSTANCE, tried())
    assert hook.submit_task(keyed, OTHER, tried()).task_id == first.task_id
    if how == "killed":
        assert hook.client.release_tasks([first.task_id], INSTANCE) == {first.task_id: CancelOutcome.STILL_WANTED}
    elif how == "cleared":
        assert hook.submit_task(keyed, INSTANCE, tried(2, clear_number=1)).outcome is SENT
    else:
        assert hook.submit_task(spec(2), INSTANCE, tried(2)).outcome is SENT
    assert state_of(hook, first.task_id) is TaskState.PENDING
    assert hook.client.release_tasks([first.task_id], OTHER) == {first.task_id: CancelOutcome.CANCELLED}


@on_the_newest_release
def test_a_task_that_somebody_outside_of_airflow_sent_is_never_cancelled_with_a_task_instance(
    hook: HorsiesHook,
) -> None:
    keyed = spec(1, idempotency_key="order-7")
    sent = hook.enqueue_task(keyed)
    assert hook.submit_task(keyed, INSTANCE, tried()).task_id == sent
    assert hook.client.release_tasks([sent], INSTANCE) == {sent: CancelOutcome.STILL_WANTED}
    assert state_of(hook, sent) is TaskState.PENDING


@on_the_newest_release
def test_a_task_that_was_let_go_of_and_is_wanted_again_counts_again(hook: HorsiesHook) -> None:
    keyed = spec(1, idempotency_key="order-7")
    shared = hook.submit_task(keyed, INSTANCE, tried()).task_id
    hook.submit_task(keyed, OTHER, tried())
    hook.client.release_tasks([shared], INSTANCE)
    assert hook.submit_task(keyed, INSTANCE, tried(2)).outcome is REATTACHED
    assert hook.client.release_tasks([shared], OTHER) == {shared: CancelOutcome.STILL_WANTED}
    assert state_of(hook, shared) is TaskState.PENDING


@on_the_newest_release
@pytest.mark.parametrize("state", [TaskState.CANCELLED, TaskState.FAILED, TaskState.EXPIRED, None], ids=str)
def test_a_key_whose_task_ended_badly_or_is_gone_does_not_keep_new_work_from_running(
    hook: HorsiesHook, release: str, state: TaskState | None
) -> None:
    keyed = spec(1, idempotency_key="order-7")
    first = hook.submit_task(keyed, INSTANCE, tried())
    if state is None:
        with hook.get_conn() as connection:
            connection.execute("DELETE FROM horsies_tasks")
    else:
        end_task(hook, first.task_id, state, release)
    other = hook.submit_task(keyed, OTHER, tried())
    assert (other.outcome, other.task_id == first.task_id) == (SENT, False)
    assert state_of(hook, other.task_id) is TaskState.PENDING
    assert hook.submit_task(keyed, OTHER, tried(2)).outcome is REATTACHED


@on_the_newest_release
@pytest.mark.parametrize(
    "changed",
    [
        {"good_until": datetime(2099, 1, 1, tzinfo=UTC)},
        {"priority": 5},
        {"queue": "spark"},
        {"timeout": timedelta(minutes=5)},
        {"retain_rerun_input": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_key_is_shared_by_those_who_ask_for_the_same_work(hook: HorsiesHook, changed: dict[str, Any]) -> None:
    first = hook.submit_task(spec(1, idempotency_key="order-7"), INSTANCE, tried())
    other = hook.submit_task(spec(1, idempotency_key="order-7", **changed), OTHER, tried())
    assert (other.outcome, other.task_id) == (REATTACHED, first.task_id)
    with pytest.raises(TaskIdTaken, match="which was sent with other arguments"):
        hook.submit_task(spec(2, idempotency_key="order-7", **changed), THIRD, tried())


@on_the_newest_release
@pytest.mark.parametrize("state", [None, TaskState.COMPLETED], ids=str)
def test_a_key_whose_task_failed_is_shared_with_what_was_sent_instead(
    hook: HorsiesHook, release: str, state: TaskState | None
) -> None:
    keyed = spec(1, idempotency_key="order-7")
    first = hook.submit_task(keyed, INSTANCE, tried())
    end_task(hook, first.task_id, TaskState.FAILED, release)
    other = hook.submit_task(keyed, OTHER, tried())
    if state:
        end_task(hook, other.task_id, state, release)
    shared = {hook.submit_task(keyed, INSTANCE, tried(2)).task_id, hook.submit_task(keyed, THIRD, tried()).task_id}
    assert shared == {other.task_id}
    assert hook.submit_task(keyed, INSTANCE, tried(3, clear_number=1)).outcome is SENT


@on_the_newest_release
def test_a_key_whose_task_completed_before_its_cancel_was_carried_out_is_shared(
    hook: HorsiesHook, release: str
) -> None:
    keyed = spec(1, idempotency_key="order-7")
    first = hook.submit_task(keyed, INSTANCE, tried())
    end_task(hook, first.task_id, TaskState.COMPLETED, release)
    given = {"namespace": hook.client.namespace, "task_instance": INSTANCE, "task_ids": [first.task_id]}
    hook.client.write(lambda wire: cancelling.release_tasks(wire, **given, later=True))
    other = hook.submit_task(keyed, OTHER, tried())
    assert (other.outcome, other.task_id) == (ADOPTED, first.task_id)


@on_the_newest_release
def test_a_batch_of_any_size_is_let_go_of_with_few_locks(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    most = watch_locks(monkeypatch)
    specs = [spec(n) for n in range(450)]
    ids = [sent.task_id for sent in hook.submit_tasks(specs, INSTANCE, tried())]
    assert set(hook.client.release_tasks(ids[:250], INSTANCE).values()) == {CancelOutcome.CANCELLED}
    assert set(hook.cancel_tasks(ids[250:]).values()) == {CancelOutcome.CANCELLED}
    ids = [sent.task_id for sent in hook.submit_tasks(specs, INSTANCE, tried(2))]
    # A clear, and what it leaves behind is carried out by whoever comes next.
    hook.submit_tasks(specs[:1], INSTANCE, tried(3, clear_number=1))
    while hook.client.carry_out_requests():
        pass
    assert {state_of(hook, task_id) for task_id in ids} == {TaskState.CANCELLED}
    assert max(most) <= 2 * cancelling.CANCELS_AT_ONCE


def watch_locks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The locks of their own that each transaction holds at its end."""
    counts: list[int] = []

    def watched(make_script: Callable[[], Script[Any]]) -> Callable[[], Script[Any]]:
        def script() -> Script[Any]:
            outcome = yield from make_script()
            (row,) = yield Statement(
                "SELECT count(*) AS held FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
            counts.append(row["held"])
            return outcome

        return script

    run = Session.run
    monkeypatch.setattr(Session, "run", lambda self, make_script, **more: run(self, watched(make_script), **more))
    return counts


# -- a cancel that has to wait -------------------------------------------------------------------------------------


MADE_BY_A_WORKER = "horsies_task_provenance_staged"


def rename_function(hook: HorsiesHook, old: str, new: str) -> None:
    with hook.get_conn() as connection:
        found = connection.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = %s", (old,)).fetchall()
        for (function,) in found:
            connection.execute(f"ALTER FUNCTION {function} RENAME TO {new}")


@pytest.fixture
def without_workers(hook: HorsiesHook) -> None:
    """As in a database on which no worker has ever started: horsies cannot record a cancelled task."""
    rename_function(hook, MADE_BY_A_WORKER, "not_there_yet")


@on_the_newest_release
@pytest.mark.usefixtures("without_workers")
def test_a_cancel_that_cannot_be_recorded_is_kept_and_carried_out_later(hook: HorsiesHook, make_hook: MakeHook) -> None:
    first = hook.submit_task(spec(1), INSTANCE, tried())
    assert hook.client.release_tasks([first.task_id], INSTANCE) == {first.task_id: CancelOutcome.REQUESTED}
    assert state_of(hook, first.task_id) is TaskState.PENDING
    # Not taken up again: it is as good as cancelled.
    assert hook.submit_task(spec(1), INSTANCE, tried(2)).outcome is SENT
    later = make_hook()
    assert later.client.write(cancelling.carry_out_requests) == {}
    rename_function(hook, "not_there_yet", MADE_BY_A_WORKER)
    later = make_hook()
    assert later.client.write(cancelling.carry_out_requests) == {first.task_id: CancelOutcome.CANCELLED}
    assert later.client.write(cancelling.carry_out_requests) == {}
    assert state_of(later, first.task_id) is TaskState.CANCELLED


def release_later(hook: HorsiesHook, task_ids: list[str]) -> None:
    """What a release of many tasks does first. It is interrupted before it carries out its requests."""
    hook.client.write(
        lambda wire: cancelling.release_tasks(wire, hook.client.namespace, INSTANCE, task_ids, try_number=1, later=True)
    )


def test_what_completed_before_its_cancel_was_carried_out_is_adopted(hook: HorsiesHook, release: str) -> None:
    specs = [spec(1), spec(2), spec(3)]
    ids = [sent.task_id for sent in hook.submit_tasks(specs, INSTANCE, tried())]
    end_task(hook, ids[0], TaskState.COMPLETED, release)
    end_task(hook, ids[1], TaskState.FAILED, release)
    release_later(hook, ids)
    again = hook.submit_tasks(specs, INSTANCE, tried(2))
    assert [sent.outcome for sent in again] == [ADOPTED, SENT, SENT]
    assert again[0].task_id == ids[0]
    while hook.client.carry_out_requests():
        pass
    assert [state_of(hook, task_id) for task_id in ids] == [
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELLED,
    ]
    assert [state_of(hook, sent.task_id) for sent in again[1:]] == [TaskState.PENDING, TaskState.PENDING]


@on_the_newest_release
@pytest.mark.parametrize(("state", "outcome"), [(TaskState.COMPLETED, ADOPTED), (TaskState.PENDING, SENT)])
def test_a_key_whose_task_is_to_be_cancelled_is_shared_only_if_the_task_completed(
    hook: HorsiesHook, release: str, state: TaskState, outcome: SubmitOutcome
) -> None:
    first = hook.submit_task(spec(1, idempotency_key="once"), INSTANCE, tried())
    if state is TaskState.COMPLETED:
        end_task(hook, first.task_id, state, release)
    release_later(hook, [first.task_id])
    assert hook.submit_task(spec(1, idempotency_key="once"), OTHER, tried()).outcome is outcome


@on_the_newest_release
@pytest.mark.usefixtures("without_workers")
def test_a_clear_does_not_depend_on_the_cancel(hook: HorsiesHook) -> None:
    first = hook.submit_task(spec(1), INSTANCE, tried())
    assert hook.submit_task(spec(1), INSTANCE, tried(2, clear_number=1)).outcome is SENT
    requested = rows(hook, "SELECT horsies_task_id::text FROM airflow_horsies.cancel_requests")
    assert requested == [(first.task_id,)]


@on_the_newest_release
@pytest.mark.parametrize("how", ["release", "clear", "trigger"])
def test_a_history_without_a_partition_for_today_delays_the_cancel_and_nothing_else(
    hook: HorsiesHook, how: str
) -> None:
    first = hook.submit_task(spec(1), INSTANCE, tried())
    with hook.get_conn() as connection:
        found = connection.execute(
            """SELECT parent_name, leaf_name FROM horsies_task_history_leaf_catalog
               WHERE class_key = 'standard_30d' AND now() >= lower_anchor AND now() < upper_anchor"""
        ).fetchone()
        connection.execute(sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(*map(sql.Identifier, found)))
    if how == "release":
        assert hook.client.release_tasks([first.task_id], INSTANCE) == {first.task_id: CancelOutcome.REQUESTED}
    elif how == "clear":
        assert hook.submit_task(spec(1), INSTANCE, tried(2, clear_number=1)).outcome is SENT
    else:
        outcomes = asyncio.run(ask(hook, "release_tasks", [first.task_id], INSTANCE))
        assert outcomes == {first.task_id: CancelOutcome.REQUESTED}
    assert state_of(hook, first.task_id) is TaskState.PENDING
    requested = rows(hook, "SELECT horsies_task_id::text FROM airflow_horsies.cancel_requests")
    assert requested == [(first.task_id,)]


@pytest.mark.parametrize("side", ["blocking", "hub"])
def test_who_waits_carries_out_what_was_asked_for(
    hook: HorsiesHook, make_hook: MakeHook, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for, unwanted = hook.enqueue_task(spec(1)), hook.submit_task(spec(2), INSTANCE, tried()).task_id
    hook.client.write(lambda wire: cancelling.release_tasks(wire, "default", INSTANCE, [unwanted], later=True))
    if side == "blocking":
        with pytest.raises(WaitTimeout):
            hook.wait([waited_for], timeout_seconds=1.5, poll_seconds=0.2)
    else:

        async def wait() -> None:
            hub = Hub(hook.settings.database, listens=True, poll_seconds=0.2)
            async with hub.subscribe([waited_for]):
                await asyncio.sleep(1.5)

        asyncio.run(wait())
    assert state_of(hook, unwanted) is TaskState.CANCELLED
    assert state_of(hook, waited_for) is TaskState.PENDING


# -- the deployment and its tables ---------------------------------------------------------------------------------


def test_a_deployment_that_nothing_tells_from_others_is_refused(
    make_hook: MakeHook, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")
    with pytest.raises(DeploymentUnknown, match=r"'namespace' in the extra of connection horsies_test.*base_url"):
        make_hook(database).submit_task(spec(1), INSTANCE, tried())
    assert rows(make_hook(database), "SELECT count(*) FROM horsies_tasks") == [(0,)]
    named = make_hook(database, extra={"namespace": "ours"})
    assert named.submit_task(spec(1), INSTANCE, tried()).outcome is SENT


def test_a_newer_ledger_keeps_nobody_from_cancelling(hook: HorsiesHook, make_hook: MakeHook) -> None:
    sent = hook.submit_tasks([spec(1), spec(2)], INSTANCE, tried())
    with hook.get_conn() as connection:
        connection.execute(
            "INSERT INTO airflow_horsies.migrations (version, name, min_writer) VALUES (99, 'from the future', 99)"
        )
    older = make_hook()
    with pytest.raises(LedgerNewer, match="It can read and cancel, but not submit"):
        older.submit_task(spec(1), INSTANCE, tried(2))
    assert older.cancel_task(sent[0].task_id) is CancelOutcome.CANCELLED
    assert older.client.release_tasks([sent[1].task_id], INSTANCE) == {sent[1].task_id: CancelOutcome.CANCELLED}


def test_a_newer_ledger_that_only_added_something_is_written(hook: HorsiesHook, make_hook: MakeHook) -> None:
    migrate_ledger(hook.client)
    with hook.get_conn() as connection:
        connection.execute("INSERT INTO airflow_horsies.migrations (version, name) VALUES (99, 'one table more')")
    assert make_hook().submit_task(spec(1), INSTANCE, tried()).outcome is SENT


def test_the_moment_of_a_migration_can_be_chosen(
    hook: HorsiesHook, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HORSIES__AUTO_MIGRATE", "False")
    task_id = hook.enqueue_task(spec(1))
    with pytest.raises(LedgerOutdated, match="Run 'airflow horsies db migrate'"):
        hook.submit_task(spec(1), INSTANCE, tried())
    assert read_ledger_version(hook.client) == 0
    assert hook.cancel_task(task_id) is CancelOutcome.CANCELLED
    monkeypatch.setenv("AIRFLOW__HORSIES__AUTO_MIGRATE", "True")
    assert make_hook().submit_task(spec(1), INSTANCE, tried()).outcome is SENT


# -- what an older release left ------------------------------------------------------------------------------------


def forget_identity(hook: HorsiesHook) -> None:
    """As a release recorded it that knew neither."""
    with hook.get_conn() as connection:
        connection.execute(
            "UPDATE airflow_horsies.submissions SET run_key = NULL, clear_number = NULL, max_tries = NULL, work = NULL"
        )


def test_what_an_older_release_submitted_is_reattached_to_by_its_command(hook: HorsiesHook, release: str) -> None:
    first = hook.submit_tasks([spec(1), spec(2), spec(3)], INSTANCE, tried())
    end_task(hook, first[0].task_id, TaskState.COMPLETED, release)
    forget_identity(hook)
    again = hook.submit_tasks([spec(1), spec(7), spec(3)], INSTANCE, tried(2))
    assert [sent.outcome for sent in again] == [ADOPTED, SENT, REATTACHED]
    assert state_of(hook, first[1].task_id) is TaskState.CANCELLED
    assert latest_task_ids(hook.read_submissions(INSTANCE)) == [sent.task_id for sent in again]


@pytest.mark.parametrize("state", [None, TaskState.COMPLETED], ids=str)
def test_deadlines_are_not_the_work_of_what_an_older_release_submitted(
    hook: HorsiesHook, release: str, state: TaskState | None
) -> None:
    soon, later = (datetime.now(UTC) + timedelta(hours=1, seconds=seconds) for seconds in (0, 5))
    first = hook.submit_tasks([spec(n, good_until=soon) for n in (1, 2)], INSTANCE, tried())
    for sent in first if state else ():
        end_task(hook, sent.task_id, TaskState.COMPLETED, release)
    forget_identity(hook)
    again = hook.submit_tasks([spec(n, good_until=later) for n in (1, 2)], INSTANCE, tried(2))
    assert [sent.task_id for sent in again] == [sent.task_id for sent in first]


def test_live_items_of_an_older_release_are_matched_by_what_they_are(hook: HorsiesHook, release: str) -> None:
    first = hook.submit_tasks([spec(1), spec(1), spec(2)], INSTANCE, tried())
    end_task(hook, first[0].task_id, TaskState.FAILED, release)
    forget_identity(hook)
    second = hook.submit_tasks([spec(1), spec(1), spec(2)], INSTANCE, tried(2))
    third = hook.submit_tasks([spec(2), spec(1, priority=5), spec(1)], INSTANCE, tried(3))
    assert [sent.outcome for sent in third] == [REATTACHED] * 3
    assert {sent.task_id for sent in third} == {sent.task_id for sent in second}
    assert [hook.read_task(sent.task_id).kwargs for sent in third] == [{"a": n, "b": 0} for n in (2, 1, 1)]


@pytest.mark.parametrize("state", [None, TaskState.COMPLETED], ids=str)
def test_deadlines_are_not_the_work_of_what_the_ledger_has_lost(
    hook: HorsiesHook, release: str, state: TaskState | None
) -> None:
    soon, later = (datetime.now(UTC) + timedelta(hours=1, seconds=seconds) for seconds in (0, 5))
    first = hook.submit_task(spec(1, good_until=soon), INSTANCE, tried())
    if state:
        end_task(hook, first.task_id, state, release)
    with hook.get_conn() as connection:
        connection.execute("DELETE FROM airflow_horsies.submissions")
    assert hook.submit_task(spec(1, good_until=later), INSTANCE, tried(2)).task_id == first.task_id


def test_what_an_older_release_submitted_is_run_again_where_a_clear_cannot_be_ruled_out(
    hook: HorsiesHook, release: str
) -> None:
    first = hook.submit_task(spec(1), INSTANCE, tried())
    end_task(hook, first.task_id, TaskState.COMPLETED, release)
    forget_identity(hook)
    assert hook.submit_task(spec(1), INSTANCE, tried(2, clear_number=1)).outcome is SENT


def test_tables_of_an_older_release_are_migrated_with_what_is_in_them(hook: HorsiesHook, make_hook: MakeHook) -> None:
    sent = hook.submit_tasks([spec(1), spec(2)], INSTANCE, tried())
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute(
            """
            DROP VIEW airflow_horsies.known_submissions;
            DROP TABLE airflow_horsies.cancel_requests, airflow_horsies.chunks, airflow_horsies.items,
                airflow_horsies.workers, airflow_horsies.repairs;
            ALTER TABLE airflow_horsies.logs DROP COLUMN item;
            ALTER TABLE airflow_horsies.submissions
                DROP CONSTRAINT submissions_pkey, DROP COLUMN run_key, DROP COLUMN clear_number, DROP COLUMN max_tries,
                DROP COLUMN work, DROP COLUMN occurrence, DROP COLUMN place, DROP COLUMN released_at,
                DROP COLUMN taken_up, DROP COLUMN seen_try, DROP COLUMN key_digest,
                ADD PRIMARY KEY (namespace, dag_id, run_id, task_id, map_index, position, life, round);
            ALTER TABLE airflow_horsies.migrations DROP COLUMN min_writer;
            DELETE FROM airflow_horsies.migrations WHERE version >= 4
            """
        )
    newer = make_hook()
    assert batch_task_ids(newer.read_submissions(INSTANCE), life=1, size=None) == [each.task_id for each in sent]
    assert [each.outcome for each in newer.submit_tasks([spec(1), spec(2)], INSTANCE, tried(2))] == [REATTACHED] * 2
