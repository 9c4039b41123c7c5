"""The routes of a task instance: its submissions, its log, cancel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_horsies.client.pages import ACTION_SECONDS, ItemOrder, PageClient, PlacedItem
from airflow_horsies.core.attempts import ShownAttempt, attempts_of
from airflow_horsies.core.log import LogCursor, Progress
from airflow_horsies.core.submission import ShownItem, Submission, TaskInstanceKey
from airflow_horsies.core.task import AttemptRecord, TaskState, TaskView
from airflow_horsies.core.values import attempt_values, line_values, progress_values
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.exceptions import BatchChanged
from airflow_horsies.ui import payloads
from airflow_horsies.ui.access import MAY_ACT, MAY_READ, MAY_READ_LOG, MAY_READ_VALUES, InstanceDep, RightsDep
from airflow_horsies.ui.airflow_side import AirflowTry, read_rendered, read_tries
from airflow_horsies.ui.answers import error_url, json_answer, shown_text, shown_value
from airflow_horsies.ui.arguments import WHY_HIDDEN, Rendered, hides, kwargs_of_item, shown_arguments
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.moments import shown_moments
from airflow_horsies.ui.threads import OwnThreadRoute, iterate_in_threads
from airflow_horsies.ui.timeline import lost_tries, segments

MAX_NUMBER = 2**31 - 1
MAX_ID = 100
MAX_ROUNDS = 50
DEFAULT_LINES = 500
MAX_LINES = 1_000
# Much more than is shown, so that no secret is cut before it is masked.
MESSAGE_CHARS = 10_000
DEFAULT_PAGE = 50
MAX_PAGE = 200

# A run id may contain a slash if Airflow's allowed_run_id_pattern allows it; the id of a DAG or task never does.
INSTANCE = "/api/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}"

Number = Annotated[int, Query(ge=0, le=MAX_NUMBER)]
OptionalNumber = Annotated[int | None, Query(ge=0, le=MAX_NUMBER)]

router = APIRouter(route_class=OwnThreadRoute)


class Sort(StrEnum):
    """The columns a batch can be sorted by."""

    POSITION = "position"
    STATE = "state"
    ATTEMPTS = "attempts"
    DURATION = "duration"
    ERROR_CODE = "error_code"
    HOSTNAME = "hostname"


class ItemBody(BaseModel):
    """An item as the page showed it: a retry or a clear may have put another one at its position."""

    model_config = ConfigDict(extra="forbid")

    position: int = Field(ge=0, le=MAX_NUMBER)
    horsies_task_id: str = Field(min_length=1, max_length=MAX_ID)
    number: int | None = Field(ge=0, le=MAX_NUMBER)

    @property
    def shown(self) -> ShownItem:
        return ShownItem(position=self.position, task_id=self.horsies_task_id, number=self.number)


class CancelBody(BaseModel):
    """The item to cancel; without one, all live tasks."""

    model_config = ConfigDict(extra="forbid")

    item: ItemBody | None = None


def require_body(model: type[BaseModel]) -> Callable[[Request], Awaitable[None]]:
    """Runs before the audit log, which would record the DAG that an invalid body names."""

    async def require(request: Request) -> None:
        try:
            model.model_validate_json(await request.body())
        except ValidationError as error:
            problems = [{**item, "loc": ("body", *item["loc"])} for item in error.errors()]
            raise RequestValidationError(problems) from None

    return require


# The longer paths first, because a run id may contain slashes.
@router.get(INSTANCE + "/items", dependencies=MAY_READ)
def read_items(
    key: InstanceDep,
    sort: Sort = Sort.POSITION,
    descending: bool = False,
    state: TaskState | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE,
    offset: Number = 0,
) -> Response:
    """The latest submissions of a batch, item by item."""
    with page_client() as client:
        ids = client.read_latest_ids(key)
        if not ids.count:
            raise nothing_submitted()
        order = ItemOrder(sort=sort, descending=descending, state=state, limit=limit, offset=offset)
        total, shown = client.order_items(key, ids, order)
        tasks = client.read_items_as_tasks([(item.task_id, item.number) for item in shown])
    items = [_item(item, tasks.get((item.task_id, item.number))) for item in shown]
    return json_answer(payloads.Items(total=total, items=items))


@router.get(INSTANCE + "/values", dependencies=MAY_READ_VALUES)
def read_values(
    key: InstanceDep,
    session: SessionDep,
    position: Number = 0,
    life: OptionalNumber = None,
    round_: Annotated[int | None, Query(alias="round", ge=0, le=MAX_NUMBER)] = None,
) -> Response:
    """The arguments and the result of one task, as text to show."""
    with page_client() as client:
        submission = _chosen(client, key, position, life, round_)
        ref = submission.horsies_task_id, submission.number
        task = client.read_items_as_tasks([ref], values=True).get(ref)
    sent = None if task is None else kwargs_of_item(task.kwargs, submission.number)
    kwargs = shown_arguments(sent, _rendered(session, key, position), submission)
    result = None if task is None else task.result
    exception = result.error.exception if result and result.error else None
    return json_answer(
        payloads.Values(
            kwargs=None if kwargs is None else shown_value(kwargs),
            kwargs_note=WHY_HIDDEN if hides(kwargs) else None,
            result=shown_value(result.ok) if result and result.error is None else None,
            error_data=shown_value(result.error.data) if result and result.error and result.error.data else None,
            traceback=shown_text(exception.traceback, max_chars=20_000) if exception else None,
        )
    )


@router.get(INSTANCE + "/log.txt", dependencies=MAY_READ_LOG)
def download_log(
    key: InstanceDep,
    position: Number = 0,
    life: OptionalNumber = None,
    round_: Annotated[int | None, Query(alias="round", ge=0, le=MAX_NUMBER)] = None,
    attempt: OptionalNumber = None,
) -> Response:
    """The lines of one task, or of one attempt, as a file."""
    with page_client() as client:
        submission = _chosen(client, key, position, life, round_)
    return log_file(key, submission, attempt)


def log_file(key: TaskInstanceKey, submission: Submission, attempt: int | None) -> Response:
    """The lines of a task, or of one attempt, as a file."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{key.dag_id}.{key.task_id}.{submission.horsies_task_id}")
    return StreamingResponse(
        iterate_in_threads(_written_lines(submission, attempt)),
        media_type="text/plain; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{name}.log"'},
    )


