"""Sensors on real databases, in each of their modes."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskSpec, TaskState
from airflow_horsies.sensors import HorsiesQueueSensor, HorsiesSensor
from tests.integration.releases import MOVED
from tests.integration.test_hub import LATER
from tests.integration.test_submit import end_task
from tests.integration.test_triggers import (
    ABSENT,
    CONN_ID,
    INSTANCE,
    event_of,
    stored_connection,  # noqa: F401 - used by every test
)


@pytest.fixture(autouse=True)
def no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no scheduler here that could fail a sensor that is back too soon."""
    monkeypatch.setenv("AIRFLOW__HORSIES__RESUME_HOLD_SECONDS", "0")


on_one_release = pytest.mark.parametrize("release", [MOVED], indirect=True)
in_each_mode = pytest.mark.parametrize(
    "mode", [{"mode": "poke"}, {"mode": "reschedule"}, {"deferrable": True}], ids=["poke", "reschedule", "deferrable"]
)


def make_sensor(**options: Any) -> HorsiesSensor:
    return HorsiesSensor(
        **{
            "task_id": "wait",
            "horsies_conn_id": CONN_ID,
            "poke_interval": 0.2,
            "timeout": 30,
            "deferrable": False,
            **options,
        }
    )


def make_external(**options: Any) -> HorsiesSensor:
    return make_sensor(
        external_dag_id=INSTANCE.dag_id,
        external_task_id=INSTANCE.task_id,
        external_run_id=INSTANCE.run_id,
        **options,
    )


def run_task(make: Callable[[], Any], *, resumes: int = 20) -> Any:
    """What Airflow does with the task: run it, reschedule it, or run its trigger and resume it; each time anew."""
    started = datetime.now(UTC)
    rescheduled: list[datetime] = []
    ti = SimpleNamespace(
        start_date=started, get_first_reschedule_date=lambda context: rescheduled[0] if rescheduled else None
    )
    context = {"ti": ti}
    resume: Callable[[Any], Any] = lambda sensor: sensor.execute(context)  # noqa: E731
    for _ in range(resumes * 10):
        try:
            return resume(make())
        except AirflowRescheduleException as later:
            rescheduled.append(started)
            time.sleep(max((later.reschedule_date - datetime.now(UTC)).total_seconds(), 0))
        except TaskDeferred as left:
            event = asyncio.run(asyncio.wait_for(event_of(left.trigger), 60))
            method = left.method_name
            resume = lambda sensor, method=method, event=event: sensor.resume_execution(  # noqa: E731
                method, {"event": event}, context
            )
    raise AssertionError("it never ended")


@in_each_mode
def test_tasks_are_waited_for(hook: HorsiesHook, release: str, mode: dict[str, Any]) -> None:
    ids = hook.enqueue_tasks([LATER] * 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_task, lambda: make_sensor(task_ids=ids, **mode))
        time.sleep(0.5)
        end_task(hook, ids[0], TaskState.COMPLETED, release)
        time.sleep(0.5)
        assert not waiting.done()
        end_task(hook, ids[1], TaskState.COMPLETED, release)
        assert waiting.result(30) is None


@in_each_mode
def test_one_task_that_failed_fails_the_sensor_at_once(hook: HorsiesHook, release: str, mode: dict[str, Any]) -> None:
    ids = hook.enqueue_tasks([LATER] * 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_task, lambda: make_sensor(task_ids=ids, **mode))
        time.sleep(0.5)
        end_task(hook, ids[1], TaskState.EXPIRED, release)
        with pytest.raises(AirflowFailException, match=rf"1 of 2 .*{ids[1]}.* is EXPIRED"):
            waiting.result(30)
    assert hook.read_task(ids[0]).state is TaskState.PENDING


@in_each_mode
def test_task_that_never_existed_fails_the_sensor_at_once(hook: HorsiesHook, mode: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match=r"never existed.*past its retention"):
        run_task(lambda: make_sensor(task_ids=ABSENT, **mode))


