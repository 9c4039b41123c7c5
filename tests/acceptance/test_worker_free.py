"""Tasks without a worker: the triggerer sends, waits, stores the value and ends the task, whatever happens to it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.embedded.stack import AIRFLOW_DATABASE, EmbeddedStack
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskInstanceKey, TaskState
from tests.acceptance.conftest import AirflowApi
from tests.acceptance.test_faults import dead
from tests.acceptance.test_operators import sent_by

pytestmark = pytest.mark.timeout(500)

# Written when a worker process starts a task instance.
STARTED_ON_WORKER = """
SELECT task_id FROM log WHERE dag_id = %s AND run_id = %s AND event = 'running'
"""


@pytest.fixture
def started(stack: EmbeddedStack) -> Any:
    """How often a worker process started each task of a run."""

    def count(dag_id: str, run_id: str) -> Counter[str]:
        with psycopg.connect(**stack.postgres.conninfo(AIRFLOW_DATABASE)) as connection:
            return Counter(task_id for (task_id,) in connection.execute(STARTED_ON_WORKER, (dag_id, run_id)))

    return count


def xcoms(api: AirflowApi, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries"
    keys = [entry["key"] for entry in api.call("GET", path)["xcom_entries"]]
    return {key: api.xcom(dag_id, run_id, task_id, key=key) for key in keys}


def stored(stack: EmbeddedStack, dag_id: str, run_id: str) -> dict[str, Any]:
    """What is in the column of Airflow's table, byte by byte."""
    query = "SELECT task_id, value::text FROM xcom WHERE dag_id = %s AND run_id = %s AND key = 'return_value'"
    with psycopg.connect(**stack.postgres.conninfo(AIRFLOW_DATABASE)) as connection:
        return dict(connection.execute(query, (dag_id, run_id)).fetchall())


def test_values_are_stored_as_a_worker_stores_them(api: AirflowApi, stack: EmbeddedStack, started: Any) -> None:
    run_id, state = api.run("free_values")
    assert state == "success", api.story("free_values", run_id)
    found = stored(stack, "free_values", run_id)
    free = {name.removeprefix("worker_free_"): value for name, value in found.items() if name.startswith("worker_free")}
    other = {name.removeprefix("deferrable_"): value for name, value in found.items() if name.startswith("deferrable")}
    assert free == other and len(free) == 9  # None is not stored
    processes = started("free_values", run_id)
    assert {name for name in processes if name.startswith("worker_free")} == set()
    for name, instance in api.tasks("free_values", run_id).items():
        assert (instance["pid"] is None) == name.startswith("worker_free"), name


