"""The data source, on a real Spark and databases of real releases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from airflow_horsies.db.connection import Database
from airflow_horsies.db.session import Session
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.schema import migrate
from airflow_horsies.models import TaskSpec
from airflow_horsies.wire.decoding import decode_attempts
from tests.integration.conftest import make_worker
from tests.integration.many_tasks import fill
from tests.integration.many_workflows import fill_workflows
from tests.integration.releases import keeps_history
from tests.integration.spark_session import open_spark, spark_environ

pytest.importorskip("pyspark")
from pyspark.sql import DataFrame, SparkSession

from airflow_horsies.source.tables import TABLES
from airflow_horsies.spark import HorsiesDataSource

# py4j leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TASKS = 2_400
WORKFLOWS = 600
SECRET = "a-secret-that-nobody-shall-see"
FILTERS = (
    "outcome = 'FAILED' AND attempt = 2",
    "attempt > 1 AND attempt <= 3",
    "NOT (outcome = 'FAILED')",
    "error_code IS NULL",
    "error_code IS NOT NULL AND error_message LIKE '%part 21%'",
    "error_code <=> 'TASK_EXCEPTION'",
    "queue IN ('queue_1', 'queue_2', 'no%queue', 'it''s \\\\none')",
    "worker_id LIKE 'worker-1%' AND hostname LIKE '%9'",
    "task_name > 'task_of_kind_2' AND task_name < 'task_of_kind_25'",
    "will_retry AND finished_at > current_timestamp() - INTERVAL 1 DAY",
    "finished_at <= TIMESTAMP '2000-01-01 00:00:00'",
    "task_id = 'no uuid' OR pid = 7",
    "task_id IN ('no uuid', 'x')",
    "length(queue) = 7 AND pid = 7",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark_source")


@pytest.fixture(scope="module")
def environ(folder: Path) -> dict[str, str]:
    """Of the JVM and, through it, of Spark's Python processes: databases are told apart by the names of services."""
    (folder / "services").touch()
    return {
        **spark_environ(folder),
        "PGSERVICEFILE": str(folder / "services"),
        "HORSIES_DATABASE_URL": f"postgresql://nobody:{SECRET}@127.0.0.1:1/nowhere",
    }


@pytest.fixture(scope="module")
def spark(folder: Path, environ: dict[str, str]) -> Iterator[SparkSession]:
    """pytest may come back to this module for the other release, so that nothing of a session may be left."""
    (folder / "events").mkdir(exist_ok=True)
    settings = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.sql.session.timeZone": "Europe/Paris",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
    }
    with open_spark(folder, environ, settings) as session:
        session.sparkContext.setLogLevel("OFF")
        session.dataSource.register(HorsiesDataSource)
        yield session


Serve = Callable[[str], str]


@pytest.fixture(scope="module")
def serve(spark: SparkSession, folder: Path, postgres: EmbeddedPostgres) -> Serve:
    """Makes a database known to Spark, under its own name."""

    def add(database: str) -> str:
        info = postgres.conninfo(database)
        lines = "".join(f"{name}={value}\n" for name, value in info.items())
        with (folder / "services").open("a") as file:
            file.write(f"[{database}]\n{lines}")
        return database

    return add


@pytest.fixture(scope="module")
def filled(postgres: EmbeddedPostgres, template: str, release: str, serve: Serve) -> Iterator[str]:
    name = f"source_{release}"
    postgres.create_database(name, template=template)
    args = postgres.conninfo(name)
    session = Session(Database(connect_args=args, listen_args=args))
    session.run(migrate)
    session.close()
    with psycopg.connect(**args) as connection:
        fill(connection, tasks=TASKS, days=3, keeps_history=keeps_history(release))
    with psycopg.connect(**args) as connection:
        fill_workflows(connection, workflows=WORKFLOWS, keeps_history=keeps_history(release))
    yield serve(name)
    postgres.drop_database(name)


@pytest.fixture
def served(database: str, serve: Serve) -> str:
    return serve(database)


