from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

pytest.importorskip("horsies")

from horsies import AppConfig, Horsies, PostgresConfig, SubWorkflowNode, TaskNode, WorkflowSpec
from horsies.core.codec.json_value import StrictJsonError
from horsies.core.codec.kwargs import decode_subworkflow_kwargs
from horsies.core.errors import WorkflowValidationError
from pydantic import SecretStr

from airflow_horsies.borrowed.horsies import find_definition, forget_definition, known_definitions
from airflow_horsies.worker.arguments import TaskDefinitionError
from airflow_horsies.worker.tasks import python_task
from airflow_horsies.worker.workflows import workflow

SECRET = "s3cret-word"


@pytest.fixture
def app() -> Iterator[Horsies]:
    """A real app of a database that is not there. What a test registers is forgotten after it."""
    url = SecretStr("postgresql+psycopg://u:p@localhost:1/x")
    before = known_definitions().keys()
    yield Horsies(AppConfig(broker=PostgresConfig(database_url=url)))
    for key in known_definitions().keys() - before:
        forget_definition(key)


@pytest.fixture
def month(app: Horsies) -> Any:
    @python_task(app, "flights.fetch")
    def fetch(*, day: date, rows: int = 5) -> list[int]:
        return [day.month] * rows

    @python_task(app, "flights.count")
    def count(*, rows: list[int], factor: float = 1.0) -> float:
        return len(rows) * factor

    @workflow(app, "flights.month")
    def month(app: Horsies, *, year: int, month: int = 1, token: str = "") -> WorkflowSpec[float]:
        """The flights of a month."""
        fetched = TaskNode(fn=fetch, kwargs={"day": date(year, month, 1)}, node_id="fetch")  # type: ignore[arg-type]
        counted = TaskNode(fn=count, waits_for=[fetched], args_from={"rows": fetched}, node_id="count")  # type: ignore[arg-type]
        return WorkflowSpec(name="flights.month", tasks=[fetched, counted], output=counted)

    return month


def test_a_function_becomes_a_definition(app: Horsies, month: Any) -> None:
    assert find_definition("flights.month") is month
    assert (month.__name__, month.__doc__, month.name) == ("month", "The flights of a month.", "flights.month")
    spec = month.build_with(app, year=2013)
    assert [node.node_id for node in spec.tasks] == ["fetch", "count"]
    assert spec.tasks[0].kwargs == {"day": "2013-01-01"}
    assert spec.definition_key == "flights.month"


def test_a_definition_is_a_node_with_checked_parameters(app: Horsies, month: Any) -> None:
    def node_of(**given: Any) -> Any:
        node: Any = SubWorkflowNode(workflow_def=month, kwargs=given, node_id="month")
        return WorkflowSpec(name="year", tasks=[node], output=node)

    assert node_of(year="2013", month=2).tasks[0].kwargs == {"year": 2013, "month": 2}
    for given, says in (
        ({"year": "soon"}, "year: Input should be a valid integer"),
        ({"yaer": 2013, "year": 2013}, r"unknown kwargs: \['yaer'\]"),
        ({"month": 2}, r"missing required parameter\(s\): \['year'\]"),
    ):
        with pytest.raises(WorkflowValidationError, match=says):
            node_of(**given)


def test_what_arrives_from_outside_is_refused_by_its_name_and_without_secrets(month: Any) -> None:
    assert decode_subworkflow_kwargs(month, {"year": "2013"}) == {"year": 2013}
    with pytest.raises(StrictJsonError, match=r"^month: Input should be a valid integer.*\(got 'x'\)$"):
        decode_subworkflow_kwargs(month, {"year": 2013, "month": "x"})
    with pytest.raises(StrictJsonError, match="unknown kwarg 'yaer'"):
        decode_subworkflow_kwargs(month, {"yaer": 2013})
    with pytest.raises(StrictJsonError) as caught:
        decode_subworkflow_kwargs(month, {"year": 1, "token": [SECRET]})
    assert "token" in str(caught.value)
    assert SECRET not in str(caught.value)


def without_app() -> Any: ...


def app_by_name(*, app: Any) -> Any: ...


def no_annotation(app: Any, *, year) -> Any: ...  # type: ignore[no-untyped-def]


def by_position(app: Any, year: int) -> Any: ...


def any_name(app: Any, **given: int) -> Any: ...


async def asynchronous(app: Any) -> Any: ...


class Opaque:
    pass


def no_json(app: Any, *, thing: Opaque) -> Any: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (without_app, "the first parameter of without_app must be 'app'"),
        (app_by_name, "the first parameter of app_by_name must be 'app', before any *"),
        (no_annotation, "'year' of no_annotation needs an annotation"),
        (by_position, "'year' of by_position must be a keyword parameter. Write def by_position(app, *, year, ...)"),
        (any_name, "'given' of any_name must be a keyword parameter"),
        (asynchronous, "asynchronous is async"),
        (no_json, "'thing' of no_json has an annotation that JSON cannot represent"),
        (Opaque(), "@workflow expects a function"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_function_that_cannot_be_a_workflow_is_refused_where_it_is_defined(
    app: Horsies, function: Any, says: str
) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        workflow(app, "flights.bad")(function)
    assert str(caught.value).startswith("Workflow 'flights.bad': ")
    assert says in str(caught.value)
    assert find_definition("flights.bad") is None


def test_a_name_belongs_to_one_workflow(app: Horsies, month: Any) -> None:
    def other(app: Any) -> Any: ...

    with pytest.raises(TaskDefinitionError, match=r"flights\.month': .*\.month has this name already"):
        workflow(app, "flights.month")(other)
    for name, says in (("airflow_horsies.mine", "are reserved"), (" ", "must be a text"), (7, "must be a text")):
        with pytest.raises(TaskDefinitionError, match=says):
            workflow(app, name)(other)  # type: ignore[arg-type]


def test_a_module_that_is_imported_again_replaces_its_workflow(app: Horsies) -> None:
    def define() -> Any:
        @workflow(app, "flights.again")
        def again(app: Any) -> Any: ...

        return again

    first, second = define(), define()
    assert first is not second
    assert find_definition("flights.again") is second
