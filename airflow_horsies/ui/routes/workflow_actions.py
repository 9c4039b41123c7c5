"""What a person does with the workflow of a task instance: pause, resume, retry failed nodes, signal, cancel.

An action names the workflow and the state that the page showed. It is refused if another workflow has taken its place,
or if the state has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any
from uuid import UUID

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from airflow_horsies.client.pages import ACTION_SECONDS, PageClient
from airflow_horsies.client.workflow_pages import find_resume_queue
from airflow_horsies.core.signals import MAX_DEDUP_CHARS, MAX_NAME_CHARS, MAX_SENDER_CHARS
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.workflow import WorkflowState, WorkKind
from airflow_horsies.exceptions import InvalidTask, SchemaUnsupported, SignalRefused, TaskNotFound, WorkflowNotPaused
from airflow_horsies.ui import payloads
from airflow_horsies.ui.access import MAY_ACT, InstanceDep
from airflow_horsies.ui.answers import json_answer
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.routes.instance import INSTANCE, MAX_NUMBER, nothing_submitted, require_body
from airflow_horsies.ui.routes.workflow import past_retention, require_node
from airflow_horsies.ui.threads import OwnThreadRoute

CHANGED = "The task instance has started another workflow since the page was loaded. Reload the page."
# Not in the audit log: it may be a secret.
HIDDEN = {"payload"}

router = APIRouter(route_class=OwnThreadRoute)


class WorkflowBody(BaseModel):
    """The workflow as the page showed it."""

    model_config = ConfigDict(extra="forbid")

    horsies_workflow_id: UUID
    state: WorkflowState


class NodeBody(BaseModel):
    """The place of a node."""

    model_config = ConfigDict(extra="forbid")

    workflow_id: UUID
    index: int = Field(ge=0, le=MAX_NUMBER)


class SignalBody(WorkflowBody):
    """A signal to the workflow, or to the task of one of its nodes.

    ``key`` is new for each signal that a person sends: a request that is sent again stores it once.
    """

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    payload: Any = None
    node: NodeBody | None = None
    key: str = Field(min_length=8, max_length=MAX_DEDUP_CHARS // 2)


def audit(event: str, model: type[BaseModel]) -> Callable[..., Any]:
    """Airflow's audit log of a valid body, without what may be secret."""
    log = action_logging(event=event)

    async def log_action(request: Request, session: SessionDep, user: GetUserDep) -> None:
        body = model.model_validate_json(await request.body()).model_dump_json(exclude=HIDDEN).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        await log(Request(request.scope, receive), session, user)

    return log_action


def may(event: str, body: type[BaseModel]) -> list[Any]:
    return [*MAY_ACT, Depends(require_body(body)), Depends(audit(event, body))]


@router.post(INSTANCE + "/workflow/pause", dependencies=may("horsies_pause_workflow", WorkflowBody))
def pause(key: InstanceDep, body: WorkflowBody) -> Response:
    """Running nodes end as usual, and no other node starts until the workflow is resumed."""
    with _acting(key, body) as (client, submission):
        paused = client.pause_workflow(submission.horsies_task_id)
    return json_answer(payloads.WorkflowChange(workflows=len(paused)))


@router.post(INSTANCE + "/workflow/resume", dependencies=may("horsies_resume_workflow", WorkflowBody))
def resume(key: InstanceDep, body: WorkflowBody) -> Response:
    with _acting(key, body) as (client, submission):
        queue = find_resume_queue(client, submission.queue)
        resumed = client.resume_workflow(submission.horsies_task_id, queue=queue)
    return json_answer(payloads.WorkflowChange(workflows=len(resumed), at_once=queue is not None))


@router.post(INSTANCE + "/workflow/retry", dependencies=may("horsies_retry_workflow", WorkflowBody))
def retry(key: InstanceDep, body: WorkflowBody) -> Response:
    """Run the failed nodes of the paused workflows again, and resume them."""
    with _acting(key, body) as (client, submission):
        queue = find_resume_queue(client, submission.queue)
        nodes = client.retry_workflow(submission.horsies_task_id, queue=queue)
    return json_answer(
        payloads.WorkflowChange(
            workflows=1 if nodes.retried else 0, retried=nodes.retried, left=nodes.left, at_once=queue is not None
        )
    )


@router.post(INSTANCE + "/workflow/cancel", dependencies=may("horsies_cancel_workflow", WorkflowBody))
def cancel(key: InstanceDep, body: WorkflowBody) -> Response:
    with _acting(key, body) as (client, submission):
        outcomes = client.release_tasks([submission.horsies_task_id], key)
    counts = Counter(outcomes.values())
    return json_answer(payloads.Cancelled(outcomes=counts, past_retention=1 - len(outcomes)))


@router.post(INSTANCE + "/workflow/signal", dependencies=may("horsies_signal", SignalBody))
def signal(key: InstanceDep, user: GetUserDep, body: SignalBody) -> Response:
    """Any task of the workflow may receive it, or only the one of the node."""
    with _acting(key, body) as (client, submission):
        target = submission.horsies_task_id
        if body.node is not None:
            node = require_node(client, submission, body.node.workflow_id, body.node.index)
            if node.task_id is None:
                raise HTTPException(HTTPStatus.CONFLICT, f"The node {node.name} has no task yet. Signal the workflow.")
            target = node.task_id
        sent = client.signal(
            target,
            body.name,
            body.payload,
            dedup_key=f"page:{body.key}",
            sent_by=str(user.get_name())[:MAX_SENDER_CHARS],
        )
    return json_answer(payloads.SignalSent(is_new=sent.is_new, resumed=sent.resumed))


@contextmanager
def _acting(key: TaskInstanceKey, body: WorkflowBody) -> Iterator[tuple[PageClient, Submission]]:
    """On what the page showed; what horsies refuses is told to the user."""
    refuse = partial(HTTPException, HTTPStatus.CONFLICT)
    try:
        with page_client(seconds=ACTION_SECONDS) as client:
            yield client, _require_shown(client, key, body)
    except InvalidTask as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
    except TaskNotFound:
        raise past_retention() from None
    except (SignalRefused, WorkflowNotPaused, SchemaUnsupported) as error:
        raise refuse(str(error)) from None


def _require_shown(client: PageClient, key: TaskInstanceKey, body: WorkflowBody) -> Submission:
    newest = client.read_rounds(key, 0, in_chunks=False)
    if not newest:
        raise nothing_submitted()
    (submission,) = newest
    workflow_id = str(body.horsies_workflow_id)
    if submission.kind is not WorkKind.WORKFLOW or submission.horsies_task_id != workflow_id:
        raise HTTPException(HTTPStatus.CONFLICT, CHANGED)
    found = client.read_workflow_states([workflow_id])
    if workflow_id not in found:
        raise past_retention()
    state = found[workflow_id].state
    if state is not body.state:
        raise HTTPException(
            HTTPStatus.CONFLICT,
            f"The workflow is {state.lower()} by now, and the page showed it {body.state.lower()}. Look again.",
        )
    return submission
