"""Operators whose DAG, settings or processes change while their tasks are under way, on a real database."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.client.client import Client
from airflow_horsies.client.repairing import request_repair
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import BatchFailed, InvalidTask, QueueNotServed, StaleSubmission, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskState, latest_task_ids
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator, releasing
from airflow_horsies.operators import base as task_operator
from airflow_horsies.operators.base import HorsiesTaskOperator
from airflow_horsies.operators.outcomes import TaskTimedOut
from tests.integration.releases import MOVED
from tests.integration.test_changes import INSTANCE
from tests.integration.test_submit import end_task, rows
from tests.integration.test_triggers import CONN_ID, event_of, run, store_connection

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)


@pytest.fixture(autouse=True)
def stored_connection(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, database: str) -> None:
    store_connection(monkeypatch, postgres, database)


def context(**changed: Any) -> dict[str, Any]:
    """As much of Airflow's context as operators ask for."""
    ti = SimpleNamespace(
        dag_id=INSTANCE.dag_id,
        run_id=INSTANCE.run_id,
        task_id=INSTANCE.task_id,
        map_index=-1,
        **{"try_number": 1, "max_tries": 2, "start_date": datetime.now(UTC), **changed},
        xcom_push=lambda **_: None,
        task=None,
    )
    dag_run = SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC), clear_number=0)
    return {"ti": ti, "dag_run": dag_run, "dag": SimpleNamespace(dag_id=INSTANCE.dag_id, dagrun_timeout=None)}


def one(**given: Any) -> HorsiesOperator:
    defaults = {"task_id": "load", "task_name": "add", "kwargs": {"a": 1, "b": 2}, "show_logs": False}
    waiting = {"horsies_conn_id": CONN_ID, "deferrable": True, "inline_wait": timedelta(0)}
    return HorsiesOperator(**{**defaults, **waiting, **given})


def batch(size: int = 3, **given: Any) -> HorsiesBatchOperator:
    items = [{"a": n, "b": 0} for n in range(size)]
    waiting = {"horsies_conn_id": CONN_ID, "deferrable": True, "inline_wait": timedelta(0)}
    return HorsiesBatchOperator(**{"task_id": "load", "task_name": "add", "items": items, **waiting, **given})


def defer(operator: HorsiesTaskOperator) -> Any:
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context())
    return deferred.value.trigger


def ids_of(hook: HorsiesHook) -> list[str]:
    return latest_task_ids(hook.read_submissions(INSTANCE))


def test_a_batch_that_failed_is_a_failure_though_retries_were_edited_meanwhile(hook: HorsiesHook, release: str) -> None:
    trigger = defer(batch(retries=2))
    for task_id in ids_of(hook):
        end_task(hook, task_id, TaskState.FAILED, release)
    event = run(event_of(trigger))
    with pytest.raises(BatchFailed, match="3 of 3 tasks did not complete"):
        batch(retries=1).execute_complete(context(), event)


