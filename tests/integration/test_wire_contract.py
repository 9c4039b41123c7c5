"""A row we write is run by a real worker of each supported release, and read back as what happened."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import InvalidTask, TaskIdTaken
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import CancelOutcome, RetryPolicy, TaskSpec, TaskState, TaskView
from tests.integration.conftest import MakeHook, make_worker
from tests.integration.releases import keeps_history

SECONDS = 60


@pytest.fixture
def hook(make_hook: MakeHook, served_database: str) -> HorsiesHook:
    return make_hook(served_database)


def run(hook: HorsiesHook, task_name: str, /, **given: Any) -> TaskView:
    task_id = hook.enqueue_task(TaskSpec(task_name=task_name, **given))
    (task,) = hook.wait([task_id], timeout_seconds=SECONDS, poll_seconds=5)
    assert task.id == task_id
    return task


def test_completed_task_returns_its_value_and_one_attempt(hook: HorsiesHook) -> None:
    task = run(hook, "add", kwargs={"a": 2, "b": 3})
    assert task.state is TaskState.COMPLETED
    assert task.result is not None
    assert (task.result.ok, task.result.error) == (5, None)
    (attempt,) = task.attempts
    assert (attempt.number, attempt.outcome, attempt.will_retry) == (1, "COMPLETED", False)
    assert task.sent_at is not None and task.finished_at is not None
    assert task.sent_at <= attempt.started_at <= attempt.finished_at <= task.finished_at + timedelta(seconds=1)
    assert attempt.worker_id and attempt.hostname and attempt.pid


def test_completed_task_without_arguments_may_return_none(hook: HorsiesHook) -> None:
    task = run(hook, "nothing")
    assert task.state is TaskState.COMPLETED
    assert task.result is not None
    assert (task.result.ok, task.result.error) == (None, None)


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy.fixed([1, 2], auto_retry_for=["FLAKY"], jitter=False),
        RetryPolicy.exponential(1, max_retries=2, auto_retry_for=["FLAKY"], jitter=False, max_delay_seconds=2),
    ],
    ids=["fixed", "exponential"],
)
def test_failed_task_has_one_attempt_per_retry_and_waits_as_the_policy_says(
    hook: HorsiesHook, policy: RetryPolicy
) -> None:
    task = run(hook, "fail", kwargs={"code": "FLAKY"}, retry_policy=policy)
    assert (task.state, task.error_code, task.retry_count, task.max_retries) == (TaskState.FAILED, "FLAKY", 2, 2)
    assert [(a.number, a.outcome, a.will_retry, a.error_code) for a in task.attempts] == [
        (1, "FAILED", True, "FLAKY"),
        (2, "FAILED", True, "FLAKY"),
        (3, "FAILED", False, "FLAKY"),
    ]
    gaps = [
        (later.started_at - earlier.finished_at).total_seconds()
        for earlier, later in zip(task.attempts, task.attempts[1:], strict=False)
    ]
    assert gaps[0] >= 0.9
    assert gaps[1] >= 1.9
    assert task.result is not None and task.result.error is not None
    assert task.result.error.error_code == "FLAKY"
    assert task.result.error.message == "asked to fail with FLAKY"
    assert task.result.error.data == {"code": "FLAKY"}


def test_code_that_the_policy_does_not_name_is_not_retried(hook: HorsiesHook) -> None:
    policy = RetryPolicy.fixed([1, 1], auto_retry_for=["SOMETHING_ELSE"])
    task = run(hook, "fail", kwargs={"code": "FINAL"}, retry_policy=policy)
    assert [(a.error_code, a.will_retry) for a in task.attempts] == [("FINAL", False)]


def test_exception_is_told_with_its_type_and_message(hook: HorsiesHook) -> None:
    task = run(hook, "blow_up", kwargs={"text": "no more coal"})
    assert (task.state, task.error_code) == (TaskState.FAILED, "UNHANDLED_EXCEPTION")
    assert task.result is not None and task.result.error is not None
    exception = task.result.error.exception
    assert exception is not None
    assert (exception.type, exception.message) == ("RuntimeError", "no more coal")
    assert "blow_up" in (exception.traceback or "")


def test_killed_worker_process_is_a_crash_and_is_retried(hook: HorsiesHook, tmp_path: Path) -> None:
    policy = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    marker = tmp_path / "died"
    task = run(hook, "die_once", kwargs={"marker": str(marker)}, retry_policy=policy)
    assert marker.exists()
    assert task.state is TaskState.COMPLETED
    assert [(a.outcome, a.error_code) for a in task.attempts] == [
        ("FAILED", "WORKER_CRASHED"),
        ("COMPLETED", None),
    ]


def test_killed_worker_is_noticed_by_another_which_runs_the_task_again(
    make_hook: MakeHook, database: str, postgres: EmbeddedPostgres, release: str, tmp_path: Path
) -> None:
    hook = make_hook(database)
    policy = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    with make_worker(postgres, database, release, tmp_path) as doomed:
        task_id = hook.enqueue_task(TaskSpec(task_name="sleep", kwargs={"seconds": 3}, retry_policy=policy))
        while hook.read_task(task_id).state is not TaskState.RUNNING:
            time.sleep(0.05)
        for process in [psutil.Process(doomed.process.pid), *psutil.Process(doomed.process.pid).children(True)]:
            process.kill()
    with make_worker(postgres, database, release, tmp_path):
        (task,) = hook.wait([task_id], timeout_seconds=SECONDS)
    assert [(a.outcome, a.error_code, a.will_retry) for a in task.attempts] == [
        ("FAILED", "WORKER_CRASHED", True),
        ("COMPLETED", None, False),
    ]


def test_task_not_started_by_good_until_expires_without_an_attempt(hook: HorsiesHook) -> None:
    good_until = datetime.now(UTC) + timedelta(seconds=1)
    task = run(hook, "add", kwargs={"a": 1, "b": 1}, good_until=good_until, delay=timedelta(seconds=30))
    assert (task.state, task.attempts) == (TaskState.EXPIRED, ())
    assert task.good_until == good_until
    assert task.finished_at is not None and task.finished_at >= good_until


def test_delayed_task_starts_no_earlier_than_asked(hook: HorsiesHook) -> None:
    task = run(hook, "add", kwargs={"a": 1, "b": 1}, delay=timedelta(seconds=2))
    assert task.sent_at is not None
    assert task.attempts[0].started_at - task.sent_at >= timedelta(seconds=2)


def test_pending_task_is_cancelled_once(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, delay=timedelta(seconds=60)))
    assert hook.cancel_task(task_id) is CancelOutcome.CANCELLED
    assert hook.cancel_task(task_id) is CancelOutcome.ALREADY_CANCELLED
    task = hook.read_task(task_id)
    assert (task.state, task.error_code, task.result, task.attempts) == (
        TaskState.CANCELLED,
        "TASK_CANCELLED",
        None,
        (),
    )


def test_running_task_can_be_cancelled_and_a_finished_one_is_left_alone(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="sleep", kwargs={"seconds": 2}))
    while hook.read_task(task_id).state is not TaskState.RUNNING:
        time.sleep(0.05)
    assert hook.cancel_task(task_id) is CancelOutcome.CANCELLED
    (task,) = hook.wait([task_id], timeout_seconds=SECONDS)
    assert task.state is TaskState.CANCELLED
    done = run(hook, "add", kwargs={"a": 1, "b": 1})
    assert hook.cancel_task(done.id) is CancelOutcome.ALREADY_FINISHED


def test_unknown_task_name_fails_with_a_code_of_its_own(hook: HorsiesHook) -> None:
    task = run(hook, "no_such_task")
    assert (task.state, task.error_code) == (TaskState.FAILED, "WORKER_RESOLUTION_ERROR")


@pytest.mark.parametrize(
    ("kwargs", "code"),
    [
        ({"a": 1, "b": "many"}, "WORKER_SERIALIZATION_ERROR"),
        ({"a": 1, "b": 2, "c": 3}, "WORKER_SERIALIZATION_ERROR"),
        # A worker notices a missing argument only as it calls the function.
        ({"a": 1}, "UNHANDLED_EXCEPTION"),
    ],
    ids=["wrong type", "unknown", "missing"],
)
def test_arguments_that_do_not_fit_fail_the_task(hook: HorsiesHook, kwargs: dict[str, Any], code: str) -> None:
    task = run(hook, "add", kwargs=kwargs)
    assert (task.state, task.error_code) == (TaskState.FAILED, code)


@pytest.mark.parametrize(
    "text", ["naïve 馬 🐎", "a\x00b", "%s %(x)s {} \\ ' \" $$", "\u2028\ud7ff\uffff", "x" * 1024 * 1024]
)
def test_text_comes_back_as_it_was_sent(hook: HorsiesHook, text: str) -> None:
    task = run(hook, "echo", kwargs={"value": text})
    assert task.result is not None
    assert task.result.ok == text


def test_timeout_ends_an_attempt_that_runs_too_long(hook: HorsiesHook) -> None:
    task = run(hook, "sleep", kwargs={"seconds": 30}, timeout=timedelta(seconds=1))
    assert (task.state, task.error_code) == (TaskState.FAILED, "TASK_TIMEOUT")


def test_priority_decides_who_is_first(hook: HorsiesHook) -> None:
    add = {"task_name": "add", "kwargs": {"a": 1, "b": 1}}
    ids = hook.enqueue_tasks([TaskSpec(**add, priority=90), TaskSpec(**add, priority=10)])
    late_task, early_task = hook.wait(ids, timeout_seconds=SECONDS)
    assert early_task.attempts[0].started_at < late_task.attempts[0].started_at


def test_many_tasks_sent_at_once_all_run(hook: HorsiesHook) -> None:
    ids = hook.enqueue_tasks(TaskSpec(task_name="add", kwargs={"a": n, "b": 1}) for n in range(50))
    tasks = hook.wait(ids, timeout_seconds=SECONDS)
    assert [task.result and task.result.ok for task in tasks] == list(range(1, 51))


def test_given_id_runs_once_and_other_arguments_under_it_are_refused(hook: HorsiesHook) -> None:
    spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, task_id=str(uuid.uuid4()))
    assert hook.enqueue_task(spec) == spec.task_id
    assert hook.enqueue_task(spec) == spec.task_id
    hook.wait([spec.task_id], timeout_seconds=SECONDS)
    assert hook.enqueue_task(spec) == spec.task_id
    with pytest.raises(TaskIdTaken, match="already exists"):
        hook.enqueue_task(replace(spec, kwargs={"a": 1, "b": 2}))
    with pytest.raises(TaskIdTaken, match="Nothing was sent"):
        hook.enqueue_tasks([TaskSpec(task_name="add", kwargs={"a": 5, "b": 5}), spec])
    assert len(hook.read_task(spec.task_id).attempts) == 1
    assert hook.list_tasks(states={TaskState.PENDING}, task_name="add", queue="default").tasks == ()


def test_idempotency_key_sends_once_where_horsies_keeps_keys(hook: HorsiesHook, release: str) -> None:
    spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, idempotency_key="order-7")
    if not keeps_history(release):
        with pytest.raises(InvalidTask, match=r"idempotency_key: needs horsies 0\.5"):
            hook.enqueue_task(spec)
        return
    task_id = hook.enqueue_task(spec)
    assert hook.enqueue_task(spec) == task_id
    hook.wait([task_id], timeout_seconds=SECONDS)
    assert hook.enqueue_task(spec) == task_id
    with pytest.raises(TaskIdTaken, match="other arguments"):
        hook.enqueue_task(replace(spec, kwargs={"a": 2, "b": 2}))
    with pytest.raises(TaskIdTaken, match="already in use by task"):
        hook.enqueue_tasks([spec])


def test_arguments_are_kept_with_a_failed_task_where_the_sender_asks(hook: HorsiesHook) -> None:
    task = run(hook, "fail", kwargs={"code": "NO"}, retain_rerun_input=True)
    assert task.kwargs == {"code": "NO"}


def test_queue_and_worker_tell_who_serves_what(hook: HorsiesHook) -> None:
    hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, queue="nobody"))
    queues = {queue.queue: queue for queue in hook.read_queues()}
    assert queues["default"].served_by == 1
    assert (queues["nobody"].ready, queues["nobody"].served_by) == (1, 0)
    (worker,) = [worker for worker in hook.read_workers() if worker.alive]
    assert worker.queues == ("default",)
    healthy, message = hook.test_connection()
    assert healthy
    assert "1 live worker(s) serving default" in message


def test_retention_class_must_exist(hook: HorsiesHook) -> None:
    before = hook.list_tasks(limit=1)
    with pytest.raises(InvalidTask, match="retention"):
        hook.enqueue_task(TaskSpec(task_name="nothing", retention="no_such_class"))
    assert hook.list_tasks(limit=1) == before
