"""Reruns a task instance: all of it, or only what did not complete."""

from __future__ import annotations

import getpass
from collections.abc import Collection
from dataclasses import dataclass

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_horsies.borrowed.airflow import clear_with_downstream
from airflow_horsies.client.client import Client
from airflow_horsies.client.repairing import request_repair, require_started, withdraw_repair
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.exceptions import InvalidTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """What was cleared.

    :param cleared: the number of task instances.
    :param only_failed: whether completed items are kept.
    """

    cleared: int
    only_failed: bool
    items: list[int] | None

    def describe(self) -> str:
        what = "1 task instance" if self.cleared == 1 else f"{self.cleared} task instances"
        kept = ""
        if self.items:
            chosen = ", ".join(map(str, self.items))
            kept = f" Of the batch, only item {chosen} runs again; other items stay as they are."
        elif self.only_failed:
            kept = " Of the batch, only items that did not complete run again."
        return f"Cleared {what}.{kept}"


def rerun_instance(
    client: Client, instance: TaskInstanceKey, *, only_failed: bool, items: Collection[int] | None = None
) -> Rerun:
    """Clear a task instance and its downstream tasks. The request for a repair comes first, because the task instance
    may start at once."""
    chosen = sorted(set(items)) if items else None
    with create_session() as session:
        dag_run = _find_run(session, instance)
        if not only_failed:
            return Rerun(cleared=_clear(session, dag_run, instance), only_failed=False, items=None)
        _require_started(session, instance)
        made = request_repair(
            client,
            instance,
            clear_number=dag_run.clear_number,
            run_started_at=dag_run.start_date,
            requested_by=getpass.getuser(),
            items=chosen,
        )
        try:
            cleared = _clear(session, dag_run, instance)
            session.commit()
        except BaseException:
            withdraw_repair(client, instance, made.id)
            raise
    return Rerun(cleared=cleared, only_failed=True, items=chosen)


def _find_run(session: Session, instance: TaskInstanceKey) -> DagRun:
    query = select(DagRun).where(DagRun.dag_id == instance.dag_id, DagRun.run_id == instance.run_id)
    dag_run: DagRun | None = session.scalar(query)
    if dag_run is None:
        raise InvalidTask("run_id", f"names no run of DAG {instance.dag_id!r}: {instance.run_id!r}")
    return dag_run


def _require_started(session: Session, instance: TaskInstanceKey) -> None:
    ti = session.scalar(
        select(TaskInstance).where(
            TaskInstance.dag_id == instance.dag_id,
            TaskInstance.run_id == instance.run_id,
            TaskInstance.task_id == instance.task_id,
            TaskInstance.map_index == instance.map_index,
        )
    )
    if ti is not None:
        require_started(instance, None if ti.state is None else str(ti.state), resumes=ti.next_method is not None)


def _clear(session: Session, dag_run: DagRun, instance: TaskInstanceKey) -> int:
    cleared = clear_with_downstream(dag_run, instance.task_id, instance.map_index, session)
    if not cleared:
        raise InvalidTask("task_id", f"names no task instance of this run: {instance}")
    return cleared
