from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import repeat
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
from airflow.sdk import DAG, task
from airflow.serialization import serialized_objects

from airflow_horsies import sensors
from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.exceptions import DatabaseUnreachable, HorsiesError, InvalidTask
from airflow_horsies.models import Submission, TaskInstanceKey, TaskState
from airflow_horsies.sensors import HorsiesQueueSensor, HorsiesSensor
from airflow_horsies.testing import FakeClient, FakeHorsies
from airflow_horsies.triggers import HorsiesQueueTrigger, HorsiesSensorTrigger, HorsiesSubmissionTrigger, holding
from tests.unit.fakes import failing, make_submission, make_task, put_submissions

ID = "0198a0de-0000-7000-8000-000000000001"
OTHER_ID = "0198a0de-0000-7000-8000-000000000002"
SUBMITTER = TaskInstanceKey(dag_id="sales", run_id="r", task_id="load")
STARTED = datetime.now(UTC) - timedelta(seconds=100)


def context() -> Any:
    return {"ti": SimpleNamespace(start_date=STARTED), "run_id": "manual__1"}


def put_states(horsies: FakeHorsies, states: Mapping[str, TaskState]) -> None:
    """As if horsies had these tasks, and no others."""
    why = {"error_code": "BAD_INPUT", "failed_reason": "no such table"}
    horsies.memory.tasks = {
        task_id: make_task(task_id, state, queue="spark", **why) for task_id, state in states.items()
    }


def make_sensor(**options: Any) -> HorsiesSensor:
    return HorsiesSensor(**{"task_id": "wait", "task_ids": ID, "deferrable": False, **options})


def make_external(**options: Any) -> HorsiesSensor:
    return make_sensor(
        **{"task_ids": None, "external_dag_id": "sales", "external_task_id": "load", "external_run_id": "r", **options}
    )


# -- what is refused when the DAG is parsed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_ids": None}, "task_ids: must be set, or external_dag_id and external_task_id"),
        ({"external_dag_id": "a", "external_task_id": "b"}, "but not both"),
        ({"task_ids": None, "external_dag_id": "a"}, "must be set together with external_task_id"),
        ({"task_ids": None, "external_task_id": "a"}, "must be set together with external_task_id"),
        ({"task_ids": "not-an-id"}, "must be a UUID, not 'not-an-id'"),
        ({"task_ids": [ID, "x"]}, "must be a UUID, not 'x'"),
        ({"task_ids": 7}, "must be the id of a horsies task or a list of ids, not 7"),
        ({"task_ids": {ID: 1}}, "must be the id of a horsies task or a list of ids"),
        ({"allowed_states": ["DONE"]}, "must only contain CANCELLED, COMPLETED, EXPIRED, FAILED, not DONE"),
        ({"allowed_states": ["RUNNING"]}, "FAILED, not RUNNING"),
        ({"allowed_states": []}, "allowed_states: must not be empty"),
        ({"failed_states": ["FAILED", "COMPLETED"]}, "must not contain a state of allowed_states: COMPLETED"),
        ({"external_map_index": "first"}, "external_map_index: must be an integer, not 'first'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistake_is_found_when_the_dag_is_parsed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        make_sensor(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_workers": -1}, "min_workers: must be 0 or more, not -1"),
        ({"max_depth": 0}, "max_depth: must be 1 or more, not 0"),
        ({"max_depth": "many"}, "max_depth: must be an integer, not 'many'"),
    ],
    ids=str,
)
def test_mistake_in_the_bounds_of_a_queue_is_found_when_the_dag_is_parsed(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTask) as caught:
        HorsiesQueueSensor(task_id="room", **options)
    assert message in str(caught.value)


def test_failing_states_are_those_that_are_not_allowed_unless_told() -> None:
    assert make_sensor().failed_states == {"FAILED", "CANCELLED", "EXPIRED"}
    assert make_sensor(allowed_states=["COMPLETED", "FAILED"]).failed_states == {"CANCELLED", "EXPIRED"}
    assert make_sensor(failed_states=[]).failed_states == set()


