"""The reliability report: its figures are those that SQL finds in the same rows; its page needs nothing but itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from airflow_horsies.client.ledger import list_reports, migrate_ledger, read_report
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, RetryPolicy, TaskInstanceKey, TaskSpec, TaskState
from airflow_horsies.report.page import Period
from airflow_horsies.report.task import TABLES, write_report
from airflow_horsies.spark import HorsiesDataSource
from tests.integration.conftest import make_worker
from tests.integration.releases import MOVED, keeps_history
from tests.integration.spark_session import open_spark
from tests.unit.report.test_page import Outline

NO_SOURCE = "(not sent by Airflow)"
KEYS = ("dimension", "value", "day")
DELAY = timedelta(hours=1)

TASKS_MOVED = """
SELECT task_id::text AS id, task_name, queue_name, status, error_code, coalesce(sent_at, enqueued_at) AS sent_at,
    terminal_at AS ended_at
FROM horsies_task_history
"""
TASKS_IN_PLACE = """
SELECT id, task_name, queue_name, status, error_code, coalesce(sent_at, enqueued_at) AS sent_at,
    coalesce(terminal_at, completed_at, failed_at) AS ended_at
FROM horsies_tasks
WHERE status IN ('COMPLETED', 'FAILED', 'EXPIRED', 'CANCELLED')
"""
ATTEMPTS_MOVED = """
SELECT task_id::text AS id, (told ->> 0)::int AS attempt, told ->> 1 AS outcome, (told ->> 2)::boolean AS will_retry,
    'epoch'::timestamptz + (told ->> 3)::bigint * interval '1 microsecond' AS started_at,
    'epoch'::timestamptz + (told ->> 4)::bigint * interval '1 microsecond' AS finished_at,
    told ->> 5 AS error_code, told ->> 8 AS worker_id
FROM horsies_task_history
CROSS JOIN LATERAL json_array_elements(convert_from(attempt_snapshot, 'UTF8')::json) AS told
"""
ATTEMPTS_IN_PLACE = """
SELECT task_id AS id, attempt, outcome, will_retry, started_at, finished_at, error_code, worker_id
FROM horsies_task_attempts
"""
PREPARE = """
CREATE TEMPORARY TABLE ended AS
SELECT tasks.*, (ended_at AT TIME ZONE 'UTC')::date AS day, coalesce(dag_id, '(not sent by Airflow)') AS dag_id
FROM ({tasks}) AS tasks
LEFT JOIN airflow_horsies.submissions ON horsies_task_id::text = tasks.id
WHERE ended_at >= %(start)s AND ended_at < %(end)s;
"""
PREPARE_ATTEMPTS = """
CREATE TEMPORARY TABLE tried AS
SELECT attempts.*, ended.task_name, ended.queue_name, ended.dag_id, ended.day,
    extract(epoch FROM finished_at - started_at)::float AS run,
    CASE attempt WHEN 1 THEN extract(epoch FROM started_at - sent_at)::float END AS wait
FROM ({attempts}) AS attempts INNER JOIN ended USING (id)
"""
GROUPED = """
CROSS JOIN LATERAL (VALUES ('all', ''), ('dag', dag_id), ('task', task_name), ('queue', queue_name))
    AS grouped (dimension, value)
CROSS JOIN LATERAL (VALUES (rows.day), (NULL::date)) AS days (of_day)
"""
GROUPS = f"""
SELECT dimension, value, of_day AS day, count(*) AS tasks,
    count(*) FILTER (WHERE status = 'COMPLETED') AS completed, count(*) FILTER (WHERE status = 'FAILED') AS failed,
    count(*) FILTER (WHERE status = 'EXPIRED') AS expired, count(*) FILTER (WHERE status = 'CANCELLED') AS cancelled,
    avg((status = 'COMPLETED')::int)::float AS success_rate
FROM ended AS rows {GROUPED} GROUP BY 1, 2, 3
"""
GROUPS_OF_ATTEMPTS = f"""
SELECT dimension, value, of_day AS day, count(*) AS attempts, count(*) FILTER (WHERE attempt > 1) AS retries,
    count(*) FILTER (WHERE attempt > 1 AND outcome = 'COMPLETED') AS healed,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY wait) AS wait_p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY wait) AS wait_p95,
    percentile_cont(0.99) WITHIN GROUP (ORDER BY wait) AS wait_p99,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY run) AS run_p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY run) AS run_p95,
    percentile_cont(0.99) WITHIN GROUP (ORDER BY run) AS run_p99
