from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, TaskDeferred
from airflow.sdk import DAG, Asset, task, task_group
from airflow.sdk.bases.operator import TriggerFailureReason
from jinja2 import Undefined

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import RetryPolicy, TaskState
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator, worker_free
from airflow_horsies.operators.outcomes import TaskTimedOut
from airflow_horsies.operators.worker_free import decode_fields
from airflow_horsies.sensors import HorsiesSensor
from airflow_horsies.testing import FakeHorsies, make_context
from tests.unit.worker_free import as_stored, needs_worker_free

pytestmark = needs_worker_free

UPSTREAM = HorsiesOperator(task_id="before", task_name="add")


def one(**given: Any) -> HorsiesOperator:
    with DAG("sales", schedule=None):
        return HorsiesOperator(**{"task_id": "one", "task_name": "add", "worker_free": True, **given})


class Derived(HorsiesOperator):
    """Of an author, with code that a triggerer does not have."""


def test_task_starts_in_the_triggerer_only_where_the_author_says_so() -> None:
    ordinary = one(worker_free=False)
    assert (ordinary.start_from_trigger, ordinary.start_trigger_args) == (False, None)
    assert HorsiesOperator.start_trigger_args is None
    free = one()
    assert free.start_from_trigger and free.deferrable
    assert free.start_trigger_args.trigger_cls == "airflow_horsies.operators.starting.HorsiesStartTrigger"
    assert free.start_trigger_args.next_method == "execute_complete"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"kwargs": {"a": "{{ ti.xcom_pull('x') }}"}}, "the template in kwargs.a uses ti.xcom_pull"),
        ({"kwargs": {"a": [{"b": UPSTREAM.output}]}}, r"kwargs.a\[0\].b is the output of another task"),
        ({"task_name": "{{ ti.xcom_pull('x') }}"}, "the template in task_name"),
        ({"kwargs": {"a": datetime(2026, 1, 1, tzinfo=UTC)}}, "kwargs.a is of type datetime"),
        ({"kwargs": {"a": float("nan")}}, "kwargs.a is nan"),
        ({"kwargs": {1: 2}}, "kwargs has the key 1"),
        ({"kwargs": {"a": "x" * 1_100_000}}, r"the arguments take 1,1\d\d,\d\d\d bytes"),
        ({"outlets": [Asset("lake")]}, "it has outlets"),
        ({"on_execute_callback": print}, "it has an on_execute_callback"),
        ({"on_success_callback": print}, "it has an on_success_callback"),
        ({"pre_execute": print}, "it has a pre_execute hook"),
        ({"post_execute": print}, "it has a post_execute hook"),
        ({"pool": "few"}, "it has a pool"),
        ({"pool_slots": 2}, "it has a pool"),
        ({"max_active_tis_per_dag": 1}, "it limits max_active_tis_per_dag"),
        ({"max_active_tis_per_dagrun": 1}, "it limits max_active_tis_per_dag"),
    ],
)
def test_what_a_triggerer_cannot_do_is_refused_when_the_dag_is_parsed(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=f"worker_free: is not possible: {reason}"):
        one(**given)
    one(**given, worker_free=False)


def test_what_is_set_later_is_refused_when_the_dag_is_serialized() -> None:
    with DAG("sales", schedule=None) as dag:
        later = HorsiesOperator(task_id="one", task_name="add", worker_free=True)
    as_stored(dag)
    later.outlets = [Asset("lake")]
    with pytest.raises(Exception, match="it has outlets"):
        as_stored(dag)


def test_failure_callbacks_and_retries_are_left_to_a_worker() -> None:
    one(on_failure_callback=print, on_retry_callback=print, on_skipped_callback=print, retries=3)


def test_subclass_and_decorated_function_are_refused() -> None:
    with DAG("sales", schedule=None), pytest.raises(InvalidTask, match="Derived has code of its own"):
        Derived(task_id="one", task_name="add", worker_free=True)

    @task.horsies("add", worker_free=True)
    def arguments() -> dict[str, int]:
        return {"a": 1}

    with DAG("sales", schedule=None), pytest.raises(InvalidTask, match="has code of its own"):
        arguments()


