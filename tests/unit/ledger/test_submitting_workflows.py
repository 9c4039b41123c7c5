"""A workflow is submitted by the rules of tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_horsies.core.graph import wrap_definition
from airflow_horsies.db.statement import Rows
from airflow_horsies.ledger.cancelling import carry_out_requests, release_tasks
from airflow_horsies.ledger.identity import Submitter
from airflow_horsies.ledger.submitting import submit_tasks, submit_workflow
from airflow_horsies.models import (
    AirflowTry,
    CancelOutcome,
    Graph,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    TaskSpec,
    WorkflowState,
)
from airflow_horsies.wire.encoding import encode_task
from airflow_horsies.wire.graphs import encode_workflow
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import MOVED, Answer, Driven, drive

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
WIRE = Wire(MOVED)
SENT, REATTACHED, ADOPTED = SubmitOutcome.SENT, SubmitOutcome.REATTACHED, SubmitOutcome.ADOPTED
MONTH = wrap_definition("flights.month", {"month": 3})


@dataclass
class Database:
    """Just enough of the tables to be submitted to."""

    workflows: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    submissions: list[dict[str, Any]] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)

    def submit(self, work: Graph | TaskSpec = MONTH, **tried: Any) -> SubmitResult:
        submitter = Submitter(
            namespace="default",
            base_url="http://airflow",
            task_instance=INSTANCE,
            tried=AirflowTry(**{"try_number": 1, **tried}),
        )
        if isinstance(work, Graph):
            driven: Driven[Any] = drive(submit_workflow(WIRE, submitter, encode_workflow(work)), self.answers)
            result = driven.outcome
        else:
            driven = drive(submit_tasks(WIRE, submitter, [encode_task(work)]), self.answers)
            (result,) = driven.outcome
        self.statements = driven.names
        assert isinstance(result, SubmitResult)
        return result

    def end(self, state: WorkflowState) -> None:
        self.workflows[self.submissions[-1]["horsies_task_id"]] = state.value

    @property
    def answers(self) -> dict[str, Answer]:
        return {
            "read_newest_life": self._newest,
            "moved/read_states": lambda params: _known(self.tasks, params),
            "moved/find_commands": lambda params: [],
            "moved/read_workflow_statuses": lambda params: _known(self.workflows, params),
            "moved/start_workflow": self._start,
            "moved/enqueue_tasks": self._enqueue,
            "moved/lock_workflow": lambda params: [{"status": self.workflows[params["id"]]}],
            "moved/cancel_workflow": self._cancel,
            "moved/find_running_node_tasks": lambda params: [{"id": task_id} for task_id in self.running],
            "moved/cancel_task": self._cancel_task,
            "record_signal": lambda params: self.signals.append(params["horsies_task_id"]) or [],  # type: ignore[func-returns-value]
            "record_submissions": self._record,
            "find_migrations_table": [{"found": True, "has_min_writer": True}],
            "read_version": [{"version": 7, "min_writer": 4}],
            "find_workflows": self._find_workflows,
        }

    def _newest(self, key: Mapping[str, Any]) -> Rows:
        newest = max((row["life"] for row in self.submissions), default=0)
        rows = sorted(self.submissions, key=lambda row: row["round"])
        return list({row["position"]: row for row in rows if row["life"] == newest}.values())

    def _start(self, params: Mapping[str, Any]) -> Rows:
        assert params["id"] not in self.workflows
        self.workflows[params["id"]] = "RUNNING"
        return [{"id": params["id"]}]

    def _enqueue(self, params: Mapping[str, Any]) -> Rows:
        self.tasks |= {new["id"]: "PENDING" for new in json.loads(params["tasks"])}
        return []

    def _cancel(self, params: Mapping[str, Any]) -> Rows:
        self.workflows[params["id"]] = "CANCELLED"
        return [{"id": params["id"]}]

    def _cancel_task(self, params: Mapping[str, Any]) -> Rows:
        found, self.tasks[params["id"]] = self.tasks[params["id"]], "CANCELLED"
        return [{"outcome": "APPLIED", "observed_status": found}]

    def _find_workflows(self, params: Mapping[str, Any]) -> Rows:
        kinds = {row["horsies_task_id"]: row["kind"] for row in self.submissions}
        return [{"horsies_task_id": one} for one in params["ids"] if kinds.get(one) == "WORKFLOW"]

    def _record(self, params: Mapping[str, Any]) -> Rows:
        shared = {name: value for name, value in params.items() if name != "rounds"}
        kept = {"released_at": None, "is_to_be_cancelled": False, "seen_try": None, "kind": "TASK"}
        for each in json.loads(params["rounds"]):
            work = bytes.fromhex(each["work"].removeprefix(r"\x"))
            self.submissions.append({**shared, **kept, **each, "work": work})
        return []


def _known(states: Mapping[str, str], params: Mapping[str, Any]) -> Rows:
    return [{"id": one, "status": states[one]} for one in params["ids"] if one in states]


@pytest.fixture
def database() -> Database:
    return Database()


def test_workflow_is_started_once_and_recorded_with_its_kind(database: Database) -> None:
    first = database.submit()
    assert (first.outcome, first.life, first.round) == (SENT, 1, 1)
    assert (database.submissions[0]["kind"], database.submissions[0]["task_name"]) == ("WORKFLOW", "flights.month")
    assert database.submit().outcome is REATTACHED
    assert database.submit(try_number=2).task_id == first.task_id
    assert len(database.workflows) == 1


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (WorkflowState.RUNNING, REATTACHED),
        (WorkflowState.PAUSED, REATTACHED),
        (WorkflowState.COMPLETED, ADOPTED),
        (WorkflowState.FAILED, SENT),
        (WorkflowState.CANCELLED, SENT),
        (WorkflowState.EXPIRED, SENT),
    ],
)
def test_retry_does_what_the_state_asks_for(database: Database, state: WorkflowState, outcome: SubmitOutcome) -> None:
    database.submit()
    database.end(state)
    again = database.submit(try_number=2)
    assert (again.outcome, again.round) == (outcome, 2 if outcome is SENT else 1)


def test_clear_cancels_the_workflow_with_its_running_nodes(database: Database) -> None:
    first = database.submit()
    database.running = ["a-task"]
    second = database.submit(clear_number=1)
    assert (second.outcome, second.life, second.task_id != first.task_id) == (SENT, 2, True)
    assert (database.workflows[first.task_id], database.signals) == ("CANCELLED", ["a-task"])


def test_other_arguments_cancel_the_workflow_and_start_the_next_round(database: Database) -> None:
    first = database.submit()
    second = database.submit(wrap_definition("flights.month", {"month": 4}), try_number=2)
    assert (second.outcome, second.life, second.round) == (SENT, 1, 2)
    assert database.workflows == {first.task_id: "CANCELLED", second.task_id: "RUNNING"}


def test_task_follows_a_workflow_and_a_workflow_a_task(database: Database) -> None:
    workflow = database.submit()
    task = database.submit(TaskSpec(task_name="flights.month", kwargs={"month": 3}), try_number=2)
    assert (task.outcome, database.workflows[workflow.task_id]) == (SENT, "CANCELLED")
    back = database.submit(wrap_definition("other"), try_number=3)
    assert (back.outcome, database.tasks[task.task_id]) == (SENT, "CANCELLED")


def test_workflow_that_the_tables_lost_is_used(database: Database) -> None:
    first = database.submit()
    database.submissions.clear()
    again = database.submit(try_number=2)
    assert (again.task_id, again.outcome) == (first.task_id, REATTACHED)


def test_no_statement_of_a_task_touches_the_tables_of_workflows(database: Database) -> None:
    for number in (1, 2):
        database.submit(TaskSpec(task_name="load"), try_number=number)
        assert not [name for name in database.statements if "workflow" in name]
    database.submit(TaskSpec(task_name="load"), clear_number=1)
    assert not [name for name in database.statements if "workflow" in name]


def test_release_cancels_by_kind(database: Database) -> None:
    sent = database.submit()
    released = drive(
        release_tasks(WIRE, namespace="default", task_instance=INSTANCE, task_ids=[sent.task_id]), database.answers
    )
    assert released.outcome == {sent.task_id: CancelOutcome.CANCELLED}
    assert database.workflows[sent.task_id] == "CANCELLED"


def test_request_is_carried_out_by_kind_and_taken_by_who_knows_workflows(database: Database) -> None:
    sent = database.submit()
    answers = {**database.answers, "take_cancel_requests": [{"horsies_task_id": sent.task_id}]}
    driven = drive(carry_out_requests(WIRE), answers)
    assert driven.outcome == {sent.task_id: CancelOutcome.CANCELLED}
    assert driven.names.index("know_workflows") < driven.names.index("take_cancel_requests")
