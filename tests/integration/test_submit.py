"""Exactly one horsies task per task instance, life and round, on real databases and whatever dies."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from airflow_horsies.client.ledger import change_base_url, migrate_ledger, prune_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import (
    InvalidTask,
    NamespaceTaken,
    StaleSubmission,
    TaskIdTaken,
    TaskNotFound,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import cancelling
from airflow_horsies.ledger.identity import Item, Submitter
from airflow_horsies.ledger.submitting import submit_tasks
from airflow_horsies.models import AirflowTry, SubmitOutcome, TaskInstanceKey, TaskSpec, TaskState
from airflow_horsies.wire.encoding import encode_task
from airflow_horsies.wire.statements import Wire
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED, keeps_history

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="scheduled__2026-01-01T00:00:00+00:00", task_id="load")
SPEC = TaskSpec(task_name="add", kwargs={"a": 1, "b": 2})
KILLS = 200


def rows(hook: HorsiesHook, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        return connection.execute(query).fetchall()


def end_task(hook: HorsiesHook, task_id: str, state: TaskState, release: str) -> None:
    """What a worker does at the end of a task, through upstream's own functions where it has them."""
    if state is TaskState.CANCELLED:
        hook.cancel_task(task_id)
        return
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        if not keeps_history(release):
            connection.execute(
                "UPDATE horsies_tasks SET status = %s, terminal_at = now(), updated_at = now() WHERE id = %s",
                (state.value, task_id),
            )
        else:
            kind = {"COMPLETED": "COMPLETE_FUSED", "FAILED": "FAIL_RUNNING", "EXPIRED": "EXPIRE_CLAIMED"}[state.value]
            result = '{"__h_task_result__":true,"ok":1,"err":null}'
            connection.execute(
                "SELECT horsies_move_task_to_history(%s::uuid, %s, %s, now(), %s, NULL, NULL)",
                (task_id, state.value, kind, result),
            )


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_an_id_that_somebody_else_takes_in_between_is_noticed(
    make_hook: MakeHook, driver: str, request: pytest.FixtureRequest
) -> None:
    if driver == "psycopg2":
        request.getfixturevalue("with_psycopg2")
    hook = make_hook()
    submitter = Submitter(
        namespace=hook.client.namespace,
        base_url=hook.settings.base_url,
        task_instance=INSTANCE,
        tried=AirflowTry(try_number=1),
    )
    taken = submitter.derive_task_id(Item(encode_task(SPEC).work, 0), 1)
    insert = Wire(hook.client.schema).enqueue_tasks(
        [encode_task(replace(SPEC, task_id=taken, kwargs={"a": 7, "b": 7}))]
    )
    with psycopg.connect(**hook.settings.database.connect_args) as other, ThreadPoolExecutor() as pool:
        other.execute(insert.sql.encode(), insert.params)
        # It has looked, found nothing, and waits for us to commit or not.
        submission = pool.submit(hook.submit_task, SPEC, INSTANCE, AirflowTry(try_number=1))
        while not rows(hook, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"):
            assert not submission.done(), submission.exception()
            time.sleep(0.02)
        other.commit()
        with pytest.raises(TaskIdTaken, match="already exists, with other arguments"):
            submission.result()
    assert hook.read_submissions(INSTANCE) == []


def test_a_host_that_goes_silent_in_mid_submission_does_not_hold_up_the_next_one(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.submit_task(SPEC, replace(INSTANCE, task_id="another"), AirflowTry(try_number=1))
    monkeypatch.setattr(cancelling, "MOST_IDLE_SECONDS", 1)
    submitter = Submitter(
        namespace=hook.client.namespace,
        base_url=hook.settings.base_url,
        task_instance=INSTANCE,
        tried=AirflowTry(try_number=1),
    )
    lock = next(submit_tasks(Wire(hook.client.schema), submitter, [encode_task(SPEC)]))
    silent = psycopg.connect(**hook.settings.database.connect_args)
    silent.execute(lock.sql.encode(), lock.params)
    assert hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1)).outcome is SubmitOutcome.SENT
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        silent.execute("SELECT 1")


