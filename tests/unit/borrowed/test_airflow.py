"""Fails when a private part of Airflow moves."""

from __future__ import annotations

import inspect
import os
from types import SimpleNamespace

import pytest
from airflow.jobs import triggerer_job_runner
from airflow.sdk import BaseOperator
from airflow.sdk.execution_time import comms, supervisor, task_runner

from airflow_horsies.borrowed import airflow as borrowed


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
