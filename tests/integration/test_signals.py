"""Signals, parking and checkpoints on a real worker."""

from __future__ import annotations

import json
import os
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.core.attempts import attempts_of
from airflow_horsies.exceptions import InvalidTask, SignalRefused, TaskNotFound
from airflow_horsies.models import AirflowTry, RetryPolicy, TaskInstanceKey, TaskSpec, TaskState, TaskView
from tests.integration.worker_rig import WAIT_SECONDS, MakeRig, Rig

APP = "signal_tasks:app"
PARKED_TASKS = int(os.environ.get("PARKED_TASKS", "50"))
# Of the parked tasks, those whose time is measured.
MEASURED = max(PARKED_TASKS // 10, 20)
RACES = int(os.environ.get("PARKING_RACES", "60"))


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("signals", app=APP, processes=1)


def park(rig: Rig, name: str = "park_here", /, *, spec: dict[str, Any] | None = None, **given: Any) -> str:
    policy = RetryPolicy.parking()
    return rig.hook.enqueue_task(TaskSpec(task_name=name, kwargs=given, **{"retry_policy": policy, **(spec or {})}))


def until_parked(rig: Rig, task_id: str, *, times: int = 1) -> TaskView:
    def parked() -> TaskView | None:
        task = rig.hook.read_task(task_id)
        assert not task.state.is_terminal, task
        return task if task.state is TaskState.PENDING and task.retry_count >= times else None

    found: TaskView = rig.until(parked, "the parking")
    return found


def until_begun(rig: Rig, task_id: str) -> None:
    def has_begun() -> bool:
        task = rig.hook.read_task(task_id)
        return task.state is not TaskState.PENDING or task.retry_count > 0

    rig.until(has_begun, "the start")


def until_settled(rig: Rig, task_id: str, *, times: int = 1) -> TaskView:
    """Parked, and its worker has set when it resumes by itself."""
    until_parked(rig, task_id, times=times)
    far = timedelta(seconds=120)

    def settled() -> TaskView | None:
        task = rig.hook.read_task(task_id)
        return task if task.next_retry_at and task.next_retry_at > datetime.now(UTC) + far else None

    found: TaskView = rig.until(settled, "the time to resume")
    return found


def ok(rig: Rig, task_id: str) -> Any:
    task = rig.wait(task_id)
    assert task.state is TaskState.COMPLETED, (task, rig.texts(task_id))
    assert task.result
    return task.result.ok


def rows(rig: Rig, statement: str, *params: Any) -> list[Any]:
    with psycopg.connect(**rig.postgres.conninfo("signals")) as connection:
        return connection.execute(statement, params).fetchall()


# -- parking


def test_a_parked_task_holds_no_slot_and_resumes_with_its_signal(rig: Rig) -> None:
    task_id = park(rig)
    until_settled(rig, task_id)
    assert rig.ok("add", a=1, b=2) == 3, "the only child is free"
    sent = rig.hook.client.signal(task_id, "go", {"by": "anna"}, sent_by="the test")
    assert (sent.is_new, sent.resumed) == (True, 1)
    assert ok(rig, task_id) == {"by": "anna"}
    first, second = attempts_of(rig.hook.read_task(task_id), rig.records(task_id))
    assert (first.error_code, first.will_retry, second.outcome) == ("AWAITING_SIGNAL", True, "COMPLETED")


def test_a_signal_sent_before_is_received_without_parking(rig: Rig) -> None:
    task_id = park(rig, spec={"delay": timedelta(seconds=1)})
    rig.hook.client.signal(task_id, "go", 7)
    assert ok(rig, task_id) == 7
    assert rig.hook.read_task(task_id).retry_count == 0


def test_signals_are_received_once_each_in_their_order(rig: Rig) -> None:
    task_id = park(rig, "park_twice")
    until_settled(rig, task_id)
    for name, value in (("first", 1), ("second", 2), ("first", 3)):
        rig.hook.client.signal(task_id, name, value)
    assert ok(rig, task_id) == [1, 2, 3]


def test_a_wait_ends_at_its_timeout(rig: Rig) -> None:
    began = time.monotonic()
    task_id = park(rig, timeout=3)
    task = rig.wait(task_id)
    took = time.monotonic() - began
    assert (task.state, task.error_code) == (TaskState.FAILED, "SIGNAL_TIMED_OUT")
    assert 2.5 < took < 8, took
    assert task.retry_count == 1, "it parked once"


def test_a_parked_task_is_cancelled_at_once(rig: Rig) -> None:
    task_id = park(rig)
    until_settled(rig, task_id)
    rig.hook.cancel_task(task_id)
    assert rig.wait(task_id).state is TaskState.CANCELLED
    with pytest.raises(SignalRefused, match="is CANCELLED"):
        rig.hook.client.signal(task_id, "go")


def test_good_until_expires_a_parked_task(rig: Rig) -> None:
    policy = RetryPolicy.fixed([1], auto_retry_for=["AWAITING_SIGNAL"], jitter=False)
    good_until = datetime.now(UTC) + timedelta(seconds=5)
    task_id = park(rig, spec={"good_until": good_until, "retry_policy": policy})
    until_parked(rig, task_id)
    assert rig.wait(task_id).state is TaskState.EXPIRED


def test_a_task_waits_on_its_worker_where_good_until_is_before_the_next_retry(rig: Rig) -> None:
    soon = {"good_until": datetime.now(UTC) + timedelta(seconds=30)}
    task_id = park(rig, spec=soon)
    rig.until(lambda: any("Waiting on the worker" in text for text in rig.texts(task_id)), "the wait")
    rig.hook.client.signal(task_id, "go", 1)
    assert ok(rig, task_id) == 1
    late = rig.wait(park(rig, spec={"good_until": datetime.now(UTC) + timedelta(seconds=3)}))
    assert (late.state, late.error_code) == (TaskState.FAILED, "GOOD_UNTIL_PASSED")


def test_a_task_without_a_policy_that_parks_says_what_to_set(rig: Rig) -> None:
    task = rig.wait(rig.send("park_here"))
    assert (task.state, task.error_code) == (TaskState.FAILED, "PARKING_NOT_POSSIBLE")
    assert task.result
    assert task.result.error
    assert "RetryPolicy.parking()" in str(task.result.error.message)


def test_parking_passes_code_that_catches_exceptions_and_cleans_up(rig: Rig, tmp_path: Path) -> None:
    marker = tmp_path / "cleaned"
    task_id = park(rig, "park_and_clean_up", marker=str(marker))
    until_settled(rig, task_id)
    assert marker.exists()
    rig.hook.client.signal(task_id, "go", "there")
    assert ok(rig, task_id) == "there"


def test_parked_attempts_do_not_use_up_the_retries_of_the_author(rig: Rig) -> None:
    policy = RetryPolicy.fixed([1, 1], auto_retry_for=["AGAIN"], jitter=False).with_parking()
    task_id = park(rig, "fail_between", spec={"retry_policy": policy}, failures=2)
    for number in range(2):
        until_settled(rig, task_id, times=1 + 2 * number)
        rig.hook.client.signal(task_id, f"go.{number}")
    assert ok(rig, task_id) == 2
    outcomes = [attempt.error_code for attempt in rig.hook.read_task(task_id).attempts]
    assert outcomes == ["AWAITING_SIGNAL", "AGAIN", "AWAITING_SIGNAL", "AGAIN", None]


def test_more_failures_than_retries_still_fail_a_task_that_parks(rig: Rig) -> None:
    policy = RetryPolicy.fixed([1], auto_retry_for=["AGAIN"], jitter=False).with_parking()
    task_id = park(rig, "fail_between", spec={"retry_policy": policy}, failures=3)
    for number in range(3):
        rig.hook.client.signal(task_id, f"go.{number}")
    task = rig.wait(task_id)
    assert (task.state, task.error_code, task.retry_count) == (TaskState.FAILED, "AGAIN", 1)


def test_a_later_attempt_sees_again_what_a_killed_one_consumed(rig: Rig, tmp_path: Path) -> None:
    policy = RetryPolicy.fixed([1, 1], auto_retry_for=["WORKER_CRASHED"], jitter=False).with_parking()
    task_id = park(rig, "die_after_receiving", spec={"retry_policy": policy}, marker=str(tmp_path / "died"))
    until_settled(rig, task_id)
    rig.hook.client.signal(task_id, "go", [1, 2])
    assert ok(rig, task_id) == [1, 2]
    found = rows(rig, "SELECT consumed_attempt FROM airflow_horsies.messages WHERE target = %s", task_id)
    assert found == [(2,)], "stored once, consumed once"


# -- in place


def test_a_task_receives_a_signal_while_it_waits_on_its_worker(rig: Rig) -> None:
    task_id = rig.send("receive_here")
    rig.until_running(task_id)
    rig.hook.client.signal(task_id, "go", None)
    assert ok(rig, task_id) is None


def test_receive_fails_after_its_timeout(rig: Rig) -> None:
    task = rig.run("receive_here", timeout=0.5)
    assert task.error_code == "SIGNAL_TIMED_OUT"


def test_a_cancel_interrupts_receive(rig: Rig) -> None:
    task_id = rig.send("receive_here")
    rig.until_running(task_id)
    rig.hook.cancel_task(task_id)
    assert rig.ok("add", a=1, b=1) == 2, "the child is free again"


# -- timers and workflows


def test_a_task_sleeps_without_a_worker(rig: Rig) -> None:
    task_id = park(rig, "sleep_here", seconds=4)
    until_parked(rig, task_id)
    assert rig.ok("add", a=2, b=2) == 4
    assert 4 <= ok(rig, task_id) < 9


def test_the_ready_made_tasks_need_no_policy(rig: Rig) -> None:
    waiting, sleeping = (
        rig.send("airflow_horsies.wait_for_signal", name="go"),
        rig.send("airflow_horsies.sleep", seconds=1),
    )
    until_settled(rig, waiting)
    rig.hook.client.signal(waiting, "go", {"a": 1})
    assert ok(rig, waiting) == {"a": 1}
    assert ok(rig, sleeping) is None


def workflow_state(rig: Rig, workflow_id: str) -> tuple[str, str | None]:
    ((status, result),) = rows(rig, "SELECT status, result FROM horsies_workflows WHERE id = %s", workflow_id)
    return status, result


@pytest.mark.parametrize("timeout", [None, 1.0])
def test_a_node_of_a_workflow_waits_for_a_signal_to_the_workflow(rig: Rig, timeout: float | None) -> None:
    workflow_id = rig.ok("start_approval", timeout=timeout, nap=1.0)
    if timeout is None:
        (node,) = rig.until(
            lambda: rows(
                rig,
                "SELECT t.id::text FROM horsies_workflow_tasks AS n JOIN horsies_tasks AS t ON t.id = n.task_id "
                "WHERE n.workflow_id = %s AND t.status = 'PENDING' AND t.retry_count = 1",
                workflow_id,
            ),
            "the parked node",
        )
        assert rig.hook.client.signal(workflow_id, "approved", {"by": "bo"}).resumed == 1, node
    rig.until(lambda: workflow_state(rig, workflow_id)[0] != "RUNNING", "the end of the workflow")
    status, result = workflow_state(rig, workflow_id)
    assert status == "COMPLETED" if timeout is None else "FAILED"
    if timeout is None:
        assert json.loads(result or "")["ok"] == {"got": {"by": "bo"}}
        with pytest.raises(SignalRefused, match="is COMPLETED"):
            rig.hook.client.signal(workflow_id, "approved")


# -- who may not be sent to


def test_signals_are_refused_with_their_reason(rig: Rig) -> None:
    client = rig.hook.client
    with pytest.raises(TaskNotFound, match="Neither a task nor a workflow"):
        client.signal(str(uuid.uuid4()), "go")
    with pytest.raises(InvalidTask, match="target: must be the id"):
        client.signal("load", "go")
    task_id = park(rig, spec={"delay": timedelta(days=1)})
    with pytest.raises(InvalidTask, match="is not the name of a signal"):
        client.signal(task_id, "with space")
    with pytest.raises(InvalidTask, match="the limit is 262,144"):
        client.signal(task_id, "go", "x" * 262_144)
    with pytest.raises(InvalidTask, match="cannot be converted to JSON"):
        client.signal(task_id, "go", object())
    rig.hook.cancel_task(task_id)


def test_the_same_signal_is_stored_once_even_after_the_end(rig: Rig) -> None:
    task_id = park(rig)
    first = rig.hook.client.signal(task_id, "go", 1, dedup_key="one")
    assert ok(rig, task_id) == 1
    again = rig.hook.client.signal(task_id, "go", 1, dedup_key="one")
    assert (again.id, again.is_new) == (first.id, False)


# -- checkpoints


def test_a_checkpoint_is_kept_over_a_kill(rig: Rig) -> None:
    policy = {"retry_policy": RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)}
    task_id = park(rig, "count_up", spec=policy, to=20, die_at=9)
    assert ok(rig, task_id) == {"began_at": 10, "ended_at": 20}