def test_second_submission_reattaches_whatever_the_try(hook: HorsiesHook) -> None:
    first = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    again = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=2))
    assert (first.outcome, again.outcome) == (SubmitOutcome.SENT, SubmitOutcome.REATTACHED)
    assert again.task_id == first.task_id
    assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(1,)]
    (submission,) = hook.read_submissions(INSTANCE)
    assert (submission.horsies_task_id, submission.try_number, submission.round) == (first.task_id, 1, 1)
    assert hook.client.read_submissions_of_task(first.task_id) == [submission]


def test_completed_task_is_adopted_on_a_retry_and_sent_again_after_a_clear(hook: HorsiesHook, release: str) -> None:
    first = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    end_task(hook, first.task_id, TaskState.COMPLETED, release)
    adopted = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=2))
    assert (adopted.outcome, adopted.task_id, adopted.state) == (
        SubmitOutcome.ADOPTED,
        first.task_id,
        TaskState.COMPLETED,
    )
    cleared = hook.submit_task(SPEC, INSTANCE, AirflowTry(clear_number=2, try_number=3))
    assert (cleared.outcome, cleared.life, cleared.round) == (SubmitOutcome.SENT, 2, 1)
    assert cleared.task_id != first.task_id


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED])
def test_task_that_ended_badly_is_followed_by_the_next_round(hook: HorsiesHook, release: str, state: TaskState) -> None:
    first = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    end_task(hook, first.task_id, state, release)
    second = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=2))
    assert (second.outcome, second.round) == (SubmitOutcome.SENT, 2)
    assert hook.read_task(first.task_id).state is state
    assert hook.read_task(second.task_id).state is TaskState.PENDING


def test_clear_cancels_what_the_earlier_life_left_behind(hook: HorsiesHook) -> None:
    first = hook.submit_tasks([SPEC, SPEC, SPEC], INSTANCE, AirflowTry(try_number=1))
    cleared = hook.submit_tasks([SPEC], INSTANCE, AirflowTry(clear_number=1, try_number=2))
    assert [hook.read_task(each.task_id).state for each in first] == [TaskState.CANCELLED] * 3
    assert [hook.read_task(each.task_id).state for each in cleared] == [TaskState.PENDING]


def test_clear_tells_a_running_task_to_stop(hook: HorsiesHook) -> None:
    first = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("UPDATE horsies_tasks SET status = 'RUNNING', started_at = now()")
    hook.submit_task(SPEC, INSTANCE, AirflowTry(clear_number=1, try_number=2))
    assert rows(hook, "SELECT horsies_task_id::text, signal FROM airflow_horsies.signals") == [
        (first.task_id, "CANCEL")
    ]


def test_try_of_an_earlier_life_submits_nothing(hook: HorsiesHook) -> None:
    hook.submit_task(SPEC, INSTANCE, AirflowTry(clear_number=1, try_number=2))
    with pytest.raises(StaleSubmission, match="has been cleared"):
        hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(1,)]


def test_run_deleted_and_made_again_sends_again(hook: HorsiesHook, release: str) -> None:
    began = datetime(2026, 1, 1, 12, tzinfo=UTC)
    first = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1, run_started_at=began))
    same = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=2, run_started_at=began))
    assert (same.outcome, same.task_id) == (SubmitOutcome.REATTACHED, first.task_id)
    again = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1, run_started_at=began + timedelta(days=1)))
    assert (again.outcome, again.life, again.round) == (SubmitOutcome.SENT, 2, 1)
    assert hook.read_task(first.task_id).state is TaskState.CANCELLED
    end_task(hook, again.task_id, TaskState.COMPLETED, release)
    third = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1, run_started_at=began + timedelta(days=2)))
    assert (third.outcome, third.life, third.round) == (SubmitOutcome.SENT, 3, 1)


