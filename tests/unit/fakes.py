"""What our own tests need beside airflow_horsies.testing: rows put into its tables, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from airflow_horsies.client.rules import Item
from airflow_horsies.models import AirflowTry, Submission, TaskInstanceKey, TaskState, TaskView
from airflow_horsies.testing import FakeHorsies
from airflow_horsies.testing.ledger import Row

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")


def make_task(task_id: str, state: TaskState = TaskState.COMPLETED, **values: Any) -> TaskView:
    known = {"task_name": "load", "queue": "default", "priority": 100, "sent_at": NOON, "enqueued_at": NOON}
    return TaskView(id=task_id, state=state, **{**known, "retry_count": 0, "max_retries": 0, **values})


def make_submission(
    task_id: str = "", *, position: int = 0, life: int = 1, round: int = 1, **values: Any
) -> Submission:
    """Without an id it is named after its position, life and round."""
    known = {
        "namespace": "default",
        "task_instance": INSTANCE,
        "try_number": 1,
        "task_name": "load",
        "queue": "default",
    }
    return Submission(
        horsies_task_id=task_id or f"{position}/{life}/{round}",
        position=position,
        life=life,
        round=round,
        **{**known, "good_until": None, "submitted_at": NOON, **values},
    )


def put_submissions(horsies: FakeHorsies, submissions: Iterable[Submission]) -> None:
    """As if their task instances had submitted these, and nothing else."""
    horsies.ledger.rows.clear()
    for each in submissions:
        tried = AirflowTry(try_number=each.try_number, clear_number=each.life)
        row = Row(each, tried, Item(b"", each.position), slot=each.position, last_try=each.try_number)
        horsies.ledger.rows.setdefault(each.task_instance, []).append(row)


def failing(errors: Iterable[Exception], then: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A method that raises each of the errors once; afterwards it is the one it stands for."""
    left = iter(errors)

    def call(*args: Any, **kwargs: Any) -> Any:
        for error in left:
            raise error
        assert then is not None, "it was called once more than it fails"
        return then(*args, **kwargs)

    return call