def test_checkpoints_have_a_limit_and_are_read_back(rig: Rig) -> None:
    assert rig.ok("keep", size=1_000_000) == 1_000_000
    assert rig.run("keep", size=1_048_576).state is TaskState.FAILED


def test_a_retry_by_airflow_goes_on_where_the_task_was_and_a_clear_begins_anew(rig: Rig) -> None:
    instance = TaskInstanceKey(dag_id="d", run_id="r", task_id="t")
    began = datetime.now(UTC)

    def submit(try_number: int, *, clear_number: int = 0) -> Any:
        tried = AirflowTry(try_number=try_number, run_started_at=began, clear_number=clear_number, run_key="key")
        spec = TaskSpec(task_name="count_up", kwargs={"to": 8, "fail_at": 3})
        sent = rig.hook.submit_task(spec, instance, tried)
        return rig.wait(sent.task_id)

    assert submit(1).error_code == "AGAIN"
    task = submit(2)
    assert task.result
    assert task.result.ok == {"began_at": 4, "ended_at": 8}
    assert submit(3, clear_number=1).error_code == "AGAIN", "the checkpoint belongs to the earlier life"


# -- many, and the race


def backends(rig: Rig) -> int:
    ((count,),) = rows(rig, "SELECT count(*) FROM pg_stat_activity WHERE datname = 'signals'")
    return int(count)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def test_many_parked_tasks_hold_no_slot_and_no_connection_and_all_end(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    before = backends(rig)
    ids = rig.hook.enqueue_tasks(
        [TaskSpec(task_name="park_here", retry_policy=RetryPolicy.parking()) for _ in range(PARKED_TASKS)]
    )

    def all_parked() -> bool:
        ((count,),) = rows(
            rig,
            "SELECT count(*) FROM horsies_tasks WHERE id = ANY(%s::uuid[]) AND status = 'PENDING' AND retry_count = 1 "
            "AND next_retry_at > now() + INTERVAL '1 hour'",
            ids,
        )
        return int(count) == PARKED_TASKS

    rig.until(all_parked, "the parking of all", seconds=WAIT_SECONDS + PARKED_TASKS)
    ((busy,),) = rows(rig, "SELECT count(*) FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING')")
    assert busy == 0
    time.sleep(6)
    held = backends(rig) - before
    assert held <= 3, f"{held} more connections for {PARKED_TASKS} parked tasks"
    assert rig.ok("add", a=1, b=2) == 3
    # One after the other, so that none waits for the worker; the others stay parked.
    parked = []
    for task_id in ids[:MEASURED]:
        at = time.time()
        rig.hook.client.signal(task_id, "go", 1)
        task = rig.wait(task_id)
        assert task.started_at
        parked.append(task.started_at.timestamp() - at)
    began = time.monotonic()
    for task_id in ids[MEASURED:]:
        rig.hook.client.signal(task_id, "go", 1)
    tasks = rig.hook.wait(ids, timeout_seconds=WAIT_SECONDS + PARKED_TASKS)
    rest = f"the other {len(ids[MEASURED:])} signalled at once ended in {time.monotonic() - began:.0f} s"
    assert {task.state for task in tasks} == {TaskState.COMPLETED}
    assert {task.retry_count for task in tasks} == {1}, "each was resumed by its signal, once"
    polled = []
    for _ in range(len(parked)):
        task_id = rig.send("receive_here")
        rig.until_running(task_id)
        at = time.time()
        rig.hook.client.signal(task_id, "go", 1)
        task = rig.wait(task_id)
        assert task.finished_at
        polled.append(task.finished_at.timestamp() - at)
    with capsys.disabled():
        print(f"\n{PARKED_TASKS} parked: {held} more connections, from signal to resumed", end=" ")
        print(f"p50 {percentile(parked, 0.5) * 1e3:.0f} ms, p99 {percentile(parked, 0.99) * 1e3:.0f} ms;", end=" ")
        print(
            f"receive(): p50 {percentile(polled, 0.5) * 1e3:.0f} ms, p99 {percentile(polled, 0.99) * 1e3:.0f} ms;", rest
        )


def test_a_signal_between_the_look_and_the_parking_is_never_lost(make_rig: MakeRig) -> None:
    """The safety net, a retry after 60 s, would show as a late end."""
    slow = make_rig("signal_races", app=APP, processes=1, PAUSE_WHILE_PARKING="0.06")
    late = []
    for number in range(RACES):
        task_id = park(slow)
        until_begun(slow, task_id)
        time.sleep((number % 20) * 0.006)
        began = time.monotonic()
        slow.hook.client.signal(task_id, "go", number)
        assert ok(slow, task_id) == number
        took = time.monotonic() - began
        if took > 10:
            late.append((number, took))
    assert not late


def test_without_the_worker_that_parked_it_a_task_looks_after_each_interval(make_rig: MakeRig) -> None:
    rig = make_rig("parked_blindly", app=APP, processes=1, DIES_WHILE_PARKING="1")
    policy = {"retry_policy": RetryPolicy.fixed([2], auto_retry_for=["AWAITING_SIGNAL"], jitter=False)}
    began = time.monotonic()
    late = rig.wait(park(rig, spec=policy, timeout=5))
    assert (late.state, late.error_code) == (TaskState.FAILED, "SIGNAL_TIMED_OUT")
    assert time.monotonic() - began >= 5, "its end was fixed by the first attempt"
    assert late.retry_count >= 2, "it parked again, more often than its policy retries"
    signalled = park(rig, spec=policy)
    until_parked(rig, signalled)
    rig.hook.client.signal(signalled, "go", 1)
    assert ok(rig, signalled) == 1


def test_a_parked_task_outlives_its_worker(make_rig: MakeRig) -> None:
    rig = make_rig("parked_alone", app=APP, processes=1)
    task_id = park(rig)
    until_settled(rig, task_id)
    rig.worker.stop()
    assert rig.hook.client.signal(task_id, "go", "later").resumed == 1
    rig.worker.start()
    assert ok(rig, task_id) == "later"
