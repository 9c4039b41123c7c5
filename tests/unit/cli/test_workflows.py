"""``airflow horsies workflows`` on workflows in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.cli import main
from airflow_horsies.exceptions import WorkflowNotPaused
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import (
    CancelOutcome,
    NodeFailure,
    NodeState,
    NodeView,
    PageCursor,
    RetriedNodes,
    Submission,
    TaskFailure,
    TaskInstanceKey,
    TaskResult,
    WorkflowOutcome,
    WorkflowPage,
    WorkflowState,
    WorkflowStatus,
    WorkflowSummary,
    WorkflowView,
    WorkKind,
)
from airflow_horsies.testing import FakeClient
from airflow_horsies.testing.client import make_settings

ID = "0198a0de-0000-7000-8000-000000000001"
INNER = "0198a0de-0000-7000-8000-000000000002"
TASK_ID = "0198a0de-0000-7000-8000-000000000003"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="month")
FAILURE = TaskFailure(error_code="BAD\x1b[2J", message="cannot read postgresql://etl:hunter2@db/x\nTraceback")


def make_view(*nodes: NodeView, state: WorkflowState = WorkflowState.RUNNING, **changed: Any) -> WorkflowView:
    values: dict[str, Any] = {
        "id": ID,
        "name": "sales.month",
        "definition_key": None,
        "state": state,
        "on_error": "pause",
        "depth": 0,
        "sent_at": NOON,
        "started_at": NOON,
        "finished_at": None,
        "nodes": nodes,
    }
    return WorkflowView(**values | changed)


FAILED = NodeView(
    index=1,
    name="parse",
    task_name="sales.parse",
    state=NodeState.FAILED,
    task_id=TASK_ID,
    started_at=NOON,
    finished_at=NOON + timedelta(seconds=1.5),
    result=TaskResult(error=FAILURE),
)
SECRET = NodeView(
    index=0,
    name="fetch",
    task_name="sales.fetch",
    state=NodeState.COMPLETED,
    result=TaskResult(ok="the value of a node"),
)
TREE = make_view(
    SECRET,
    NodeView(
        index=1,
        name="load",
        task_name="sales.load",
        state=NodeState.RUNNING,
        is_workflow=True,
        after=("fetch",),
        workflow=make_view(FAILED, state=WorkflowState.PAUSED, id=INNER, name="load"),
    ),
)
SUMMARY = WorkflowSummary(
    id=ID,
    name="sales.month",
    definition_key=None,
    state=WorkflowState.RUNNING,
    is_paused_inside=True,
    sent_at=NOON,
    started_at=NOON,
    finished_at=None,
    changed_at=NOON,
)
SUBMISSION = Submission(
    horsies_task_id=ID,
    namespace="default",
    task_instance=INSTANCE,
    position=0,
    life=1,
    round=1,
    try_number=2,
    task_name="sales.month",
    queue="default",
    good_until=None,
    submitted_at=NOON,
    kind=WorkKind.WORKFLOW,
)


class OneWorkflow(FakeClient):
    """Has one workflow, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(make_settings(namespace="default"))
        self.view = TREE
        self.submissions = [SUBMISSION]
        self.asked: list[tuple[Any, ...]] = []
        self.changed: list[str] = [ID, INNER]
        self.outcome = CancelOutcome.CANCELLED
        self.nodes = RetriedNodes(retried=("parse",))

    def list_workflows(self, **asked: Any) -> WorkflowPage:
        self.asked.append(("list", asked))
        return WorkflowPage(workflows=(SUMMARY,), next=PageCursor(at=NOON, task_id=ID))

    def read_workflow(self, workflow_id: str, **limits: Any) -> WorkflowView:
        self.asked.append(("show", workflow_id, limits))
        return self.view

    def read_workflow_outcome(self, workflow_id: str) -> WorkflowOutcome:
        failure = NodeFailure(path=("load", "parse"), task_name="sales.parse", error=FAILURE, task_id=TASK_ID)
        return WorkflowOutcome(id=ID, name="sales.month", state=self.view.state, is_paused=True, failure=failure)

    def read_workflow_states(self, workflow_ids: Any) -> dict[str, WorkflowStatus]:
        return {ID: WorkflowStatus(id=ID, state=self.view.state, is_paused_inside=self.view.is_paused_inside)}

    def read_submissions(self, task_instance: TaskInstanceKey) -> list[Submission]:
        return [sent for sent in self.submissions if sent.task_instance == task_instance]

    def read_submissions_of_task(self, task_id: str) -> list[Submission]:
        return self.submissions

    def pause_workflow(self, workflow_id: str) -> list[str]:
        self.asked.append(("pause", workflow_id))
        return self.changed

    def resume_workflow(self, workflow_id: str, *, queue: str | None = None) -> list[str]:
        self.asked.append(("resume", workflow_id, queue))
        return self.changed

    def cancel_workflow(self, workflow_id: str) -> CancelOutcome:
        self.asked.append(("cancel", workflow_id))
        return self.outcome

    def retry_workflow(self, workflow_id: str, *, queue: str | None = None) -> RetriedNodes:
        self.asked.append(("retry", workflow_id, queue))
        return self.nodes


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> OneWorkflow:
    client = OneWorkflow()
    monkeypatch.setattr(HorsiesHook, "client", property(lambda hook: client))
    return client


