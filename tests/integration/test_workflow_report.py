"""The report's figures on workflows are those that SQL finds in the same rows, which real workers have left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.core.graph import WRAPPER_KEY
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import (
    AirflowTry,
    Graph,
    RetryPolicy,
    TaskInstanceKey,
    WorkflowState,
    node,
    ref,
    wrap_definition,
)
from airflow_horsies.report.page import Period
from airflow_horsies.report.task import write_report
from tests.integration.conftest import HERE
from tests.integration.releases import keeps_history, release_python
from tests.integration.test_report import (
    ATTEMPTS_IN_PLACE,
    ATTEMPTS_MOVED,
    NO_SOURCE,
    TASKS_IN_PLACE,
    TASKS_MOVED,
    pointed,
    rows_of,
    service_file,
    spark,
)
from tests.unit.report.test_page import Outline

__all__ = ["pointed", "service_file", "spark"]
KEYS = ("dimension", "value", "day")
NODE_KEYS = ("workflow", "inner_workflow", "node_name", "task_name")

PREPARE = """
CREATE TEMPORARY TABLE roots AS
SELECT w.id, w.name AS workflow, w.status, (ended_at AT TIME ZONE 'UTC')::date AS day,
    extract(epoch FROM ended_at - w.created_at)::float AS duration,
    coalesce(s.dag_id, '(not sent by Airflow)') AS dag_id
FROM horsies_workflows AS w
CROSS JOIN LATERAL (SELECT coalesce(w.completed_at, w.updated_at) AS ended_at) AS times
LEFT JOIN airflow_horsies.submissions AS s ON s.horsies_task_id::text = w.id::text
WHERE w.parent_workflow_id IS NULL AND w.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED');
"""
PREPARE_NODES = """
CREATE TEMPORARY TABLE known_nodes AS
SELECT roots.workflow, roots.day, roots.dag_id, roots.status AS workflow_status, w.name AS inner_workflow,
    n.node_id AS node_name, n.task_name, n.status, n.is_subworkflow, n.sub_workflow_id, n.workflow_id, roots.id AS root,
    n.result::json -> 'err' -> 'error_code' AS code,
    extract(epoch FROM tried.began - sent.sent_at)::float AS wait, tried.ran AS run, tried.parked
FROM roots
INNER JOIN horsies_workflows AS w ON w.root_workflow_id = roots.id
INNER JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.id
LEFT JOIN ({tasks}) AS sent ON sent.id = n.task_id::text
LEFT JOIN (
    SELECT id, min(started_at) AS began,
        sum(extract(epoch FROM finished_at - started_at))
            FILTER (WHERE error_code IS DISTINCT FROM 'AWAITING_SIGNAL')::float AS ran,
        sum(extract(epoch FROM next_at - finished_at)) FILTER (WHERE error_code = 'AWAITING_SIGNAL')::float AS parked
    FROM (
        SELECT *, lead(started_at) OVER (PARTITION BY id ORDER BY attempt) AS next_at FROM ({attempts}) AS attempts
    ) AS with_next
    GROUP BY id
) AS tried ON tried.id = n.task_id::text
WHERE n.task_name <> 'airflow_horsies.begin' OR n.status = 'FAILED'
"""
GROUPED = """
CROSS JOIN LATERAL (VALUES ('all', ''), ('dag', rows.dag_id), ('workflow', rows.workflow)) AS grouped (dimension, value)
CROSS JOIN LATERAL (VALUES (rows.day), (NULL::date)) AS days (of_day)
"""
WORKFLOWS = f"""
SELECT dimension, value, of_day AS day, count(*) AS workflows,
    count(*) FILTER (WHERE status = 'COMPLETED') AS completed, count(*) FILTER (WHERE status = 'FAILED') AS failed,
    count(*) FILTER (WHERE status = 'CANCELLED') AS cancelled, avg((status = 'COMPLETED')::int)::float AS success_rate,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY duration) AS duration_p50,
    percentile_cont(0.99) WITHIN GROUP (ORDER BY duration) AS duration_p99
