"""Rows as Spark computes them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from airflow_horsies.report.page import Period

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
WEEK = Period(start=MONDAY, end=MONDAY + timedelta(days=7))


def group(dimension: str = "all", value: str = "", day: date | None = None, **given: Any) -> dict[str, Any]:
    counts = {"completed": 90, "failed": 5, "expired": 3, "cancelled": 2, **given}
    tasks = sum(counts[name] for name in ("completed", "failed", "expired", "cancelled"))
    return {
        "dimension": dimension,
        "value": value,
        "day": day,
        "tasks": tasks,
        "attempts": 110,
        "retries": 12,
        "healed": 7,
        "success_rate": counts["completed"] / tasks,
        "wait_p50": 0.012,
        "wait_p95": 1.5,
        "wait_p99": 75.0,
        "run_p50": 0.25,
        "run_p95": 4.0,
        "run_p99": 4000.0,
        **counts,
    }


def error(code: str = "NO_DATA", times: int = 8, **given: Any) -> dict[str, Any]:
    return {
        "dimension": "all",
        "value": "",
        "day": None,
        "error_code": code,
        "times": times,
        "tasks": 3,
        "retried": 5,
        **given,
    }


def attempt(**given: Any) -> dict[str, Any]:
    return {
        "horsies_task_id": "0199",
        "attempt": 1,
        "task_name": "sales.load",
        "dag_id": "sales",
        "run_id": "manual__1",
        "task_id": "load",
        "map_index": -1,
        "outcome": "COMPLETED",
        "run_seconds": 12.0,
        "started_at": MONDAY,
        "hostname": "node-1",
        **given,
    }


def worker(hostname: str = "node-1", worker_id: str = "w1", **given: Any) -> dict[str, Any]:
    return {
        "hostname": hostname,
        "worker_id": worker_id,
        "day": MONDAY.date(),
        "attempts": 60,
        "failed": 2,
        "busy_seconds": 30.0,
        **given,
    }


def workflow(dimension: str = "all", value: str = "", day: date | None = None, **given: Any) -> dict[str, Any]:
    return {
        "dimension": dimension,
        "value": value,
        "day": day,
        "workflows": 12,
        "completed": 9,
        "failed": 2,
        "expired": 0,
        "cancelled": 1,
        "success_rate": 0.75,
        "duration_p50": 0.4,
        "duration_p95": 31.0,
        "duration_p99": 5400.0,
        "nodes": 60,
        "nodes_completed": 57,
        "nodes_failed": 3,
        "nodes_skipped": 4,
        "node_success_rate": 0.95,
        "wait_p50": 0.02,
        "wait_p95": 0.5,
        "wait_p99": 1.0,
        "parked": 6,
        "parked_seconds": 7200.0,
        **given,
    }


def node(node_name: str = "train", **given: Any) -> dict[str, Any]:
    return {
        "workflow": "sales.models",
        "inner_workflow": "sales.models",
        "node_name": node_name,
        "task_name": "sales.train",
        "nodes": 12,
        "completed": 10,
        "failed": 2,
        "skipped": 1,
        "success_rate": 10 / 12,
        "wait_p50": 0.02,
        "wait_p95": 0.5,
        "wait_p99": 1.0,
        "run_p50": 3.0,
        "run_p95": 9.0,
        "run_p99": 9.5,
        "parked": 0,
        "parked_seconds": 0.0,
        **given,
    }


def failed_node(node_name: str = "train", **given: Any) -> dict[str, Any]:
    return {
        "workflow": "sales.models",
        "inner_workflow": "sales.one_shop",
        "node_name": node_name,
        "task_name": "sales.train",
        "error_code": "TOO_FEW_SALES",
        "times": 2,
        "workflows": 2,
        "tolerated": 1,
        **given,
    }


def sample_workflows() -> dict[str, list[dict[str, Any]]]:
    days = [MONDAY.date() + timedelta(days=at) for at in (0, 1, 2, 5, 6)]
    return {
        "workflows": [
            workflow(),
            *(
                workflow(day=day, completed=3 + at, cancelled=at % 2, duration_p50=0.3 + at)
                for at, day in enumerate(days)
            ),
            workflow("workflow", "sales.models", workflows=11),
            workflow("workflow", "sales.month", workflows=1, completed=1, failed=0, cancelled=0, parked=0),
            workflow("dag", "sales"),
        ],
        "nodes": [
            node(),
            node("approved", task_name="airflow_horsies.wait_for_signal", parked=6, parked_seconds=7200.0),
        ],
        "failed_nodes": [failed_node(), failed_node("parse", inner_workflow="sales.models", times=1)],
    }


def sample() -> dict[str, list[dict[str, Any]]]:
    days = [MONDAY.date() + timedelta(days=at) for at in range(7)]
    of_days = [
        group(day=day, completed=80 + 7 * at, failed=at % 3, wait_p95=1 + at / 5, run_p50=0.2 + at / 20)
        for at, day in enumerate(days)
        if at != 3
    ]
    return {
        "groups": [
            group(),
            *of_days,
            group("dag", "sales"),
            group("dag", "(not sent by Airflow)", completed=5, failed=0, expired=0, cancelled=0),
            group("task", "sales.load"),
            group("queue", "default"),
            group("queue", "spark", completed=500, failed=0),
        ],
        "errors": [error(), error("WORKER_CRASHED", 2), error("EXPIRED", 1, retried=0)],
        "slowest": [attempt(), attempt(run_seconds=7.5, map_index=3), attempt(run_seconds=0.02, run_id=None)],
        "workers": [worker(), worker(day=days[1]), worker("node-2", "w2", busy_seconds=12.0)],
    }
