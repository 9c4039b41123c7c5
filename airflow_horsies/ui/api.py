"""The routes: what task instances submitted, as JSON. Airflow decides who may see it, DAG by DAG."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.sdk.log import redact  # type: ignore[attr-defined]
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_horsies.exceptions import AccessDenied, DatabaseUnreachable, HorsiesError, InvalidTask, SchemaError
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AttemptRecord, Progress, Submission, TaskInstanceKey, TaskState, TaskView
from airflow_horsies.values import attempt_values, iso, progress_values, record_values
from airflow_horsies.wire.scripts import read_states
from airflow_horsies.wire.statements import Wire

log = logging.getLogger(__name__)

DEFAULT_PAGE = 50
MAX_PAGE = 200
MAX_OFFSET = 2**31 - 1
MAX_TEXT_CHARS = 4_000
# Tasks come with results of up to megabytes, which are let go before the next ones are read.
TASKS_AT_ONCE = 20


def conn_id() -> str:
    """The connection of the api-server; an operator's own is not known to it."""
    return conf.get("horsies", "conn_id", fallback="") or HorsiesHook.default_conn_name


def refuse_what_names_no_dag(request: Request) -> None:
    """Airflow reads the DAG id ``~`` as "any DAG", and no database takes a NUL."""
    if request.path_params.get("dag_id") == "~" or "\x00" in request.scope["path"]:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such task instance.")


app = FastAPI(
    title="Horsies",
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
    redirect_slashes=False,
)


# A run id may hold a slash where Airflow's allowed_run_id_pattern says so; a DAG's or task's id never does.
@app.get(
    "/api/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}",
    dependencies=[
        Depends(refuse_what_names_no_dag),
        Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE)),
    ],
)
def read_submissions(
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: Annotated[int, Path(ge=-1, le=2**31 - 1)],
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
) -> Response:
    """Everything the task instance submitted, newest first, with state, attempts and progress of each task."""
    try:
        key = TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)
    except InvalidTask as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
    with HorsiesHook(conn_id()) as hook:
        submissions = hook.submissions_of(key)
        if not submissions:
            raise HTTPException(HTTPStatus.NOT_FOUND, "This task instance has submitted nothing to horsies.")
        states = _states(hook, submissions)
        newest_first = sorted(submissions, key=lambda each: (-each.life, -each.round, each.position))
        page = newest_first[offset : offset + limit]
        ids = [each.horsies_task_id for each in page]
        tasks = _tasks(hook, ids)
        records = hook.attempt_records_of(ids)
        progress = hook.progress(ids)
    counts = Counter(states.get(each.horsies_task_id) for each in submissions)
    return _json(
        {
            "dag_id": dag_id,
            "run_id": run_id,
            "task_id": task_id,
            "map_index": map_index,
            "total": len(submissions),
            "limit": limit,
            "offset": offset,
            "counts": {str(state): counts[state] for state in TaskState if counts[state]},
            "past_retention": counts[None],
            "submissions": [
                {
                    **_submission_values(each),
                    # None: horsies no longer keeps it.
                    "task": tasks.get(each.horsies_task_id),
                    **_told_values(records.get(each.horsies_task_id, ()), progress.get(each.horsies_task_id)),
                }
                for each in page
            ],
        }
    )


@app.exception_handler(StarletteHTTPException)
async def answer_http_error(_: Request, error: StarletteHTTPException) -> Response:
    return _problem(error.status_code, str(error.detail), headers=error.headers)


@app.exception_handler(RequestValidationError)
async def answer_invalid_request(_: Request, error: RequestValidationError) -> Response:
    # What was sent is not sent back.
    problems = [f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()]
    return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(problems))


@app.exception_handler(AirflowNotFoundException)
async def answer_missing_connection(_: Request, error: Exception) -> Response:
    return _unavailable(
        error,
        f"Airflow has no connection {conn_id()!r}. The api-server reads the horsies database through the connection "
        "that the option conn_id in section [horsies] names.",
    )