def test_deferrable_follows_airflows_setting_unless_told() -> None:
    assert HorsiesSensor(task_id="wait", task_ids=ID).deferrable is False
    assert HorsiesSensor(task_id="wait", task_ids=ID, deferrable=True).deferrable is True


# -- in a DAG ----------------------------------------------------------------------------------------------------------


def test_options_are_rendered() -> None:
    with DAG("d") as dag:
        by_id = make_sensor(task_ids="{{ var_ids }}")
        by_instance = HorsiesSensor(
            task_id="other",
            external_dag_id="{{ prefix }}_sales",
            external_task_id="load",
            external_map_index="{{ 1 + 1 }}",
        )
        queue = HorsiesQueueSensor(task_id="room", horsies_queue="{{ prefix }}", max_depth="{{ 5 * 2 }}")
    values = {"run_id": "manual__1", "prefix": "eu", "var_ids": f"['{ID}', '{OTHER_ID}']", "dag": dag}
    for sensor in (by_id, by_instance, queue):
        sensor.render_template_fields(values)
    assert sensors.task_ids_of(by_id.task_ids) == [ID, OTHER_ID]
    assert by_instance._submitter() == TaskInstanceKey(
        dag_id="eu_sales", run_id="manual__1", task_id="load", map_index=2
    )
    assert (queue.horsies_queue, queue._bounds()) == ("eu", (1, 10))


def serialized(dag: DAG) -> Any:
    """The DAG as the scheduler sees it; the class has another name before Airflow 3.2."""
    serialization: Any = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
    return serialization.from_dict(serialization.to_dict(dag))


def test_sensors_are_mapped_chained_and_serialized() -> None:
    with DAG("d") as dag:

        @task
        def find() -> list[str]:
            return [ID]

        make_sensor(task_id="after", task_ids=find())
        HorsiesSensor.partial(task_id="each").expand(task_ids=[[ID], [OTHER_ID]])
        HorsiesQueueSensor.partial(task_id="queues", max_depth=3).expand(horsies_queue=["a", "b"])
    assert dag.get_task("after").upstream_task_ids == {"find"}
    restored = serialized(dag)
    assert restored.task_ids == ["find", "after", "each", "queues"]
    assert tuple(restored.get_task("after").template_fields) == HorsiesSensor.template_fields


def test_queue_of_horsies_is_not_the_queue_of_airflows_executor() -> None:
    sensor = HorsiesQueueSensor(task_id="room", queue="spark")
    assert (sensor.horsies_queue, sensor.queue) == ("spark", "default")
    assert HorsiesQueueSensor(task_id="room").horsies_queue == "default"


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (ID, [ID]),
        (f"  {ID.upper()}\n", [ID]),
        ([ID, OTHER_ID, ID], [ID, OTHER_ID]),
        ((ID,), [ID]),
        (f'["{ID}", "{OTHER_ID}"]', [ID, OTHER_ID]),
        (f"['{ID}']", [ID]),
        ([], []),
        ("[]", []),
    ],
    ids=str,
)
def test_ids_come_in_many_forms(value: Any, ids: list[str]) -> None:
    assert sensors.task_ids_of(value) == ids


@pytest.mark.parametrize("value", [None, "None", "", "[oops", [None]], ids=repr)
def test_what_upstream_did_not_push_is_no_id(value: Any) -> None:
    with pytest.raises(InvalidTask, match=r"^task_ids?: "):
        sensors.task_ids_of(value)


# -- looking -----------------------------------------------------------------------------------------------------------


def test_all_tasks_must_end_as_wanted(horsies: FakeHorsies, capsys: pytest.CaptureFixture[str]) -> None:
    sensor = make_sensor(task_ids=[ID, OTHER_ID])
    put_states(horsies, {ID: TaskState.COMPLETED, OTHER_ID: TaskState.RUNNING})
    assert sensor.poke(context()) is False
    assert f"Waiting for 1 of 2 tasks. Task {OTHER_ID} is RUNNING" in capsys.readouterr().out
    put_states(horsies, {ID: TaskState.COMPLETED, OTHER_ID: TaskState.COMPLETED})
    assert sensor.poke(context()) is True


