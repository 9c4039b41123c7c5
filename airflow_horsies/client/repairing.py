"""Requests to run again, after the next clear of a task instance, only what did not complete."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from airflow_horsies.client import calls
from airflow_horsies.client.client import Client
from airflow_horsies.core.submission import RepairRequest, ShownItem, TaskInstanceKey
from airflow_horsies.exceptions import RepairTooEarly
from airflow_horsies.ledger import repairing
from airflow_horsies.ledger.latest import Deployment

# Airflow's states between a clear, or the wait for a retry, and the start.
WAITING_STATES = (None, "scheduled", "queued", "restarting")


def request_repair(
    client: Client,
    task_instance: TaskInstanceKey,
    *,
    clear_number: int,
    run_started_at: datetime | None = None,
    requested_by: str,
    items: Collection[int | ShownItem] | None = None,
) -> RepairRequest:
    """The next clear of the task instance keeps what completed. Any later clear is a plain one.

    :param clear_number: of the DAG run now, before the clear.
    :param run_started_at: of the DAG run now. Before Airflow 3.3, a run that goes on is known by it.
    :param items: the places of the items to run again; None for all that did not complete. An item as a page showed it
        must still be at its place: BatchChanged otherwise.
    """
    client.drive(calls.migrate_ledger(client.scope))
    own = _deployment(client)
    return client.run(
        lambda: repairing.request_repair(
            own,
            task_instance,
            clear_number=clear_number,
            run_started_at=run_started_at,
            requested_by=requested_by,
            items=items,
        )
    )


def require_started(task_instance: TaskInstanceKey, state: str | None, *, resumes: bool) -> None:
    """A plain clear runs everything again; a request before the first try after it would change that.

    :param state: of the task instance in Airflow.
    :param resumes: whether the task instance goes on after it was deferred.
    """
    if state in WAITING_STATES and not resumes:
        raise RepairTooEarly(
            f"{task_instance} waits to start: it was cleared, which runs everything again, or has a retry. Wait until "
            "it has ended, or mark it as failed; then repair it."
        )


def withdraw_repair(client: Client, task_instance: TaskInstanceKey, request_id: int) -> bool:
    """Withdraw a request whose clear failed; returns whether it was open."""
    own = _deployment(client)
    return client.run(lambda: repairing.withdraw_repair(own, task_instance, request_id))


def _deployment(client: Client) -> Deployment:
    return Deployment(client.namespace, client.settings.base_url)