@router.post(
    INSTANCE + "/cancel",
    dependencies=[*MAY_ACT, Depends(require_body(CancelBody)), Depends(action_logging(event="horsies_cancel"))],
)
def cancel(key: InstanceDep, body: CancelBody) -> Response:
    """Cancel the live tasks of the latest submission. Airflow then ends the task instance, or retries it if it has
    retries left."""
    with page_client(seconds=ACTION_SECONDS) as client:
        latest = client.read_latest_ids(key)
        if not latest.count:
            raise nothing_submitted()
        if body.item is None:
            wanted = latest.task_ids
        else:
            item = _chosen(client, key, body.item.position, None, None)
            if (item.horsies_task_id, item.number) != (body.item.horsies_task_id, body.item.number):
                raise HTTPException(HTTPStatus.CONFLICT, str(BatchChanged()))
            if item.number is not None:
                outcome = client.cancel_item(key, item)
                return json_answer(payloads.Cancelled(outcomes={outcome: 1}, past_retention=0))
            wanted = [item.horsies_task_id]
        # Never a task that another DAG shares: the user may not be allowed to see that DAG.
        outcomes = client.release_tasks(wanted, key)
    counts = Counter(outcomes.values())
    return json_answer(payloads.Cancelled(outcomes=counts, past_retention=len(wanted) - len(outcomes)))