def test_no_tasks_are_done_at_once(horsies: FakeHorsies) -> None:
    assert make_sensor(task_ids=[]).poke(context()) is True


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED], ids=str)
def test_task_that_ended_badly_fails_the_sensor_with_the_reason(horsies: FakeHorsies, state: TaskState) -> None:
    put_states(horsies, {ID: state, OTHER_ID: TaskState.RUNNING})
    with pytest.raises(AirflowFailException) as caught:
        make_sensor(task_ids=[ID, OTHER_ID]).execute(context())
    for part in ("1 of 2", ID, state.value, "BAD_INPUT", "no such table", "spark"):
        assert part in str(caught.value)


def test_state_that_is_allowed_does_not_fail(horsies: FakeHorsies) -> None:
    put_states(horsies, {ID: TaskState.FAILED})
    assert make_sensor(allowed_states=["COMPLETED", "FAILED"]).poke(context()) is True


def test_end_that_is_neither_allowed_nor_failing_will_not_change(horsies: FakeHorsies) -> None:
    put_states(horsies, {ID: TaskState.EXPIRED})
    with pytest.raises(AirflowFailException, match="did not end as COMPLETED"):
        make_sensor(failed_states=["FAILED"]).poke(context())


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
def test_failure_becomes_a_skip_on_demand(horsies: FakeHorsies, option: str, deferrable: bool) -> None:
    put_states(horsies, {ID: TaskState.FAILED})
    with pytest.raises(AirflowSkipException):
        make_sensor(deferrable=deferrable, **{option: True}).execute(context())


@pytest.mark.parametrize("options", [{}, {"deferrable": True}, {"mode": "reschedule"}, {"silent_fail": True}], ids=str)
def test_task_that_does_not_exist_fails_at_once(horsies: FakeHorsies, options: dict[str, Any]) -> None:
    ti = SimpleNamespace(start_date=STARTED, get_first_reschedule_date=lambda context: None)
    with pytest.raises(AirflowFailException, match=f"Task {ID} does not exist"):
        make_sensor(**options).execute({"ti": ti})


@pytest.mark.parametrize(("poke_interval", "at_least", "at_most"), [(1, 10, 60), (3600, 3590, 3600)])
def test_rescheduled_sensor_never_comes_back_before_airflow_has_seen_it_leave(
    monkeypatch: pytest.MonkeyPatch, horsies: FakeHorsies, poke_interval: float, at_least: float, at_most: float
) -> None:
    monkeypatch.setattr(holding, "scheduler_heartbeat", lambda: None)
    put_states(horsies, {ID: TaskState.RUNNING})
    ti = SimpleNamespace(start_date=STARTED, get_first_reschedule_date=lambda context: None)
    with pytest.raises(AirflowRescheduleException) as asked:
        make_sensor(mode="reschedule", poke_interval=poke_interval, timeout=7200).execute({"ti": ti})
    assert at_least < (asked.value.reschedule_date - datetime.now(UTC)).total_seconds() <= at_most


def test_trigger_of_a_sensor_knows_when_it_deferred(horsies: FakeHorsies) -> None:
    put_states(horsies, {ID: TaskState.RUNNING})
    before = datetime.now(UTC)
    with pytest.raises(TaskDeferred) as left:
        make_sensor(deferrable=True).execute(context())
    assert before <= datetime.fromisoformat(left.value.trigger.deferred_at) <= datetime.now(UTC)


def test_id_that_is_none_fails_at_once(horsies: FakeHorsies) -> None:
    sensor = make_sensor(task_ids="{{ ti.xcom_pull('nobody') }}")
    sensor.task_ids = "None"
    with pytest.raises(AirflowFailException, match="must be a UUID, not 'None'"):
        sensor.execute(context())


def test_database_that_is_away_is_a_failure_and_no_skip(horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeClient, "read_states", failing(repeat(DatabaseUnreachable("gone"))))
    for options in ({"soft_fail": True}, {"soft_fail": True, "deferrable": True}):
        with pytest.raises(DatabaseUnreachable):
            make_sensor(**options).execute(context())
    with pytest.raises(AirflowSkipException):
        make_sensor(never_fail=True, deferrable=True).execute(context())


