"""Reads from Airflow's database: tries, states and rendered arguments of task instances."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from airflow_horsies.core.submission import TaskInstanceKey

MAX_TRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowTry:
    """One try of a task instance, with Airflow's number."""

    number: int
    state: str | None
    started_at: datetime | None
    ended_at: datetime | None


def read_tries(session: Session, key: TaskInstanceKey) -> list[AirflowTry]:
    """The last tries of a task instance, first to last; none if Airflow no longer has it."""
    found: dict[int, AirflowTry] = {}
    for model in (TaskInstanceHistory, TaskInstance):
        rows = session.execute(
            select(model.try_number, model.state, model.start_date, model.end_date)
            .where(
                model.dag_id == key.dag_id,
                model.run_id == key.run_id,
                model.task_id == key.task_id,
                model.map_index == key.map_index,
            )
            .order_by(model.try_number.desc())
            .limit(MAX_TRIES)
        )
        for number, state, started_at, ended_at in rows:
            # The row of the task instance itself comes last and is newer.
            found[number] = AirflowTry(
                number=number, state=None if state is None else str(state), started_at=started_at, ended_at=ended_at
            )
    return [found[number] for number in sorted(found)]


def read_states(session: Session, keys: Collection[TaskInstanceKey]) -> dict[TaskInstanceKey, str | None]:
    """The state of each task instance that exists."""
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
    wanted = [(key.dag_id, key.run_id, key.task_id, key.map_index) for key in keys]
    if not wanted:
        return {}
    rows = session.execute(select(*columns, TaskInstance.state).where(tuple_(*columns).in_(wanted)))
    return {
        TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index): (
            None if state is None else str(state)
        )
        for dag_id, run_id, task_id, map_index, state in rows
    }


def read_waiting(session: Session, key: TaskInstanceKey) -> tuple[str | None, bool] | None:
    """The state of a task instance, and whether it goes on after it was deferred; None if it no longer exists."""
    row = session.execute(
        select(TaskInstance.state, TaskInstance.next_method).where(
            TaskInstance.dag_id == key.dag_id,
            TaskInstance.run_id == key.run_id,
            TaskInstance.task_id == key.task_id,
            TaskInstance.map_index == key.map_index,
        )
    ).first()
    return None if row is None else (None if row.state is None else str(row.state), row.next_method is not None)


def read_run(session: Session, key: TaskInstanceKey) -> tuple[int, datetime | None] | None:
    """How often Airflow has cleared tasks of the DAG run, and its start; None if it no longer exists."""
    query = select(DagRun.clear_number, DagRun.start_date)
    row = session.execute(query.where(DagRun.dag_id == key.dag_id, DagRun.run_id == key.run_id)).first()
    return None if row is None else (row.clear_number, row.start_date)


def read_rendered(session: Session, key: TaskInstanceKey) -> dict[str, Any]:
    """The templated fields as Airflow rendered and masked them; none if it does not keep them."""
    fields = session.scalar(
        select(RenderedTaskInstanceFields.rendered_fields).where(
            RenderedTaskInstanceFields.dag_id == key.dag_id,
            RenderedTaskInstanceFields.run_id == key.run_id,
            RenderedTaskInstanceFields.task_id == key.task_id,
            RenderedTaskInstanceFields.map_index == key.map_index,
        )
    )
    return fields if isinstance(fields, dict) else {}