def test_the_namespace_of_the_connection_may_change_while_a_batch_waits(
    hook: HorsiesHook, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = defer(batch())
    for task_id in ids_of(hook):
        end_task(hook, task_id, TaskState.COMPLETED, release)
    name = f"AIRFLOW_CONN_{CONN_ID.upper()}"
    moved = {**json.loads(os.environ[name]), "extra": {"namespace": "moved"}}
    monkeypatch.setenv(name, json.dumps(moved))
    event = run(event_of(trigger))
    assert event["reason"] == "ended"
    assert batch().execute_complete(context(), event) == [1, 1, 1]


def test_the_address_of_the_deployment_may_change_while_a_batch_waits(
    hook: HorsiesHook, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = defer(batch())
    for task_id in ids_of(hook):
        end_task(hook, task_id, TaskState.COMPLETED, release)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://moved.test")
    event = run(event_of(trigger))
    assert batch().execute_complete(context(), event) == [1, 1, 1]


def test_a_connection_that_leads_elsewhere_is_an_error_and_no_success(
    hook: HorsiesHook,
    postgres: EmbeddedPostgres,
    template: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trigger, single = defer(batch()), defer(one(task_id="load"))
    postgres.create_database("elsewhere", template=template)
    try:
        store_connection(monkeypatch, postgres, "elsewhere")
        for waiting, operator in ((trigger, batch()), (single, one())):
            event = run(event_of(waiting))
            assert event["reason"] == "not_found"
            with pytest.raises(TaskNotFound):
                operator.execute_complete(context(), event)
    finally:
        postgres.drop_database("elsewhere")


def test_the_bound_on_failures_is_the_one_that_was_agreed(hook: HorsiesHook, release: str) -> None:
    trigger = defer(batch(max_failures=0))
    ids = ids_of(hook)
    end_task(hook, ids[0], TaskState.FAILED, release)
    event = run(event_of(trigger))
    assert event["reason"] == "decided"
    with pytest.raises(BatchFailed, match=r"more than the 0 allowed\. .*2 tasks had not ended"):
        batch(max_failures=2).execute_complete(context(), event)
    assert [hook.read_task(task_id).state for task_id in ids[1:]] == [TaskState.CANCELLED] * 2


@pytest.mark.parametrize("operator", [one, batch], ids=["one", "batch"])
def test_an_end_that_was_announced_too_early_is_waited_for(hook: HorsiesHook, operator: Any) -> None:
    trigger = defer(operator())
    event = {**trigger._payload(task_operator.Reason.ENDED), "deadline": None}
    with pytest.raises(TaskDeferred) as again:
        operator().execute_complete(context(), event)
    (path, now), (before, then) = again.value.trigger.serialize(), trigger.serialize()
    assert (path, {**now, "deferred_at": None}) == (before, {**then, "deferred_at": None})


def test_a_stored_event_of_an_older_release_still_ends_well(hook: HorsiesHook, release: str) -> None:
    defer(batch())
    for task_id in ids_of(hook):
        end_task(hook, task_id, TaskState.COMPLETED, release)
    old_event = {"reason": "ended", "message": None, "task_ids": []}
    assert batch().execute_complete(context(), old_event) == [1, 1, 1]


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.FAILED, None], ids=str)
@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "waiting"])
def test_a_time_out_that_finds_the_work_done_is_a_success(
    hook: HorsiesHook, release: str, state: TaskState | None, deferrable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = one(deferrable=deferrable, execution_timeout=timedelta(seconds=1))
    release_tasks = Client.release_tasks

    def end_first(self: Client, *given: Any, **more: Any) -> Any:
        # Between the last read and the cancel.
        if state is not None:
            end_task(hook, ids_of(hook)[0], state, release)
        return release_tasks(self, *given, **more)

    monkeypatch.setattr(Client, "release_tasks", end_first)
    if deferrable:
        event = run(event_of(defer(operator)))
        assert event["reason"] == "timed_out"

        def end() -> Any:
            return one(execution_timeout=timedelta(seconds=1)).execute_complete(context(), event)
    else:

        def end() -> Any:
            return operator.execute(context())

    if state is TaskState.COMPLETED:
        assert end() == 1
        return
    with pytest.raises(Exception) as ended:
        end()
    assert isinstance(ended.value, TaskTimedOut) is (state is None)
    assert hook.read_task(ids_of(hook)[0]).state is (state or TaskState.CANCELLED)


def test_a_time_out_after_a_look_at_the_queue_cancels_too(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HorsiesTaskOperator, "_waits_unserved", lambda self, hook: False)
    operator = one(deferrable=False, queue_timeout=timedelta(seconds=0.2), execution_timeout=timedelta(seconds=0.8))
    with pytest.raises(TaskTimedOut):
        operator.execute(context())
    assert hook.read_task(ids_of(hook)[0]).state is TaskState.CANCELLED


@pytest.mark.parametrize("limit", ["queue_timeout", "execution_timeout"])
def test_a_time_out_before_any_worker_ever_started_is_told_and_the_task_cancelled_later(
    hook: HorsiesHook, limit: str
) -> None:
    with hook.get_conn() as connection:
        # A worker makes it when it starts for the first time.
        for (made,) in connection.execute(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'horsies_task_provenance_staged'"
        ).fetchall():
            connection.execute(f"DROP FUNCTION {made} CASCADE")
    operator = one(deferrable=False, queue="nobody", **{limit: timedelta(seconds=0.3)})
    expected = QueueNotServed if limit == "queue_timeout" else TaskTimedOut
    with pytest.raises(expected, match="cancelled as soon as horsies can record it"):
        operator.execute(context())
    assert rows(hook, "SELECT count(*) FROM airflow_horsies.cancel_requests") == [(1,)]


@pytest.mark.parametrize("change", ["retry back-off", "delay"])
def test_a_task_that_is_to_wait_is_not_taken_for_one_that_nobody_serves(hook: HorsiesHook, change: str) -> None:
    delay = timedelta(hours=1) if change == "delay" else None
    trigger = defer(one(queue="nobody", delay=delay, queue_timeout=timedelta(seconds=0.3)))
    if change == "retry back-off":
        with hook.get_conn() as connection:
            connection.execute("UPDATE horsies_tasks SET retry_count = 1")
    trigger.deadline = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    assert run(event_of(trigger))["reason"] == "timed_out"


# -- a process that is told to end -----------------------------------------------------------------------------------


@pytest.fixture
def airflow_says(monkeypatch: pytest.MonkeyPatch) -> Any:
    def say(state: InstanceState | None) -> None:
        monkeypatch.setattr(releasing, "read_state", lambda instance: state)

    return say


@pytest.mark.parametrize(
    ("state", "is_cancelled"),
    [
        (InstanceState(True, "running"), False),
        (InstanceState(True, "up_for_retry"), False),
        (None, False),
        (InstanceState(True, "failed"), True),
        (InstanceState(True, "restarting"), True),
        (InstanceState(False), True),
    ],
    ids=["drained worker", "lost heartbeat", "Airflow is silent", "marked", "cleared", "run deleted"],
)
def test_only_a_persons_wish_cancels(
    hook: HorsiesHook, airflow_says: Any, state: InstanceState | None, is_cancelled: bool
) -> None:
    airflow_says(state)
    operator = one()
    defer(operator)
    operator.on_kill()
    expected = TaskState.CANCELLED if is_cancelled else TaskState.PENDING
    assert hook.read_task(ids_of(hook)[0]).state is expected


def test_a_kill_in_the_middle_of_a_submission_cancels_what_was_sent(
    hook: HorsiesHook, airflow_says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow_says(InstanceState(True, "failed"))
    operator = one()
    submit_tasks = Client.submit_tasks

    def kill_after_commit(self: Client, *args: Any, **given: Any) -> Any:
        sent = submit_tasks(self, *args, **given)
        operator.on_kill()
        return sent

    monkeypatch.setattr(Client, "submit_tasks", kill_after_commit)
    with pytest.raises(BaseException):  # noqa: B017 - what follows a kill is nobody's concern
        operator.execute(context())
    assert hook.read_task(ids_of(hook)[0]).state is TaskState.CANCELLED


def test_a_kill_in_the_middle_of_a_cancel_does_not_wait_for_itself(
    hook: HorsiesHook, airflow_says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal interrupts a cancel that holds the task's row, on another connection of the same process."""
    airflow_says(InstanceState(True, "failed"))
    operator = one(deferrable=False, execution_timeout=timedelta(seconds=0.2))
    before = signal.signal(signal.SIGUSR1, lambda *_: operator.on_kill())
    release_tasks = Client.release_tasks

    def slowly(self: Client, *given: Any, **more: Any) -> Any:
        with hook.get_conn() as connection:
            connection.execute("SELECT id FROM horsies_tasks FOR UPDATE")
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
        return release_tasks(self, *given, **more)

    monkeypatch.setattr(Client, "release_tasks", slowly)
    done = threading.Event()
    watchdog = threading.Timer(60, lambda: done.is_set() or os.kill(os.getpid(), signal.SIGABRT))
    watchdog.start()
    try:
        with pytest.raises(TaskTimedOut):
            operator.execute(context())
    finally:
        done.set()
        watchdog.cancel()
        signal.signal(signal.SIGUSR1, before)
    assert hook.read_task(ids_of(hook)[0]).state is TaskState.CANCELLED


# -- tries that were taken for dead, times that are up ---------------------------------------------------------------


def test_the_order_of_a_later_try_that_only_reattached_is_kept(hook: HorsiesHook, release: str) -> None:
    items = [{"a": n, "b": 0} for n in (1, 2)]
    defer(batch(items=items))
    with pytest.raises(TaskDeferred) as deferred:
        batch(items=items[::-1]).execute(context(try_number=3))
    with pytest.raises(StaleSubmission):
        batch(items=items).execute(context(try_number=2))
    for task_id in ids_of(hook):
        end_task(hook, task_id, TaskState.COMPLETED, release)
    event = run(event_of(deferred.value.trigger))
    later = batch(items=items[::-1])
    later.execute_complete(context(try_number=3), event)
    assert [hook.read_states([task_id])[task_id] for task_id in later._sent_ids] == [TaskState.COMPLETED] * 2
    assert later._sent_ids == ids_of(hook)


def test_time_out_of_a_try_that_was_taken_for_dead_cancels_nothing(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = HorsiesTaskOperator._wait

    def sleep(self: HorsiesTaskOperator, *given: Any) -> Any:
        monkeypatch.setattr(HorsiesTaskOperator, "_wait", wait)
        with pytest.raises(TaskDeferred):
            one().execute(context(try_number=2))
        return wait(self, *given)

    monkeypatch.setattr(HorsiesTaskOperator, "_wait", sleep)
    with pytest.raises(TaskTimedOut, match="continue, because a later try"):
        one(deferrable=False, execution_timeout=timedelta(seconds=0.1)).execute(context())
    assert hook.read_task(ids_of(hook)[0]).state is TaskState.PENDING


def test_late_time_out_over_a_batch_that_ended_well_is_no_failure(hook: HorsiesHook, release: str) -> None:
    bounds = {"max_failures": 1, "execution_timeout": timedelta(seconds=1)}
    trigger = defer(batch(**bounds))
    cancelled, *others = ids_of(hook)
    hook.cancel_task(cancelled)
    for task_id in others:
        end_task(hook, task_id, TaskState.COMPLETED, release)
    time.sleep(1)
    event = run(event_of(trigger))
    assert len(batch(**bounds).execute_complete(context(), event)) == 3


def test_late_time_out_over_a_cancelled_task_is_skipped_where_that_was_asked_for(hook: HorsiesHook) -> None:
    given = {"on_cancelled": "skip", "execution_timeout": timedelta(seconds=1)}
    trigger = defer(one(**given))
    hook.cancel_task(ids_of(hook)[0])
    time.sleep(1)
    with pytest.raises(AirflowSkipException):
        one(**given).execute_complete(context(), run(event_of(trigger)))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"min_success": 4}, "min_success: must be at most 3, the number of items, not 4"),
        ({"min_success": 1, "items": []}, "min_success: must be at most 0, the number of items, not 1"),
        ({"max_failures": "{{ -1 }}"}, "max_failures: must be 0 or more"),
        ({"max_failures": "{{ 1.5 }}"}, "max_failures: must be an integer"),
        ({"max_failures": -1}, "max_failures: must be 0 or more"),
        ({"max_failures": 1.9}, "max_failures: must be an integer"),
        ({"min_success": True}, "min_success: must be an integer"),
        ({"max_failures": float("nan")}, "max_failures: must be an integer"),
    ],
    ids=str,
)
def test_bounds_that_cannot_hold_are_refused_before_anything_is_sent(
    hook: HorsiesHook, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidTask, match=problem):
        operator = batch(**given)
        operator.render_template_fields({})
        operator.execute(context())
    assert hook.list_tasks().tasks == ()