def submission(task_id: str, **values: Any) -> Submission:
    return make_submission(task_id, task_instance=SUBMITTER, **values)


def test_other_task_instance_is_waited_for_until_it_submits_and_ends(
    horsies: FakeHorsies, capsys: pytest.CaptureFixture[str]
) -> None:
    sensor = make_external()
    assert sensor.poke(context()) is False
    assert "sales.load of run r has not submitted a task yet" in capsys.readouterr().out
    put_submissions(horsies, [submission(ID, is_latest=False), submission(OTHER_ID, round=2)])
    put_states(horsies, {ID: TaskState.FAILED, OTHER_ID: TaskState.RUNNING})
    assert sensor.poke(context()) is False
    put_states(horsies, {ID: TaskState.FAILED, OTHER_ID: TaskState.COMPLETED})
    assert sensor.poke(context()) is True


@pytest.mark.parametrize(
    ("state", "is_done"),
    [
        (InstanceState(exists=True, state="success"), True),
        (InstanceState(exists=True, state="failed"), True),
        (None, False),
        (InstanceState(exists=True, state=None), False),
        (InstanceState(exists=True, state="running"), False),
        (InstanceState(exists=False), False),
    ],
    ids=["succeeded", "failed", "Airflow is silent", "cleared", "runs again", "run deleted"],
)
def test_what_was_submitted_before_a_clear_is_no_longer_waited_for(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch, state: InstanceState | None, is_done: bool
) -> None:
    monkeypatch.setattr(sensors, "can_ask", lambda: True)
    monkeypatch.setattr(sensors, "read_state", lambda instance: state)
    put_submissions(horsies, [submission(ID)])
    put_states(horsies, {ID: TaskState.COMPLETED})
    assert make_external().poke(context()) is is_done