@pytest.fixture(autouse=True)
def audited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that are in Airflow's audit log."""
    commands: list[str] = []
    monkeypatch.setattr("airflow.utils.cli_action_loggers.on_pre_execution", lambda **_: None)
    monkeypatch.setattr(
        "airflow.utils.cli_action_loggers.on_post_execution", lambda **metrics: commands.append(metrics["sub_command"])
    )
    return commands


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    def run(line: str) -> str:
        main(["workflows", *line.split()])
        return capsys.readouterr().out

    return run


Run = Callable[[str], str]


def test_list_says_which_workflow_waits_because_of_a_pause_inside(run: Run, client: OneWorkflow) -> None:
    out = run("list --state paused --name sales.month --limit 5")
    assert "RUNNING (paused inside)" in out and ID in out
    assert out.rstrip().endswith(f"--before {NOON.isoformat()},{ID}")
    ((_, asked),) = client.asked
    assert asked == {"states": {WorkflowState.PAUSED}, "name": "sales.month", "before": None, "limit": 5}
    (told,) = json.loads(run("list -o json"))
    assert (told["id"], told["state"], told["is_paused_inside"]) == (ID, "RUNNING", True)


def test_show_is_a_tree_with_states_times_codes_and_no_values(run: Run, client: OneWorkflow) -> None:
    headline, failed, hint, header, _, *nodes = run(f"show {ID}").splitlines()
    assert headline == (
        f"sales.month {ID}: RUNNING (paused inside), 1 COMPLETED 1 PAUSED, sent by sales.month of run manual__1 (try 2)"
    )
    assert failed.startswith("failed at load/parse: BAD\\x1b[2J: cannot read postgresql://etl:***@db/x")
    assert f"'airflow horsies workflows resume {ID}'" in hint
    assert [cell.strip() for cell in header.split("|")] == [
        *("node", "state", "started_at", "duration", "error_code", "error", "runs", "id"),
    ]
    cells = [[cell.rstrip() for cell in line.split("|")] for line in nodes if line.strip()]
    assert [line[0] for line in cells] == ["fetch", "load", "  parse"]
    assert [line[1].strip() for line in cells] == ["COMPLETED", "PAUSED", "FAILED"]
    assert [line[-1].strip() for line in cells] == ["", INNER, TASK_ID]
    assert [cell.strip() for cell in cells[2][3:6]] == [
        *("1.50 s", "BAD\\x1b[2J", "cannot read postgresql://etl:***@db/x"),
    ]
    assert client.asked == [("show", ID, {"result_chars": 0})]


def test_show_for_programs_is_one_nested_value_without_secrets_and_values(run: Run) -> None:
    out = run(f"show {ID} --output json")
    assert "hunter2" not in out and "the value of a node" not in out
    told = json.loads(out)
    inner = told["nodes"][1]["workflow"]
    assert (told["id"], told["is_paused_inside"], inner["id"], inner["state"]) == (ID, True, INNER, "PAUSED")
    assert inner["nodes"][0]["error_code"] == FAILURE.error_code
    assert told["sent_by"][0]["run_id"] == "manual__1"


def test_cut_tree_says_that_it_is_cut(client: OneWorkflow, capsys: pytest.CaptureFixture[str]) -> None:
    client.view = replace(TREE, is_cut=True)
    main(["workflows", "show", ID, "-o", "json"])
    assert "has more nodes than the 3 that are shown" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "cancel", "retry"])
