"""The sensor of workflows, with the test kit, in each of its modes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout, AirflowSkipException
from airflow.sdk import DAG

from airflow_horsies import sensors
from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.operators import HorsiesOperator, HorsiesWorkflowOperator
from airflow_horsies.sensors import HorsiesSensor, HorsiesWorkflowSensor
from airflow_horsies.testing import FakeHorsies, run_task
from airflow_horsies.triggers import HorsiesWorkflowSensorTrigger, HorsiesWorkflowSubmissionTrigger

DAY = datetime(2026, 1, 1, tzinfo=UTC)
ID = "0198a0de-0000-7000-8000-000000000001"
BOTH_WAYS = pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "deferrable"])


def start(**options: Any) -> str:
    operator = HorsiesWorkflowOperator(task_id="start", workflow="flights.month", wait_for_completion=False, **options)
    started: str = run_task(operator, logical_date=DAY)
    return started


def make_sensor(**options: Any) -> HorsiesWorkflowSensor:
    return HorsiesWorkflowSensor(**{"task_id": "wait", "poke_interval": 0.01, "timeout": 0.05, **options})


def make_external(**options: Any) -> HorsiesWorkflowSensor:
    return make_sensor(external_dag_id="dag_of_start", external_task_id="start", **options)


@BOTH_WAYS
@pytest.mark.parametrize("way", ["by id", "by task instance"])
def test_completed_workflow_is_the_end(horsies: FakeHorsies, way: str, deferrable: bool) -> None:
    horsies.workflow_returns("flights.month", 3)
    workflow_id = start()
    made = make_sensor(workflow_ids=[workflow_id], deferrable=deferrable)
    if way == "by task instance":
        made = make_external(deferrable=deferrable)
    run_task(made, logical_date=DAY)


@BOTH_WAYS
@pytest.mark.parametrize("way", ["by id", "by task instance"])
def test_failed_workflow_fails_the_sensor_with_its_cause(horsies: FakeHorsies, way: str, deferrable: bool) -> None:
    horsies.workflow_fails("flights.month", "BROKEN", "no such day", node="load")
    workflow_id = start()
    made = make_sensor(workflow_ids=workflow_id, deferrable=deferrable)
    if way == "by task instance":
        made = make_external(deferrable=deferrable)
    with pytest.raises(
        AirflowFailException, match=rf"1 of 1 workflow .*{workflow_id}.*FAILED: at node .*/load .*BROKEN"
    ):
        run_task(made, logical_date=DAY)


@BOTH_WAYS
def test_allowed_state_is_no_failure(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.workflow_is_cancelled("flights.month")
    run_task(make_sensor(workflow_ids=start(), allowed_states=["CANCELLED"], deferrable=deferrable))


def test_time_out_cancels_nothing(horsies: FakeHorsies) -> None:
    horsies.workflow_never_ends("flights.month")
    workflow_id = start()
    with pytest.raises(AirflowSensorTimeout):
        run_task(make_sensor(workflow_ids=workflow_id))
    assert HorsiesHook().read_workflow_outcome(workflow_id).state == "RUNNING"


@BOTH_WAYS
@pytest.mark.parametrize("way", ["by id", "by task instance"])
def test_pause_fails_the_sensor_if_that_is_wanted(horsies: FakeHorsies, way: str, deferrable: bool) -> None:
    horsies.workflow_is_paused("flights.month", error_code="BROKEN", node="load")
    workflow_id = start()
    options = {"on_paused": "fail", "deferrable": deferrable}
    made = make_sensor(workflow_ids=workflow_id, **options) if way == "by id" else make_external(**options)
    with pytest.raises(AirflowFailException, match="is paused at node"):
        run_task(made, logical_date=DAY)
    assert HorsiesHook().read_workflow_outcome(workflow_id).state == "PAUSED"


def test_pause_is_waited_for_otherwise(horsies: FakeHorsies) -> None:
    horsies.workflow_is_paused("flights.month")
    with pytest.raises(AirflowSensorTimeout):
        run_task(make_sensor(workflow_ids=start()))


@pytest.mark.parametrize(
    ("state", "fails"), [("running", True), ("deferred", True), ("failed", True), (None, False), ("queued", False)]
)
def test_pause_of_an_instance_that_is_about_to_submit_again_is_no_failure(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch, state: str | None, fails: bool
) -> None:
    horsies.workflow_is_paused("flights.month")
    start()
    monkeypatch.setattr(sensors, "can_ask", lambda: True)
    monkeypatch.setattr(sensors, "read_state", lambda instance: InstanceState(exists=True, state=state))
    expected = AirflowFailException if fails else AirflowSensorTimeout
    with pytest.raises(expected):
        run_task(make_external(on_paused="fail"), logical_date=DAY)


@pytest.mark.parametrize("state", [None, "queued", "running"])
def test_completed_workflow_of_a_cleared_instance_is_not_the_end(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    horsies.workflow_returns("flights.month", 3)
    start()
    monkeypatch.setattr(sensors, "can_ask", lambda: True)
    monkeypatch.setattr(sensors, "read_state", lambda instance: InstanceState(exists=True, state=state))
    with pytest.raises(AirflowSensorTimeout):
        run_task(make_external(), logical_date=DAY)


def test_workflow_that_does_not_exist_fails_the_sensor(horsies: FakeHorsies) -> None:
    with pytest.raises(AirflowFailException, match="does not exist"):
        run_task(make_sensor(workflow_ids=ID))


def test_sensor_of_the_other_kind_is_named(horsies: FakeHorsies) -> None:
    horsies.workflow_returns("flights.month", 3)
    start()
    other = HorsiesSensor(task_id="wait", external_dag_id="dag_of_start", external_task_id="start")
    with pytest.raises(AirflowFailException, match=r"a workflow and not a task\. Use HorsiesWorkflowSensor"):
        run_task(other, logical_date=DAY)
    horsies.returns("t.load", 1)
    run_task(HorsiesOperator(task_id="start", task_name="t.load"), logical_date=datetime(2026, 1, 2, tzinfo=UTC))
    with pytest.raises(AirflowFailException, match=r"a task and not a workflow\. Use HorsiesSensor"):
        run_task(make_external(), logical_date=datetime(2026, 1, 2, tzinfo=UTC))


def test_soft_failure_is_a_skip(horsies: FakeHorsies) -> None:
    horsies.workflow_is_cancelled("flights.month")
    with pytest.raises(AirflowSkipException):
        run_task(make_sensor(workflow_ids=start(), soft_fail=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "workflow_ids: must be set, or external_dag_id and external_task_id"),
        ({"workflow_ids": "x"}, "must be a UUID, not 'x'"),
        ({"workflow_ids": 7}, "workflow_ids: must be the id of a horsies workflow or a list of ids, not 7"),
        ({"workflow_ids": ID, "on_paused": "cancel"}, "on_paused: must be 'wait' or 'fail', not 'cancel'. A sensor"),
    ],
)
def test_mistake_is_found_when_the_dag_is_parsed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        make_sensor(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "trigger",
    [
        HorsiesWorkflowSensorTrigger(workflow_ids=[ID], failed_states=["FAILED"], on_paused="fail", deadline="2026"),
        HorsiesWorkflowSubmissionTrigger(
            task_instance={"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}, on_paused="fail"
        ),
    ],
    ids=["by id", "by task instance"],
)
def test_trigger_survives_the_database_of_airflow(trigger: Any) -> None:
    path, kwargs = trigger.serialize()
    assert path == f"airflow_horsies.triggers.{type(trigger).__name__}"
    assert type(trigger)(**kwargs).serialize() == (path, kwargs)
    assert kwargs["on_paused"] == "fail"


def test_output_of_another_task_is_a_dependency() -> None:
    with DAG("d", schedule=None):
        first = HorsiesWorkflowOperator(task_id="first", workflow="flights.month", wait_for_completion=False)
        sensor = make_sensor(workflow_ids=first.output)
    assert sensor.upstream_task_ids == {"first"}
