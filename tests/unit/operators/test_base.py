from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_horsies.airflow_instance import instance_of
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesCancelOperator, HorsiesOperator
from airflow_horsies.testing import FakeClient, make_context

POLICY = RetryPolicy.fixed([1, 2], auto_retry_for=["FLAKY"])


def one(**given: Any) -> HorsiesOperator:
    return HorsiesOperator(**{"task_id": "one", "task_name": "add", **given})


def context(**given: Any) -> dict[str, Any]:
    return make_context(one(), logical_date=datetime(2026, 1, 1, tzinfo=UTC), **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task_name": ""}, "task_name: must not be empty"),
        ({"priority": 0}, "priority: must be an integer from 1 to 100"),
        ({"queue": "x" * 101}, "queue: is 101 characters long"),
        ({"retry_policy": {"intervals": [1], "auto_retry_for": ["ValueError"]}}, "looks like an exception class"),
        ({"retry_policy": {"interval": [1]}}, r"retry_policy: has unknown key\(s\) interval\."),
        ({"good_until": datetime(2031, 1, 1)}, "good_until: has no time zone"),
        ({"timeout": timedelta(0)}, "timeout: must be at least one second"),
        ({"on_expired": "ignore"}, "on_expired: must be 'fail' or 'skip', not 'ignore'"),
        ({"on_cancelled": "retry"}, "on_cancelled: must be 'fail' or 'skip'"),
        ({"fail_fast_codes": ["KeyError"]}, "fail_fast_codes: 'KeyError' looks like an exception class"),
    ],
)
def test_mistake_is_found_when_the_dag_is_parsed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        one(**given)


def test_what_holds_a_template_is_left_until_it_is_rendered() -> None:
    operator = one(
        task_name="{{ params.name }}", priority="{{ params.p }}", retry_policy={"intervals": "{{ params.i }}"}
    )
    operator.task_name, operator.priority = "add", "7"
    operator.horsies_retry_policy = {"intervals": [5], "auto_retry_for": ["FLAKY"]}
    spec = operator._specs(context())[0]
    assert (spec.task_name, spec.priority) == ("add", 7)
    assert spec.retry_policy == RetryPolicy.fixed([5], auto_retry_for=["FLAKY"])
    operator.priority = "first"
    with pytest.raises(InvalidTask, match="priority: must be an integer, not 'first'"):
        operator._specs(context())


def test_queue_and_retry_policy_of_horsies_are_kept_apart_from_airflows() -> None:
    operator = one(queue="spark", retry_policy=POLICY)
    assert (operator.queue, operator.horsies_queue) == ("default", "spark")
    assert operator.horsies_retry_policy["intervals"] == [1, 2]
    assert getattr(operator, "retry_policy", None) is None
    assert one(queue="spark", horsies_queue="gpu").horsies_queue == "gpu"


@pytest.mark.parametrize(
    ("good_until", "expected"),
    [
        (datetime(2031, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)),
        ("2031-01-01T00:00:00+00:00", datetime(2031, 1, 1, tzinfo=UTC)),
        ("dag_run_deadline", datetime(2026, 1, 1, 1, tzinfo=UTC)),
        (None, None),
    ],
)
def test_good_until_takes_every_form(good_until: Any, expected: datetime | None) -> None:
    dag = SimpleNamespace(dag_id="d", dagrun_timeout=timedelta(hours=1))
    assert one(good_until=good_until)._specs(context(dag=dag))[0].good_until == expected


def test_good_until_from_now_on_counts_from_the_submission() -> None:
    before = datetime.now(UTC)
    (spec,) = one(good_until=timedelta(minutes=5))._specs(context())
    assert spec.good_until is not None
    assert before + timedelta(minutes=5) <= spec.good_until <= datetime.now(UTC) + timedelta(minutes=5)


def test_deadline_of_a_run_without_one_is_refused_by_name() -> None:
    with pytest.raises(InvalidTask, match="DAG dag_of_one has no dagrun_timeout"):
        one(good_until="dag_run_deadline")._specs(context())
    with pytest.raises(InvalidTask, match=r"good_until: must be a datetime.*'soon'"):
        one(good_until="soon")._specs(context())


def test_logs_are_shown_unless_they_may_be_many() -> None:
    batch = HorsiesBatchOperator(task_id="b", task_name="add", items=[])
    asked = HorsiesBatchOperator(task_id="a", task_name="add", items=[], show_logs=True)
    assert [each.show_logs for each in (one(), one(show_logs=False), batch, asked)] == [True, False, False, True]


@pytest.mark.parametrize(("show_logs", "seen"), [(True, {"seen": {}}), (False, {})])
def test_trigger_goes_on_where_the_operator_stopped(show_logs: bool, seen: dict[str, Any]) -> None:
    operator = one(show_logs=show_logs)
    operator._sent_ids = ["0198a0de-0000-7000-8000-000000000001"]
    operator._instance = instance_of(context())
    operator._task_log = operator._make_task_log(FakeClient(), {})
    _, kwargs = operator._trigger(context(), None).serialize()
    assert {name: value for name, value in kwargs.items() if name == "seen"} == seen


@pytest.mark.parametrize("kind", [HorsiesOperator, HorsiesBatchOperator, HorsiesCancelOperator])
def test_template_fields_are_attributes(kind: type[Any]) -> None:
    given: dict[str, Any] = {
        HorsiesOperator: {"task_name": "add"},
        HorsiesBatchOperator: {"task_name": "add", "items": []},
        HorsiesCancelOperator: {"horsies_task_ids": []},
    }[kind]
    with DAG("d", schedule=None):
        operator = kind(task_id="t", **given)
    assert all(hasattr(operator, name) for name in operator.template_fields)