def test_batch_reattaches_item_by_item(hook: HorsiesHook, release: str) -> None:
    specs = [TaskSpec(task_name="add", kwargs={"a": n, "b": 0}) for n in range(4)]
    first = hook.submit_tasks(specs, INSTANCE, AirflowTry(try_number=1))
    end_task(hook, first[0].task_id, TaskState.COMPLETED, release)
    end_task(hook, first[1].task_id, TaskState.FAILED, release)
    again = hook.submit_tasks(specs, INSTANCE, AirflowTry(try_number=2))
    assert [each.outcome.value for each in again] == ["ADOPTED", "SENT", "REATTACHED", "REATTACHED"]
    assert [each.round for each in again] == [1, 2, 1, 1]
    assert [each.task_id == before.task_id for each, before in zip(again, first, strict=True)] == [
        True,
        False,
        True,
        True,
    ]


def test_large_batch_is_submitted_and_reattached_whole(hook: HorsiesHook) -> None:
    specs = [TaskSpec(task_name="add", kwargs={"a": n, "b": 0}) for n in range(10_000)]
    first = hook.submit_tasks(specs, INSTANCE, AirflowTry(try_number=1))
    again = hook.submit_tasks(specs, INSTANCE, AirflowTry(try_number=2))
    assert Counter(each.outcome for each in again) == {SubmitOutcome.REATTACHED: 10_000}
    assert [each.task_id for each in again] == [each.task_id for each in first]


def test_deployments_are_kept_apart_by_namespace(
    hook: HorsiesHook, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://other.test")
    other = make_hook()
    with pytest.raises(NamespaceTaken, match=r"'namespace'.*'default'"):
        other.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    apart = make_hook(extra={"namespace": "other"}).submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    assert apart.outcome is SubmitOutcome.SENT
    assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(2,)]
    assert change_base_url(other.client, old="http://airflow.test:8080", new="http://other.test") == 1
    assert other.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1)).outcome is SubmitOutcome.REATTACHED


def test_submission_whose_task_is_past_its_retention_says_so(hook: HorsiesHook) -> None:
    hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("DELETE FROM horsies_tasks")
    with pytest.raises(TaskNotFound, match=r"past its retention.*Clear the task instance"):
        hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=2))


def test_task_that_the_ledger_lost_is_taken_up_and_not_poisoned(hook: HorsiesHook, release: str) -> None:
    sent = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    end_task(hook, sent.task_id, TaskState.COMPLETED, release)
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("DELETE FROM airflow_horsies.submissions")
    again = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    assert (again.outcome, again.task_id) == (SubmitOutcome.ADOPTED, sent.task_id)
    assert len(hook.read_submissions(INSTANCE)) == 1


def test_id_of_ones_own_is_refused(hook: HorsiesHook) -> None:
    spec = TaskSpec(task_name="add", task_id="5d1a0f0e-7f0c-5b39-9c58-0a8f3f0c6f51")
    with pytest.raises(InvalidTask, match="derived from the task instance"):
        hook.submit_task(spec, INSTANCE, AirflowTry(try_number=1))


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_idempotency_key_guards_the_first_submission_only(hook: HorsiesHook, release: str) -> None:
    spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}, idempotency_key="order-7")
    first = hook.submit_task(spec, INSTANCE, AirflowTry(try_number=1))
    other_instance = TaskInstanceKey(dag_id="sales", run_id="manual", task_id="load")
    other = hook.submit_task(spec, other_instance, AirflowTry(try_number=1))
    assert (other.outcome, other.task_id) == (SubmitOutcome.REATTACHED, first.task_id)
    end_task(hook, first.task_id, TaskState.FAILED, release)
    retried = hook.submit_task(spec, other_instance, AirflowTry(try_number=2))
    assert (retried.outcome, retried.round) == (SubmitOutcome.SENT, 2)
    assert retried.task_id != first.task_id


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_a_task_without_a_retention_has_the_class_of_its_queue(hook: HorsiesHook, make_hook: MakeHook) -> None:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute(
            "INSERT INTO horsies_retention_classes SELECT (jsonb_populate_record(known, %s)).*"
            " FROM horsies_retention_classes AS known WHERE class_key = 'standard_30d'",
            (json.dumps({"class_key": "q_reports_7d", "duration": "7 days"}),),
        )
    mapped = hook.submit_task(TaskSpec(task_name="add", queue="reports"), _instance("mapped"), AirflowTry(try_number=1))
    sent = {
        mapped.task_id: "q_reports_7d",
        hook.enqueue_task(TaskSpec(task_name="add", queue="reports")): "q_reports_7d",
        hook.enqueue_task(TaskSpec(task_name="add", queue="reports", retention="forever")): "forever",
        hook.enqueue_task(TaskSpec(task_name="add", queue="reports", retention="standard_30d")): "standard_30d",
        hook.enqueue_task(TaskSpec(task_name="add")): "standard_30d",
    }
    assert dict(rows(hook, "SELECT id::text, retention_class_key FROM horsies_tasks")) == sent