def test_batch_that_repairs_after_each_clear_is_refused() -> None:
    given: dict[str, Any] = {"task_id": "one", "task_name": "add", "items": [{"a": 1}], "worker_free": True}
    with DAG("sales", schedule=None), pytest.raises(InvalidTask, match=r"on_clear='failed', .*deferrable=True"):
        HorsiesBatchOperator(**given, on_clear="failed")
    with DAG("sales", schedule=None):
        batch = HorsiesBatchOperator(**given, chunk_size=2, isolate="item", results="counts")
    fields = json.loads(batch.start_trigger_args.trigger_kwargs["fields"])
    assert [fields[name] for name in ("chunk_size", "isolate", "results")] == [2, "item", "counts"]


@pytest.mark.parametrize("operator", [HorsiesOperator, HorsiesBatchOperator, HorsiesSensor])
def test_mapped_task_is_refused(operator: Any) -> None:
    with DAG("sales", schedule=None), pytest.raises(InvalidTask, match="is not possible for a mapped task"):
        operator.partial(task_id="each", worker_free=True)
    with (
        DAG("sales", schedule=None, default_args={"worker_free": True}),
        pytest.raises(InvalidTask, match="is not possible for a mapped task"),
    ):
        operator.partial(task_id="each")


def test_task_in_a_mapped_group_is_refused() -> None:
    @task_group
    def group(number: int) -> None:
        HorsiesOperator(task_id="one", task_name="add", worker_free=True)

    with DAG("sales", schedule=None) as dag, pytest.raises(InvalidTask, match="it is in a mapped task group"):
        group.expand(number=[1, 2])
        as_stored(dag)


@pytest.mark.parametrize(
    "given", [{"jinja_environment_kwargs": {"trim_blocks": True}}, {"template_undefined": Undefined}]
)
def test_dag_with_an_environment_of_its_own_is_refused(given: dict[str, Any]) -> None:
    with (
        DAG("sales", schedule=None, **given),
        pytest.raises(InvalidTask, match="its DAG sets jinja_env"),
    ):
        HorsiesOperator(task_id="one", task_name="add", worker_free=True)


def test_macros_and_filters_of_the_dag_are_refused() -> None:
    with DAG("sales", schedule=None, user_defined_macros={"day": lambda: 1}, user_defined_filters={"upper": str}):
        for template in ("{{ day() }}", "{{ ds | upper }}"):
            with pytest.raises(InvalidTask, match="which a triggerer does not have"):
                HorsiesOperator(task_id=f"t{len(template)}", task_name=template, worker_free=True)


def test_listener_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_free, "task_listeners", lambda: ["openlineage"])
    with pytest.raises(InvalidTask, match="the plugin openlineage listens to tasks"):
        one()


def test_candidate_of_the_first_release_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_free, "airflow_version", "3.3.0rc1")
    one()


def test_arguments_arrive_in_the_triggerer_as_they_were_given() -> None:
    given: dict[str, Any] = {
        "kwargs": {"b": [1, "2", {"__type": "x", "__var": None}], "a": 2**70, "seconds": {"seconds": 1}},
        "retry_policy": RetryPolicy.fixed([1, 2], auto_retry_for=["FLAKY"]),
        "good_until": timedelta(hours=1),
        "delay": timedelta(seconds=3),
        "timeout": timedelta(minutes=1),
        "queue_timeout": timedelta(seconds=9),
        "queue": "spark",
        "idempotency_key": "{{ ds }}",
    }
    with DAG("sales", schedule=None) as dag:
        free = HorsiesOperator(task_id="one", task_name="add", worker_free=True, **given)
    stored = as_stored(dag).get_task("one").start_trigger_args
    fields = decode_fields(stored.trigger_kwargs["__var"]["fields"])
    assert (fields.pop("kind"), fields.pop("native")) == ("task", False)
    again = HorsiesOperator(task_id="one", **fields)
    for name in (*HorsiesOperator.template_fields, "queue_timeout", "cancel_on_kill", "show_logs", "retain_input"):
        assert getattr(again, name) == getattr(free, name), name
    assert list(again.task_kwargs) == ["b", "a", "seconds"]