FROM roots AS rows {GROUPED} GROUP BY 1, 2, 3
"""
OF_NODES = """
count(*) FILTER (WHERE status IN ('COMPLETED', 'FAILED')) AS nodes,
percentile_cont(0.5) WITHIN GROUP (ORDER BY wait) AS wait_p50,
percentile_cont(0.95) WITHIN GROUP (ORDER BY wait) AS wait_p95,
count(parked) AS parked, coalesce(sum(parked), 0)::float AS parked_seconds
"""
NODES_OF_WORKFLOWS = f"""
SELECT dimension, value, of_day AS day, {OF_NODES},
    count(*) FILTER (WHERE status = 'COMPLETED') AS nodes_completed,
    count(*) FILTER (WHERE status = 'FAILED') AS nodes_failed,
    count(*) FILTER (WHERE status = 'SKIPPED') AS nodes_skipped
FROM known_nodes AS rows {GROUPED} WHERE NOT is_subworkflow GROUP BY 1, 2, 3
"""
NODES = f"""
SELECT workflow, inner_workflow, node_name, task_name, {OF_NODES},
    count(*) FILTER (WHERE status = 'COMPLETED') AS completed, count(*) FILTER (WHERE status = 'FAILED') AS failed,
    count(*) FILTER (WHERE status = 'SKIPPED') AS skipped, percentile_cont(0.5) WITHIN GROUP (ORDER BY run) AS run_p50
FROM known_nodes WHERE NOT is_subworkflow GROUP BY 1, 2, 3, 4
"""
FAILED_NODES = """
SELECT workflow, inner_workflow, node_name, task_name,
    coalesce(code -> '__builtin_task_code__', code) #>> '{}' AS error_code,
    count(*) AS times, count(DISTINCT root) AS workflows,
    count(*) FILTER (WHERE workflow_status = 'COMPLETED') AS tolerated
