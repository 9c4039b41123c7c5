"""Every example through ``dag.test()``: no scheduler, no triggerer, a real Postgres and a real horsies worker."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.sdk import Connection

from airflow_horsies.embedded.airflow import EmbeddedAirflow
from airflow_horsies.embedded.java import find_java
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK, GuardedProcess
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from airflow_horsies.retry_policies import HAS_RETRY_POLICIES
from tests.acceptance.conftest import EXAMPLES, HERE

pytestmark = pytest.mark.timeout(900)

DAG_IDS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
ALL_SECONDS = 600.0

# The states that are not success.
STATES = {
    "horsies_deadline": {"too_late": "skipped"},
    "horsies_notifier": {"fail": "failed"},
    # Nobody told of a day to wait for.
    "flights_monthly": {"day_is_settled": "skipped"},
}
VALUES: dict[str, dict[str, Any]] = {
    "flights_daily": {"ingest": {"day": "2013-01-01", "rows": 842}},
    "flights_monthly": {
        "roll_up": [{"month": "2013-01", "days": 1, "complete": False, "flights": 842, "cancelled": 4}]
    },
    "flights_models": {
        "models": {
            "month": "2013-01",
            "models": 3,
            "minutes_per_hour": {"EWR": 1.814, "JFK": 1.372, "LGA": 0.393},
            "left_out": {"HPN": "NO_FLIGHTS"},
            "approved_by": "a test",
        }
    },
    "horsies_basic": {"add": 42, "count": {"0": 21, "1": 21}},
    "horsies_batch": {"double": [2 * number for number in range(20)], "total": 380},
    "horsies_deadline": {"in_time": 2},
    "horsies_decorator": {"add": 42, "add_each[0]": 11, "add_each[2]": 13, "total": 21 + 36},
    "horsies_mapped": {"add_one[0]": 1, "add_one[1]": 2, "add_one[2]": 3},
    "horsies_notifier": {"add": 42},
    "horsies_retries": {"healed": "healed by a retry"},
    "horsies_retry_policy": {"tried_again": "healed by a retry"},
}
MODELS_EXIST = "SELECT to_regclass('airflow_horsies.submissions')"
FIND_MODELS = "SELECT horsies_task_id FROM airflow_horsies.submissions WHERE dag_id = 'flights_models'"


@dataclass(frozen=True)
class DagTests:
    """What ``dag.test()`` said of each DAG, Airflow's database, and the horsies that did the work."""

    told: dict[str, dict[str, str]]
    log: str
    airflow: psycopg.Connection[Any]
    horsies: HorsiesHook

    def run_id(self, dag_id: str) -> str:
        """That of a run which ended well."""
        if dag_id == "horsies_retry_policy" and not HAS_RETRY_POLICIES:
            pytest.skip("Airflow 3.3 brings retry policies")
        told = self.told.get(dag_id, {"error": "nothing was told of it"})
        assert told.get("state") == "success", f"{told.get('error', told)}\n{self.log}"
        return told["run_id"]

    def states(self, dag_id: str) -> dict[str, str]:
        """Task instances by id; a mapped one as ``task[index]``."""
        found = self.airflow.execute(
            "SELECT task_id, map_index, state FROM task_instance WHERE dag_id = %s AND run_id = %s",
            (dag_id, self.run_id(dag_id)),
        )
        return {_named(task_id, map_index): state for task_id, map_index, state in found}

    def xcoms(self, dag_id: str, key: str = "return_value") -> dict[str, Any]:
        found = self.airflow.execute(
            "SELECT task_id, map_index, value FROM xcom WHERE dag_id = %s AND run_id = %s AND key = %s",
            (dag_id, self.run_id(dag_id), key),
        )
        return {_named(task_id, map_index): value for task_id, map_index, value in found}


def _named(task_id: str, map_index: int) -> str:
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False) as server:
        for database in ("airflow", "horsies"):
            server.create_database(database)
        yield server


