"""The routes of the workflow that a task instance started: its nodes, and what became of the task of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Response

from airflow_horsies.client.pages import PageClient
from airflow_horsies.client.workflow_pages import FoundNode, ShownWorkflow, find_node, read_shown_workflow
from airflow_horsies.core.attempts import PARKED, attempts_of, is_parked
from airflow_horsies.core.graph import WRAPPER_KEY
from airflow_horsies.core.log import LogCursor
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.task import TaskView
from airflow_horsies.core.values import line_values, progress_values
from airflow_horsies.core.wording import error_message
from airflow_horsies.core.workflow import READ_NODES, NodeState, NodeView, WorkflowView, WorkKind
from airflow_horsies.exceptions import WorkflowNotFound
from airflow_horsies.ui import payloads
from airflow_horsies.ui.access import MAY_READ, MAY_READ_LOG, InstanceDep, RightsDep
from airflow_horsies.ui.answers import error_url, json_answer, shown_text
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.routes.instance import (
    DEFAULT_LINES,
    INSTANCE,
    MAX_LINES,
    MAX_NUMBER,
    MESSAGE_CHARS,
    Number,
    OptionalNumber,
    log_file,
    no_such_task,
    nothing_submitted,
    shown_attempt,
    shown_task,
)
from airflow_horsies.ui.threads import OwnThreadRoute

MAX_MESSAGE_CHARS = 500

Round = Annotated[int | None, Query(alias="round", ge=0, le=MAX_NUMBER)]
NodeIndex = Annotated[int, Query(ge=0, le=MAX_NUMBER)]

router = APIRouter(route_class=OwnThreadRoute)


@router.get(INSTANCE + "/workflow/node/log.txt", dependencies=MAY_READ_LOG)
def download_node_log(
    key: InstanceDep,
    workflow: UUID,
    index: NodeIndex,
    life: OptionalNumber = None,
    round_: Round = None,
    attempt: OptionalNumber = None,
) -> Response:
    """The lines of the task of a node, or of one attempt, as a file."""
    with page_client() as client:
        submission = chosen_workflow(client, key, life, round_)
        node = require_node(client, submission, workflow, index)
    if node.task_id is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"The node {node.name} has no task yet, and so no log.")
    return log_file(key, replace(submission, horsies_task_id=node.task_id, number=None), attempt)


@router.get(INSTANCE + "/workflow/node", dependencies=MAY_READ)
def read_node(
    key: InstanceDep,
    rights: RightsDep,
    workflow: UUID,
    index: NodeIndex,
    life: OptionalNumber = None,
    round_: Round = None,
    after_attempt: Number = 0,
    after_number: Number = 0,
    lines: Annotated[int, Query(ge=1, le=MAX_LINES)] = DEFAULT_LINES,
) -> Response:
    """The attempts of the task of a node, and its next log lines."""
    with page_client() as client:
        submission = chosen_workflow(client, key, life, round_)
        node = require_node(client, submission, workflow, index)
        ids = [] if node.task_id is None else [node.task_id]
        tasks = client.read_summaries(ids, message_chars=MESSAGE_CHARS)
        records = client.read_attempts(ids)
        progress = client.read_progress(ids)
        may_read_log = rights.may_read_log(key.dag_id)
        seen = LogCursor(after_attempt, after_number)
        written = [line for each in ids if may_read_log for line in client.read_lines(each, after=seen, limit=lines)]
    task = tasks.get(node.task_id or "")
    made = progress.get(node.task_id or "")
    attempts = attempts_of(task, records.get(node.task_id or "", ()))
    return json_answer(
        payloads.NodeDetail(
            now=datetime.now(UTC),
            workflow_id=str(workflow),
            index=index,
            name=node.name,
            task_name=node.task_name,
            horsies_task_id=node.task_id,
            submitted_at=None if task is None else task.sent_at,
            task=None if task is None else shown_task(task),
            attempts=[shown_attempt(attempt) for attempt in attempts],
            progress=None if made is None else progress_values(made, text=shown_text),
            log=payloads.NodeLog(
                may_read=may_read_log,
                lines=[line_values(line, text=shown_text) for line in written],
                more=len(written) == lines,
            ),
        )
    )


@router.get(INSTANCE + "/workflow", dependencies=MAY_READ)
def read_workflow(key: InstanceDep, rights: RightsDep, life: OptionalNumber = None, round_: Round = None) -> Response:
    """The nodes of the workflow of a submission, and of the workflows inside it."""
    with page_client() as client:
        submission = chosen_workflow(client, key, life, round_)
        latest = client.read_latest_ids(key).task_ids
        try:
            shown = read_shown_workflow(client, submission.horsies_task_id)
        except WorkflowNotFound:
            raise past_retention() from None
    view = shown.view
    can_act = submission.horsies_task_id in latest and rights.may_act(key.dag_id)
    return json_answer(
        payloads.Workflow(
            now=datetime.now(UTC),
            horsies_workflow_id=view.id,
            life=submission.life,
            round=submission.round,
            name=submission.task_name,
            queue=submission.queue,
            state=view.state,
            is_paused=view.is_paused and not view.state.is_terminal,
            is_cut=view.is_cut,
            limit=READ_NODES,
            actions=view.actions if can_act else [],
            parts=list(_parts(view)),
            nodes=[node for part in view.parts for node in _nodes(part, shown)],
        )
    )


def chosen_workflow(
    client: PageClient, key: TaskInstanceKey, life: int | None = None, round_: int | None = None
) -> Submission:
    """The newest matching submission, which must be of a workflow."""
    found = client.read_rounds(key, 0, life=life, round_=round_, in_chunks=False)
    if not found:
        raise nothing_submitted() if (life, round_) == (None, None) else no_such_task()
    (submission,) = found
    if submission.kind is not WorkKind.WORKFLOW:
        raise HTTPException(HTTPStatus.NOT_FOUND, "This task instance has submitted tasks and no workflow.")
    return submission


def require_node(client: PageClient, submission: Submission, workflow: UUID, index: int) -> FoundNode:
    """The place of a node comes from the browser: only a node of this very workflow counts, and its task is looked up
    here."""
    node = find_node(client, submission.horsies_task_id, str(workflow), index)
    if node is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "The workflow of this task instance has no such node.")
    return node


def past_retention() -> HTTPException:
    return HTTPException(
        HTTPStatus.NOT_FOUND,
        "The workflow is past its retention and no longer in the horsies database. Airflow's own log is still there.",
    )


def _parts(
    view: WorkflowView, parent: str | None = None, parent_index: int | None = None
) -> Iterator[payloads.WorkflowPart]:
    error = view.error
    yield payloads.WorkflowPart(
        id=view.id,
        name=view.name,
        state=view.state,
        parent=parent,
        parent_index=parent_index,
        is_wrapper=view.definition_key == WRAPPER_KEY,
        started_at=view.started_at,
        finished_at=view.finished_at,
        error_code=shown_text(error.error_code) if error else None,
        error_message=shown_text(error_message(error), max_chars=MAX_MESSAGE_CHARS) if error else None,
        error_url=error_url(error.error_code) if error else None,
    )
    for node in view.nodes:
        if node.workflow is not None:
            yield from _parts(node.workflow, view.id, node.index)


def _nodes(part: WorkflowView, shown: ShownWorkflow) -> Iterator[payloads.WorkflowNode]:
    for node in part.nodes:
        task = shown.tasks.get(node.task_id or "")
        wait = shown.parked.get(node.task_id or "")
        code, message = _failure(node, task)
        yield payloads.WorkflowNode(
            workflow_id=part.id,
            index=node.index,
            name=node.name,
            task_name=node.task_name,
            state=node.shown_state if wait is None else PARKED,
            queue=node.queue,
            is_workflow=node.is_workflow,
            inner=None if node.workflow is None else node.workflow.id,
            after=node.after,
            join=node.join,
            min_success=node.min_success,
            allow_failed=node.allow_failed,
            is_output=node.name == part.output,
            has_task=node.task_id is not None,
            started_at=node.started_at,
            finished_at=node.finished_at,
            attempts=None if task is None else sum(not is_parked(attempt) for attempt in task.attempts),
            error_code=shown_text(code),
            error_message=shown_text(message, max_chars=MAX_MESSAGE_CHARS),
            error_url=error_url(code),
            waits_for=None if wait is None else wait.name,
            due_at=None if wait is None else wait.due_at,
        )


def _failure(node: NodeView, task: TaskView | None) -> tuple[str | None, str | None]:
    """The code of a failed node and its cause."""
    if node.state is not NodeState.FAILED:
        return None, None
    error = None if node.result is None else node.result.error
    if error is not None:
        return error.error_code, error_message(error)
    if task is None:
        return None, None
    last = task.attempts[-1] if task.attempts else None
    return task.error_code, (last.error_message if last else None) or task.failed_reason
