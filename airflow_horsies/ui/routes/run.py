"""The route of a DAG run: all its horsies tasks on one timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from fastapi import APIRouter, Response

from airflow_horsies.core.attempts import attempts_of
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.task import TaskState, TaskView
from airflow_horsies.ui import payloads
from airflow_horsies.ui.access import MAY_READ
from airflow_horsies.ui.answers import error_url, json_answer, shown_text
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.threads import OwnThreadRoute
from airflow_horsies.ui.timeline import segments

MAX_TASKS = 20_000
MAX_ROWS = 500
# The states that need attention first.
STATE_ORDER = (
    TaskState.FAILED,
    TaskState.EXPIRED,
    TaskState.CANCELLED,
    TaskState.RUNNING,
    TaskState.CLAIMED,
    TaskState.PENDING,
    TaskState.COMPLETED,
)

router = APIRouter(route_class=OwnThreadRoute)


@router.get("/api/dags/{dag_id}/gantt/{run_id:path}", dependencies=MAY_READ)
def read_run(dag_id: str, run_id: str) -> Response:
    """The latest submissions of the run's task instances, failures first. A batch is one row."""
    with page_client() as client:
        submitted = client.read_submissions_of_run(dag_id, run_id, limit=MAX_TASKS)
        tasks = client.read_summaries([submission.horsies_task_id for submission in submitted])
    of_instance: dict[TaskInstanceKey, list[Submission]] = {}
    for submission in submitted:
        of_instance.setdefault(submission.task_instance, []).append(submission)
    rows = sorted((_row(key, sent, tasks) for key, sent in of_instance.items()), key=_rank)
    return json_answer(
        payloads.Run(
            dag_id=dag_id,
            run_id=run_id,
            now=datetime.now(UTC),
            total=len(rows),
            is_cut=len(submitted) == MAX_TASKS,
            rows=rows[:MAX_ROWS],
        )
    )


def _rank(row: payloads.RunRow) -> tuple[int, datetime]:
    return len(STATE_ORDER) if row.state is None else STATE_ORDER.index(row.state), row.submitted_at


def _row(key: TaskInstanceKey, sent: Sequence[Submission], tasks: dict[str, TaskView]) -> payloads.RunRow:
    found = [tasks[item.horsies_task_id] for item in sent if item.horsies_task_id in tasks]
    counts = Counter(task.state for task in found)
    worst = next((state for state in STATE_ORDER if counts[state]), None)
    failed = next((task for task in found if task.state is worst and task.error_code), None)
    message = failed.attempts[-1].error_message if failed and failed.attempts else None
    return payloads.RunRow(
        task_id=key.task_id,
        map_index=key.map_index,
        task_name=sent[0].task_name,
        queue=sent[0].queue,
        items=len(sent),
        state=worst,
        counts={state: counts[state] for state in STATE_ORDER if counts[state]},
        error_code=shown_text(failed.error_code) if failed else None,
        error_message=shown_text(message, max_chars=300),
        submitted_at=min(item.submitted_at for item in sent),
        segments=_segments(sent, tasks),
        error_url=error_url(failed.error_code) if failed else None,
    )


def _segments(sent: Sequence[Submission], tasks: dict[str, TaskView]) -> list[payloads.RunSegment]:
    if len(sent) == 1:
        task = tasks.get(sent[0].horsies_task_id)
        pieces = [] if task is None else segments(sent[0], task, attempts_of(task, ()))
        return [
            payloads.RunSegment(kind=item.kind, start=item.start, end=item.end, outcome=item.outcome) for item in pieces
        ]
    found = [tasks[item.horsies_task_id] for item in sent if item.horsies_task_id in tasks]
    started = [task.started_at for task in found if task.started_at]
    submitted_at = min(item.submitted_at for item in sent)
    if not started:
        return [payloads.RunSegment(kind="waiting", start=submitted_at, end=None)]
    ended = [task.finished_at for task in found if task.finished_at]
    over = max(ended) if len(ended) == len(found) else None
    failed = any(task.state in (TaskState.FAILED, TaskState.EXPIRED) for task in found)
    outcome = "RUNNING" if over is None else "FAILED" if failed else "COMPLETED"
    return [
        payloads.RunSegment(kind="waiting", start=submitted_at, end=min(started)),
        payloads.RunSegment(kind="running", start=min(started), end=over, outcome=outcome),
    ]