@pytest.fixture(scope="module")
def dag_tests(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagTests]:
    """All of them in one process: Airflow is imported once."""
    folder = tmp_path_factory.mktemp("dag_test")
    conninfo = postgres.conninfo("horsies")
    connection = {
        "conn_type": "horsies",
        "host": conninfo["host"],
        "port": conninfo["port"],
        "login": conninfo["user"],
        "password": conninfo["password"],
        "schema": conninfo["dbname"],
    }
    airflow = EmbeddedAirflow(
        folder / "airflow",
        database_url=postgres.dsn("airflow", scheme="postgresql+psycopg2"),
        dags_folder=EXAMPLES,
        connections={"horsies_default": connection},
    )
    worker = HorsiesWorker(
        "flights.worker:app",
        conninfo=conninfo,
        log=folder / "worker.log",
        folder=folder,
        environ={
            "PYTHONPATH": str(EXAMPLES),
            "FLIGHTS_LAKE": str(folder / "lake"),
            "HORSIES_REPORT_FOLDER": str(folder / "reports"),
            "JAVA_HOME": str(find_java(folder / "java").home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            "TMPDIR": str(folder),
        },
        command=SPARK_WORKER,
    )
    try:
        worker.start()
        airflow.migrate()
        worker.wait_live()
        with _approving(HorsiesHook("horsies_test", connection=Connection(conn_id="horsies_test", **connection))):
            told, log = _run(airflow, folder)
    finally:
        worker.stop()
    with (
        psycopg.connect(**postgres.conninfo("airflow"), autocommit=True) as database,
        HorsiesHook("horsies_test", connection=Connection(conn_id="horsies_test", **connection)) as hook,
    ):
        yield DagTests(told, log, database, hook)


@contextmanager
def _approving(hook: HorsiesHook) -> Iterator[None]:
    """Send the signal that the workflow of flights_models waits for, as soon as it is there."""
    ended = threading.Event()
    conninfo = hook.settings.database.connect_args

    def approve() -> None:
        with psycopg.connect(**conninfo, autocommit=True) as connection:
            while not ended.wait(0.5):
                if connection.execute(MODELS_EXIST).fetchone() == (None,):
                    continue
                found = connection.execute(FIND_MODELS).fetchone()
                if found is not None:
                    hook.signal(str(found[0]), "approved", {"by": "a test"})
                    return

    approver = threading.Thread(target=approve)
    approver.start()
    try:
        yield
    finally:
        ended.set()
        approver.join()
        hook.close()


def _run(airflow: EmbeddedAirflow, folder: Path) -> tuple[dict[str, dict[str, str]], str]:
    report = folder / "report"
    process = GuardedProcess(
        "dag.test()",
        [sys.executable, HERE / "run_dag_test.py", airflow.dags_folder, report],
        log=folder / "dag_test.log",
        environ=airflow.environ(),
        folder=folder,
    )
    with process, suppress(subprocess.TimeoutExpired):
        process.wait(ALL_SECONDS)
    lines = report.read_text().splitlines() if report.exists() else []
    log = (folder / "dag_test.log").read_text()
    return {each.pop("dag_id"): each for each in map(json.loads, lines)}, log


@pytest.mark.parametrize("dag_id", DAG_IDS)
def test_every_example_ends_as_it_should(dag_tests: DagTests, dag_id: str) -> None:
    states = dag_tests.states(dag_id)
    assert states == {**dict.fromkeys(states, "success"), **STATES.get(dag_id, {})}, dag_tests.log


@pytest.mark.parametrize("dag_id", sorted(VALUES))
def test_values_of_horsies_tasks_become_xcoms(dag_tests: DagTests, dag_id: str) -> None:
    values = dag_tests.xcoms(dag_id)
    assert {name: values.get(name) for name in VALUES[dag_id]} == VALUES[dag_id]


def test_multiple_outputs_become_xcoms_of_their_own(dag_tests: DagTests) -> None:
    assert dag_tests.xcoms("horsies_decorator", key="0") == {"count": 21}
    assert dag_tests.xcoms("horsies_decorator", key="1") == {"count": 21}


def test_ids_of_horsies_tasks_become_xcoms(dag_tests: DagTests) -> None:
    (task_id,) = dag_tests.xcoms("horsies_retries", key="horsies_task_id").values()
    assert [attempt.outcome for attempt in dag_tests.horsies.read_task(task_id).attempts] == ["FAILED", "COMPLETED"]


@pytest.mark.parametrize("what", ["task failed", "task succeeded", "run succeeded"])
def test_every_callback_sent_its_task(dag_tests: DagTests, what: str) -> None:
    key = f"{what}/horsies_notifier/{dag_tests.run_id('horsies_notifier')}"
    spec = TaskSpec(task_name="sample.add", kwargs={"a": 1, "b": 1}, idempotency_key=key)
    # No worker is left to run another one.
    assert dag_tests.horsies.read_task(dag_tests.horsies.enqueue_task(spec)).state is TaskState.COMPLETED