def test_a_process_whose_scheduler_died_is_not_a_wish(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow takes the state from a task instance whose scheduler died, and ends its process."""
    operator = one()
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    monkeypatch.setattr(releasing, "read_state", lambda _: InstanceState(exists=True, state=None))
    operator.on_kill()
    assert hook.read_task(ids_of(hook)[0]).state is TaskState.PENDING


class StateStore(dict[str, str]):
    """As Airflow 3.3 keeps it with a task instance."""

    def set(self, name: str, value: str, **_: Any) -> None:
        self[name] = value


@pytest.mark.parametrize("clear_number", [0, 1], ids=["retry", "clear"])
def test_the_namespace_may_change_between_two_tries(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch, clear_number: int
) -> None:
    store = StateStore()
    with pytest.raises(TaskDeferred):
        one().execute({**context(), "task_state_store": store})
    before = ids_of(hook)
    name = f"AIRFLOW_CONN_{CONN_ID.upper()}"
    monkeypatch.setenv(name, json.dumps({**json.loads(os.environ[name]), "extra": {"namespace": "moved"}}))
    later = {**context(try_number=2), "task_state_store": store}
    later["dag_run"].clear_number = clear_number
    with pytest.raises(TaskDeferred) as deferred:
        one().execute(later)
    assert deferred.value.trigger.namespace == hook.client.namespace
    assert (ids_of(hook) == before) is (clear_number == 0)
    assert len(hook.list_tasks(states=[TaskState.PENDING]).tasks) == 1


def test_a_slash_at_the_end_of_the_base_url_makes_no_other_deployment(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("http://airflow.example", "http://airflow.example/"):
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", address)
        defer(one())
    assert len(hook.list_tasks().tasks) == 1


def test_other_arguments_of_a_retry_are_another_round(hook: HorsiesHook, release: str) -> None:
    defer(one())
    end_task(hook, ids_of(hook)[0], TaskState.FAILED, release)
    with pytest.raises(TaskDeferred):
        one(kwargs={"a": 7, "b": 7}).execute(context(try_number=2))
    assert [(sent.position, sent.round) for sent in hook.read_submissions(INSTANCE)] == [(0, 1), (0, 2)]


# -- repair --------------------------------------------------------------------------------------------------------


def ended_batch(hook: HorsiesHook, release: str, *states: TaskState) -> list[str]:
    """A batch whose items ended like this in their first life; their ids."""
    defer(batch(len(states)))
    ids = ids_of(hook)
    for task_id, state in zip(ids, states, strict=True):
        end_task(hook, task_id, state, release)
    return ids


def cleared_context() -> dict[str, Any]:
    after = context(try_number=2, max_tries=3)
    after["dag_run"].clear_number = 1
    return after


def test_a_batch_that_repairs_on_clear_sends_only_what_did_not_complete(hook: HorsiesHook, release: str) -> None:
    first = ended_batch(hook, release, TaskState.COMPLETED, TaskState.FAILED, TaskState.COMPLETED)
    operator = batch(on_clear="failed")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(cleared_context())
    again = ids_of(hook)
    assert [one == other for one, other in zip(first, again, strict=True)] == [True, False, True]
    end_task(hook, again[1], TaskState.COMPLETED, release)
    event = run(event_of(deferred.value.trigger))
    assert batch().execute_complete(cleared_context(), event) == [1, 1, 1]


@pytest.mark.parametrize("bounds", [{}, {"max_failures": 2}], ids=["too many stay failed", "the others are allowed"])
def test_a_repair_of_one_item_waits_for_it_and_is_not_retried(
    hook: HorsiesHook, release: str, bounds: dict[str, Any]
) -> None:
    ended_batch(hook, release, *[TaskState.FAILED] * 3)
    request_repair(hook.client, INSTANCE, clear_number=0, requested_by="ann", items=[1])
    with pytest.raises(TaskDeferred) as deferred:
        batch(**bounds).execute(cleared_context())
    trigger = deferred.value.trigger
    ids = ids_of(hook)
    assert hook.read_task(ids[1]).state is TaskState.PENDING
    with pytest.raises(TimeoutError):
        run(asyncio.wait_for(event_of(trigger), 2))
    end_task(hook, ids[1], TaskState.COMPLETED, release)
    event = run(event_of(trigger))
    assert event["reason"] == "ended"
    if bounds:
        assert batch(**bounds).execute_complete(cleared_context(), event) == [None, 1, None]
    else:
        with pytest.raises(AirflowFailException, match="2 of 3 tasks did not complete"):
            batch().execute_complete(cleared_context(), event)


def test_an_unknown_on_clear_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidTask, match="on_clear: must be 'all' or 'failed'"):
        batch(on_clear="some")