@router.get(INSTANCE, dependencies=MAY_READ)
def read_instance(
    key: InstanceDep,
    session: SessionDep,
    rights: RightsDep,
    position: Number = 0,
    life: OptionalNumber = None,
    round_: Annotated[int | None, Query(alias="round", ge=0, le=MAX_NUMBER)] = None,
    after_attempt: Number = 0,
    after_number: Number = 0,
    lines: Annotated[int, Query(ge=1, le=MAX_LINES)] = DEFAULT_LINES,
) -> Response:
    """The submissions of a position, round by round, and the next log lines of one of them."""
    with page_client() as client:
        latest = client.read_latest_ids(key)
        if latest.count:
            rounds = client.read_rounds(key, position, limit=MAX_ROUNDS, in_chunks=latest.has_chunks)
            chosen = _chosen_of(rounds, life, round_)
            counts = Counter(client.count_states(latest))
            ids = [item.horsies_task_id for item in rounds]
            refs = [(item.horsies_task_id, item.number) for item in rounds]
            tasks = client.read_items_as_tasks(refs, message_chars=MESSAGE_CHARS)
            states = client.read_workflow_states(
                [item.horsies_task_id for item in rounds if item.kind is WorkKind.WORKFLOW]
            )
            counts.update(states[each].state.as_task_state for each in latest.task_ids if each in states)
            records = client.read_attempts(ids)
            progress = client.read_progress(ids)
            seen = LogCursor(after_attempt, after_number)
            may_read_log = rights.may_read_log(key.dag_id)
            written = client.read_item_lines(chosen, after=seen, limit=lines) if may_read_log else []
            moments = client.read_moments(key, rounds, with_values=rights.may_read_values(key.dag_id))
    # Read last, so that no connection to Airflow's database is held while the horsies database is read.
    tries = read_tries(session, key)
    if latest.count:
        tries = sorted([*tries, *lost_tries(tries, rounds)], key=lambda each: each.number)
    head = _head(key, tries, positions=latest.count, can_act=rights.may_act(key.dag_id))
    if not latest.count:
        # Not an error: it may submit at any moment.
        return json_answer(payloads.EmptyInstance(**head))
    return json_answer(
        payloads.Instance(
            **head,
            counts={state: counts[state] for state in TaskState if counts.get(state)},
            past_retention=latest.count - sum(counts.values()),
            position=position,
            submissions=[
                replace(
                    _submission(each, tasks, records, progress),
                    kind=each.kind,
                    workflow_state=states[each.horsies_task_id].state if each.horsies_task_id in states else None,
                )
                for each in rounds
            ],
            log=payloads.Log(
                life=chosen.life,
                round=chosen.round,
                may_read=may_read_log,
                lines=[line_values(line, text=shown_text) for line in written],
                more=len(written) == lines,
            ),
            moments=shown_moments(moments, rounds),
        )
    )


def nothing_submitted() -> HTTPException:
    return HTTPException(HTTPStatus.NOT_FOUND, "This task instance has not submitted a horsies task.")


def no_such_task() -> HTTPException:
    return HTTPException(
        HTTPStatus.NOT_FOUND, "This task instance has no submission with this position, life and round."
    )


def _chosen(
    client: PageClient, key: TaskInstanceKey, position: int, life: int | None, round_: int | None
) -> Submission:
    """The newest matching submission."""
    found = client.read_rounds(key, position, life=life, round_=round_)
    if not found:
        raise no_such_task()
    return found[0]


def _chosen_of(rounds: Sequence[Submission], life: int | None, round_: int | None) -> Submission:
    for submission in rounds:
        if life in (None, submission.life) and round_ in (None, submission.round):
            return submission
    raise no_such_task()


def _rendered(session: SessionDep, key: TaskInstanceKey, position: int) -> Rendered:
    tries = read_tries(session, key)
    return Rendered(
        fields=read_rendered(session, key), position=position, try_number=tries[-1].number if tries else None
    )


