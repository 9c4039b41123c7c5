"""What pages show of secrets, of other deployments, of what was submitted before, and of tries that Airflow lost."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest
from airflow.sdk._shared.secrets_masker import SecretsMasker
from airflow.sdk.execution_time.task_runner import _serialize_template_field

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec, TaskState
from tests.integration.asynchronous import ask
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED
from tests.integration.test_attempts import begin_attempt, end_attempt, write_lines, write_progress
from tests.integration.ui_site import PAGES, Fields, Site, add_try, api_path, submit, submitting_as

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui.routes.overview import SHARED_SECONDS

pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

SECRET = "correct-horse-battery"
URI = f"postgresql://etl:{SECRET}@db.internal/sales"


@pytest.fixture
def instance() -> TaskInstanceKey:
    """One that no other test has told Airflow of."""
    return TaskInstanceKey(dag_id="sales", run_id=f"manual__{uuid.uuid4().hex}", task_id="load")


def send(hook: HorsiesHook, instance: TaskInstanceKey, try_number: int = 1, **kwargs: Any) -> str:
    spec = TaskSpec(task_name="add", kwargs=kwargs)
    return hook.submit_task(spec, instance, AirflowTry(try_number=try_number)).task_id


def now() -> datetime:
    return datetime.now(UTC)


def values(site: Site, instance: TaskInstanceKey, query: str = "") -> Any:
    shown = site.ask(api_path(instance, f"/values{query}")).json()
    return shown["kwargs"] and json.loads(shown["kwargs"])


def as_airflow_keeps(**fields: Any) -> dict[str, Any]:
    """As the process of a task has it that looked a connection up: its password is masked in what was rendered."""
    masker = SecretsMasker()
    masker.add_mask(SECRET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow.sdk._shared.secrets_masker.redact", masker.redact)
        return {name: masker.redact(_serialize_template_field(value, name), name) for name, value in fields.items()}


def test_what_airflow_masks_in_the_arguments_is_masked_while_the_task_lives(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres
) -> None:
    send(hook, instance, uri=URI, anything=SECRET, day="2026-01-02")
    masked = {"uri": "postgresql://etl:***@db.internal/sales", "anything": "***", "day": "2026-01-02"}
    add_try(postgres, instance, try_number=1, started_at=now(), rendered={"task_kwargs": masked})
    assert values(connected, instance) == masked


def test_items_of_a_batch_that_airflow_cuts_are_hidden(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres
) -> None:
    items = [{"part": part, "place": "here", "login": SECRET} for part in range(200)]
    hook.submit_tasks([TaskSpec(task_name="add", kwargs=each) for each in items], instance, AirflowTry(try_number=1))
    add_try(postgres, instance, try_number=1, started_at=now(), rendered=as_airflow_keeps(items=items))
    answer = connected.ask(api_path(instance, "/values?position=150")).json()
    assert json.loads(answer["kwargs"]) == {"part": 150, "place": "here", "login": "(hidden)"}
    assert "only the start of a long one" in answer["kwargs_note"]


def test_arguments_whose_rendering_airflow_no_longer_keeps_are_hidden(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres
) -> None:
    send(hook, instance, login=SECRET, part=1)
    add_try(postgres, instance, try_number=1, started_at=now())
    assert values(connected, instance) == {"login": "(hidden)", "part": 1}


def test_passwords_are_masked_wherever_they_are_shown(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres
) -> None:
    kwargs = {"place": URI, "parts": [f"AccountKey={SECRET}=="]}
    task_id = send(hook, instance, **kwargs)
    add_try(postgres, instance, try_number=1, started_at=now(), rendered={"task_kwargs": kwargs})
    begin_attempt(hook, task_id)
    end_attempt(hook, task_id, outcome="FAILED", error_code="E", error_message=f"no {URI}", metrics={"note": URI})
    begin_attempt(hook, task_id, 2)
    write_lines(hook, task_id, f"reading {URI}", f"password={SECRET}", f'{{"token": "{SECRET}"}}')
    write_progress(hook, task_id, 1, stage=URI)
    for tail in ("", "/values", "/items", "/log.txt"):
        answer = connected.ask(api_path(instance, tail))
        assert answer.status_code == 200
        assert SECRET not in answer.text, tail
    assert values(connected, instance) == {
        "place": "postgresql://etl:***@db.internal/sales",
        "parts": ["AccountKey=***"],
    }
    assert "reading postgresql://etl:***@db.internal/sales" in connected.ask(api_path(instance, "/log.txt")).text


def test_the_arguments_are_those_of_the_task_that_ran(
    site: Site,
    make_hook: MakeHook,
    served_database: str,
    fields: Fields,
    instance: TaskInstanceKey,
    postgres: EmbeddedPostgres,
) -> None:
    hook = make_hook(served_database)
    site.connect(fields(served_database))
    hook.wait([send(hook, instance, try_number=1, a=1, b=1)], timeout_seconds=60)
    # The next try rendered other arguments.
    add_try(postgres, instance, try_number=2, started_at=now(), rendered={"task_kwargs": {"a": 2, "b": 2}})
    assert values(site, instance) is None
    mapped = TaskInstanceKey(dag_id="sales", run_id=instance.run_id, task_id="load", map_index=1)
    hook.wait([send(hook, mapped, try_number=2, a=1, b=1)], timeout_seconds=60)
    add_try(postgres, mapped, try_number=2, started_at=now(), rendered={"task_kwargs": {"a": 1, "b": 1}})
    assert values(site, mapped) == {"a": 1, "b": 1}


def test_arguments_that_were_rendered_anew_do_not_hide_those_of_a_task_that_lives(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres
) -> None:
    send(hook, instance, a=1, b="before", c=SECRET)
    add_try(
        postgres, instance, try_number=2, started_at=now(), rendered={"task_kwargs": {"a": 2, "b": "now", "c": "***"}}
    )
    assert values(connected, instance) == {"a": 1, "b": "before", "c": "***"}


def test_a_deadline_at_the_end_of_time_fails_no_page(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres, database: str
) -> None:
    """Somebody else sends it, where the database's own time zone is east of UTC."""
    with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} SET timezone = 'Europe/Berlin'")
        task_id = send(hook, instance, a=1)
        last = "9999-12-31 23:59:59.999999+00"
        connection.execute("UPDATE horsies_tasks SET good_until = %s WHERE id = %s", (last, task_id))
    time.sleep(SHARED_SECONDS)
    for path in (f"{PAGES}/api/overview", api_path(instance), api_path(instance, "/items")):
        assert connected.ask(path, "admin").status_code == 200, path


