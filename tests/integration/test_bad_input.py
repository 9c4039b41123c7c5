"""Bad input and bad databases: one clear error each, and nothing written."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import (
    AccessDenied,
    CutoverPending,
    DatabaseUnreachable,
    HistoryPartitionMissing,
    HorsiesError,
    InvalidTask,
    SchemaMissing,
    SchemaUnsupported,
    TaskNotCancellable,
    TaskNotFound,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import (
    DEFAULT_RETENTION,
    AirflowTry,
    RetryPolicy,
    TaskInstanceKey,
    TaskSpec,
    TaskState,
)
from airflow_horsies.wire.checks import find_uncovered_classes
from tests.integration.conftest import MakeHook
from tests.integration.releases import IN_PLACE, MOVED

PASSWORD = "not-to-be-seen"
UNKNOWN_ID = "01a1e223-68a7-7210-ad76-a42348fdcb7c"

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

BAD_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "empty name": ({"task_name": ""}, "task_name: must not be empty"),
    "name of another type": ({"task_name": 7}, "task_name: must be a string"),
    "name too long": ({"task_name": "x" * 256}, "task_name: is 256 characters long. Use at most 255"),
    "NUL in the name": ({"task_name": "a\x00"}, "task_name: must not contain a NUL"),
    "lone surrogate in the name": ({"task_name": "\ud800"}, "task_name: contains a lone surrogate"),
    "empty queue": ({"queue": " "}, "queue: must not be empty"),
    "priority 0": ({"priority": 0}, "priority: must be an integer from 1 to 100, not 0"),
    "priority 101": ({"priority": 101}, "priority: must be an integer from 1 to 100, not 101"),
    "priority of another type": ({"priority": True}, "priority: must be an integer"),
    "naive good_until": ({"good_until": datetime(2031, 1, 1)}, "good_until: has no time zone"),
    "good_until of another type": ({"good_until": "tomorrow"}, "good_until: must be a datetime"),
    "negative delay": ({"delay": timedelta(seconds=-1)}, "delay: must be at least 0 seconds"),
    "delay in fractions": ({"delay": timedelta(milliseconds=1)}, "delay: must be a whole number of seconds"),
    "timeout too short": ({"timeout": timedelta(milliseconds=999)}, "timeout: must be at least one second"),
    "kwargs of another type": ({"kwargs": [1]}, "kwargs: must be a mapping"),
    "reserved key": ({"kwargs": {"__h_x": 1}}, "kwargs: has the key '__h_x', which is reserved"),
    "reserved key inside": ({"kwargs": {"a": [{"__horsies_x": 1}]}}, r"kwargs\.a\[0\]: has the key '__horsies_x'"),
    "NaN": ({"kwargs": {"a": [float("nan")]}}, r"kwargs\.a\[0\]: is nan"),
    "infinity": ({"kwargs": {"a": float("inf")}}, r"kwargs\.a: is inf"),
    "lone surrogate": ({"kwargs": {"a": "\udc00"}}, "kwargs: contain a lone surrogate"),
    "datetime": ({"kwargs": {"a": datetime(2031, 1, 1)}}, r"kwargs\.a: is of type datetime.*isoformat"),
    "key of another type": ({"kwargs": {1: 1}}, "kwargs: has the key 1. Use strings as keys"),
    "contains itself": ({"kwargs": {"a": ENDLESS}}, "kwargs: are nested more than 200 deep"),
    "enormous number": ({"kwargs": {"a": 10**5000}}, r"kwargs\.a: is an integer of 16610 bits"),
    "too large": ({"kwargs": {"a": "x" * 9_000_000}}, "kwargs: are 9,000,00. bytes.*max_payload_bytes"),
    "unknown retention class": ({"retention": "no_such_class"}, "retention: 'no_such_class'"),
    "retry policy of another type": ({"retry_policy": {"max_retries": 3}}, "retry_policy: must be a RetryPolicy"),
    "id that is no UUID": ({"task_id": "7"}, "task_id: must be a UUID, not '7'"),
    "key too long": ({"idempotency_key": "é" * 128}, "idempotency_key: is 256 bytes long. Use at most 255"),
}


@pytest.mark.parametrize(("given", "message"), BAD_SPECS.values(), ids=BAD_SPECS)
def test_bad_task_is_refused_and_nothing_is_written(hook: HorsiesHook, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        hook.enqueue_task(TaskSpec(**{"task_name": "add", **given}))
    with pytest.raises(InvalidTask, match=message):
        hook.enqueue_tasks([TaskSpec(task_name="add"), TaskSpec(**{"task_name": "add", **given})])
    with pytest.raises(InvalidTask, match=message):
        hook.submit_task(TaskSpec(**{"task_name": "add", **given}), INSTANCE, AirflowTry(try_number=1))
    assert hook.list_tasks().tasks == ()
    assert hook.read_submissions(INSTANCE) == []


INSTANCE = TaskInstanceKey(dag_id="d", run_id="r", task_id="t")


def test_bad_item_of_many_is_named_by_its_place(hook: HorsiesHook) -> None:
    with pytest.raises(InvalidTask, match=r"task 1: kwargs\.a: is nan"):
        hook.enqueue_tasks([TaskSpec(task_name="add"), TaskSpec(task_name="add", kwargs={"a": float("nan")})])
    twin = TaskSpec(task_name="add", task_id=UNKNOWN_ID)
    with pytest.raises(InvalidTask, match="is given more than once"):
        hook.enqueue_tasks([twin, twin])
    assert hook.list_tasks().tasks == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RetryPolicy.fixed([1], auto_retry_for=["ValueError"]), "looks like an exception class"),
        (lambda: RetryPolicy.fixed([1], auto_retry_for=["rate limited"]), "not in UPPER_SNAKE_CASE"),
        (lambda: RetryPolicy.fixed([0], auto_retry_for=["A"]), "intervals: must be an integer from 1 to 86400"),
        (lambda: RetryPolicy.fixed([], auto_retry_for=["A"]), "max_retries: must be an integer from 1 to 20"),
    ],
)
def test_bad_retry_policy_is_refused_where_it_is_written(make: Any, message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        make()


def test_unknown_task_is_told_as_such(hook: HorsiesHook) -> None:
    for call in (hook.read_task, hook.cancel_task):
        with pytest.raises(TaskNotFound, match=f"Task {UNKNOWN_ID} is not in this database"):
            call(UNKNOWN_ID)
    assert hook.read_tasks([UNKNOWN_ID]) == {}
    with pytest.raises(InvalidTask, match="must be a UUID, not 'nonsense'"):
        hook.read_task("nonsense")


def test_cancel_refuses_a_state_that_was_not_asked_for(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="add", delay=timedelta(hours=1)))
    with pytest.raises(TaskNotCancellable, match="is PENDING"):
        hook.cancel_task(task_id, states={TaskState.RUNNING})
    assert hook.read_task(task_id).state is TaskState.PENDING


def test_task_of_a_workflow_is_never_cancelled(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="add", delay=timedelta(hours=1)))
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("UPDATE horsies_tasks SET is_workflow_task = TRUE")
    with pytest.raises(TaskNotCancellable, match="Cancel the workflow instead"):
        hook.cancel_task(task_id)
    assert hook.read_task(task_id).state is TaskState.PENDING


# -- the database is not what it should be ---------------------------------------------------------------------------


def every_use(hook: HorsiesHook) -> Iterator[Any]:
    yield lambda: hook.enqueue_task(TaskSpec(task_name="add"))
    yield lambda: hook.enqueue_tasks([TaskSpec(task_name="add")])
    yield lambda: hook.read_task(UNKNOWN_ID)
    yield lambda: hook.wait([UNKNOWN_ID], timeout_seconds=5)
    yield lambda: hook.read_queues()


def assert_refused(hook: HorsiesHook, error: type[HorsiesError], message: str) -> None:
    for use in every_use(hook):
        with pytest.raises(error, match=message) as caught:
            use()
        assert PASSWORD not in str(caught.value)
    healthy, told = hook.test_connection()
    assert not healthy
    assert PASSWORD not in told


def test_database_without_horsies_says_how_to_make_it(make_hook: MakeHook, empty_database: str) -> None:
    assert_refused(make_hook(empty_database), SchemaMissing, "no table horsies_tasks.*horsies worker")


@pytest.mark.parametrize("release", [IN_PLACE], indirect=True)
def test_schema_of_an_alpha_is_refused(hook: HorsiesHook) -> None:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("ALTER TABLE horsies_tasks DROP COLUMN enqueue_sha")
    assert_refused(hook, SchemaUnsupported, "no column enqueue_sha.*older than 0.1.6.*Upgrade horsies")


@pytest.mark.parametrize("release", [IN_PLACE], indirect=True)
def test_pending_cutover_is_refused_until_it_is_done(
    hook: HorsiesHook, postgres: EmbeddedPostgres, database: str
) -> None:
    upgrade = Path(__file__).with_name("upstream_init.py")
    url = postgres.dsn(database, scheme="postgresql+psycopg")
    subprocess.run(
        [sys.executable, upgrade], env={**os.environ, "HORSIES_DATABASE_URL": url}, check=True, capture_output=True
    )
    for write in (lambda: hook.enqueue_task(TaskSpec(task_name="add")), lambda: hook.cancel_task(UNKNOWN_ID)):
        with pytest.raises(CutoverPending, match="cutover is pending"):
            write()
    assert hook.read_queues() == []
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        assert connection.execute("SELECT count(*) FROM horsies_tasks").fetchone() == (0,)


@pytest.mark.parametrize("release", [MOVED], indirect=True)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_history_without_a_partition_for_today_says_to_start_a_worker(
    hook: HorsiesHook, request: pytest.FixtureRequest, driver: str
) -> None:
    """As when no worker has run for some days."""
    if driver == "psycopg2":
        request.getfixturevalue("with_psycopg2")
    task_id = hook.enqueue_task(TaskSpec(task_name="add", delay=timedelta(hours=1)))
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        found = connection.execute(
            """SELECT parent_name, leaf_name FROM horsies_task_history_leaf_catalog
               WHERE class_key = %s AND now() >= lower_anchor AND now() < upper_anchor""",
            (DEFAULT_RETENTION,),
        ).fetchone()
        assert found is not None
        detach = sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(*map(sql.Identifier, found))
        assert hook.client.run(find_uncovered_classes) == []
        connection.execute(detach)
    says = r"no partition for the current time.*Start a worker \('horsies worker your_module:app'\)"
    for cancel in (lambda: hook.cancel_task(task_id), lambda: asyncio.run(hook.cancel_task_async(task_id))):
        with pytest.raises(HistoryPartitionMissing, match=says):
            cancel()
    assert hook.read_task(task_id).state is TaskState.PENDING
    assert hook.client.run(find_uncovered_classes) == [DEFAULT_RETENTION]


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_schema_newer_than_tested_is_read_and_not_written(hook: HorsiesHook, make_hook: MakeHook) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="add", delay=timedelta(hours=1)))
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("INSERT INTO horsies_schema_version (version, applied_at) VALUES (999, now())")
    later = make_hook()
    assert later.read_task(task_id).state is TaskState.PENDING
    for write in (lambda: later.enqueue_task(TaskSpec(task_name="add")), lambda: later.cancel_task(task_id)):
        with pytest.raises(SchemaUnsupported, match=r"version 999.*read but not written.*Upgrade airflow-horsies"):
            write()


def test_cancel_before_any_worker_has_started_says_so(
    make_hook: MakeHook, postgres: EmbeddedPostgres, empty_database: str
) -> None:
    url = postgres.dsn(empty_database, scheme="postgresql+psycopg")
    init = Path(__file__).with_name("upstream_init.py")
    subprocess.run(
        [sys.executable, init], env={**os.environ, "HORSIES_DATABASE_URL": url}, check=True, capture_output=True
    )
    hook = make_hook(empty_database)
    task_id = hook.enqueue_task(TaskSpec(task_name="add", delay=timedelta(hours=1)))
    with pytest.raises(SchemaUnsupported, match="Start a worker once"):
        hook.cancel_task(task_id)


@pytest.mark.parametrize("release", [MOVED], indirect=True)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"password": PASSWORD}, AccessDenied, "Cannot log in"),
        ({"login": "nobody_here", "password": PASSWORD}, AccessDenied, "Cannot log in to .*nobody_here"),
        (
            {"host": "no-such-host.invalid", "password": PASSWORD},
            DatabaseUnreachable,
            "Cannot reach .*no-such-host.invalid",
        ),
        ({"port": 1, "password": PASSWORD}, DatabaseUnreachable, "Cannot reach .*:1:"),
        ({"schema": "no_such_database"}, DatabaseUnreachable, "Cannot reach .*no_such_database.*does not exist"),
    ],
    ids=["wrong password", "unknown user", "no such host", "nobody listens", "no such database"],
)
def test_database_that_cannot_be_reached_is_named_without_its_password(
    make_hook: MakeHook,
    database: str,
    request: pytest.FixtureRequest,
    driver: str,
    given: dict[str, Any],
    error: type[HorsiesError],
    message: str,
) -> None:
    if driver == "psycopg2":
        request.getfixturevalue("with_psycopg2")
    hook = make_hook(database, extra={"connect_timeout": 3}, **given)
    with pytest.raises(error, match=message) as caught:
        hook.enqueue_task(TaskSpec(task_name="add"))
    assert PASSWORD not in str(caught.value)


def test_extra_that_is_nobodys_is_refused_by_name(make_hook: MakeHook, database: str) -> None:
    with pytest.raises(InvalidTask, match=r"extra: connection horsies_test has unknown .*nmespace.*namespace"):
        make_hook(database, extra={"nmespace": "x"}).read_queues()
    with pytest.raises(InvalidTask, match=r"listen: must be 'notify' or 'poll' .*, not 'shout'"):
        make_hook(database, extra={"listen": "shout"}).wait([UNKNOWN_ID])


def test_namespace_may_be_a_number(make_hook: MakeHook, database: str) -> None:
    hook = make_hook(database, extra={"namespace": 2024})
    sent = hook.submit_task(TaskSpec(task_name="add"), INSTANCE, AirflowTry(try_number=1))
    assert [(each.namespace, each.horsies_task_id) for each in hook.read_submissions(INSTANCE)] == [
        ("2024", sent.task_id)
    ]


@pytest.fixture
def reader(postgres: EmbeddedPostgres, database: str) -> Iterator[dict[str, str]]:
    """A user who may read horsies' tables and nothing else."""
    fields = {"login": f"reader_{database}", "password": PASSWORD}
    role = sql.Identifier(fields["login"])
    with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(PASSWORD)))
        connection.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(role))
        yield fields
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_user_who_may_only_read_is_told_which_grant_is_missing(
    hook: HorsiesHook, make_hook: MakeHook, database: str, reader: dict[str, str]
) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="add", delay=timedelta(hours=1)))
    limited = make_hook(database, **reader)
    assert limited.read_task(task_id).state is TaskState.PENDING
    assert limited.read_submissions(INSTANCE) == []
    with pytest.raises(AccessDenied, match="permission denied for table horsies_tasks"):
        limited.enqueue_task(TaskSpec(task_name="add"))
    with pytest.raises(AccessDenied, match="permission denied"):
        limited.cancel_task(task_id)
    with pytest.raises(AccessDenied) as caught:
        limited.submit_task(TaskSpec(task_name="add"), INSTANCE, AirflowTry(try_number=1))
    told = str(caught.value)
    assert "airflow horsies db migrate" in told
    assert f'GRANT CREATE ON DATABASE "{database}" TO "{reader["login"]}";' in told
    assert PASSWORD not in told
    assert hook.read_task(task_id).state is TaskState.PENDING


def test_grants_that_the_error_names_are_enough(
    hook: HorsiesHook, make_hook: MakeHook, postgres: EmbeddedPostgres, database: str, reader: dict[str, str]
) -> None:
    migrate_ledger(hook.client)
    limited = make_hook(database, **reader)
    with pytest.raises(AccessDenied) as caught:
        migrate_ledger(limited.client)
    grants = [line.strip() for line in str(caught.value).splitlines() if line.strip().startswith("GRANT")]
    with psycopg.connect(**postgres.conninfo(database)) as connection:
        for grant in grants[:2]:
            connection.execute(grant.encode())
        connection.execute(
            sql.SQL("GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {}").format(
                sql.Identifier(reader["login"])
            )
        )
    granted = make_hook(database, **reader)
    sent = granted.submit_task(TaskSpec(task_name="add", delay=timedelta(hours=1)), INSTANCE, AirflowTry(try_number=1))
    assert granted.cancel_task(sent.task_id) == "CANCELLED"