def test_value_id_link_and_log_are_those_of_a_worker(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id, state = api.run("free_plain", task_name="sample.add", kwargs={"a": 40, "b": 2})
    assert state == "success", api.story("free_plain", run_id)
    (task,) = sent_by(hook, "free_plain", run_id)
    found = xcoms(api, "free_plain", run_id, "one")
    assert found["return_value"] == 42
    assert found["horsies_task_id"] == task.id
    links = api.call("GET", f"/dags/free_plain/dagRuns/{run_id}/taskInstances/one/links")["extra_links"]
    assert "<title>one · Horsies</title>" in api.get_page(links["Horsies attempts"])
    log = api.log("free_plain", run_id, "one")
    assert f"Sent task {task.id} to horsies queue default" in log
    assert f"Task {task.id}, attempt 1: COMPLETED" in log


def test_templates_render_as_on_a_worker(api: AirflowApi, started: Any) -> None:
    run_id = api.trigger("free_templates", logical_date="2026-01-01T00:00:00Z", who="me")
    assert api.wait("free_templates", run_id) == "success", api.story("free_templates", run_id)
    free = api.xcom("free_templates", run_id, "worker_free")
    assert free == api.xcom("free_templates", run_id, "deferrable")
    assert free[:2] == ["2026-01-01", "20260101T000000"]
    assert "worker_free" not in started("free_templates", run_id)


def test_mapped_task_expands_the_value(api: AirflowApi, started: Any) -> None:
    run_id, state = api.run("free_mapping")
    assert state == "success", api.story("free_mapping", run_id)
    assert [api.xcom("free_mapping", run_id, "double", map_index=index) for index in range(3)] == [2, 4, 6]
    assert "many" not in started("free_mapping", run_id)


def test_task_that_is_only_sent_returns_its_id(api: AirflowApi, hook: HorsiesHook, started: Any) -> None:
    run_id, state = api.run("free_sending", task_name="sample.add", kwargs={"a": 1, "b": 1}, queue="nobody")
    assert state == "success"
    (task,) = sent_by(hook, "free_sending", run_id)
    assert api.xcom("free_sending", run_id, "one") == task.id
    assert not started("free_sending", run_id)
    hook.cancel_task(task.id)


def test_failure_is_told_and_retried_as_on_a_worker(api: AirflowApi, hook: HorsiesHook, started: Any) -> None:
    run_id, state = api.run("free_retrying", task_name="acceptance.fail", kwargs={"code": "BROKEN"})
    assert state == "failed"
    instance = TaskInstanceKey(dag_id="free_retrying", run_id=run_id, task_id="one")
    submissions = hook.read_submissions(instance)
    assert [(each.life, each.round, each.try_number) for each in submissions] == [(1, 1, 1), (1, 2, 2)]
    assert "failed after 1 attempt: BROKEN: asked to fail" in api.log("free_retrying", run_id, "one", 2)
    assert started("free_retrying", run_id) == {"one": 2}


def test_retry_that_succeeds_needs_no_worker(api: AirflowApi, hook: HorsiesHook, started: Any, tmp_path: Path) -> None:
    gate = tmp_path / "there"
    run_id = api.trigger("free_retrying", task_name="acceptance.need_file", kwargs={"path": str(gate)})
    api.until(lambda: bool(sent_by(hook, "free_retrying", run_id)), 60, "the first task")
    hook.wait([sent_by(hook, "free_retrying", run_id)[0].id], timeout_seconds=60)
    gate.touch()
    assert api.wait("free_retrying", run_id) == "success", api.story("free_retrying", run_id)
    assert api.xcom("free_retrying", run_id, "one") == str(gate)
    assert [task.state for task in sent_by(hook, "free_retrying", run_id)] == [TaskState.FAILED, TaskState.COMPLETED]
    # The failure needed one; the success none.
    assert started("free_retrying", run_id) == {"one": 1}


def test_hopeless_code_is_not_tried_again(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id, state = api.run("free_failing_fast", task_name="acceptance.fail", kwargs={"code": "NO_HOPE"})
    assert state == "failed"
    assert api.tasks("free_failing_fast", run_id)["one"]["try_number"] == 1


@pytest.mark.parametrize(("variant", "outcome"), [("plain", "failed"), ("skipping", "skipped")])
def test_expiry_fails_or_skips_as_the_author_chose(
    api: AirflowApi, hook: HorsiesHook, variant: str, outcome: str
) -> None:
    dag_id = f"free_{variant}"
    soon = (datetime.now(UTC) + timedelta(seconds=4)).isoformat()
    run_id, _ = api.run(dag_id, task_name="sample.add", queue="nobody", good_until=soon)
    assert api.state(dag_id, run_id, "one") == outcome
    assert [task.state for task in sent_by(hook, dag_id, run_id)] == [TaskState.EXPIRED]


def test_time_out_cancels_the_horsies_task(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id, state = api.run("free_short_lived", task_name="sample.add", queue="nobody")
    assert state == "failed"
    assert [task.state for task in sent_by(hook, "free_short_lived", run_id)] == [TaskState.CANCELLED]
    assert "did not end within the execution_timeout of 0:00:04" in api.log("free_short_lived", run_id, "one")


def test_queue_that_nobody_serves_is_told_within_its_time(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id, state = api.run("free_impatient", task_name="sample.add", queue="nobody")
    assert state == "failed"
    assert "No live horsies worker serves queue 'nobody'" in api.log("free_impatient", run_id, "one")


def test_marking_the_task_failed_cancels_the_horsies_task(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id = api.trigger("free_plain", task_name="sample.add", queue="nobody")
    api.until(lambda: bool(sent_by(hook, "free_plain", run_id)), 60, "the submission")
    api.mark("free_plain", run_id, "one", "failed")
    (task,) = sent_by(hook, "free_plain", run_id)
    (ended,) = hook.wait([task.id], timeout_seconds=30)
    assert ended.state is TaskState.CANCELLED


def test_clearing_a_waiting_task_cancels_it_and_sends_another(
    api: AirflowApi, hook: HorsiesHook, started: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    run_id = api.trigger("free_plain", task_name="acceptance.wait_for_file", kwargs={"path": str(gate)})
    api.until(lambda: bool(sent_by(hook, "free_plain", run_id)), 60, "the submission")
    api.clear("free_plain", run_id, "one")
    api.until(lambda: len(sent_by(hook, "free_plain", run_id)) == 2, 60, "the second submission")
    gate.touch()
    assert api.wait("free_plain", run_id) == "success", api.story("free_plain", run_id)
    first, second = sent_by(hook, "free_plain", run_id)
    assert (first.state, second.state) == (TaskState.CANCELLED, TaskState.COMPLETED)
    assert not started("free_plain", run_id)


def test_clearing_a_success_runs_the_task_again(api: AirflowApi, hook: HorsiesHook, started: Any) -> None:
    run_id, state = api.run("free_plain", task_name="sample.add", kwargs={"a": 1, "b": 1})
    assert state == "success"
    api.clear("free_plain", run_id, "one")
    assert api.wait("free_plain", run_id) == "success"
    first, second = sent_by(hook, "free_plain", run_id)
    assert first.id != second.id
    assert api.xcom("free_plain", run_id, "one", key="horsies_task_id") == second.id
    assert not started("free_plain", run_id)


def test_batch_needs_no_worker_and_its_retry_runs_only_what_failed(
    api: AirflowApi, hook: HorsiesHook, started: Any, tmp_path: Path
) -> None:
    (tmp_path / "there").touch()
    items = [{"path": str(tmp_path / name)} for name in ("there", "missing")]
    run_id, state = api.run("free_batch", task_name="acceptance.need_file", items=items)
    assert state == "failed"
    assert len(sent_by(hook, "free_batch", run_id, "batch")) == 3
    (tmp_path / "missing").touch()
    api.clear("free_batch", run_id, "batch")
    assert api.wait("free_batch", run_id) == "success", api.story("free_batch", run_id)
    assert api.xcom("free_batch", run_id, "batch") == [item["path"] for item in items]
    assert len(sent_by(hook, "free_batch", run_id, "batch")) == 5
    assert started("free_batch", run_id) == {"batch": 2}


def test_sensor_needs_no_worker(api: AirflowApi, started: Any) -> None:
    run_id, state = api.run("free_sensor", task_name="sample.add", kwargs={"a": 1, "b": 1})
    assert state == "success", api.story("free_sensor", run_id)
    assert not started("free_sensor", run_id)


def test_sensor_fails_on_a_worker(api: AirflowApi, started: Any) -> None:
    run_id, state = api.run("free_sensor", task_name="acceptance.fail", kwargs={"code": "BROKEN"})
    assert state == "failed"
    states = {name: each["state"] for name, each in api.tasks("free_sensor", run_id).items()}
    assert states == {"one": "failed", "watch": "failed", "allow": "success"}
    assert started("free_sensor", run_id) == {"one": 1, "watch": 1}
    assert "did not end as COMPLETED" in api.log("free_sensor", run_id, "watch")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_many_survive_a_killed_triggerer_a_clear_and_cancels_and_send_each_task_once(
    api: AirflowApi, hook: HorsiesHook, stack: EmbeddedStack, started: Any, count: int
) -> None:
    dag_id, cleared, cancelled, marked = f"free_{count}", "t0", "t1", "t2"
    run_id = api.trigger(dag_id)
    api.until(lambda: bool(sent_by(hook, dag_id, run_id, cleared)), 120, "the first task")
    with dead(stack.airflow.processes["triggerer"]):
        pass
    api.until(lambda: api.state(dag_id, run_id, cleared) == "success", 400, "the first success")
    api.clear(dag_id, run_id, cleared)
    unserved = (cancelled, marked)
    api.until(lambda: all(sent_by(hook, dag_id, run_id, name) for name in unserved), 400, f"the tasks of {unserved}")
    hook.cancel_task(sent_by(hook, dag_id, run_id, cancelled)[0].id)
    api.mark(dag_id, run_id, marked, "failed")
    assert api.wait(dag_id, run_id, 800) == "failed"
    processes = started(dag_id, run_id)
    instances = api.tasks(dag_id, run_id)
    for number in range(count):
        name = f"t{number}"
        fails = number % 10 == 9 or name in unserved
        assert instances[name]["state"] == ("failed" if fails else "success"), api.story(dag_id, run_id)
        # Airflow reports a failure on a worker, but not one that a user has set.
        assert processes[name] == (fails and name != marked), name
        tasks = sent_by(hook, dag_id, run_id, name)
        assert len(tasks) == (2 if name == cleared else 1), name
        if name in unserved:
            assert tasks[0].state is TaskState.CANCELLED
        elif not fails:
            assert api.xcom(dag_id, run_id, name) == 1 + number / 1000
            assert api.xcom(dag_id, run_id, name, key="horsies_task_id") == tasks[-1].id
