from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.exceptions import InvalidTask, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec
from airflow_horsies.operators import HorsiesOperator, HorsiesSignalOperator
from airflow_horsies.operators.signal import dedup_key_of
from airflow_horsies.testing import FakeHorsies, run_task

INSTANCE = TaskInstanceKey(dag_id="d", run_id="r", task_id="t")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def sending(**given: Any) -> HorsiesSignalOperator:
    return HorsiesSignalOperator(**{"task_id": "approve", "name": "approved", **given})


def test_it_sends_the_rendered_payload_to_a_task() -> None:
    with FakeHorsies() as horsies:
        horsies.returns("publish")
        target = HorsiesHook().enqueue_task(TaskSpec(task_name="publish"))
        message_id = run_task(sending(target=target, payload={"day": "{{ ds }}"}), ds="2026-01-01")
        assert horsies.signals("approved") == [{"day": "2026-01-01"}]
        assert isinstance(message_id, str)


def test_it_finds_what_another_task_of_the_run_has_submitted() -> None:
    publish = HorsiesOperator(task_id="publish", task_name="publish", wait_for_completion=False)
    with FakeHorsies() as horsies:
        horsies.returns("publish")
        with pytest.raises(TaskNotFound, match="has submitted nothing"):
            run_task(sending(external_task_id="publish"))
        task_id = run_task(publish)
        (submission,) = HorsiesHook().client.read_submissions_of_task(task_id)
        sent = submission.task_instance
        target = {"external_task_id": sent.task_id, "external_dag_id": sent.dag_id, "external_run_id": sent.run_id}
        run_task(sending(**target, payload=1))
        assert horsies.signals("approved") == [1]


@pytest.mark.parametrize("given", [{}, {"target": "a", "external_task_id": "b"}])
def test_it_needs_one_target(given: dict[str, str]) -> None:
    with pytest.raises(InvalidTask, match="exactly one of target and external_task_id"):
        sending(**given)


def test_an_invalid_name_is_refused_when_the_dag_is_parsed_unless_it_is_a_template() -> None:
    with pytest.raises(InvalidTask, match="is not the name of a signal"):
        sending(name="no name", target="x")
    assert sending(name="{{ params.name }}", target="x").name == "{{ params.name }}"


def test_the_key_is_that_of_a_life() -> None:
    def key(**given: Any) -> str:
        tried = AirflowTry(**{"try_number": 1, "run_started_at": NOON, **given})
        return dedup_key_of(INSTANCE, tried, "ns")

    assert key() == key(try_number=2), "a retry"
    others = [key(clear_number=1), key(max_tries=1), key(run_started_at=NOON + timedelta(days=1)), key(run_key="k")]
    assert len({key(), *others, dedup_key_of(INSTANCE, AirflowTry(try_number=1, run_started_at=NOON), "other")}) == 6


def test_a_key_sends_once_in_the_test_kit() -> None:
    with FakeHorsies() as horsies:
        horsies.returns("publish")
        hook = HorsiesHook()
        target = hook.enqueue_task(TaskSpec(task_name="publish"))
        first = hook.signal(target, "approved", dedup_key="one")
        again = hook.signal(target, "approved", dedup_key="one")
        assert (first.is_new, again.is_new, again.id) == (True, False, first.id)
        assert horsies.signals("approved") == [None]