def test_every_verb_takes_a_task_instance_too(verb: str, run: Run, client: OneWorkflow) -> None:
    run(f"{verb} sales manual__1 month")
    assert client.asked[0][:2] == (verb, ID)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("pause 42", "must be a UUID, not '42'"),
        ("pause sales manual__1", "DAG_ID RUN_ID TASK_ID"),
        (f"pause {ID} --map-index 2", "only for a task instance"),
        ("pause sales manual__1 other", "has submitted nothing in namespace 'default'"),
        ("pause sales manual__1 month --map-index 2", "sales.month[2] of run manual__1 has submitted nothing"),
    ],
)
def test_address_that_leads_nowhere_is_an_error_and_changes_nothing(
    line: str, says: str, run: Run, client: OneWorkflow
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(line)
    assert str(ended.value.code).startswith("error: ") and says in str(ended.value.code)
    assert client.asked == []


def test_task_instance_that_sent_a_task_is_told_so(run: Run, client: OneWorkflow) -> None:
    client.submissions = [replace(SUBMISSION, kind=WorkKind.TASK)]
    with pytest.raises(SystemExit, match=f"submitted a task, and no workflow.*{ID}"):
        run("cancel sales manual__1 month")
    client.submissions = [replace(SUBMISSION, is_latest=False)]
    with pytest.raises(SystemExit, match="has submitted nothing"):
        run("cancel sales manual__1 month")


def test_pause_resume_cancel_and_retry_tell_what_they_did(run: Run, client: OneWorkflow, audited: list[str]) -> None:
    assert run(f"pause {ID}") == (f"Workflow {ID} was paused, with 1 workflow inside it. Running nodes end as usual.\n")
    assert "at their next check" in run(f"resume {ID}")
    assert run(f"resume {ID} --queue spark").startswith("Asked a worker of queue 'spark' to resume")
    assert run(f"cancel {ID}") == f"Workflow {ID} was cancelled. Running nodes are told to stop.\n"
    assert run(f"retry {ID} --queue spark").splitlines() == [
        f"These nodes of workflow {ID} run again: parse.",
        "A worker of queue 'spark' resumes it.",
    ]
    assert client.asked == [
        *(("pause", ID), ("resume", ID, None), ("resume", ID, "spark"), ("cancel", ID), ("retry", ID, "spark")),
    ]
    assert audited == [f"workflows_{verb}" for verb in ("pause", "resume", "resume", "cancel", "retry")]
    assert json.loads(run(f"pause {ID} -o json"))["paused"] == [ID, INNER]
    assert json.loads(run(f"cancel {ID} -o json"))["outcome"] == "CANCELLED"


def test_reading_commands_leave_no_audit_entry(run: Run, audited: list[str]) -> None:
    run(f"show {ID}")
    run("list")
    assert audited == []


def test_what_changes_nothing_says_so(run: Run, client: OneWorkflow) -> None:
    client.changed, client.view = [], make_view(state=WorkflowState.COMPLETED)
    assert run(f"pause {ID}") == f"Workflow {ID} does not run: it is COMPLETED.\n"
    assert run(f"resume {ID}") == f"Workflow {ID} is not paused: it is COMPLETED.\n"
    client.outcome = CancelOutcome.ALREADY_FINISHED
    assert run(f"cancel {ID}") == f"Workflow {ID} had already ended as COMPLETED.\n"


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        (RetriedNodes(retried=()), "it has no failed node. Nothing was changed"),
        (RetriedNodes(retried=(), left=("load",)), "cannot run again: load"),
    ],
)
def test_retry_that_has_nothing_to_run_is_an_error(
    nodes: RetriedNodes, says: str, run: Run, client: OneWorkflow
) -> None:
    client.nodes = nodes
    with pytest.raises(SystemExit) as ended:
        run(f"retry {ID}")
    assert says in str(ended.value.code)


def test_retry_of_a_workflow_that_is_not_paused_is_an_error(
    run: Run, client: OneWorkflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(workflow_id: str, *, queue: str | None = None) -> RetriedNodes:
        raise WorkflowNotPaused("It is not paused.", task_id=workflow_id)

    monkeypatch.setattr(client, "retry_workflow", refuse)
    with pytest.raises(SystemExit, match="error: It is not paused"):
        run(f"retry {ID}")
