"""Fails when a private part of Airflow moves."""

from __future__ import annotations

import inspect
import os
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.jobs import triggerer_job_runner
from airflow.listeners import hookimpl
from airflow.models import taskinstance
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.execution_time import comms, supervisor, task_runner
from jinja2 import UndefinedError

from airflow_horsies.borrowed import airflow as borrowed
from tests.unit.worker_free import as_stored, needs_worker_free


def test_tasks_ask_their_supervisor_through_this_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "SUPERVISOR_COMMS" in inspect.getsource(task_runner) + inspect.getsource(supervisor)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", "here", raising=False)
    assert borrowed.find_supervisor() == "here"


def test_a_supervisor_is_asked_for_the_state_of_one_task_instance() -> None:
    question = borrowed.state_question(dag_id="d", run_id="r", task_id="t", map_index=3)
    assert isinstance(question, comms.GetTaskStates)
    assert (question.dag_id, question.task_ids, question.run_ids, question.map_index) == ("d", ["t"], ["r"], 3)


def test_an_answer_has_states_by_run() -> None:
    answer = comms.TaskStatesResult(task_states={"r": {"t": "running"}})
    assert borrowed.states_in(answer, "r") == ["running"]
    assert borrowed.states_in(answer, "another") == []
    assert borrowed.states_in(SimpleNamespace(), "r") is None


def test_a_triggerer_of_airflow_asks_asynchronously() -> None:
    assert "asend" in inspect.getsource(triggerer_job_runner) + inspect.getsource(comms)
    assert borrowed.asks_asynchronously(SimpleNamespace(asend=None))
    assert not borrowed.asks_asynchronously(SimpleNamespace())
    assert borrowed.is_shutting_down(SimpleNamespace(_reader_task=SimpleNamespace(done=lambda: True)))
    assert not borrowed.is_shutting_down(SimpleNamespace())


def test_an_operator_knows_whether_it_was_mapped() -> None:
    operator = BaseOperator(task_id="t")
    assert hasattr(operator, borrowed.FROM_MAPPED)
    assert not borrowed.is_from_mapped(operator)
    setattr(operator, borrowed.FROM_MAPPED, True)
    assert borrowed.is_from_mapped(operator)


def test_a_command_is_a_server_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    assert borrowed.PROCESS_CONTEXT in inspect.getsource(supervisor)
    monkeypatch.delenv(borrowed.PROCESS_CONTEXT, raising=False)
    with borrowed.as_server():
        assert os.environ[borrowed.PROCESS_CONTEXT] == "server"
    assert borrowed.PROCESS_CONTEXT not in os.environ


@needs_worker_free
def test_templates_are_rendered_in_the_environment_of_a_dag() -> None:
    assert borrowed.template_env(native=True).from_string("{{ [1, 2] }}").render() == [1, 2]
    assert borrowed.template_env().from_string("{{ day | ds }}").render(day=datetime(2026, 1, 1)) == "2026-01-01"
    with pytest.raises(UndefinedError):
        borrowed.template_env().from_string("{{ nothing }}").render()


@needs_worker_free
def test_listeners_of_tasks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.listener import get_listener_manager

    class Listener:
        @hookimpl
        def on_task_instance_success(self, task_instance: object) -> None: ...

    manager = get_listener_manager()
    assert borrowed.task_listeners() == []
    manager.pm.register(Listener(), "lineage")
    try:
        assert borrowed.task_listeners() == ["lineage"]
    finally:
        manager.pm.unregister(name="lineage")


@needs_worker_free
def test_a_triggerer_stores_and_removes_the_value_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with DAG("d", schedule=None) as dag:
        EmptyOperator(task_id="t")
    sent: list[Any] = []
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=sent.append), raising=False)
    task = as_stored(dag).get_task("t")
    ti = task_runner.RuntimeTaskInstance.model_construct(
        id="i", dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, task=task
    )
    borrowed.complete_task(ti)
    borrowed.push_result(ti, {"a": [1]}, structlog.get_logger())
    borrowed.delete_result(ti)
    assert [type(message) for message in sent] == [comms.SetXCom, comms.DeleteXCom]
    assert (sent[0].key, sent[0].value) == ("return_value", {"a": [1]})


@needs_worker_free
def test_a_triggerer_understands_what_a_starting_task_asks() -> None:
    known = str(triggerer_job_runner.ToTriggerSupervisor)
    for message in ("SetXCom", "DeleteXCom", "GetVariable", "GetConnection", "GetTaskStates"):
        assert f"comms.{message}" in known
    # If it learns to answer these, xcom_pull and the task state store need no longer be refused.
    for message in ("GetXComSequenceSlice", "GetTaskStateStore"):
        assert f"comms.{message}" not in known


@needs_worker_free
def test_a_clear_renews_the_trace_of_a_task_instance_and_a_retry_does_not() -> None:
    from airflow.executors.workloads.task import TaskInstanceDTO

    assert "ti.context_carrier = new_task_run_carrier" in inspect.getsource(taskinstance.clear_task_instances)
    assert "context_carrier" not in inspect.getsource(taskinstance.TaskInstance.prepare_db_for_next_try)
    assert "context_carrier" in TaskInstanceDTO.model_fields
