"""Operators in real DAG runs: what a user sees when tasks succeed, fail, expire, are cancelled, cleared or too late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import RetryPolicy, TaskInstanceKey, TaskState, TaskView
from airflow_horsies.operators.rendering import plain_policy
from tests.acceptance.conftest import EXAMPLES, AirflowApi

pytestmark = pytest.mark.timeout(400)

# Every one of them also runs through dag.test(), in test_dag_test.py.
QUICK_EXAMPLES = ("horsies_basic", "horsies_batch", "horsies_sensor")
DAY_OF_FLIGHTS = "2013-01-01T00:00:00Z"
# The first use of Spark takes its time.
EXAMPLE_SECONDS = 300.0
EXAMPLE_DAGS = [
    path.stem if path.stem in QUICK_EXAMPLES else pytest.param(path.stem, marks=pytest.mark.slow)
    for path in sorted(EXAMPLES.glob("*.py"))
]


def sent_by(hook: HorsiesHook, dag_id: str, run_id: str, task_id: str = "one") -> list[TaskView]:
    """The horsies tasks of a task instance, in the order they were sent."""
    instance = TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=task_id)
    return [hook.read_task(each.horsies_task_id) for each in hook.read_submissions(instance)]


def until_deferred(api: AirflowApi, dag_id: str, run_id: str, task_id: str = "one") -> None:
    """Returns once a triggerer has taken the trigger up."""
    api.until(lambda: api.tasks(dag_id, run_id)[task_id]["triggerer_job"] is not None, 60, "the deferral")


@pytest.fixture(scope="module")
def day_of_flights(api: AirflowApi) -> str:
    """The run of a day, which a month needs as well; Airflow allows no second run of this date."""
    return api.trigger("flights_daily", logical_date=DAY_OF_FLIGHTS)


@pytest.mark.parametrize("dag_id", EXAMPLE_DAGS)
def test_every_example_ends_well(api: AirflowApi, request: pytest.FixtureRequest, dag_id: str) -> None:
    if dag_id.startswith("flights_"):
        run_id = request.getfixturevalue("day_of_flights")
        api.wait("flights_daily", run_id, EXAMPLE_SECONDS)
    if dag_id != "flights_daily":
        # Some are paused until somebody wants them.
        api.unpause(dag_id)
        run_id = api.trigger(dag_id)
    assert api.wait(dag_id, run_id, EXAMPLE_SECONDS) == "success", api.story(dag_id, run_id)


@pytest.mark.slow
def test_day_of_flights_without_a_logical_date_is_refused_with_a_sentence(api: AirflowApi) -> None:
    run_id, state = api.run("flights_daily")
    assert state == "failed"
    assert api.tasks("flights_daily", run_id)["ingest"]["try_number"] == 1
    assert "this run has none. Trigger it with a logical date in 2013" in api.log("flights_daily", run_id, "ingest")


@pytest.mark.parametrize("variant", ["blocking", "deferred", "inline"])
def test_value_and_id_of_a_completed_task_are_passed_on(api: AirflowApi, hook: HorsiesHook, variant: str) -> None:
    dag_id = f"one_{variant}"
    run_id, state = api.run(dag_id, task_name="sample.add", kwargs={"a": 40, "b": 2})
    assert state == "success"
    assert api.xcom(dag_id, run_id, "one") == 42
    assert api.xcom(dag_id, run_id, "after") == 42
    (task,) = sent_by(hook, dag_id, run_id)
    assert api.xcom(dag_id, run_id, "one", key="horsies_task_id") == task.id
    log = api.log(dag_id, run_id, "one")
    assert f"Sent task {task.id} to horsies queue default" in log
    assert f"Task {task.id}, attempt 1: COMPLETED" in log


@pytest.mark.parametrize("variant", ["blocking", "deferred"])
def test_failure_after_retries_of_horsies_fails_the_run_and_tells_why(
    api: AirflowApi, hook: HorsiesHook, variant: str
) -> None:
    policy = plain_policy(RetryPolicy.fixed([1], auto_retry_for=["BROKEN"]))
    dag_id = f"one_{variant}"
    run_id, state = api.run(dag_id, task_name="acceptance.fail", kwargs={"code": "BROKEN"}, retry_policy=policy)
    assert state == "failed"
    (task,) = sent_by(hook, dag_id, run_id)
    assert (task.state, len(task.attempts)) == (TaskState.FAILED, 2)
    log = api.log(dag_id, run_id, "one")
    assert "attempt 1: FAILED" in log and "(will be retried)" in log
    assert "failed after 2 attempts: BROKEN: asked to fail" in log


def test_retry_of_airflow_sends_the_next_round(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id, state = api.run("one_retrying", task_name="acceptance.fail", kwargs={"code": "BROKEN"})
    assert state == "failed"
    assert [task.state for task in sent_by(hook, "one_retrying", run_id)] == [TaskState.FAILED, TaskState.FAILED]
    submissions = hook.read_submissions(TaskInstanceKey(dag_id="one_retrying", run_id=run_id, task_id="one"))
    assert [(each.life, each.round, each.try_number) for each in submissions] == [(1, 1, 1), (1, 2, 2)]


@pytest.mark.parametrize(
    ("task_name", "kwargs", "code"),
    [
        ("acceptance.fail", {"code": "NO_HOPE"}, "NO_HOPE"),
        ("no.such.task", {}, "WORKER_RESOLUTION_ERROR"),
    ],
)
def test_hopeless_code_is_not_tried_again(
    api: AirflowApi, hook: HorsiesHook, task_name: str, kwargs: dict[str, Any], code: str
) -> None:
    run_id, state = api.run("one_failing_fast", task_name=task_name, kwargs=kwargs)
    assert state == "failed"
    assert api.tasks("one_failing_fast", run_id)["one"]["try_number"] == 1
    assert [task.error_code for task in sent_by(hook, "one_failing_fast", run_id)] == [code]


@pytest.mark.parametrize(("variant", "outcome"), [("deferred", "failed"), ("skipping", "skipped")])
def test_expiry_fails_or_skips_as_the_author_chose(
    api: AirflowApi, hook: HorsiesHook, variant: str, outcome: str
) -> None:
    dag_id = f"one_{variant}"
    run_id, _ = api.run(dag_id, task_name="sample.add", queue="nobody", good_until=_in_two_seconds())
    assert api.state(dag_id, run_id, "one") == outcome
    assert [task.state for task in sent_by(hook, dag_id, run_id)] == [TaskState.EXPIRED]


@pytest.mark.parametrize(("variant", "outcome"), [("deferred", "failed"), ("skipping", "skipped")])
def test_task_cancelled_by_somebody_fails_or_skips(
    api: AirflowApi, hook: HorsiesHook, variant: str, outcome: str
) -> None:
    dag_id = f"one_{variant}"
    run_id = api.trigger(dag_id, task_name="sample.add", queue="nobody")
    until_deferred(api, dag_id, run_id)
    (task,) = sent_by(hook, dag_id, run_id)
    hook.cancel_task(task.id)
    api.wait(dag_id, run_id)
    assert api.state(dag_id, run_id, "one") == outcome


def test_marking_a_deferred_task_failed_cancels_the_horsies_task(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id = api.trigger("one_deferred", task_name="sample.add", queue="nobody")
    until_deferred(api, "one_deferred", run_id)
    api.mark("one_deferred", run_id, "one", "failed")
    (task,) = sent_by(hook, "one_deferred", run_id)
    (ended,) = hook.wait([task.id], timeout_seconds=30)
    assert ended.state is TaskState.CANCELLED
    assert api.wait("one_deferred", run_id) == "failed"


def test_clearing_a_success_runs_the_task_again(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id, state = api.run("one_inline", task_name="sample.add", kwargs={"a": 1, "b": 1})
    assert state == "success"
    api.clear("one_inline", run_id, "one")
    assert api.wait("one_inline", run_id) == "success"
    first, second = sent_by(hook, "one_inline", run_id)
    assert first.id != second.id
    assert [first.state, second.state] == [TaskState.COMPLETED, TaskState.COMPLETED]


def test_clearing_a_deferred_task_cancels_it_and_sends_another(
    api: AirflowApi, hook: HorsiesHook, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    run_id = api.trigger(
        "one_deferred", task_name="acceptance.wait_for_file", kwargs={"path": str(gate)}, queue="nobody"
    )
    until_deferred(api, "one_deferred", run_id)
    api.clear("one_deferred", run_id, "one")
    api.until(lambda: len(sent_by(hook, "one_deferred", run_id)) == 2, 60, "the second submission")
    first, second = sent_by(hook, "one_deferred", run_id)
    assert (first.state, second.state.is_terminal) == (TaskState.CANCELLED, False)
    hook.cancel_task(second.id)
    assert api.wait("one_deferred", run_id) == "failed"


@pytest.mark.parametrize("variant", ["short_lived", "short_lived_blocking"])
def test_time_out_cancels_the_horsies_task_before_it_fails(api: AirflowApi, hook: HorsiesHook, variant: str) -> None:
    dag_id = f"one_{variant}"
    run_id, state = api.run(dag_id, task_name="sample.add", queue="nobody")
    assert state == "failed"
    assert [task.state for task in sent_by(hook, dag_id, run_id)] == [TaskState.CANCELLED]
    assert "did not end within the execution_timeout of 0:00:04" in api.log(dag_id, run_id, "one")


def test_queue_that_nobody_serves_is_told_within_its_time(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id, state = api.run("one_impatient", task_name="sample.add", queue="nobody")
    assert state == "failed"
    assert [task.state for task in sent_by(hook, "one_impatient", run_id)] == [TaskState.CANCELLED]
    assert "No live horsies worker serves queue 'nobody'" in api.log("one_impatient", run_id, "one")


def test_batch_returns_what_completed_and_none_for_the_rest(api: AirflowApi, hook: HorsiesHook) -> None:
    items = [{"a": number, "b": 1} for number in range(5)] + [{"a": "not a number", "b": 1}]
    run_id, state = api.run("batch", task_name="sample.add", items=items, max_failures=1)
    assert state == "success"
    assert api.xcom("batch", run_id, "batch") == [1, 2, 3, 4, 5, None]
    assert "BAD_INPUT" in api.log("batch", run_id, "batch")
    assert len(sent_by(hook, "batch", run_id, "batch")) == 6


def test_batch_with_too_many_failures_fails_and_cancels_the_rest(api: AirflowApi, hook: HorsiesHook) -> None:
    items = [{"a": "wrong", "b": 1}, *({"a": number, "b": 1} for number in range(3))]
    run_id, state = api.run("batch", task_name="sample.add", items=items)
    assert state == "failed"
    tasks = sent_by(hook, "batch", run_id, "batch")
    assert tasks[0].state is TaskState.FAILED
    assert all(task.state.is_terminal for task in tasks)
    assert "more than the 0 allowed" in api.log("batch", run_id, "batch")


@pytest.mark.slow
def test_large_batch_comes_back_whole(api: AirflowApi) -> None:
    items = [{"a": number, "b": 1} for number in range(500)]
    run_id, state = api.run("batch", task_name="sample.add", items=items)
    assert state == "success"
    assert api.xcom("batch", run_id, "batch") == list(range(1, 501))


def test_link_leads_to_the_attempts(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id, _ = api.run("one_inline", task_name="sample.add", kwargs={"a": 1, "b": 1})
    links = api.call("GET", f"/dags/one_inline/dagRuns/{run_id}/taskInstances/one/links")["extra_links"]
    link = links["Horsies attempts"]
    assert "<title>one · Horsies</title>" in api.get_page(link)
    (submission,) = api.get_page(link.replace("/horsies/", "/horsies/api/", 1))["submissions"]
    (task,) = sent_by(hook, "one_inline", run_id)
    assert submission["horsies_task_id"] == task.id


def _in_two_seconds() -> str:
    return (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
