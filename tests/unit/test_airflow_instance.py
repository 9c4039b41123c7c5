from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner

from airflow_horsies import airflow_instance
from airflow_horsies.airflow_instance import (
    RUN_KEY,
    InstanceState,
    airflow_try,
    instance_of,
    read_state,
    read_state_async,
)
from airflow_horsies.models import TaskInstanceKey

INSTANCE = TaskInstanceKey(dag_id="d", run_id="r", task_id="t", map_index=3)


class Store:
    """Airflow's task state store, kept with the DAG run."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.retention: Any = "not set"
        self.hidden: set[str] = set()
        self.fails = False

    def get(self, key: str) -> Any:
        if self.fails:
            raise RuntimeError("the api-server is away")
        # As whoever asked just before somebody else wrote it.
        if key in self.hidden:
            self.hidden = self.hidden - {key}
            return None
        return self.values.get(key)

    def set(self, key: str, value: Any, *, retention: Any) -> None:
        self.values[key] = value
        self.retention = retention


def context(**more: Any) -> dict[str, Any]:
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=None, try_number=2, max_tries=4)
    run = SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC), clear_number=3)
    return {"ti": ti, "dag_run": run, **more}


def test_a_try_is_what_airflow_records_of_it() -> None:
    tried = airflow_try(context())
    assert (tried.try_number, tried.max_tries, tried.clear_number, tried.run_key) == (2, 4, 3, None)
    assert instance_of(context()) == TaskInstanceKey(dag_id="d", run_id="r", task_id="t", map_index=-1)


def test_the_key_of_a_run_stays_as_long_as_the_run() -> None:
    from airflow.sdk.execution_time import context as sdk_context

    if not hasattr(sdk_context, "NEVER_EXPIRE"):
        pytest.skip("this Airflow keeps no task state")
    store = Store()
    first = airflow_try(context(task_state_store=store)).run_key
    assert first is not None
    assert airflow_try(context(task_state_store=store)).run_key == first
    assert store.retention is sdk_context.NEVER_EXPIRE
    assert airflow_try(context(task_state_store=Store())).run_key != first


def test_keys_that_several_tries_made_are_all_known_to_be_of_the_run() -> None:
    from airflow.sdk.execution_time import context as sdk_context

    if not hasattr(sdk_context, "NEVER_EXPIRE"):
        pytest.skip("this Airflow keeps no task state")
    store = Store()
    first = airflow_try(context(task_state_store=store), namespace="n")
    store.hidden = {RUN_KEY}
    second = airflow_try(context(task_state_store=store), namespace="n")
    assert first.run_key != second.run_key
    assert first.is_key_of_run and second.is_key_of_run
    assert first.run_key and second.run_key
    assert first.is_key_of_run(second.run_key) and second.is_key_of_run(first.run_key)
    assert first.is_key_of_run("of a run that was deleted n") is False
    store.fails = True
    assert first.is_key_of_run(second.run_key) is None


def test_a_store_that_fails_leaves_the_run_to_its_start() -> None:
    def fail(key: str) -> Any:
        raise RuntimeError("the api-server is away")

    assert airflow_try(context(task_state_store=SimpleNamespace(get=fail))).run_key is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (SimpleNamespace(task_states={"r": {"t_3": "running"}}), InstanceState(exists=True, state="running")),
        (SimpleNamespace(task_states={"r": {"t_3": None}}), InstanceState(exists=True, state=None)),
        (SimpleNamespace(task_states={}), InstanceState(exists=False)),
        (SimpleNamespace(error="not found"), None),
        (None, None),
        (ValueError("no answer"), None),
    ],
    ids=["running", "cleared", "deleted", "an error", "nothing", "raised"],
)
def test_state_is_asked_of_airflow(
    monkeypatch: pytest.MonkeyPatch, answer: Any, expected: InstanceState | None
) -> None:
    class Supervisor:
        def send(self, question: Any) -> Any:
            asked = (question.dag_id, question.task_ids, question.run_ids, question.map_index)
            assert asked == ("d", ["t"], ["r"], 3)
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)
    assert read_state(INSTANCE) == expected
    # As from a trigger of dag.test().
    assert asyncio.run(read_state_async(INSTANCE)) == expected


def test_a_question_that_waits_for_itself_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()

    class Supervisor:
        def send(self, question: Any) -> Any:
            with lock:
                return None

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)
    monkeypatch.setattr(airflow_instance, "ANSWER_SECONDS", 0.05)
    with lock:
        assert read_state(INSTANCE) is None


@pytest.mark.parametrize(
    ("state", "is_given_up", "by_trigger", "has_ended"),
    [
        (InstanceState(exists=False), True, True, False),
        (InstanceState(exists=True, state=None), False, True, False),
        (InstanceState(exists=True, state="restarting"), True, True, False),
        (InstanceState(exists=True, state="failed"), True, True, True),
        (InstanceState(exists=True, state="success"), True, True, True),
        *(
            (InstanceState(exists=True, state=state), False, False, False)
            for state in ("running", "deferred", "queued")
        ),
    ],
    ids=str,
)
def test_what_a_state_means(state: InstanceState, is_given_up: bool, by_trigger: bool, has_ended: bool) -> None:
    assert (state.is_given_up, state.is_given_up_by_trigger, state.has_ended) == (is_given_up, by_trigger, has_ended)