def _written_lines(submission: Submission, attempt: int | None) -> Iterator[bytes]:
    seen = LogCursor() if attempt is None else LogCursor(attempt, -1)
    while True:
        # A new client for each part, because a download may be slow.
        with page_client() as client:
            found = client.read_item_lines(submission, after=seen)
        kept = [line for line in found if attempt in (None, line.attempt)]
        yield "".join(
            f"{line.logged_at:%Y-%m-%dT%H:%M:%S.%fZ} attempt {line.attempt} {line.level:<7} "
            f"{shown_text(line.text, max_chars=len(line.text) + 1_000)}\n"
            for line in kept
        ).encode("utf-8", "replace")
        if not found or len(kept) < len(found):
            return
        seen = found[-1].cursor


def _head(key: TaskInstanceKey, tries: Sequence[AirflowTry], *, positions: int, can_act: bool) -> dict[str, Any]:
    """The fields of payloads.InstanceHead."""
    return {
        **asdict(key),
        "now": datetime.now(UTC),
        "can_act": can_act,
        "tries": [_try(each) for each in tries],
        "positions": positions,
    }


def _submission(
    submission: Submission,
    tasks: Mapping[tuple[str, int | None], TaskView],
    records: Mapping[str, Sequence[AttemptRecord]],
    progresses: Mapping[str, Progress],
) -> payloads.Submission:
    task = tasks.get((submission.horsies_task_id, submission.number))
    # Of an item that has ended, its own outcome counts and not what the worker recorded of its chunk.
    is_ended_item = submission.number is not None and task is not None and task.state.is_terminal
    attempts = attempts_of(task, () if is_ended_item else records.get(submission.horsies_task_id, ()))
    progress = None if is_ended_item else progresses.get(submission.horsies_task_id)
    return payloads.Submission(
        horsies_task_id=submission.horsies_task_id,
        task_name=submission.task_name,
        queue=submission.queue,
        position=submission.position,
        life=submission.life,
        round=submission.round,
        number=submission.number,
        try_number=submission.try_number,
        submitted_at=submission.submitted_at,
        good_until=submission.good_until,
        task=None if task is None else shown_task(task),
        attempts=[shown_attempt(attempt) for attempt in attempts],
        segments=segments(submission, task, attempts),
        progress=None if progress is None else progress_values(progress, text=shown_text),
    )


def shown_task(task: TaskView) -> payloads.Task:
    return payloads.Task(
        state=task.state,
        queue=task.queue,
        priority=task.priority,
        enqueued_at=task.enqueued_at,
        claimed_at=task.claimed_at,
        started_at=task.started_at,
        finished_at=task.finished_at,
        next_retry_at=task.next_retry_at,
        good_until=task.good_until,
        retry_count=task.retry_count,
        max_retries=task.max_retries,
        worker_id=task.worker_id,
        hostname=task.hostname,
        pid=task.pid,
        error_code=shown_text(task.error_code),
        failed_reason=shown_text(task.failed_reason),
        error_url=error_url(task.error_code),
    )


def shown_attempt(attempt: ShownAttempt) -> payloads.Attempt:
    # The page has one place for the error message and the reason of the failure.
    values = replace(attempt_values(attempt, text=shown_text), error_message=shown_text(attempt.message))
    return payloads.Attempt(**asdict(values), error_url=error_url(attempt.error_code))


def _try(item: AirflowTry) -> payloads.Try:
    return payloads.Try(try_number=item.number, state=item.state, started_at=item.started_at, ended_at=item.ended_at)


def _item(item: PlacedItem, task: TaskView | None) -> payloads.Item:
    finished = task.finished_at if task else None
    last = task.attempts[-1] if task and task.attempts else None
    return payloads.Item(
        position=item.place,
        life=item.life,
        round=item.round,
        state=None if task is None else task.state,
        attempts=None if task is None else len(task.attempts),
        started_at=task.started_at if task else None,
        finished_at=finished,
        duration=(finished - task.started_at).total_seconds() if task and finished and task.started_at else None,
        error_code=shown_text(task.error_code) if task else None,
        error_message=shown_text(last.error_message, max_chars=300) if last else None,
        hostname=task.hostname if task else None,
        error_url=error_url(task.error_code) if task else None,
    )