FROM tried AS rows {GROUPED} GROUP BY 1, 2, 3
"""
ERRORS = f"""
SELECT dimension, value, of_day AS day, error_code, count(*) AS times, count(DISTINCT id) AS tasks,
    count(*) FILTER (WHERE will_retry) AS retried
FROM (
    SELECT id, dag_id, task_name, queue_name, day, error_code, will_retry FROM tried WHERE outcome <> 'COMPLETED'
    UNION ALL
    SELECT id, dag_id, task_name, queue_name, day, coalesce(error_code, status), NULL
    FROM ended
    WHERE status <> 'COMPLETED' AND id NOT IN (SELECT id FROM tried WHERE outcome <> 'COMPLETED' AND NOT will_retry)
) AS rows {GROUPED} GROUP BY 1, 2, 3, 4
"""
SLOWEST = "SELECT id, attempt, run FROM tried ORDER BY run DESC, id, attempt LIMIT 20"
WORKERS = """
SELECT worker_id, day, count(*) AS attempts, count(*) FILTER (WHERE outcome <> 'COMPLETED') AS failed, sum(run) AS busy
FROM tried GROUP BY 1, 2
"""


@pytest.fixture(scope="module")
def service_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark's processes look for the database; it is read with each connection."""
    return tmp_path_factory.mktemp("service") / "pg_service.conf"


