from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import pytest

pytest.importorskip("horsies")

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    PostgresConfig,
    QueueMode,
    TaskError,
    TaskResult,
    WorkflowDefinition,
)
from pydantic import BaseModel, BeforeValidator, SecretStr

from airflow_horsies.borrowed.horsies import forget_definition, known_definitions
from airflow_horsies.client.reporting import CatalogEntry
from airflow_horsies.core.parameters import FILLED_BY_WORKFLOW, UNCHECKED, find_problems
from airflow_horsies.worker import catalog as catalog_module
from airflow_horsies.worker.catalog import make_catalog
from airflow_horsies.worker.masking import mask
from airflow_horsies.worker.tasks import python_task, spark_task
from airflow_horsies.worker.workflows import workflow

SECRET = "s3cret-word"


@dataclass
class Leg:
    origin: str
    day: date


class Login(BaseModel):
    user: str = "etl"
    password: str = SECRET


@pytest.fixture(autouse=True)
def definitions() -> Iterator[None]:
    before = known_definitions().keys()
    yield
    for key in known_definitions().keys() - before:
        forget_definition(key)


def make_app(**config: Any) -> Horsies:
    url = SecretStr("postgresql+psycopg://u:p@localhost:1/x")
    return Horsies(AppConfig(broker=PostgresConfig(database_url=url), **config))


def entries(app: Horsies) -> dict[str, CatalogEntry]:
    made = make_catalog(app)
    assert made is not None
    return {entry.name: entry for entry in made.entries}


def schema(app: Horsies, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(entries(app)[name].parameters)
    return found


def test_tasks_are_recorded_with_their_parameters() -> None:
    app = make_app()

    @spark_task(app, "flights.count")
    def count(spark: Any, *, leg: Leg, rows: int = 5, of: TaskResult[int, TaskError] | None = None) -> int:
        """Count the flights.

        Of a leg.
        """
        return rows

    found = entries(app)["flights.count"]
    assert (found.kind, found.queue, found.doc) == ("task", None, "Count the flights.\n\nOf a leg.")
    assert "flights.count[]" not in entries(app)
    parameters = schema(app, "flights.count")
    assert parameters["required"] == ["leg"]
    assert parameters["properties"]["rows"] == {"type": "integer", "default": 5}
    assert parameters["properties"]["of"] == {FILLED_BY_WORKFLOW: True}
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["leg"]["required"] == ["origin", "day"]
    assert find_problems(parameters, {"leg": {"origin": "JFK", "day": "2026-01-01"}, "rows": "7"}) == []
    assert find_problems(parameters, {"rows": "x"}) == ["leg is missing", "rows must be an integer"]


def test_tasks_and_definitions_of_horsies_itself_are_recorded_too() -> None:
    app = make_app()

    @app.task("plain")
    def plain(*, n: int, later: TaskResult[int, TaskError] | None = None) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    class Open(WorkflowDefinition[int]):
        """Of a class."""

        name = definition_key = "of.class"

        @classmethod
        def build_with(cls, app: Any, *, n: int, **rest: Any) -> Any: ...

    assert schema(app, "plain")["required"] == ["n"]
    assert schema(app, "of.class")["required"] == ["n"]
    assert find_problems(schema(app, "of.class"), {"n": 1, "other": 2}) == []
    assert (entries(app)["of.class"].kind, entries(app)["of.class"].doc) == ("workflow", "Of a class.")


def test_workflows_are_recorded() -> None:
    app = make_app()

    @workflow(app, "flights.month")
    def month(app: Any, *, year: int, month: int = 1) -> Any:
        """The flights of a month."""

    found = entries(app)["flights.month"]
    assert (found.kind, found.doc) == ("workflow", "The flights of a month.")
    assert list(schema(app, "flights.month")["properties"]) == ["year", "month"]


def test_no_secret_enters_it() -> None:
    app = make_app()
    mask("hidden-by-mask")

    @python_task(app, "secrets")
    def secrets(
        *,
        api_token: str = SECRET,
        declared: SecretStr = SecretStr(SECRET),  # noqa: B008
        login: Login = Login(),  # noqa: B008
        dsn: str = f"postgresql://etl:{SECRET}@db/x",
        options: dict[str, str] = {"password": SECRET},  # noqa: B006
        known: str = "hidden-by-mask",
    ) -> None:
        """Uses postgresql://etl:s3cret-word@db/x and hidden-by-mask."""

    found = entries(app)["secrets"]
    for text in (found.parameters, found.doc or ""):
        assert SECRET not in text
        assert "hidden-by-mask" not in text
    assert set(schema(app, "secrets")["properties"]) == {"api_token", "declared", "login", "dsn", "options", "known"}


def test_types_that_convert_by_themselves_are_not_checked() -> None:
    app = make_app()

    @python_task(app, "converting")
    def converting(*, names: Annotated[list[str], BeforeValidator(lambda value: value.split(","))], n: int) -> None: ...

    found = schema(app, "converting")
    assert found["properties"]["names"][UNCHECKED] is True
    assert find_problems(found, {"names": "a,b", "n": 1}) == []


def test_a_large_schema_is_recorded_by_its_names() -> None:
    app = make_app()
    wide = {f"field_{number}": (dict[str, int], ...) for number in range(600)}
    from pydantic import create_model

    Wide: Any = create_model("Wide", **wide)  # type: ignore[call-overload]

    def large(*, wide: Any, n: int) -> None: ...

    large.__annotations__["wide"] = Wide
    python_task(app, "large")(large)
    found = schema(app, "large")
    assert len(json.dumps(found)) < 1_000
    assert find_problems(found, {"wide": 1, "m": 1}) == ["n is missing", "m is unknown"]


def test_the_digest_is_of_what_the_app_knows() -> None:
    def define(default: int) -> Any:
        app = make_app()

        @python_task(app, "t")
        def t(*, n: int = default) -> None: ...

        return make_catalog(app)

    assert define(1) == define(1)
    assert define(1).digest != define(2).digest


def test_the_queues_are_those_that_the_app_serves() -> None:
    queues = [CustomQueueConfig(name=name, priority=1) for name in ("b", "a")]
    assert make_catalog(make_app()).queues == ("default",)  # type: ignore[union-attr]
    custom = make_catalog(make_app(queue_mode=QueueMode.CUSTOM, custom_queues=queues))
    assert custom is not None
    assert custom.queues == ("b", "a")


def test_an_app_with_very_many_tasks_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    monkeypatch.setattr(catalog_module, "MAX_ENTRIES", 1)
    for name in ("a", "b"):

        @python_task(app, name)
        def task() -> None: ...

    assert make_catalog(app) is None
    assert "can list and check at most 1" in caplog.text