def test_pruning_forgets_only_what_horsies_no_longer_keeps(hook: HorsiesHook) -> None:
    kept = hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
    gone_instance = TaskInstanceKey(dag_id="sales", run_id="old", task_id="load")
    gone = hook.submit_task(SPEC, gone_instance, AirflowTry(try_number=1))
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("DELETE FROM horsies_tasks WHERE id::text = %s", (gone.task_id,))
        connection.execute(
            "INSERT INTO airflow_horsies.progress (horsies_task_id, attempt, done) VALUES (%s, 1, 1)", (gone.task_id,)
        )
    assert prune_ledger(hook.client) == 0
    assert prune_ledger(hook.client, older_than=timedelta(0)) == 1
    assert hook.read_submissions(gone_instance) == []
    assert [each.horsies_task_id for each in hook.read_submissions(INSTANCE)] == [kept.task_id]
    assert rows(hook, "SELECT count(*) FROM airflow_horsies.progress") == [(0,)]


@pytest.mark.timeout(600)
def test_submit_killed_at_random_moments_leaves_one_task_each(
    hook: HorsiesHook, make_hook: MakeHook, postgres: EmbeddedPostgres, database: str
) -> None:
    """A child is killed with SIGKILL somewhere between connecting and after the commit; then it is done again."""
    migrate_ledger(hook.client)
    moments = random.Random(20261116)
    usual = statistics.median(_seconds_to_submit(make_hook(), f"warm-up-{n}") for n in range(5))
    for number in range(KILLS):
        instance = _instance(f"run-{number}")
        child = os.fork()
        if child == 0:
            try:
                make_hook().submit_task(SPEC, instance, AirflowTry(try_number=1))
                time.sleep(60)
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0, 3 * usual))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        again = hook.submit_task(SPEC, instance, AirflowTry(try_number=2))
        assert (again.life, again.round) == (1, 1)
        (submission,) = hook.read_submissions(instance)
        assert submission.horsies_task_id == again.task_id
    sent = rows(hook, "SELECT count(*), count(DISTINCT id) FROM horsies_tasks")
    recorded = rows(hook, "SELECT count(*), count(DISTINCT horsies_task_id) FROM airflow_horsies.submissions")
    assert sent == recorded == [(KILLS + 5, KILLS + 5)]
    [(resent,)] = rows(hook, "SELECT count(*) FROM airflow_horsies.submissions WHERE try_number = 2")
    print(f"{KILLS} killed, {resent} of them before the commit")
    assert isinstance(resent, int) and 0 < resent < KILLS, "the moments must fall on both sides of the commit"


def _instance(run_id: str) -> TaskInstanceKey:
    return TaskInstanceKey(dag_id="killed", run_id=run_id, task_id="load")


def _seconds_to_submit(hook: HorsiesHook, run_id: str) -> float:
    begun = time.perf_counter()
    hook.submit_task(SPEC, _instance(run_id), AirflowTry(try_number=1))
    return time.perf_counter() - begun