def test_instant_and_text_of_good_until_arrive_too() -> None:
    noon = datetime(2031, 1, 1, 12, tzinfo=UTC)
    for given in (noon, "dag_run_deadline", None):
        fields = one(good_until=given).start_trigger_args.trigger_kwargs["fields"]
        assert decode_fields(fields)["good_until"] == given


def test_native_templates_are_those_of_the_dag_or_of_the_task() -> None:
    for of_dag, of_task, native in ((True, None, True), (True, False, False), (False, None, False)):
        with DAG("sales", schedule=None, render_template_as_native_obj=of_dag):
            free = HorsiesOperator(
                task_id="one", task_name="add", worker_free=True, render_template_as_native_obj=of_task
            )
        assert decode_fields(free.start_trigger_args.trigger_kwargs["fields"])["native"] is native


def test_sensor_waits_from_the_start_and_gives_airflow_a_grace() -> None:
    with DAG("sales", schedule=None):
        sensor = HorsiesSensor(
            task_id="watch", external_dag_id="sales", external_task_id="one", timeout=100, worker_free=True
        )
    assert sensor.start_trigger_args.trigger_cls == "airflow_horsies.operators.starting.HorsiesStartSensorTrigger"
    assert sensor.start_trigger_args.timeout == timedelta(seconds=160)
    assert decode_fields(sensor.start_trigger_args.trigger_kwargs["fields"])["external_run_id"] == "{{ run_id }}"


def test_sensor_on_the_output_of_another_task_is_refused() -> None:
    with DAG("sales", schedule=None), pytest.raises(InvalidTask, match="task_ids is the output of another task"):
        HorsiesSensor(task_id="watch", task_ids=UPSTREAM.output, worker_free=True)
    with DAG("sales", schedule=None), pytest.raises(InvalidTask, match="is not possible with an execution_timeout"):
        HorsiesSensor(task_id="watch", task_ids=[], execution_timeout=timedelta(seconds=1), worker_free=True)


def on_worker(**given: Any) -> tuple[HorsiesOperator, dict[str, Any]]:
    operator = one(**given).prepare_for_execution()
    return operator, make_context(operator, logical_date=datetime(2026, 1, 1, tzinfo=UTC))


def test_worker_runs_a_task_that_the_triggerer_did_not_start() -> None:
    with FakeHorsies() as horsies:
        horsies.returns("add", 3)
        operator, context = on_worker()
        event = {"reason": "not_started", "message": "a template failed"}
        with pytest.raises(TaskDeferred):
            operator.resume_execution("execute_complete", {"event": event}, context)
        assert horsies.sent("add") == [{}]


@pytest.mark.parametrize("error", ["Trigger timeout", "Trigger failure"])
def test_worker_continues_after_a_trigger_that_failed(error: str) -> None:
    with FakeHorsies() as horsies:
        horsies.returns("add", 3)
        operator, context = on_worker()
        with pytest.raises(TaskDeferred):
            operator.resume_execution("__fail__", {"error": error, "traceback": ["a trace"]}, context)
        assert horsies.sent("add") == [{}]


def test_worker_gives_up_a_task_whose_time_is_over() -> None:
    with FakeHorsies() as horsies:
        horsies.never_ends("add")
        operator, context = on_worker(execution_timeout=timedelta(seconds=10))
        context["ti"].start_date = datetime.now(UTC) - timedelta(seconds=11)
        with pytest.raises(TaskTimedOut):
            operator.resume_execution("__fail__", {"error": "Trigger timeout"}, context)
        (sent,) = horsies.ledger.read_all_submissions()
        assert horsies.memory.read_task(sent.horsies_task_id).state is TaskState.CANCELLED


def test_other_operators_fail_with_their_trigger() -> None:
    from airflow.sdk.exceptions import TaskDeferralError

    operator = one(worker_free=False)
    with pytest.raises(TaskDeferralError):
        operator.resume_execution("__fail__", {"error": "Trigger failure"}, make_context(operator))


def test_sensor_fails_with_its_trigger() -> None:
    with DAG("sales", schedule=None):
        sensor = HorsiesSensor(task_id="watch", task_ids=[], worker_free=True)
    with pytest.raises(AirflowSensorTimeout):
        sensor.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_TIMEOUT}, make_context(sensor))
