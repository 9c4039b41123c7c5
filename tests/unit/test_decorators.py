from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_horsies.decorators import horsies_task
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator
from airflow_horsies.operators.base import HorsiesTaskOperator
from airflow_horsies.testing import FakeHorsies, run_task
from tests.unit.test_sensors import serialized

POLICY = RetryPolicy.fixed([1, 2], auto_retry_for=["RATE_LIMITED"])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments that the operator below would send."""
    sent: list[Any] = []

    def execute(self: Any, context: Any) -> str:
        sent.append(self.task_kwargs)
        return "the task's value"

    monkeypatch.setattr(HorsiesTaskOperator, "execute", execute)
    return sent


def context(**values: Any) -> Any:
    return {"ti": SimpleNamespace(task_id="t"), "ds": "2026-01-01", **values}


def test_airflow_offers_the_decorator() -> None:
    assert task.horsies is horsies_task


def test_function_builds_the_arguments_and_the_value_is_the_tasks(sent: list[Any]) -> None:
    with DAG("d"):

        @task.horsies("sales.load", queue="spark", retry_policy=POLICY, retries=3)
        def load(day: str, *, rows: int = 5) -> dict[str, object]:
            """Load a day."""
            return {"day": day, "rows": rows}

        operator = load("monday", rows=7).operator
    assert isinstance(operator, HorsiesOperator)
    assert (operator.task_id, operator.task_name, operator.retries) == ("load", "sales.load", 3)
    assert (operator.horsies_queue, operator.queue) == ("spark", "default")
    assert operator.horsies_retry_policy["intervals"] == [1, 2]
    assert operator.operator_name == "@task.horsies"
    assert operator.doc_md == "Load a day."
    assert operator.execute(context()) == "the task's value"
    assert sent == [{"day": "monday", "rows": 7}]


def test_function_may_ask_for_the_context(sent: list[Any]) -> None:
    with DAG("d"):

        @task.horsies("sales.load")
        def load(table: str, ds: str | None = None, **rest: Any) -> Mapping[str, Any]:
            return {"table": table, "day": ds, "ti": rest["ti"].task_id}

        operator = load("orders").operator
    operator.execute(context())
    assert sent == [{"table": "orders", "day": "2026-01-01", "ti": "t"}]


@pytest.mark.parametrize("returned", [None, 1, "text", [("a", 1)]], ids=repr)
def test_function_that_returns_no_dict_is_told_so(sent: list[Any], returned: Any) -> None:
    with DAG("d"):

        @task.horsies("sales.load")
        def load() -> Any:
            return returned

        operator = load().operator
    with pytest.raises(InvalidTask) as caught:
        operator.execute(context())
    assert (
        "function load must return a dict with the arguments of horsies task 'sales.load', "
        f"not {type(returned).__name__}" in str(caught.value)
    )
    assert sent == []


def test_options_and_arguments_are_rendered_and_what_the_function_returns_is_not(sent: list[Any]) -> None:
    with DAG("d") as dag:

        @task.horsies("sales.{{ step }}", queue="{{ region }}", idempotency_key="load/{{ ds }}")
        def load(day: str) -> dict[str, str]:
            return {"day": day, "text": "{{ ds }} came from a table"}

        operator = load("{{ ds }}").operator
    operator.render_template_fields(context(region="eu", step="load", dag=dag))
    assert (operator.task_name, operator.horsies_queue, operator.idempotency_key) == (
        "sales.load",
        "eu",
        "load/2026-01-01",
    )
    operator.execute(context())
    assert sent == [{"day": "2026-01-01", "text": "{{ ds }} came from a table"}]
    assert "task_kwargs" not in operator.template_fields


def test_function_is_mapped(sent: list[Any]) -> None:
    with DAG("d") as dag:

        @task.horsies("sales.load", queue="spark", retry_policy=POLICY)
        def load(day: str, table: str) -> dict[str, str]:
            return {"day": day, "table": table}

        load.partial(table="orders").expand(day=["a", "b"])
    mapped: Any = dag.get_task("load")
    assert mapped.queue == "default", "the executor must not take the horsies queue for its own"
    assert "retry_policy" not in mapped.partial_kwargs
    for index, day in enumerate("ab"):
        operator = mapped.unmap({"op_args": [], "op_kwargs": {"day": day, "table": "orders"}})
        assert (operator.horsies_queue, operator.task_name) == ("spark", "sales.load")
        assert operator.horsies_retry_policy["max_retries"] == 2
        operator.execute(context())
        assert sent[index] == {"day": day, "table": "orders"}


def test_options_are_overridden() -> None:
    with DAG("d") as dag:

        @task.horsies("sales.load", queue="spark")
        def load() -> dict[str, str]:
            return {}

        plain = load().operator
        other = load.override(task_id="other", queue="small", task_name="sales.other")().operator
        load.override(task_id="many", horsies_queue="small").expand_kwargs([{}])
    assert (plain.horsies_queue, other.horsies_queue) == ("spark", "small")
    assert (other.task_name, other.queue) == ("sales.other", "default")
    many: Any = dag.get_task("many")
    assert many.partial_kwargs["horsies_queue"] == "small"


@pytest.mark.parametrize("multiple_outputs", [False, True])
def test_multiple_outputs_are_never_guessed_from_the_function(multiple_outputs: bool) -> None:
    options = {"multiple_outputs": True} if multiple_outputs else {}
    with DAG("d"):

        @task.horsies("sales.load", **options)
        def load() -> dict[str, int]:
            return {}

        result = load()
    assert result.operator.multiple_outputs is multiple_outputs
    assert result["rows"].key == "rows"


def test_dag_with_decorated_tasks_is_serialized() -> None:
    with DAG("d") as dag:

        @task.horsies("sales.load", retry_policy=POLICY)
        def load(day: str) -> dict[str, str]:
            return {"day": day}

        load("{{ ds }}") >> load.override(task_id="each").expand(day=["a"])
    restored = serialized(dag)
    assert restored.get_task("load").operator_name == restored.get_task("each").operator_name == "@task.horsies"
    assert not getattr(restored.get_task("each"), "has_retry_policy", False)


def function() -> dict[str, str]:
    return {}


async def coroutine() -> dict[str, str]:
    return {}


def generator() -> Any:
    yield {}


def test_mistakes_are_found_when_the_dag_is_parsed() -> None:
    with pytest.raises(
        InvalidTask, match=r'must be the name of a registered task, as in @task\.horsies\("sales\.load"\)'
    ):
        horsies_task(function)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match="Return the arguments from the function"):
        horsies_task("sales.load", kwargs={"a": 1})
    for wrong in (coroutine, generator):
        with pytest.raises(InvalidTask, match=f"function {wrong.__name__} must be a plain function"):
            horsies_task("sales.load")(wrong)
    with DAG("d"), pytest.raises(InvalidTask, match="priority"):
        horsies_task("sales.load", priority=1000)(function)()
    with DAG("d"), pytest.raises(TypeError, match="unexpected keyword argument"):
        horsies_task("sales.load")(function)(day="x")


def test_function_of_a_batch_returns_the_items() -> None:
    with DAG("d"):

        @task.horsies("sales.load", batch=True, chunk_size=2, queue="spark", max_failures=1)
        def load(days: list[str]) -> list[dict[str, object]]:
            return [{"day": day} for day in days]

        operator = load(["monday", "tuesday", "wednesday"]).operator
    assert isinstance(operator, HorsiesBatchOperator)
    assert (operator.chunk_size, operator.horsies_queue, operator.max_failures) == (2, "spark", 1)
    assert operator.operator_name == "@task.horsies"
    with FakeHorsies() as horsies:
        horsies.returns("sales.load", lambda day: day.upper())
        assert run_task(operator) == ["MONDAY", "TUESDAY", "WEDNESDAY"]


def test_generator_of_a_batch_yields_the_items() -> None:
    @task.horsies("sales.load", batch=True, deferrable=True, results="counts")
    def load() -> Any:
        yield from ({"day": day} for day in range(3))

    with DAG("d"):
        operator = load().operator
    with FakeHorsies() as horsies:
        horsies.returns("sales.load")
        assert run_task(operator) == {"COMPLETED": 3}


@pytest.mark.parametrize("returned", [{"day": 1}, "monday", None])
def test_batch_of_something_else_than_a_list_is_refused(returned: Any) -> None:
    @task.horsies("sales.load", batch=True)
    def load() -> Any:
        return returned

    with DAG("d"):
        operator = load().operator
    with pytest.raises(InvalidTask, match="items: function load must return a list with the arguments of each item"):
        operator.execute(context())


def test_options_of_a_batch_need_one() -> None:
    with pytest.raises(InvalidTask, match="chunk_size: needs batch=True"):
        task.horsies("sales.load", chunk_size=10)
    with pytest.raises(InvalidTask, match="items: must not be set"):
        task.horsies("sales.load", batch=True, items=[])
