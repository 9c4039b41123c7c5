"""Repair and cancel of single items through Airflow's real api-server: of what the page showed, and when it may be."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg
import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskState
from tests.integration.chunk_rig import batch, sql
from tests.integration.releases import MOVED
from tests.integration.test_submit import end_task
from tests.integration.ui_site import Site, api_path

pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

CHANGED = "The batch has changed since the page was loaded. Reload it."
LOCK_SECONDS = 2.0


@pytest.fixture
def instance(postgres: EmbeddedPostgres) -> TaskInstanceKey:
    """One that has failed, of a DAG run that Airflow knows."""
    key = TaskInstanceKey(dag_id="sales", run_id=f"manual__{uuid.uuid4().hex}", task_id="load")
    with psycopg.connect(**postgres.conninfo("airflow_of_ui")) as connection:
        # Neither the run's log template nor the version of the DAG is looked at.
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "INSERT INTO dag_run (dag_id, run_id, run_type, run_after, clear_number, start_date, state)"
            " VALUES (%(dag_id)s, %(run_id)s, 'manual', now(), 0, now(), 'failed')",
            asdict(key),
        )
        connection.execute(
            "INSERT INTO task_instance"
            " (id, dag_id, run_id, task_id, map_index, try_number, max_tries, pool, pool_slots, state)"
            " VALUES (gen_random_uuid(), %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, 1, 3, 'default_pool', 1,"
            " 'failed')",
            asdict(key),
        )
    return key


def set_state(
    postgres: EmbeddedPostgres, instance: TaskInstanceKey, state: str | None, next_method: str | None = None
) -> None:
    with psycopg.connect(**postgres.conninfo("airflow_of_ui")) as connection:
        connection.execute(
            "UPDATE task_instance SET state = %s, next_method = %s WHERE run_id = %s",
            (state, next_method, instance.run_id),
        )


def submit(hook: HorsiesHook, instance: TaskInstanceKey, numbers: list[int], chunk_size: int | None, try_: int) -> None:
    tried = AirflowTry(try_number=try_, max_tries=3, run_started_at=datetime(2026, 1, 1, tzinfo=UTC), run_key="a run")
    hook.client.submit_batch(batch(numbers, chunk_size), instance, tried)


def shown(site: Site, instance: TaskInstanceKey, position: int) -> dict[str, Any]:
    """An item as its page shows it."""
    newest = site.ask(api_path(instance, f"?position={position}")).json()["submissions"][0]
    return {name: newest[name] for name in ("position", "horsies_task_id", "number")}


def post(site: Site, instance: TaskInstanceKey, action: str, **body: Any) -> httpx.Response:
    return site.ask(api_path(instance, f"/{action}"), "writer", "POST", json=body)


def requests(hook: HorsiesHook) -> int:
    (row,) = sql(hook, "SELECT count(*) FROM airflow_horsies.repairs WHERE taken_at IS NULL")
    return int(row[0])


def live(hook: HorsiesHook) -> list[Any]:
    return sql(hook, "SELECT id FROM horsies_tasks WHERE status = 'PENDING' ORDER BY id")


@pytest.mark.parametrize("chunk_size", [None, 2], ids=["tasks", "chunks"])
def test_an_item_that_a_retry_moved_is_neither_cancelled_nor_rerun(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, chunk_size: int | None
) -> None:
    submit(hook, instance, [0, 1, 2, 3], chunk_size, 1)
    before = shown(connected, instance, 0)
    submit(hook, instance, [3, 2, 1, 0], chunk_size, 2)
    waiting = live(hook)
    cancelled = post(connected, instance, "cancel", item=before)
    assert (cancelled.status_code, cancelled.json()["detail"]) == (409, CHANGED)
    assert live(hook) == waiting
    assert not any(dropped for (dropped,) in sql(hook, "SELECT dropped FROM airflow_horsies.chunks"))
    repaired = post(connected, instance, "repair", items=[before])
    assert (repaired.status_code, repaired.json()["detail"]) == (409, CHANGED)
    assert requests(hook) == 0
    now = shown(connected, instance, 0)
    assert post(connected, instance, "repair", items=[now]).status_code == 200
    assert post(connected, instance, "cancel", item=now).status_code == 200
    assert requests(hook) == 1


@pytest.mark.parametrize("action", ["cancel", "repair"])
def test_a_position_alone_names_no_item(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, action: str
) -> None:
    submit(hook, instance, [0, 1], None, 1)
    waiting = live(hook)
    for body in ({"position": 0}, {"item": {"position": 0}}, {"items": [0]}, {"items": [{"position": 0}]}):
        assert post(connected, instance, action, **body).status_code == 422
    assert (live(hook), requests(hook)) == (waiting, 0)


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "restarting"])
def test_a_task_instance_that_was_cleared_and_has_not_started_is_not_repaired(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres, state: str | None
) -> None:
    submit(hook, instance, [0, 1], None, 1)
    for (task_id,), end in zip(live(hook), (TaskState.COMPLETED, TaskState.FAILED), strict=True):
        end_task(hook, str(task_id), end, MOVED)
    set_state(postgres, instance, state)
    refused = post(connected, instance, "repair")
    assert refused.status_code == 409
    assert "waits to start" in refused.json()["detail"] and "mark it as failed" in refused.json()["detail"]
    assert requests(hook) == 0
    # It was deferred, and goes on.
    set_state(postgres, instance, "queued", "resume")
    assert post(connected, instance, "repair").status_code == 200


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "up_for_retry", "running", "deferred"])
def test_a_task_instance_that_has_started_is_repaired(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, postgres: EmbeddedPostgres, state: str
) -> None:
    submit(hook, instance, [0, 1], None, 1)
    set_state(postgres, instance, state)
    assert post(connected, instance, "repair").status_code == 200
    assert requests(hook) == 1


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_no_connection_to_airflows_database_is_held_while_the_horsies_database_is_locked(
    connected: Site,
    hook: HorsiesHook,
    instance: TaskInstanceKey,
    postgres: EmbeddedPostgres,
    threads: ThreadPoolExecutor,
) -> None:
    submit(hook, instance, [0, 1], None, 1)
    assert post(connected, instance, "repair").status_code == 200
    with (
        psycopg.connect(**hook.settings.database.connect_args) as lock,
        psycopg.connect(**postgres.conninfo("airflow_of_ui"), autocommit=True) as watch,
    ):
        lock.execute("LOCK TABLE airflow_horsies.submissions IN ACCESS EXCLUSIVE MODE")
        asked = threads.submit(post, connected, instance, "repair")
        held = 0
        give_up = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < give_up:
            # Longer than any read of Airflow's own takes.
            (row,) = watch.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = 'airflow_of_ui'"
                " AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '500 ms'"
            ).fetchall()
            held = max(held, row[0])
            time.sleep(0.05)
        assert not asked.done()
        lock.rollback()
        assert asked.result().status_code == 200
    assert held == 0
