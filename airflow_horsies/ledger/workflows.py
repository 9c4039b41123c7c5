"""Submitted workflows: the rules of submitting are the same for tasks and workflows.

Statements on the tables of workflows run only where one was submitted: a user may lack the privileges for them.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_horsies.core.task import TaskState
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.db.statement import Row, Rows, Script, Statement, sql_text
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.wire import workflows
from airflow_horsies.wire.reading import read_states
from airflow_horsies.wire.statements import Wire

# The first version of the ledger with workflows.
SINCE = 7


def read_round_states(wire: Wire, rows: Rows) -> Script[dict[str, TaskState]]:
    """The states of submissions, by id; of a workflow, that of a task that is treated in the same way.

    :param rows: of read_newest_life.
    """
    ids = {kind: [row["horsies_task_id"] for row in rows if _kind_of(row) is kind] for kind in WorkKind}
    states = yield from read_states(wire, ids[WorkKind.TASK])
    return states | (yield from read_workflow_states(wire, ids[WorkKind.WORKFLOW]))


def read_workflow_states(wire: Wire, ids: Collection[str]) -> Script[dict[str, TaskState]]:
    found = yield from workflows.read_statuses(wire, ids)
    return {workflow_id: state.as_task_state for workflow_id, state in found.items()}


def find_workflows(ids: Collection[str]) -> Script[set[str]]:
    """Which of these ids are those of submitted workflows, if the tables know workflows."""
    if not ids or (yield from read_version()) < SINCE:
        return set()
    rows = yield Statement(sql_text(PACKAGE, "find_workflows"), {"ids": sorted(ids)})
    return {row["horsies_task_id"] for row in rows}


def know_workflows() -> Statement:
    """Let the deletes of the transaction concern workflows: the tables keep these from releases that do not know
    them."""
    return Statement(sql_text(PACKAGE, "know_workflows"))


def _kind_of(row: Row) -> WorkKind:
    return WorkKind(row.get("kind") or WorkKind.TASK)