@pytest.mark.parametrize("state", [None, "scheduled", "running", "up_for_retry"], ids=str)
def test_failure_before_a_clear_or_a_retry_is_not_the_end(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    monkeypatch.setattr(sensors, "can_ask", lambda: True)
    monkeypatch.setattr(sensors, "read_state", lambda instance: InstanceState(exists=True, state=state))
    put_submissions(horsies, [submission(ID)])
    put_states(horsies, {ID: TaskState.FAILED})
    assert make_external().poke(context()) is False


def test_clear_between_two_looks_is_no_failure(horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [[submission(ID)], [submission(ID, is_latest=False), submission(OTHER_ID, life=2)]]
    monkeypatch.setattr(FakeClient, "read_submissions", lambda client, task_instance: found.pop(0))
    put_states(horsies, {ID: TaskState.CANCELLED, OTHER_ID: TaskState.PENDING})
    assert make_external().poke(context()) is False
    assert found == []


def test_failed_submission_may_be_followed_by_another_if_that_is_wanted(horsies: FakeHorsies) -> None:
    put_submissions(horsies, [submission(ID)])
    put_states(horsies, {ID: TaskState.FAILED})
    with pytest.raises(AirflowFailException):
        make_external().poke(context())
    assert make_external(failed_states=[]).poke(context()) is False


@pytest.mark.parametrize(
    ("depth", "expected"), [((5, 1), True), ((10, 1), False), ((5, 0), False)], ids=["open", "full", "unserved"]
)
def test_queue_is_looked_at(horsies: FakeHorsies, depth: tuple[int, int], expected: bool) -> None:
    ready, served_by = depth
    horsies.queue("spark", ready=ready, workers=served_by)
    assert HorsiesQueueSensor(task_id="room", queue="spark", max_depth=10).poke(context()) is expected


# -- deferring ---------------------------------------------------------------------------------------------------------


def deferred(sensor: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute(context())
    assert caught.value.method_name == "execute_complete"
    return caught.value


def test_task_that_ended_already_needs_no_deferral(horsies: FakeHorsies) -> None:
    put_states(horsies, {ID: TaskState.COMPLETED})
    assert make_sensor(deferrable=True).execute(context()) is None


def test_sensor_defers_until_its_deadline_and_never_cancels(horsies: FakeHorsies) -> None:
    put_states(horsies, {ID: TaskState.PENDING})
    before = datetime.now(UTC)
    left = deferred(make_sensor(deferrable=True, timeout=86_400))
    trigger = left.trigger
    assert isinstance(trigger, HorsiesSensorTrigger)
    assert trigger.task_ids == [ID]
    assert trigger.failed_states == ["CANCELLED", "EXPIRED", "FAILED"]
    assert trigger.cancel_on_kill is False
    deadline = STARTED + timedelta(days=1)
    assert trigger.deadline == deadline.isoformat()
    airflow_gives_up = deadline + sensors.TRIGGERER_GRACE
    assert left.timeout is not None
    assert airflow_gives_up - datetime.now(UTC) <= left.timeout <= airflow_gives_up - before


def test_sensor_of_a_submission_defers_with_what_it_needs_to_look_for_it(horsies: FakeHorsies) -> None:
    trigger = deferred(make_external(deferrable=True, external_map_index=3, poke_interval=0, failed_states=[])).trigger
    assert isinstance(trigger, HorsiesSubmissionTrigger)
    assert trigger.submitter == {"dag_id": "sales", "run_id": "r", "task_id": "load", "map_index": 3}
    assert (trigger.allowed_states, trigger.failed_states, trigger.poll_seconds) == (["COMPLETED"], [], 1.0)
    assert trigger.cancel_on_kill is False


def test_queue_sensor_defers_with_its_bounds(horsies: FakeHorsies) -> None:
    sensor = HorsiesQueueSensor(
        task_id="room", queue="spark", min_workers=2, max_depth="7", poke_interval=20, deferrable=True
    )
    horsies.queue("spark", workers=0)
    trigger = deferred(sensor).trigger
    assert isinstance(trigger, HorsiesQueueTrigger)
    assert (trigger.queue, trigger.min_workers, trigger.max_depth, trigger.poll_seconds) == ("spark", 2, 7, 20)


def resume(sensor: Any, **event: Any) -> Any:
    return sensor.resume_execution("execute_complete", {"event": {"message": None, **event}}, context())


@pytest.mark.parametrize("reason", ["ended", "decided", "not_found", "timed_out"])
def test_tables_have_the_last_word(horsies: FakeHorsies, reason: str) -> None:
    put_states(horsies, {ID: TaskState.COMPLETED})
    assert resume(make_sensor(deferrable=True), reason=reason) is None
    put_states(horsies, {ID: TaskState.FAILED})
    with pytest.raises(AirflowFailException, match="no such table"):
        resume(make_sensor(deferrable=True), reason=reason)
    with pytest.raises(AirflowSkipException):
        resume(make_sensor(deferrable=True, soft_fail=True), reason=reason)


def test_time_out_is_airflows_own(horsies: FakeHorsies) -> None:
    put_states(horsies, {ID: TaskState.RUNNING})
    with pytest.raises(AirflowSensorTimeout, match=r"timed out after 60\.0 seconds"):
        resume(make_sensor(deferrable=True, timeout=60), reason="timed_out")
    with pytest.raises(AirflowSkipException):
        resume(make_sensor(deferrable=True, soft_fail=True), reason="timed_out")


def test_condition_that_no_longer_holds_is_waited_for_again(horsies: FakeHorsies) -> None:
    horsies.queue("default", workers=0)
    with pytest.raises(TaskDeferred):
        resume(HorsiesQueueSensor(task_id="room", deferrable=True), reason="ended")


def test_error_of_the_trigger_is_told(horsies: FakeHorsies) -> None:
    with pytest.raises(HorsiesError, match="no horsies tables"):
        resume(make_sensor(deferrable=True, soft_fail=True), reason="error", message="no horsies tables")
    with pytest.raises(AirflowSkipException, match="never_fail"):
        resume(make_sensor(deferrable=True, never_fail=True), reason="error", message="no horsies tables")