@pytest.fixture(scope="module")
def spark(service_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    environ = {"PGSERVICEFILE": str(service_file), "PGSERVICE": "report"}
    with open_spark(tmp_path_factory.mktemp("spark"), environ) as session:
        session.dataSource.register(HorsiesDataSource)
        yield session


@pytest.fixture
def pointed(
    spark: SparkSession,
    service_file: Path,
    postgres: EmbeddedPostgres,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> SparkSession:
    """Spark, with the test's database."""
    lines = (f"{name}={value}" for name, value in postgres.conninfo(database).items())
    service_file.write_text("\n".join(["[report]", *lines, ""]))
    monkeypatch.setenv("PGSERVICEFILE", str(service_file))
    monkeypatch.setenv("PGSERVICE", "report")
    return spark


@pytest.fixture
def busy_hook(
    hook: HorsiesHook, postgres: EmbeddedPostgres, database: str, release: str, tmp_path: Path
) -> HorsiesHook:
    """Of a database with tasks of every end, sent by DAGs and by others; a real worker ran them."""
    with make_worker(postgres, database, release, tmp_path):
        run_tasks(hook)
    return hook


def run_tasks(hook: HorsiesHook) -> None:
    chance = random.Random(7)
    now = datetime.now(UTC)
    again = RetryPolicy.fixed([1], auto_retry_for=["FLAKY"], jitter=False)
    specs = [
        *(TaskSpec(task_name="sleep", kwargs={"seconds": chance.random() / 5}) for _ in range(12)),
        *(TaskSpec(task_name="add", kwargs={"a": 1, "b": each}) for each in range(10)),
        *(TaskSpec(task_name="fail", kwargs={"code": "FLAKY"}, retry_policy=again) for _ in range(2)),
        TaskSpec(task_name="fail", kwargs={"code": "BAD_DATA"}),
        TaskSpec(task_name="blow_up", kwargs={"text": "boom"}),
        TaskSpec(task_name="no_such_task"),
    ]
    ids = [
        sent.task_id
        for number, dag_id in enumerate(("sales", "stock"))
        for sent in hook.submit_tasks(
            specs[number::2], TaskInstanceKey(dag_id=dag_id, run_id="r", task_id="t"), AirflowTry(try_number=1)
        )
    ]
    ids += hook.enqueue_tasks(
        [
            TaskSpec(task_name="echo", kwargs={"value": "free"}),
            TaskSpec(task_name="echo", kwargs={"value": "late"}, good_until=now + timedelta(seconds=5), delay=DELAY),
        ]
    )
    cancelled = hook.enqueue_task(TaskSpec(task_name="echo", kwargs={"value": "no"}, delay=DELAY))
    hook.cancel_task(cancelled)
    ended = hook.wait([*ids, cancelled], timeout_seconds=90)
    assert {task.state for task in ended} == {
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.EXPIRED,
        TaskState.CANCELLED,
    }


def rows_of(connection: psycopg.Connection[Any], query: str, *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = connection.cursor(row_factory=dict_row).execute(query).fetchall()
    return {tuple(row[key] for key in keys): row for row in found}


def test_figures_equal_those_of_sql(
    pointed: SparkSession, busy_hook: HorsiesHook, release: str, tmp_path: Path
) -> None:
    spark, hook = pointed, busy_hook
    now = datetime.now(UTC)
    period = Period(start=now - timedelta(days=3), end=now + timedelta(days=4))
    result = write_report(spark, period, str(tmp_path))
    moved = keeps_history(release)
    tasks, attempts = (TASKS_MOVED, ATTEMPTS_MOVED) if moved else (TASKS_IN_PLACE, ATTEMPTS_IN_PLACE)
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute(PREPARE.format(tasks=tasks), {"start": period.start, "end": period.end})
        connection.execute(PREPARE_ATTEMPTS.format(attempts=attempts))
        by_sql = rows_of(connection, GROUPS, *KEYS)
        attempts_by_sql = rows_of(connection, GROUPS_OF_ATTEMPTS, *KEYS)
        errors_by_sql = rows_of(connection, ERRORS, *KEYS, "error_code")
        slowest_by_sql = rows_of(connection, SLOWEST, "id", "attempt")
        workers_by_sql = rows_of(connection, WORKERS, "worker_id", "day")
    written = {table: [row.asDict() for row in spark.read.parquet(str(tmp_path / table)).collect()] for table in TABLES}
    assert {row["period"] for rows in written.values() for row in rows} == {period.key}

    groups = {tuple(row[key] for key in KEYS): row for row in written["groups"]}
    assert groups.keys() == by_sql.keys()
    for key, row in groups.items():
        for name, value in {**attempts_by_sql.get(key, {}), **by_sql[key]}.items():
            assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), (key, name)
    without_attempts = groups.keys() - attempts_by_sql.keys()
    assert all(groups[key]["attempts"] == 0 and groups[key]["run_p95"] is None for key in without_attempts)
    assert {value for dimension, value, _ in groups if dimension == "dag"} == {"sales", "stock", NO_SOURCE}

    errors = {tuple(row[key] for key in (*KEYS, "error_code")): row for row in written["errors"]}
    assert errors.keys() == errors_by_sql.keys()
    assert {"FLAKY", "BAD_DATA", "UNHANDLED_EXCEPTION"} <= {code for *_, code in errors}
    assert all(
        row[name] == errors_by_sql[key][name] for key, row in errors.items() for name in ("times", "tasks", "retried")
    )

    slowest = {(row["horsies_task_id"], row["attempt"]): row["run_seconds"] for row in written["slowest"]}
    assert slowest == pytest.approx({key: row["run"] for key, row in slowest_by_sql.items()})
    workers = {(row["worker_id"], row["day"]): row for row in written["workers"]}
    assert workers.keys() == workers_by_sql.keys()
    for key, row in workers.items():
        expected = workers_by_sql[key]
        assert (row["attempts"], row["failed"]) == (expected["attempts"], expected["failed"])
        assert row["busy_seconds"] == pytest.approx(expected["busy"])

    total = by_sql["all", "", None]
    assert (result["tasks"], result["retries"]) == (total["tasks"], attempts_by_sql["all", "", None]["retries"])
    page = Path(result["page"]).read_text()
    words = Outline(page).words
    assert words[words.index("Tasks that ended") + 1] == str(total["tasks"])
    assert {"sales", "stock", NO_SOURCE, "FLAKY", "sleep"} <= set(words)
    (report,) = list_reports(hook.client)
    assert (report.name, report.location) == ("reliability", result["page"])
    assert read_report(hook.client, report.name, report.period_start, report.period_end) == page


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_a_period_without_tasks_gives_an_empty_report(pointed: SparkSession, hook: HorsiesHook, tmp_path: Path) -> None:
    migrate_ledger(hook.client)
    monday = datetime(2024, 1, 1, tzinfo=UTC)
    result = write_report(pointed, Period(start=monday, end=monday + timedelta(days=7)), str(tmp_path))
    assert (result["tasks"], result["success_rate"]) == (0, None)
    assert "No task ended in this period." in Path(result["page"]).read_text()