def read(spark: SparkSession, service: str, table: str, **options: object) -> DataFrame:
    reader = spark.read.format("horsies").option("service", service).option("table", table)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=repr)


def expected(postgres: EmbeddedPostgres, database: str, table: str, release: str) -> list[dict[str, Any]]:
    """By other statements than those of the source."""
    with psycopg.connect(**postgres.conninfo(database), row_factory=dict_row) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        if table == "workers":
            found = connection.execute("SELECT * FROM horsies_worker_states").fetchall()
            for row in found:
                for name in ("queue_priorities", "queue_max_concurrency", "recovery_config"):
                    row[name] = None if row[name] is None else json.dumps(row[name])
        elif table == "workflows":
            found = _workflows(connection)
        elif table == "nodes":
            found = _nodes(connection)
        elif table == "submissions":
            found = connection.execute("SELECT * FROM airflow_horsies.submissions").fetchall()
            for row in found:
                row.update(queue=row["queue_name"], horsies_task_id=str(row["horsies_task_id"]))
        else:
            found = connection.execute("SELECT * FROM horsies_tasks").fetchall()
            for row in found:
                ended = row["completed_at"] or row["failed_at"] if row["status"] in ("COMPLETED", "FAILED") else None
                row.update(task_id=str(row["id"]), finished_at=ended, worker_id=row["claimed_by_worker_id"])
                row.update(hostname=row["worker_hostname"], pid=row["worker_pid"])
                row.update(process_name=row["worker_process_name"])
            if keeps_history(release):
                for row in connection.execute("SELECT * FROM horsies_task_history").fetchall():
                    row.update(task_id=str(row["task_id"]), finished_at=row["terminal_at"], next_retry_at=None)
                    row.update(worker_id=row["last_claimed_worker_id"], hostname=row["last_worker_hostname"])
                    row.update(pid=row["last_worker_pid"], process_name=row["last_worker_process_name"])
                    row.update(args=None, kwargs=None, failed_reason=row["final_failed_reason"])
                    row["result"] = row["result_payload"].decode()
                    found.append(row)
            for row in found:
                row.update(state=row["status"], queue=row["queue_name"])
            if table == "attempts":
                found = list(_attempts(connection, found))
    names = [column.name for column in TABLES[table].columns]
    return sorted(({name: row[name] for name in names} for row in found), key=repr)


