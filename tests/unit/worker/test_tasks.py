from __future__ import annotations

import enum
import gc
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import pytest

pytest.importorskip("horsies")

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.core.codec.json_value import StrictJsonError
from horsies.core.codec.kwargs import decode_kwargs
from pydantic import BaseModel, Field, SecretStr

from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.worker import tasks as tasks_module
from airflow_horsies.worker.errors import TaskFault
from airflow_horsies.worker.tasks import Arguments, TaskDefinitionError, python_task, spark_task, uses_spark

SECRET = "s3cret-word"


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Leg:
    origin: str
    day: date


class Trip(BaseModel):
    legs: list[Leg]
    price: Decimal


class Options(TypedDict, total=False):
    deep: bool


def arguments(function: Callable[..., Any], *, with_spark: bool = False) -> Arguments:
    return Arguments("flights.count", function, with_spark=with_spark)


def one(annotation: Any) -> Arguments:
    """The arguments of a task with the one parameter ``x``."""

    def function(*, x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    return arguments(function)


def fault(known: Arguments, **given: Any) -> str:
    with pytest.raises(TaskFault) as caught:
        known.validate(given)
    assert caught.value.code == "BAD_INPUT"
    return str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "given", "value"),
    [
        (str, "JFK", "JFK"),
        (int, 7, 7),
        (float, 1, 1.0),
        (bool, True, True),
        (Any, {"a": [1]}, {"a": [1]}),
        (int | None, None, None),
        (int | str, "7", "7"),
        (list[int], [1, 2], [1, 2]),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 1], {1}),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (date, "2026-03-01", date(2026, 3, 1)),
        (datetime, "2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        (timedelta, "P1D", timedelta(days=1)),
        (Decimal, "1.10", Decimal("1.10")),
        (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        (Path, "/data/x", Path("/data/x")),
        (Literal["fast", "slow"], "fast", "fast"),
        (Colour, "red", Colour.RED),
        (Annotated[int, Field(gt=0)], 1, 1),
        (Leg, {"origin": "JFK", "day": "2026-03-01"}, Leg("JFK", date(2026, 3, 1))),
        (list[Leg], [{"origin": "JFK", "day": "2026-03-01"}], [Leg("JFK", date(2026, 3, 1))]),
        (
            Trip,
            {"legs": [{"origin": "JFK", "day": "2026-03-01"}], "price": "9.90"},
            Trip(legs=[Leg("JFK", date(2026, 3, 1))], price=Decimal("9.90")),
        ),
        (Options, {"deep": True}, {"deep": True}),
    ],
    ids=str,
)
def test_json_becomes_what_the_annotation_says(annotation: Any, given: Any, value: Any) -> None:
    assert one(annotation).validate({"x": given}) == {"x": value}


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (str, 7),
        (int, "seven"),
        (int, 1.5),
        (bool, "perhaps"),
        (int, None),
        (list[int], 1),
        (list[int], [1, "x"]),
        (date, "the first of March"),
        (Literal["fast", "slow"], "medium"),
        (Colour, "blue"),
        (Annotated[int, Field(gt=0)], 0),
        (Leg, {"origin": "JFK"}),
        (Trip, {"legs": [{"origin": 7, "day": "2026-03-01"}], "price": "9.90"}),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_told_with_the_task_and_its_name(annotation: Any, given: Any) -> None:
    message = fault(one(annotation), x=given)
    assert message.startswith("Task 'flights.count' got invalid arguments: x")


def test_the_place_within_a_nested_value_is_told() -> None:
    message = fault(one(list[Leg]), x=[{"origin": "JFK", "day": "2026-03-01"}, {"origin": "JFK", "day": "no day"}])
    assert "x[1]['day']: " in message


def test_all_that_is_wrong_is_told_at_once() -> None:
    def count(*, path: str, rows: int, day: date) -> None: ...

    message = fault(arguments(count), rows="many", day="some day")
    assert "path is missing" in message
    assert "rows: Input should be a valid integer" in message
    assert "day: Input should be a valid date" in message


def test_a_long_value_is_not_repeated_as_a_whole() -> None:
    assert len(fault(one(int), x="y" * 10_000)) < 400