FROM known_nodes AS failed
WHERE status = 'FAILED' AND NOT EXISTS (
    SELECT FROM known_nodes AS inside WHERE inside.workflow_id = failed.sub_workflow_id AND inside.status = 'FAILED'
)
GROUP BY 1, 2, 3, 4, 5
"""


@pytest.fixture
def busy_hook(
    hook: HorsiesHook, postgres: EmbeddedPostgres, database: str, release: str, tmp_path: Path
) -> HorsiesHook:
    """Of a database with workflows of every end, sent by DAGs and by others; a real worker ran them."""
    worker = HorsiesWorker(
        "report_workflow_tasks:app", conninfo=postgres.conninfo(database), log=tmp_path / "worker.log", folder=HERE,
        python=release_python(release), processes=1,
    )  # fmt: skip
    with worker:
        run_workflows(hook, tmp_path)
    return hook


def run_workflows(hook: HorsiesHook, folder: Path) -> None:
    marker = folder / "marker"
    marker.touch()
    branches = {
        "good": node("w.fetch", n=1),
        "good_too": node("w.fetch", n=2),
        "bad": node("w.fail"),
        "most": node("w.count", after=["good", "good_too", "bad"], join="quorum", min_success=2),
        "all": node("w.count", after=["good", "bad"]),
    }
    first_and_after = {"first": node("w.fetch", n=1, queue="nobody"), "after": node("w.count", after=["first"])}
    parks = RetryPolicy.fixed([2], auto_retry_for=["AWAITING_SIGNAL"], jitter=False)
    parked = node("w.park", marker=str(folder / "parked"), retry_policy=parks)
    graphs = [
        wrap_definition("contract.diamond", {"n": 1}),
        wrap_definition("contract.child", {"n": 1, "marker": str(marker)}),
        wrap_definition("contract.diamond", {"n": 1, "marker": str(marker)}),
        wrap_definition("contract.nothing"),
        Graph(name="quorum", nodes=branches, success=[["most"]], output="most"),
        Graph(name="quorum", nodes=branches),
        Graph(name="raising", nodes={"x": node("w.double", x=1)}),
        Graph(name="parking", nodes={"p": parked, "d": node("w.double", x=ref("p"))}),
        Graph(
            name="inner failing",
            nodes={
                "f": node("w.fetch", n=1),
                "inner": node(workflow="contract.child", after=["f"], n=1, marker=str(marker)),
            },
        ),
    ]
    ids = [hook.start_workflow(graph) for graph in graphs]
    unserved = Graph(name="unserved", nodes=first_and_after)
    for dag_id, graph in (("sales", graphs[0]), ("stock", graphs[4]), ("stock", unserved)):
        instance = TaskInstanceKey(dag_id=dag_id, run_id=f"run of {graph.name}", task_id="t")
        ids.append(hook.submit_workflow(graph, instance, AirflowTry(try_number=1)).task_id)
    outcomes = [hook.wait_workflow(workflow_id, timeout_seconds=120) for workflow_id in ids[:-1]]
    hook.cancel_workflow(ids[-1])
    outcomes.append(hook.wait_workflow(ids[-1], timeout_seconds=60))
    ends = {WorkflowState.COMPLETED, WorkflowState.FAILED, WorkflowState.CANCELLED}
    assert {outcome.state for outcome in outcomes} == ends


@pytest.mark.both_releases
def test_figures_on_workflows_equal_those_of_sql(
    pointed: Any, busy_hook: HorsiesHook, release: str, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    period = Period(start=now - timedelta(days=3), end=now + timedelta(days=4))
    result = write_report(pointed, period, str(tmp_path))
    tasks, attempts = (TASKS_MOVED, ATTEMPTS_MOVED) if keeps_history(release) else (TASKS_IN_PLACE, ATTEMPTS_IN_PLACE)
    with psycopg.connect(**busy_hook.settings.database.connect_args) as connection:
        connection.execute(PREPARE)
        connection.execute(PREPARE_NODES.format(tasks=tasks, attempts=attempts).encode())
        workflows = rows_of(connection, WORKFLOWS, *KEYS)
        of_workflows = rows_of(connection, NODES_OF_WORKFLOWS, *KEYS)
        by_sql = {
            "workflows": {key: {**row, **of_workflows.get(key, {})} for key, row in workflows.items()},
            "nodes": rows_of(connection, NODES, *NODE_KEYS),
            "failed_nodes": rows_of(connection, FAILED_NODES, *NODE_KEYS, "error_code"),
        }
    keys = {"workflows": KEYS, "nodes": NODE_KEYS, "failed_nodes": (*NODE_KEYS, "error_code")}
    for table, wanted in by_sql.items():
        found = [row.asDict() for row in pointed.read.parquet(str(tmp_path / table)).collect()]
        by_key = {tuple(row[name] for name in keys[table]): row for row in found}
        assert len(by_key) == len(found)
        assert by_key.keys() == wanted.keys(), table
        for key, row in wanted.items():
            for name, value in row.items():
                is_float = isinstance(value, float)
                assert by_key[key][name] == (pytest.approx(value, abs=1e-5) if is_float else value), (table, key, name)

    total = by_sql["workflows"]["all", "", None]
    assert (total["workflows"], total["cancelled"], total["parked"]) == (12, 1, 1)
    assert total["parked_seconds"] > 1
    assert {value for dimension, value, _ in workflows if dimension == "dag"} == {"sales", "stock", NO_SOURCE}
    failed = by_sql["failed_nodes"]
    assert (
        "contract.nothing",
        "contract.nothing",
        "begin",
        "airflow_horsies.begin",
        "WORKFLOW_NOT_REGISTERED",
    ) in failed
    assert ("inner failing", "child", "check", "w.check", "BROKEN") in failed
    assert failed["quorum", "quorum", "bad", "w.fail", "BROKEN"]["tolerated"] == 2
    # The node of an inner workflow failed because of a node in that.
    assert "inner" not in {node_name for _, _, node_name, *_ in failed}
    assert WRAPPER_KEY not in {value for _, value, _ in workflows}

    words = Outline(Path(result["page"]).read_text()).words
    assert {"contract.diamond", "inner failing / child / check", "WORKFLOW_NOT_REGISTERED"} <= set(words)