def _workflows(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    found = connection.execute("SELECT * FROM horsies_workflows").fetchall()
    for row in found:
        ended = row["status"] in ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
        row.update(workflow_id=str(row["id"]), state=row["status"], root_workflow_id=str(row["root_workflow_id"]))
        row.update(parent_workflow_id=row["parent_workflow_id"] and str(row["parent_workflow_id"]))
        row.update(parent_node=row["parent_task_index"], output_node=row["output_task_index"])
        row["finished_at"] = (row["completed_at"] or row["updated_at"]) if ended else None
        row["error_code"] = _code(row["error"]) if row["status"] != "COMPLETED" else None
    return found


def _nodes(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    workflows = {row["workflow_id"]: row for row in _workflows(connection)}
    found = connection.execute("SELECT * FROM horsies_workflow_tasks").fetchall()
    names = {
        (row["workflow_id"], row["task_index"]): str(row["task_index"]) if row["node_id"] is None else row["node_id"]
        for row in found
    }
    for row in found:
        row["after"] = [names[row["workflow_id"], index] for index in sorted(row["dependencies"])]
        row["node_name"] = names[row["workflow_id"], row["task_index"]]
        row.update(node=row["task_index"], state=row["status"], finished_at=row["completed_at"])
        row.update(queue=row["queue_name"], is_workflow=row["is_subworkflow"], kwargs=row["task_kwargs"])
        row.update(definition_key=row["sub_definition_key"], allow_failed=row["allow_failed_deps"])
        row.update({name: row[name] and str(row[name]) for name in ("workflow_id", "task_id", "sub_workflow_id")})
        row["workflow_name"] = workflows[row["workflow_id"]]["name"]
        row["root_workflow_id"] = workflows[row["workflow_id"]]["root_workflow_id"]
        envelope = json.loads(row["result"] or "null") if row["status"] == "FAILED" else None
        row["error_code"] = envelope and _code(json.dumps(envelope["err"]))
    return found


def _code(error: str | None) -> str | None:
    if error is None or not error.startswith("{"):
        return None
    code = json.loads(error)["error_code"]
    return code["__builtin_task_code__"] if isinstance(code, dict) else code


def _attempts(connection: psycopg.Connection[Any], tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    by_id = {task["task_id"]: task for task in tasks}
    for row in connection.execute("SELECT * FROM horsies_task_attempts").fetchall():
        task = by_id[str(row["task_id"])]
        row.update(task_id=str(row["task_id"]), task_name=task["task_name"], queue=task["queue"])
        row.update(hostname=row["worker_hostname"], pid=row["worker_pid"], process_name=row["worker_process_name"])
        yield row
    for task in tasks:
        for each in decode_attempts(task["task_id"], (task.get("attempt_snapshot") or b"[]").decode()):
            yield {
                "task_id": task["task_id"], "task_name": task["task_name"], "queue": task["queue"],
                "attempt": each.number, "outcome": each.outcome, "will_retry": each.will_retry,
                "started_at": each.started_at, "finished_at": each.finished_at, "error_code": each.error_code,
                "error_message": each.error_message, "failed_reason": each.failed_reason,
                "worker_id": each.worker_id, "hostname": each.hostname, "pid": each.pid,
                "process_name": each.process_name,
            }  # fmt: skip


def sessions(postgres: EmbeddedPostgres, database: str) -> int:
    with psycopg.connect(**postgres.conninfo("postgres")) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND application_name = 'airflow-horsies spark'",
            (database,),
        ).fetchone()
    assert row
    return int(row[0])


def until_none(postgres: EmbeddedPostgres, database: str, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while left := sessions(postgres, database):
        assert time.monotonic() < give_up, f"{left} sessions are left"
        time.sleep(0.2)


# -- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.both_releases
@pytest.mark.parametrize("table", TABLES)
def test_a_frame_holds_what_the_database_holds(
    spark: SparkSession, postgres: EmbeddedPostgres, filled: str, release: str, table: str
) -> None:
    wanted = expected(postgres, filled, table, release)
    assert len(wanted) > 500
    assert rows(read(spark, filled, table)) == wanted
    frame = read(spark, filled, table, partitions=5, snapshotSeconds=1)
    assert frame.rdd.getNumPartitions() > 1
    assert rows(frame) == wanted


def test_parts_are_of_like_size_though_many_tasks_have_one_time(spark: SparkSession, filled: str) -> None:
    frame = read(spark, filled, "tasks", partitions=6, columns="task_id", snapshotSeconds=1)
    sizes = frame.rdd.mapPartitions(lambda part: [sum(1 for _ in part)]).collect()
    assert len(sizes) == 6
    assert sum(sizes) == TASKS
    assert max(sizes) < 2 * TASKS / 6


def test_only_the_columns_that_are_asked_for_are_read(spark: SparkSession, filled: str) -> None:
    by_option = read(spark, filled, "tasks", columns="state, task_id")
    assert by_option.columns == ["state", "task_id"]
    by_schema = spark.read.format("horsies").schema("state string, task_id string").options(
        service=filled, table="tasks"
    ).load()  # fmt: skip
    assert rows(by_schema) == rows(by_option)


def test_since_and_until_are_by_the_time_of_the_table(
    spark: SparkSession, postgres: EmbeddedPostgres, filled: str, release: str
) -> None:
    for table, time_column in (("tasks", "enqueued_at"), ("attempts", "finished_at"), ("nodes", "created_at")):
        wanted = expected(postgres, filled, table, release)
        times = sorted(row[time_column] for row in wanted)
        since, until = times[len(times) // 3], times[len(times) // 2]
        found = read(spark, filled, table, since=since.isoformat(), until=until.isoformat(), partitions=3)
        assert rows(found) == [row for row in wanted if since <= row[time_column] < until]


def test_filters_mean_in_postgres_what_they_mean_in_spark(spark: SparkSession, filled: str) -> None:
    kept = spark.createDataFrame(read(spark, filled, "attempts").toArrow())
    for condition in FILTERS:
        frame = read(spark, filled, "attempts", pushFilters="true").where(condition).select("task_id", "attempt")
        assert rows(frame) == rows(kept.where(condition).select("task_id", "attempt")), condition


@pytest.mark.both_releases
def test_filters_of_workflows_mean_in_postgres_what_they_mean_in_spark(
    spark: SparkSession, postgres: EmbeddedPostgres, filled: str, release: str
) -> None:
    kept = spark.createDataFrame(read(spark, filled, "nodes").toArrow())
    some = expected(postgres, filled, "nodes", release)[0]["root_workflow_id"]
    for condition in (
        "error_code = 'BAD_PART' OR error_code IS NULL AND state = 'FAILED'",
        "is_workflow AND NOT (state = 'RUNNING') AND min_success IS NULL",
        f"root_workflow_id = '{some}'",
        f"workflow_id IN ('{some}', 'no uuid') AND node > 1",
        "workflow_name LIKE '%3' AND node_name <> '1'",
        "array_contains(after, '1')",
    ):
        frame = read(spark, filled, "nodes", pushFilters="true").where(condition).select("workflow_id", "node")
        found = rows(frame)
        assert found, condition
        assert found == rows(kept.where(condition).select("workflow_id", "node")), condition


def test_what_postgres_filters_is_not_filtered_again(spark: SparkSession, filled: str) -> None:
    def plan(condition: str, **options: str) -> str:
        query: Any = read(spark, filled, "attempts", **options).where(condition)._jdf.queryExecution()
        return str(query.optimizedPlan().toString())

    assert "Filter" not in plan(FILTERS[0], pushFilters="true")
    assert "Filter" not in plan("task_id = '0190c7a2-0000-7000-8000-000000000000'", pushFilters="true")
    assert "Filter" in plan("length(queue) = 7", pushFilters="true")
    assert "Filter" in plan(FILTERS[0])


def test_one_frame_is_filtered_in_several_ways(spark: SparkSession, filled: str) -> None:
    """Spark keeps what was pushed for all that comes of one load(), which is why nothing is pushed unasked."""
    frame = read(spark, filled, "attempts", columns="task_id,attempt,outcome")
    failed, other = frame.where("outcome = 'FAILED'"), frame.where("outcome <> 'FAILED'")
    total = frame.count()
    assert 0 < failed.count() < total
    assert failed.count() + other.count() == failed.union(other).count() == frame.where("1 = 1").count() == total


# -- one state of the database --------------------------------------------------------------------------------------


@pytest.mark.both_releases
def test_each_read_sees_one_state_while_a_worker_finishes_tasks(
    spark: SparkSession,
    postgres: EmbeddedPostgres,
    served: str,
    release: str,
    hook: HorsiesHook,
    tmp_path: Path,
) -> None:
    """Tasks are sent twenty at a time, so a state has a multiple of them, and each of them once."""
    stop = threading.Event()
    twenty = [TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}) for _ in range(20)]

    def send() -> None:
        while not stop.is_set():
            hook.enqueue_tasks(twenty)
            stop.wait(0.2)

    with make_worker(postgres, served, release, tmp_path):
        hook.enqueue_tasks(twenty)
        sender = threading.Thread(target=send)
        sender.start()
        try:
            seen = [
                rows(read(spark, served, "tasks", columns="task_id,state", partitions=4, snapshotSeconds=1))
                for _ in range(8)
            ]
        finally:
            stop.set()
            sender.join()
    for each in seen:
        assert len(each) % 20 == 0
        assert len({row["task_id"] for row in each}) == len(each)
    assert len(seen[-1]) > len(seen[0])
    assert {row["state"] for row in seen[-1]} & {"COMPLETED"}


def test_nothing_is_left_of_a_read_and_a_later_one_says_so(
    spark: SparkSession, postgres: EmbeddedPostgres, filled: str
) -> None:
    frame = read(spark, filled, "tasks", columns="task_id", partitions=3, snapshotSeconds=2)
    assert len(frame.collect()) == TASKS
    assert len(frame.collect()) == TASKS
    until_none(postgres, filled, 15)
    with pytest.raises(Exception, match=r"Call load\(\) again"):
        frame.collect()
    until_none(postgres, filled, 5)


@pytest.mark.slow
def test_nothing_is_left_of_a_read_that_failed(spark: SparkSession, postgres: EmbeddedPostgres, filled: str) -> None:
    def fail(part: Iterator[Any]) -> Iterator[Any]:
        raise ValueError("on purpose")

    frame = read(spark, filled, "tasks", columns="task_id", partitions=3, snapshotSeconds=1)
    with pytest.raises(Exception, match="on purpose"):
        frame.rdd.mapPartitions(fail).collect()
    until_none(postgres, filled, 90)


DRIVER = """
import sys, time
from pyspark.sql import SparkSession
from airflow_horsies.spark import HorsiesDataSource

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(HorsiesDataSource)
frame = spark.read.format("horsies").options(table="tasks", service=sys.argv[1], partitions="3").load()
print("parts:", frame.rdd.getNumPartitions(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_driver_that_was_killed(
    environ: dict[str, str], postgres: EmbeddedPostgres, filled: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, filled],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environ},
    ) as driver:
        assert driver.stdout
        assert driver.stdout.readline().startswith("parts: 3")
        assert sessions(postgres, filled) == 1
        driver.kill()
    until_none(postgres, filled, 20)


# -- secrets and errors ---------------------------------------------------------------------------------------------


def test_how_to_log_in_is_nowhere_to_be_seen(
    spark: SparkSession, postgres: EmbeddedPostgres, filled: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = read(spark, filled, "attempts", partitions=2, snapshotSeconds=1)
    frame.count()
    frame.explain(True)
    with pytest.raises(Exception, match="Cannot reach") as caught:
        spark.read.format("horsies").option("table", "tasks").load().count()
    said = capsys.readouterr().out + str(caught.value)
    said += "".join(path.read_text(errors="replace") for path in folder.glob("events/**/*") if path.is_file())
    context = spark.sparkContext
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for page in ("environment", "sql?details=true", "stages?details=true", "executors"):
        with opener.open(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{page}") as answer:
            said += answer.read().decode()
    assert "horsies" in said
    assert SECRET not in said
    assert str(postgres.conninfo()["password"]) not in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "nothing"}, "tasks, attempts, submissions, workflows, nodes, workers"),
        ({"table": "tasks", "url": "postgresql://"}, "HORSIES_DATABASE_URL"),
        ({"table": "tasks", "columns": "task_id,no"}, "has no column 'no'"),
    ],
)
def test_a_wrong_option_is_told_by_spark(spark: SparkSession, options: dict[str, str], says: str) -> None:
    with pytest.raises(Exception, match=says):
        spark.read.format("horsies").options(**options).load()


def test_a_database_without_tables_is_told(
    spark: SparkSession, serve: Serve, empty_database: str, postgres: EmbeddedPostgres
) -> None:
    serve(empty_database)
    with pytest.raises(Exception, match="no table horsies_tasks"):
        read(spark, empty_database, "attempts").count()
    with pytest.raises(Exception, match="airflow horsies db migrate"):
        read(spark, empty_database, "submissions").count()


def test_a_missing_privilege_is_told(
    spark: SparkSession, postgres: EmbeddedPostgres, filled: str, folder: Path
) -> None:
    role = f"reader_of_{filled}".replace(".", "_")
    with psycopg.connect(**postgres.conninfo(filled), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD '{SECRET}'".encode())
    info = {**postgres.conninfo(filled), "user": role, "password": SECRET}
    with (folder / "services").open("a") as file:
        file.write(f"[{role}]\n" + "".join(f"{name}={value}\n" for name, value in info.items()))
    with pytest.raises(Exception, match="permission denied"):
        read(spark, role, "attempts").count()


# -- the stream -----------------------------------------------------------------------------------------------------


def add_attempt(connection: psycopg.Connection[Any], release: str, number: int) -> None:
    """Another one like one that is there."""
    table = "horsies_task_history" if keeps_history(release) else "horsies_task_attempts"
    change = "id = id + 1000000, attempt = attempt + 1000, finished_at = now()"
    if keeps_history(release):
        change = "task_id = gen_random_uuid(), terminal_at = now(), retention_anchor_at = now()"
    connection.execute("DROP TABLE IF EXISTS one")
    connection.execute(
        f"CREATE TEMPORARY TABLE one AS SELECT * FROM {table} ORDER BY task_id LIMIT 1 OFFSET {number}".encode()
    )
    connection.execute(f"UPDATE one SET {change}".encode())
    connection.execute(f"INSERT INTO {table} SELECT * FROM one".encode())


class Tail:
    """A stream with a checkpoint, run to its present end again and again; what each batch held is kept."""

    def __init__(self, spark: SparkSession, service: str, folder: Path, **options: object) -> None:
        self.spark, self.service, self.checkpoint, self.options = spark, service, folder / "checkpoint", options
        self.batches: dict[int, list[list[dict[str, Any]]]] = {}

    def run(self) -> None:
        reader = self.spark.readStream.format("horsies").option("service", self.service).option("table", "attempts")
        for name, value in self.options.items():
            reader = reader.option(name, str(value))
        query = (
            reader.load()
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        query.stop()

    def _keep(self, batch: DataFrame, number: int) -> None:
        self.batches.setdefault(number, []).append(rows(batch))

    @property
    def all(self) -> list[dict[str, Any]]:
        return sorted((row for runs in self.batches.values() for row in runs[-1]), key=repr)

    def forget_last_commit(self) -> int:
        """As a crash after the batch was done and before that was written down."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return last


def final_attempts(postgres: EmbeddedPostgres, database: str, release: str) -> list[dict[str, Any]]:
    """Where tasks are moved, an attempt is final with its task."""
    found = expected(postgres, database, "attempts", release)
    if not keeps_history(release):
        return found
    with psycopg.connect(**postgres.conninfo(database)) as connection:
        live = {str(task_id) for (task_id,) in connection.execute("SELECT id FROM horsies_tasks")}
    return [row for row in found if row["task_id"] not in live]


def test_a_stream_brings_each_attempt_once_also_those_committed_late(
    spark: SparkSession, postgres: EmbeddedPostgres, filled: str, release: str, serve: Serve, tmp_path: Path
) -> None:
    database = f"{filled}_stream"
    postgres.create_database(database, template=filled)
    serve(database)
    tail = Tail(spark, database, tmp_path, startingOffsets="earliest", maxRowsPerBatch=1_000)
    tail.run()
    assert tail.all == final_attempts(postgres, database, release)
    with (
        psycopg.connect(**postgres.conninfo(database)) as late,
        psycopg.connect(**postgres.conninfo(database)) as early,
    ):
        late.execute("SET session_replication_role = replica")
        early.execute("SET session_replication_role = replica")
        add_attempt(late, release, 1)
        for number in (50, 100):
            add_attempt(early, release, number)
            early.commit()
        tail.run()
        late.commit()
        tail.run()
        add_attempt(early, release, 150)
        early.commit()
    tail.run()
    assert tail.all == final_attempts(postgres, database, release)

    repeated = tail.forget_last_commit()
    tail.run()
    first, *others = tail.batches[repeated]
    assert others and all(other == first for other in others)
    assert tail.all == final_attempts(postgres, database, release)
    shutil.rmtree(tail.checkpoint)