@pytest.mark.parametrize("name", ["password", "db_password", "api_key", "auth_token", "client_secret"])
def test_the_value_of_an_argument_with_a_telling_name_is_not_shown(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def task(*, {name}: int) -> None: ...", namespace)
    message = fault(arguments(namespace["task"]), **{name: SECRET})
    assert SECRET not in message
    assert f"{name}: Input should be a valid integer" in message


def test_the_value_of_a_telling_name_within_an_argument_is_not_shown() -> None:
    message = fault(one(dict[str, int]), x={"password": SECRET})
    assert SECRET not in message
    assert "x['password']: Input should be a valid integer" in message


def test_the_value_of_an_argument_that_is_declared_secret_is_not_shown() -> None:
    message = fault(one(SecretStr), x=987_654)
    assert "987654" not in message
    assert "x: Input should be a valid string" in message


def test_defaults_are_left_to_the_function() -> None:
    def count(*, path: str, rows: int = 5, day: date | None = None) -> None: ...

    known = arguments(count)
    assert known.validate({"path": "x"}) == {"path": "x"}
    assert known.validate({"path": "x", "rows": "6"}) == {"path": "x", "rows": 6}
    assert "path is missing" in fault(known, rows=1)


def test_a_task_may_have_no_arguments() -> None:
    def nothing() -> None: ...

    assert arguments(nothing).validate({}) == {}

    def spark_only(spark: Any) -> None: ...

    assert arguments(spark_only, with_spark=True).validate({}) == {}


def test_the_session_is_no_argument() -> None:
    def count(spark: Any, path: str) -> None: ...

    known = arguments(count, with_spark=True)
    assert known.validate({"path": "x"}) == {"path": "x"}
    assert list(known.annotations) == ["path", "return"]


def without_spark(*, path: str) -> None: ...


def spark_is_second(path: str, spark: Any) -> None: ...


def no_parameters() -> None: ...


def no_annotation(spark: Any, *, path) -> None: ...  # type: ignore[no-untyped-def]


def many_by_position(spark: Any, *paths: str) -> None: ...


def many_by_name(spark: Any, **paths: str) -> None: ...


def only_by_position(spark: Any, path: str, /) -> None: ...


def unknown_name(spark: Any, *, leg: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Opaque:
    pass


def no_json(spark: Any, *, thing: Opaque) -> None: ...


class Unresolved(BaseModel):
    leg: Nowhere  # type: ignore[name-defined]  # noqa: F821


def no_model(spark: Any, *, thing: Unresolved) -> None: ...


def spark_by_name(*, spark: Any) -> None: ...


async def asynchronous(spark: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (without_spark, "the first parameter of without_spark must be 'spark'.*@python_task"),
        (spark_is_second, "the first parameter of spark_is_second must be 'spark'"),
        (no_parameters, "the first parameter of no_parameters must be 'spark'"),
        (no_annotation, "'path' of no_annotation needs an annotation, for example path: str"),
        (many_by_position, "'paths' of many_by_position must be a keyword parameter"),
        (many_by_name, "'paths' of many_by_name must be a keyword parameter"),
        (only_by_position, "'path' of only_by_position must be a keyword parameter"),
        (unknown_name, "'Nowhere' is not defined in the annotations of unknown_name\\. .*TYPE_CHECKING"),
        (no_json, "'thing' of no_json has an annotation that JSON cannot represent"),
        (no_model, "'thing' of no_model has an annotation that JSON cannot represent"),
        (spark_by_name, r"the first parameter of spark_by_name must be 'spark', before any \*"),
        (asynchronous, "asynchronous is async\\. Write a plain function"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_function_that_cannot_be_a_task_is_told_where_it_is_defined(
    function: Callable[..., Any], says: str, app: Horsies
) -> None:
    with pytest.raises(TaskDefinitionError, match=f"(?s)^Task 'flights.count': .*{says}") as caught:
        spark_task(app, "flights.count")(function)
    assert isinstance(caught.value, HorsiesError)
    assert list(app.tasks) == []


def make_app() -> Horsies:
    """A real app of a database that is not there."""
    url = SecretStr("postgresql+psycopg://u:p@localhost:1/x")
    return Horsies(AppConfig(broker=PostgresConfig(database_url=url)))


@pytest.fixture
def app() -> Horsies:
    return make_app()


def registered(app: Horsies, name: str) -> Callable[..., Any]:
    """What horsies looks at when it decodes a task's arguments."""
    from horsies.core.worker.child_runner import underlying_task_fn

    return underlying_task_fn(app.tasks[name])  # type: ignore[no-any-return]


def test_a_decorated_function_stays_as_it_is(app: Horsies) -> None:
    def count(spark: Any, *, path: str) -> str:
        """Count."""
        return f"{spark} of {path}"

    assert spark_task(app, "flights.count")(count) is count
    assert count("session", path="x") == "session of x"


def test_a_task_is_registered_under_its_name_with_the_options_of_horsies(app: Horsies) -> None:
    @python_task(app, "flights.count", timeout_ms=60_000)
    def count(*, path: str) -> None:
        """Count the flights."""

    assert list(app.tasks) == ["flights.count", "flights.count[]"]
    assert registered(app, "flights.count").__name__ == "count"
    assert registered(app, "flights.count").__doc__ == "Count the flights."
    assert registered(app, "flights.count").__module__ == count.__module__


def test_only_tasks_with_spark_make_an_app_use_spark(app: Horsies) -> None:
    @python_task(app, "plain")
    def plain() -> None: ...

    assert not uses_spark(app)

    @spark_task(app, "sparkling")
    def sparkling(spark: Any) -> None: ...

    assert uses_spark(app)


def test_an_app_is_not_taken_for_one_that_is_gone() -> None:
    for _ in range(10):
        app = make_app()
        assert not uses_spark(app)

        @spark_task(app, "sparkling")
        def sparkling(spark: Any) -> None: ...

        # The next one may well stand where this one stood.
        del app
        gc.collect()


def test_parameters_that_workflows_fill_are_left_to_horsies(app: Horsies) -> None:
    @python_task(app, "second")
    def second(*, first: TaskResult[int, TaskError], rows: int = 5) -> None: ...

    parameters = inspect.signature(registered(app, "second")).parameters
    assert parameters["first"].annotation == TaskResult[int, TaskError]
    known, given = arguments(second), TaskResult[int, TaskError](ok=7)
    assert known.validate({"first": given, "rows": "6"}) == {"first": given, "rows": 6}
    assert app.check() == []


def test_horsies_accepts_the_tasks(app: Horsies) -> None:
    @spark_task(app, "flights.count", max_rows=10, stop_at_good_until=True)
    def count(spark: Any, *, path: str, leg: Leg, day: date = date(2026, 3, 1)) -> Trip: ...

    @python_task(app, "plain")
    def plain(path: str) -> None: ...

    assert app.check() == []


def test_horsies_lets_any_json_pass_and_names_only_the_declared_arguments(app: Horsies) -> None:
    @spark_task(app, "flights.count")
    def count(spark: Any, *, leg: Leg, rows: int = 5) -> None: ...

    run = registered(app, "flights.count")
    assert list(inspect.signature(run).parameters) == ["leg", "rows"]
    assert decode_kwargs(run, {"leg": "no leg", "rows": [None]}) == {"leg": "no leg", "rows": [None]}
    assert decode_kwargs(run, {}) == {}
    with pytest.raises(StrictJsonError, match="unknown kwarg 'legs'"):
        decode_kwargs(run, {"legs": 1})
    with pytest.raises(StrictJsonError, match="unknown kwarg 'spark'"):
        decode_kwargs(run, {"spark": 1})


def test_a_task_run_by_hand_validates_and_returns_json(app: Horsies) -> None:
    @python_task(app, "next")
    def next_day(*, day: date, days: int = 1) -> dict[str, date]:
        return {"day": day + timedelta(days=days)}

    outcome = app.tasks["next"](day="2026-03-01")
    assert isinstance(outcome, TaskResult)
    assert outcome.ok == {"day": "2026-03-02"}
    assert app.tasks["next"](day="2026-03-01", days="2").ok == {"day": "2026-03-03"}
    assert "day is missing" in app.tasks["next"]().err.message


def test_a_task_is_given_the_session_of_its_child(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[bool, bool]] = []

    def run_task(body: Callable[[Any], Any], *, with_spark: bool, stops_at_good_until: bool) -> Any:
        ran.append((with_spark, stops_at_good_until))
        return TaskResult(ok=body("session" if with_spark else None))

    monkeypatch.setattr(tasks_module, "run_task", run_task)

    @spark_task(app, "with", stop_at_good_until=True)
    def with_session(spark: Any, *, path: str) -> list[str]:
        return [spark, path]

    @python_task(app, "without")
    def without_session(*, path: str) -> str:
        return path

    assert app.tasks["with"](path="x").ok == ["session", "x"]
    assert app.tasks["without"](path="x").ok == "x"
    assert ran == [(True, True), (False, False)]


def test_the_size_of_a_result_is_what_the_app_allows(app: Horsies) -> None:
    app.airflow_horsies_result_bytes = 1_000  # type: ignore[attr-defined]

    @python_task(app, "large")
    def large(*, size: int) -> str:
        return "x" * size

    assert app.tasks["large"](size=998).ok
    assert "1,001 bytes" in app.tasks["large"](size=999).err.message
