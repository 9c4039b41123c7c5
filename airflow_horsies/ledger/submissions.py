"""Reads which task instance sent which horsies task."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC

from airflow_horsies.core.paging import Slice
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.db.statement import Row, Script, Statement, sql_text
from airflow_horsies.ledger.schema import PACKAGE

# The first version of the ledger that marks the latest submission.
SINCE = 4


def is_same_deployment(one: str, other: str) -> bool:
    """Whether two base URLs may belong to one deployment; without a URL, the namespace decides."""
    return not one or not other or one == other


def read_submissions(namespace: str, base_url: str, task_instance: TaskInstanceKey) -> Script[list[Submission]]:
    """All submissions of a task instance of a deployment, oldest first."""
    params = {**key_of(namespace, task_instance), "base_url": base_url}
    rows = yield Statement(sql_text(PACKAGE, "read_submissions"), params)
    return [decode_submission(row) for row in rows]


def has_later_submission(namespace: str, task_instance: TaskInstanceKey, *, life: int, try_number: int) -> Script[bool]:
    """Whether a later life, or a later try of this life, has submitted."""
    params = {**key_of(namespace, task_instance), "life": life, "try_number": try_number}
    (row,) = yield Statement(sql_text(PACKAGE, "find_later_submission"), params)
    return bool(row["is_there"])


def read_submissions_of_task(horsies_task_id: str) -> Script[list[Submission]]:
    """The task instances that submitted a horsies task."""
    rows = yield Statement(sql_text(PACKAGE, "read_submissions_of_task"), {"horsies_task_id": horsies_task_id})
    return [decode_submission(row) for row in rows]


def read_submissions_of_tasks(ids: Collection[str]) -> Script[list[Submission]]:
    """The task instances that submitted these horsies tasks, newest first, and whether a newer submission exists."""
    rows = yield Statement(sql_text(PACKAGE, "read_submissions_of_tasks"), {"ids": list(ids)})
    return [decode_submission(row) for row in rows]


def read_submissions_of_run(
    namespace: str, base_url: str, dag_id: str, run_id: str, *, limit: int
) -> Script[list[Submission]]:
    """The last submissions of the task instances of a DAG run."""
    run = {"namespace": namespace, "base_url": base_url, "dag_id": dag_id, "run_id": run_id}
    rows = yield Statement(sql_text(PACKAGE, "read_submissions_of_run"), {**run, "limit": limit})
    return [decode_submission(row) for row in rows]


def change_base_url(namespace: str, *, old: str, new: str) -> Script[int]:
    """Assign the submissions of a deployment to its new address; returns their number."""
    rows = yield Statement(sql_text(PACKAGE, "change_base_url"), {"namespace": namespace, "old": old, "new": new})
    return len(rows)


def scan_submissions(part: Slice) -> Statement:
    """The rows of a slice, by the time of submission."""
    return Statement(sql_text(PACKAGE, "scan_submissions"), part.params)


def sample_submissions(part: Slice, percent: float) -> Statement:
    return Statement(sql_text(PACKAGE, "sample_submissions"), {**part.params, "percent": percent})


def key_of(namespace: str, instance: TaskInstanceKey) -> dict[str, str | int]:
    return {
        "namespace": namespace,
        "dag_id": instance.dag_id,
        "run_id": instance.run_id,
        "task_id": instance.task_id,
        "map_index": instance.map_index,
    }


def decode_submission(row: Row) -> Submission:
    good_until = row["good_until"]
    return Submission(
        horsies_task_id=row["horsies_task_id"],
        namespace=row["namespace"],
        task_instance=TaskInstanceKey(
            dag_id=row["dag_id"], run_id=row["run_id"], task_id=row["task_id"], map_index=row["map_index"]
        ),
        position=row["position"],
        life=row["life"],
        round=row["round"],
        try_number=row["try_number"],
        task_name=row["task_name"],
        queue=row["queue_name"],
        good_until=None if good_until is None else good_until.astimezone(UTC),
        submitted_at=row["submitted_at"].astimezone(UTC),
        is_latest=row["is_latest"],
        base_url=row["base_url"],
        number=row.get("number"),
        kind=WorkKind(row.get("kind") or WorkKind.TASK),
    )
