"""Requests for a repair: the page records what to run again, and then clears the task instance through Airflow."""

from __future__ import annotations

from http import HTTPStatus

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException, Response
from pydantic import BaseModel, ConfigDict, Field

from airflow_horsies.client.repairing import request_repair, require_started, withdraw_repair
from airflow_horsies.exceptions import BatchChanged, RepairTooEarly, TaskNotFound
from airflow_horsies.ui import payloads
from airflow_horsies.ui.access import MAY_ACT, InstanceDep
from airflow_horsies.ui.airflow_side import read_run, read_waiting
from airflow_horsies.ui.answers import json_answer
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.routes.instance import INSTANCE, ItemBody, require_body
from airflow_horsies.ui.threads import OwnThreadRoute

MAX_ITEMS = 1_000

router = APIRouter(route_class=OwnThreadRoute)


class RepairBody(BaseModel):
    """The items to run again; without them, all that did not complete."""

    model_config = ConfigDict(extra="forbid")

    items: list[ItemBody] | None = Field(default=None, min_length=1, max_length=MAX_ITEMS)


class WithdrawBody(BaseModel):
    """The request to withdraw, because Airflow did not clear the task instance."""

    model_config = ConfigDict(extra="forbid")

    id: int = Field(ge=0, le=2**63 - 1)


@router.post(
    INSTANCE + "/repair",
    dependencies=[*MAY_ACT, Depends(require_body(RepairBody)), Depends(action_logging(event="horsies_repair"))],
)
def repair(key: InstanceDep, user: GetUserDep, body: RepairBody) -> Response:
    """Let the next clear of the task instance run again only what did not complete."""
    # Closed before the horsies database is asked, so that no connection to Airflow's database is held meanwhile.
    with create_session(scoped=False) as session:
        run, waiting = read_run(session, key), read_waiting(session, key)
    if run is None or waiting is None:
        raise HTTPException(
            HTTPStatus.NOT_FOUND, "Airflow no longer has this task instance. Open the page of one that exists."
        )
    state, resumes = waiting
    try:
        require_started(key, state, resumes=resumes)
        with page_client() as client:
            made = request_repair(
                client,
                key,
                clear_number=run[0],
                run_started_at=run[1],
                requested_by=user.get_name(),
                items=None if body.items is None else [item.shown for item in body.items],
            )
    except TaskNotFound as error:
        raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from None
    except (BatchChanged, RepairTooEarly) as error:
        raise HTTPException(HTTPStatus.CONFLICT, str(error)) from None
    return json_answer(payloads.Repair(id=made.id, life=made.life, items=made.items))


@router.post(
    INSTANCE + "/withdraw-repair",
    dependencies=[
        *MAY_ACT,
        Depends(require_body(WithdrawBody)),
        Depends(action_logging(event="horsies_withdraw_repair")),
    ],
)
def withdraw(key: InstanceDep, body: WithdrawBody) -> Response:
    with page_client() as client:
        return json_answer(payloads.Withdrawn(withdrawn=withdraw_repair(client, key, body.id)))