@app.exception_handler(HorsiesError)
async def answer_horsies_error(_: Request, error: HorsiesError) -> Response:
    """Who reads this may not know the database's address, so the whole message is for the log alone."""
    match error:
        case DatabaseUnreachable():
            detail = "The horsies database cannot be reached."
        case AccessDenied():
            detail = "The horsies database refuses Airflow the log-in or a privilege."
        case SchemaError():
            detail = "The database does not hold horsies tables that this release of airflow-horsies can read."
        case _:
            detail = "The horsies database could not be read."
    return _unavailable(error, f"{detail} The api-server's log and 'airflow horsies check' tell more.")


@app.exception_handler(Exception)
async def answer_unexpected_error(_: Request, error: Exception) -> Response:
    # Starlette raises it again when the answer is out, and so it is logged.
    return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "Something unexpected happened; the api-server's log has it.")


def _states(hook: HorsiesHook, submissions: Sequence[Submission]) -> dict[str, TaskState]:
    ids = list({each.horsies_task_id for each in submissions})
    wire = Wire(hook.horsies_schema)
    return hook.run_script(lambda: read_states(wire, ids))


def _tasks(hook: HorsiesHook, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        task.id: _task_values(task)
        for start in range(0, len(ids), TASKS_AT_ONCE)
        for task in hook.get_tasks(ids[start : start + TASKS_AT_ONCE]).values()
    }


def _submission_values(submission: Submission) -> dict[str, Any]:
    return {
        "horsies_task_id": submission.horsies_task_id,
        "task_name": submission.task_name,
        "queue": submission.queue,
        "position": submission.position,
        "life": submission.life,
        "round": submission.round,
        "try_number": submission.try_number,
        "submitted_at": iso(submission.submitted_at),
        "good_until": iso(submission.good_until),
    }


def _told_values(records: Sequence[AttemptRecord], progress: Progress | None) -> dict[str, Any]:
    """What workers of airflow_horsies.worker tell; others tell nothing."""
    return {
        "attempt_records": [record_values(record, text=_text) for record in records],
        "progress": None if progress is None else progress_values(progress, text=_text),
    }


def _task_values(task: TaskView) -> dict[str, Any]:
    failure = task.result.error if task.result else None
    return {
        "state": str(task.state),
        "queue": task.queue,
        "priority": task.priority,
        "sent_at": iso(task.sent_at),
        "enqueued_at": iso(task.enqueued_at),
        "claimed_at": iso(task.claimed_at),
        "started_at": iso(task.started_at),
        "finished_at": iso(task.finished_at),
        "next_retry_at": iso(task.next_retry_at),
        "good_until": iso(task.good_until),
        "retry_count": task.retry_count,
        "max_retries": task.max_retries,
        "worker_id": task.worker_id,
        "hostname": task.hostname,
        "pid": task.pid,
        "error_code": _text(task.error_code),
        "error_message": _text(failure.message if failure else None),
        "failed_reason": _text(task.failed_reason),
        "attempts": [attempt_values(attempt, text=_text) for attempt in task.attempts],
    }


def _text(text: Any) -> str | None:
    """What a task said, without the secrets this process knows and no longer than a page can show."""
    if text is None:
        return None
    # Masked before it is cut: half a secret would not be found.
    masked = str(redact(str(text)))
    return masked if len(masked) <= MAX_TEXT_CHARS else f"{masked[: MAX_TEXT_CHARS - 1]}…"


def _unavailable(error: Exception, detail: str) -> Response:
    log.warning("The horsies routes cannot read the database: %s: %s", type(error).__name__, error)
    return _problem(HTTPStatus.SERVICE_UNAVAILABLE, detail)


def _problem(status: int, detail: str, *, headers: Any = None) -> Response:
    """RFC 9457."""
    content = {"status": int(status), "title": HTTPStatus(status).phrase, "detail": detail}
    return _json(content, status=int(status), media_type="application/problem+json", headers=headers)


def _json(content: Any, *, status: int = 200, media_type: str = "application/json", headers: Any = None) -> Response:
    # All in ASCII: a task's error may hold half a surrogate pair, which has no UTF-8.
    return Response(json.dumps(content), status_code=status, media_type=media_type, headers=headers)