@in_each_mode
def test_time_out_leaves_the_task_alone(hook: HorsiesHook, mode: dict[str, Any]) -> None:
    task_id = hook.enqueue_task(LATER)
    with pytest.raises(AirflowSensorTimeout):
        run_task(lambda: make_sensor(task_ids=task_id, **{**mode, "timeout": 0.5}))
    with pytest.raises(AirflowSkipException):
        run_task(lambda: make_sensor(task_ids=task_id, soft_fail=True, **{**mode, "timeout": 0.5}))
    assert hook.read_task(task_id).state is TaskState.PENDING


@in_each_mode
def test_soft_fail_skips_after_a_failure(hook: HorsiesHook, mode: dict[str, Any]) -> None:
    task_id = hook.enqueue_task(LATER)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_task, lambda: make_sensor(task_ids=task_id, soft_fail=True, **mode))
        time.sleep(0.5)
        hook.cancel_task(task_id)
        with pytest.raises(AirflowSkipException):
            waiting.result(30)


@in_each_mode
def test_submission_of_another_dag_is_waited_for(hook: HorsiesHook, release: str, mode: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_task, lambda: make_external(**mode))
        time.sleep(0.3)
        first = hook.submit_tasks([LATER] * 2, INSTANCE, AirflowTry(try_number=1))
        time.sleep(0.3)
        # Over there it is cleared, and runs again with fewer items.
        second = hook.submit_tasks([LATER], INSTANCE, AirflowTry(clear_number=1, try_number=2))
        assert hook.read_task(first[1].task_id).state is TaskState.CANCELLED
        time.sleep(0.5)
        assert not waiting.done()
        end_task(hook, second[0].task_id, TaskState.COMPLETED, release)
        assert waiting.result(30) is None


@in_each_mode
def test_failed_submission_of_another_dag_fails_the_sensor(
    hook: HorsiesHook, release: str, mode: dict[str, Any]
) -> None:
    sent = hook.submit_task(LATER, INSTANCE, AirflowTry(try_number=1))
    end_task(hook, sent.task_id, TaskState.FAILED, release)
    with pytest.raises(AirflowFailException, match=sent.task_id):
        run_task(lambda: make_external(**mode))


def test_submission_past_its_retention_is_an_error_that_says_so(hook: HorsiesHook) -> None:
    hook.submit_task(LATER, INSTANCE, AirflowTry(try_number=1))
    with hook.get_conn() as connection:
        connection.execute("DELETE FROM horsies_tasks")
    with pytest.raises(AirflowFailException, match="past its retention"):
        make_external().poke({})


@on_one_release
@in_each_mode
def test_room_in_a_queue_is_waited_for(
    served_database: str, make_hook: Callable[..., HorsiesHook], mode: dict[str, Any]
) -> None:
    hook = make_hook(served_database)

    def make(**options: Any) -> Callable[[], HorsiesQueueSensor]:
        return lambda: HorsiesQueueSensor(
            task_id="room", horsies_conn_id=CONN_ID, **{"poke_interval": 0.2, "timeout": 30, **mode, **options}
        )

    assert run_task(make(queue="default", max_depth=1_000)) is None
    with pytest.raises(AirflowSensorTimeout):
        run_task(make(queue="unserved", timeout=0.5))
    queue = f"full-{uuid.uuid4()}"
    ids = hook.enqueue_tasks([TaskSpec(task_name="add", queue=queue)] * 3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_task, make(queue=queue, min_workers=0, max_depth=3))
        time.sleep(0.5)
        assert not waiting.done()
        hook.cancel_task(ids[0])
        assert waiting.result(30) is None


@on_one_release
def test_deferred_sensor_is_woken_by_the_end_and_not_by_its_poke_interval(hook: HorsiesHook, release: str) -> None:
    task_id = hook.enqueue_task(LATER)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_task, lambda: make_sensor(task_ids=task_id, deferrable=True, poke_interval=3_600))
        time.sleep(1)
        end_task(hook, task_id, TaskState.COMPLETED, release)
        assert waiting.result(10) is None
