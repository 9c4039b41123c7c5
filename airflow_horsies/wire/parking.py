"""Parked tasks: they wait as PENDING, by a retry of horsies, and a signal makes them due."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_horsies.db.statement import Row, Script, Statement, sql_text

PACKAGE = "airflow_horsies.wire"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkingTask:
    """The running task of a claim, before it parks.

    :param attempt: the number of the attempt that runs.
    :param policy: its retry policy as horsies stores it; empty if it has none.
    """

    attempt: int
    max_retries: int
    policy: Mapping[str, Any]
    good_until: datetime | None
    now: datetime
    queue: str

    def retries(self, code: str) -> bool:
        """Whether the policy retries an attempt that ends with the code."""
        codes = self.policy.get("auto_retry_for")
        return isinstance(codes, list) and code in codes


def lock_parking(task_id: str, worker_id: str, claimed_at: datetime | None) -> Script[ParkingTask | None]:
    """The task of a claim; None if the claim is lost. Keeps the claim until the end of the transaction."""
    rows = yield Statement(
        sql_text(PACKAGE, "lock_parking"), {"id": task_id, "worker_id": worker_id, "claimed_at": claimed_at}
    )
    return _decode(rows[0]) if rows else None


def allow_parking(task_id: str, max_retries: int) -> Script[None]:
    """Let horsies retry the task as often as its policy says, not counting the parked attempts."""
    yield Statement(sql_text(PACKAGE, "allow_parking"), {"id": task_id, "max_retries": max_retries})


def lock_parked(task_id: str) -> Script[Row | None]:
    """Status, retry_count and queue_name of a task that is not in the history."""
    rows = yield Statement(sql_text(PACKAGE, "lock_parked"), {"id": task_id})
    return rows[0] if rows else None


def is_parking(task_id: str, attempt: int) -> Script[bool]:
    """Whether an attempt that said that it parks is not yet parked."""
    rows = yield Statement(sql_text(PACKAGE, "find_parked"), {"id": task_id})
    return bool(rows) and rows[0]["status"] == "RUNNING" and int(rows[0]["retry_count"] or 0) + 1 == attempt


def postpone_parked(task_id: str, attempt: int, due_at: datetime) -> Script[None]:
    yield Statement(sql_text(PACKAGE, "postpone_parked"), {"id": task_id, "attempt": attempt, "due_at": due_at})


def resume_parked(task_id: str, attempt: int) -> Script[bool]:
    """Make a task due that the attempt has parked; whether it was."""
    return bool((yield Statement(sql_text(PACKAGE, "resume_parked"), {"id": task_id, "attempt": attempt})))


def wake_workers(task_id: str, queue: str) -> Script[None]:
    yield Statement(sql_text(PACKAGE, "wake_workers"), {"id": task_id, "queue": queue})


def find_workflows_of_task(task_id: str) -> Script[list[str]]:
    """The workflow of a node and those around it, innermost first; none for a task without a workflow."""
    rows = yield Statement(sql_text(PACKAGE, "find_workflows_of_task"), {"id": task_id})
    return [row["id"] for row in rows]


def find_workflow(workflow_id: str) -> Script[Row | None]:
    """Status and name of a workflow."""
    rows = yield Statement(sql_text(PACKAGE, "find_workflow"), {"id": workflow_id})
    return rows[0] if rows else None


def _decode(row: Row) -> ParkingTask:
    return ParkingTask(
        attempt=int(row["retry_count"] or 0) + 1,
        max_retries=int(row["max_retries"] or 0),
        policy=_policy_of(row["task_options"]),
        good_until=row["good_until"],
        now=row["db_now"],
        queue=row["queue_name"],
    )


def _policy_of(options: str | None) -> Mapping[str, Any]:
    try:
        policy = json.loads(options or "{}").get("retry_policy")
    except (ValueError, AttributeError):
        return {}
    return policy if isinstance(policy, dict) else {}
