"""Workflows in real DAG runs: a diamond with a workflow inside on Spark, and a quorum with a branch that fails.

The slow tests kill the worker, the triggerer and Postgres of horsies while they run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.sdk import Connection

from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK
from airflow_horsies.embedded.stack import EmbeddedStack
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskInstanceKey, WorkflowState, WorkflowView
from tests.acceptance.conftest import WORKER_PATH, AirflowApi
from tests.acceptance.test_faults import PATIENCE, dead, kill, until_waited_for

pytestmark = pytest.mark.timeout(900)

ROWS = 1000
# The first nodes with a gate, of the diamond and of the quorum.
FIRST = ("choose", "late")
DIAMOND = {"even": 500, "largest": 334, "sum": ROWS * (ROWS - 1) // 2}


def workflow_of(hook: HorsiesHook, dag_id: str, run_id: str, task_id: str) -> WorkflowView:
    """The one workflow of a task instance."""
    (sent,) = hook.read_submissions(TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=task_id))
    return hook.read_workflow(sent.horsies_task_id)


def states(view: WorkflowView) -> dict[str, str]:
    return {"/".join(path): node.shown_state for path, node in view.walk()}


def assert_ended_well(api: AirflowApi, hook: HorsiesHook, dag_id: str, run_id: str) -> None:
    """Each task instance has succeeded at its first try, with the value of its one workflow."""
    assert api.wait(dag_id, run_id, seconds=PATIENCE) == "success", api.story(dag_id, run_id)
    assert {name: each["try_number"] for name, each in api.tasks(dag_id, run_id).items()} == {"diamond": 1, "quorum": 1}
    assert api.xcom(dag_id, run_id, "diamond") == DIAMOND
    assert api.xcom(dag_id, run_id, "quorum") == "enough"
    diamond, quorum = (workflow_of(hook, dag_id, run_id, name) for name in ("diamond", "quorum"))
    for name, view in (("diamond", diamond), ("quorum", quorum)):
        assert view.state is WorkflowState.COMPLETED
        assert api.xcom(dag_id, run_id, name, key="horsies_workflow_id") == view.id
    assert set(states(diamond).values()) == {"COMPLETED"}
    assert {"workflow/groups/sum", "workflow/groups/largest", "workflow/total"} <= states(diamond).keys()
    found = states(quorum)
    assert (found["left"], found["broken"], found["late"], found["most"]) == (
        *("COMPLETED", "FAILED", "COMPLETED", "COMPLETED"),
    )


def test_diamond_on_spark_and_quorum_with_a_failing_branch_end_well(api: AirflowApi, hook: HorsiesHook) -> None:
    run_id = api.trigger("workflows")
    assert_ended_well(api, hook, "workflows", run_id)
    log = api.log("workflows", run_id, "diamond")
    for path in ("choose", "even", "groups/sum", "groups/largest", "total"):
        assert log.count(f"Node acceptance.diamond/{path}: COMPLETED") == 1, log
    log = api.log("workflows", run_id, "quorum")
    assert "Node broken: FAILED" in log
    assert "branch broken was asked to fail" in log


@dataclass
class Killed:
    """A horsies database on a durable server of its own, with a worker of its own that has Spark."""

    postgres: EmbeddedPostgres
    worker: HorsiesWorker
    hook: HorsiesHook
    gates: Path

    def until_began(self, api: AirflowApi, name: str, times: int = 1) -> None:
        api.until(lambda: self.count_begun(name) >= times, PATIENCE, f"start {times} of node {name}")

    def until_one_began(self, api: AirflowApi) -> str:
        """Which of the two first nodes with a gate; the worker has one process."""
        api.until(lambda: any(map(self.count_begun, FIRST)), PATIENCE, "the start of a node")
        return max(FIRST, key=self.count_begun)

    def count_begun(self, name: str) -> int:
        marks = self.gates / f"{name}.began"
        return marks.read_text().count("began") if marks.exists() else 0

    def let_go(self, name: str) -> None:
        (self.gates / f"{name}.open").touch()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(**self.postgres.conninfo()) as connection:
            return connection.execute(query.encode()).fetchall()

    @contextmanager
    def without_postgres(self) -> Iterator[None]:
        """Killed, and started again on the same port."""
        kill(self.postgres.process)
        try:
            yield
        finally:
            (self.postgres.data_folder / "postmaster.pid").unlink(missing_ok=True)
            self.postgres.process.start()
            AirflowApi.until(self._answers, PATIENCE, "the recovery of Postgres")

    def _answers(self) -> bool:
        try:
            return self.rows("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False


@pytest.fixture
def killed(api: AirflowApi, tmp_path: Path) -> Iterator[Killed]:
    postgres = EmbeddedPostgres(tmp_path / "postgres", durable=True)
    gates = tmp_path / "gates"
    gates.mkdir()
    try:
        with postgres:
            info = postgres.conninfo()
            worker = HorsiesWorker(
                "acceptance_tasks:app",
                conninfo=info,
                log=tmp_path / "worker.log",
                folder=tmp_path,
                environ={
                    "JAVA_HOME": str(find_java_home(tmp_path / "java")),
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": WORKER_PATH,
                    "SPARK_LOCAL_IP": LOOPBACK,
                    "TMPDIR": str(tmp_path),
                    "HORSIES_SPARK_MASTER": "local[1]",
                    "HORSIES_REPORT_FOLDER": str(tmp_path / "reports"),
                },
                command=SPARK_WORKER,
            )
            fields = {"host": info["host"], "port": info["port"], "login": info["user"], "password": info["password"]}
            fields |= {"conn_type": "horsies", "schema": info["dbname"]}
            api.call("POST", "/connections", json={"connection_id": "horsies_killed", **fields})
            connection = Connection(conn_id="horsies_killed", **fields)
            try:
                with worker, HorsiesHook("horsies_killed", connection=connection, namespace="default") as hook:
                    yield Killed(postgres, worker, hook, gates)
            finally:
                api.call("DELETE", "/connections/horsies_killed")
    finally:
        postgres.delete()


@pytest.mark.slow
def test_workflows_outlive_the_kill_of_worker_triggerer_and_postgres(
    stack: EmbeddedStack, api: AirflowApi, killed: Killed
) -> None:
    dag_id = "workflows_killed"
    run_id = api.trigger(dag_id, gates=str(killed.gates))
    first = killed.until_one_began(api)
    until_waited_for(api, dag_id, run_id)

    kill(killed.worker.process)
    killed.worker.start()

    with dead(stack.airflow.processes["triggerer"]):
        for name in FIRST:
            killed.let_go(name)
        # Now in the workflow inside.
        killed.until_began(api, "sum")

    with killed.without_postgres():
        time.sleep(3)
    if not killed.worker.process.running:
        killed.worker.start()
    killed.let_go("sum")

    assert_ended_well(api, killed.hook, dag_id, run_id)
    # Of the first nodes, only the killed one has run twice.
    assert {name: killed.count_begun(name) for name in FIRST} == {name: 1 + (name == first) for name in FIRST}
    assert killed.rows("SELECT count(*) FROM horsies_workflows") == [(4,)]
    assert killed.rows("SELECT count(*) FROM horsies_tasks") == [(0,)]
    assert killed.rows("SELECT count(*) FROM horsies_workflows WHERE status <> 'COMPLETED'") == [(0,)]