def test_a_try_that_airflow_lost_is_shown_and_called_lost(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres
) -> None:
    send(hook, instance, try_number=1, a=1)
    add_try(postgres, instance, try_number=2, started_at=now() + timedelta(seconds=60))
    tries = connected.ask(api_path(instance)).json()["tries"]
    assert [(each["try_number"], each["state"]) for each in tries] == [(1, "lost"), (2, "running")]
    assert tries[0]["started_at"] < tries[0]["ended_at"] == tries[1]["started_at"]


def test_what_another_deployment_submitted_is_neither_shown_nor_cancelled(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    with submitting_as("http://another.test"):
        (task_id,) = submit(hook, instance)
    assert connected.ask(api_path(instance)).json()["submissions"] == []
    for tail in ("/items", "/values", "/log.txt"):
        assert connected.ask(api_path(instance, tail), "admin").status_code == 404
    cancelled = connected.ask(
        api_path(instance, "/cancel"), "admin", "POST", json={}, headers={"origin": connected.origin}
    )
    assert cancelled.status_code == 404
    assert hook.read_task(task_id).state is TaskState.PENDING
    assert connected.ask(f"{PAGES}/api/dags/sales/gantt/{instance.run_id}").json()["rows"] == []
    time.sleep(SHARED_SECONDS)
    assert connected.ask(f"{PAGES}/api/overview", "admin").json()["activity"] == []


def test_sensors_leave_what_another_deployment_submitted_alone(make_hook: MakeHook, instance: TaskInstanceKey) -> None:
    """A hook keeps the address of the deployment that it first worked in."""
    with submitting_as("http://another.test"):
        hook = make_hook()
        (task_id,) = submit(hook, instance)
        assert [each.horsies_task_id for each in hook.read_submissions(instance)] == [task_id]
    hook = make_hook()
    assert hook.read_submissions(instance) == []
    assert asyncio.run(ask(hook, "read_submissions", instance)) == []
    # A component without an address of its own has the namespace to go by.
    with submitting_as(""):
        assert [each.horsies_task_id for each in make_hook().read_submissions(instance)] == [task_id]


def test_tasks_without_a_record_are_shown_to_readers_of_the_connection_only(connected: Site, hook: HorsiesHook) -> None:
    hook.enqueue_task(TaskSpec(task_name="told_by_a_notifier"))
    time.sleep(SHARED_SECONDS)
    for user, is_shown in (("viewer", False), ("writer", False), ("op", True), ("admin", True)):
        answer = connected.ask(f"{PAGES}/api/overview", user)
        assert ("told_by_a_notifier" in answer.text) is is_shown, user


def test_a_batch_that_shrank_after_a_clear_is_shown_as_it_is_now(
    site: Site, make_hook: MakeHook, served_database: str, fields: Fields, instance: TaskInstanceKey
) -> None:
    hook = make_hook(served_database)
    site.connect(fields(served_database))
    failing = [TaskSpec(task_name="blow_up", kwargs={"text": f"no {n}"}) for n in range(4)]
    ids = [sent.task_id for sent in hook.submit_tasks(failing, instance, AirflowTry(try_number=1))]
    hook.wait(ids, timeout_seconds=60)
    assert [each["items"] for each in failures_of(site, instance)] == [4]
    good = [TaskSpec(task_name="add", kwargs={"a": n, "b": 1}) for n in range(2)]
    ids = [sent.task_id for sent in hook.submit_tasks(good, instance, AirflowTry(clear_number=1, try_number=2))]
    hook.wait(ids, timeout_seconds=60)
    shown = site.ask(api_path(instance)).json()
    assert (shown["positions"], shown["counts"]) == (2, {"COMPLETED": 2})
    items = site.ask(api_path(instance, "/items")).json()
    assert (items["total"], [each["position"] for each in items["items"]]) == (2, [0, 1])
    (row,) = site.ask(f"{PAGES}/api/dags/sales/gantt/{instance.run_id}").json()["rows"]
    assert (row["items"], row["state"]) == (2, "COMPLETED")
    assert failures_of(site, instance) == []


def failures_of(site: Site, instance: TaskInstanceKey) -> list[Any]:
    failures = site.ask(f"{PAGES}/api/failures").json()["failures"]
    return [each for each in failures if each["run_id"] == instance.run_id]


SORTED: dict[str, Callable[[dict[str, Any]], Any]] = {
    name: lambda item, name=name: item[name]  # type: ignore[misc]
    for name in ("position", "state", "attempts", "duration", "error_code", "hostname")
}


@pytest.mark.parametrize("sort", SORTED)
def test_the_database_sorts_items_as_a_person_would(
    site: Site, make_hook: MakeHook, served_database: str, fields: Fields, instance: TaskInstanceKey, sort: str
) -> None:
    hook = make_hook(served_database)
    site.connect(fields(served_database))
    names = ("add", "blow_up", "fail", "nobody_knows", "add")
    given = ({"a": 1, "b": 1}, {"text": "no"}, {"code": "BAD_DAY"}, {}, {"a": 2, "b": 2})
    specs = [TaskSpec(task_name=name, kwargs=kwargs) for name, kwargs in zip(names, given, strict=True)]
    # One that waits for a worker knows nothing of most columns.
    specs += [TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, delay=timedelta(hours=1))] * 2
    ids = [sent.task_id for sent in hook.submit_tasks(specs, instance, AirflowTry(try_number=1))]
    hook.wait(ids[:5], timeout_seconds=60)
    items = site.ask(api_path(instance, "/items")).json()["items"]
    for descending in (False, True):
        known = [each for each in items if each[sort] is not None]
        known.sort(key=lambda each: (SORTED[sort](each), each["position"]), reverse=descending)
        expected = [each["position"] for each in known + [each for each in items if each[sort] is None]]
        query = f"/items?sort={sort}&descending={descending}"
        pages = [site.ask(api_path(instance, f"{query}&limit=3&offset={offset}")).json() for offset in (0, 3, 6, 9)]
        assert [each["position"] for page in pages for each in page["items"]] == expected
        assert {page["total"] for page in pages} == {7}
    failed = site.ask(api_path(instance, f"/items?sort={sort}&state=FAILED")).json()
    assert (failed["total"], {each["state"] for each in failed["items"]}) == (3, {"FAILED"})


def test_upstreams_monitoring_lets_the_connections_to_a_former_database_go(
    site: Site, database: str, served_database: str, fields: Fields, postgres: EmbeddedPostgres
) -> None:
    def connections() -> int:
        with psycopg.connect(**postgres.conninfo()) as connection:
            (row,) = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [database])
            return int(row[0])

    site.connect(fields(database))
    assert connections() == 0
    with httpx.stream(
        "GET", f"{site.origin}{PAGES}/monitoring/api/events", headers=site.bearer("op"), timeout=30, trust_env=False
    ) as events:
        assert events.status_code == 200
        assert site.ask(f"{PAGES}/monitoring/api/tasks", "op").status_code == 200
        give_up = time.monotonic() + 30
        while connections() < 2 and time.monotonic() < give_up:
            time.sleep(0.1)
        assert connections() >= 2
        site.connect(fields(served_database))
        assert site.ask(f"{PAGES}/monitoring/api/meta", "op").status_code == 200
        give_up = time.monotonic() + 10
        while connections() and time.monotonic() < give_up:
            time.sleep(0.1)
        assert connections() == 0
