"""What the routes tell of a workflow, and what the actions ask for; the database is real in the integration tests."""

from __future__ import annotations

import asyncio
import json
import warnings
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from airflow.sdk.log import mask_secret

from airflow_horsies.client.workflow_pages import FoundNode, ShownWorkflow
from airflow_horsies.core.task import TaskFailure, TaskResult
from airflow_horsies.core.workflow import NodeState, NodeView, WorkflowState, WorkflowView, WorkKind
from airflow_horsies.exceptions import WorkflowNotFound
from airflow_horsies.ledger.messages import Parking
from airflow_horsies.models import Attempt, LogLine, TaskState
from tests.unit.ui.rig import NOW, ROUTES, URL, Client, FakePages, submission, view
from tests.unit.ui.test_payloads import check

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from fastapi import Request

    from airflow_horsies.ui.routes import workflow as workflow_routes
    from airflow_horsies.ui.routes import workflow_actions

WORKFLOW = "00000000-0000-4000-8000-000000000001"
INNER = "00000000-0000-4000-8000-000000000002"
TASK = "00000000-0000-4000-8000-000000000003"
OTHER = "00000000-0000-4000-8000-000000000004"


def node(index: int, state: NodeState = NodeState.COMPLETED, **changed: Any) -> NodeView:
    return NodeView(index=index, name=f"n{index}", task_name="add", state=state, **changed)


def tree(*nodes: NodeView, state: WorkflowState = WorkflowState.RUNNING, **changed: Any) -> WorkflowView:
    fields: dict[str, Any] = {
        "id": WORKFLOW,
        "name": "sales",
        "definition_key": None,
        "on_error": "pause",
        "depth": 0,
        "sent_at": NOW,
        "started_at": NOW,
        "finished_at": None,
    }
    return WorkflowView(state=state, nodes=nodes, **{**fields, **changed})


@pytest.fixture
def shown(pages: FakePages, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the client reads; a test changes it."""
    pages.submissions = [replace(submission(), horsies_task_id=WORKFLOW, kind=WorkKind.WORKFLOW)]
    found: dict[str, Any] = {"workflow": ShownWorkflow(view=tree(node(0))), "node": None}

    def read(client: object, workflow_id: str) -> ShownWorkflow:
        assert workflow_id == WORKFLOW
        if found["workflow"] is None:
            raise WorkflowNotFound("no such workflow", task_id=workflow_id)
        workflow: ShownWorkflow = found["workflow"]
        return workflow

    def find(client: object, root: str, workflow_id: str, index: int) -> FoundNode | None:
        assert root == WORKFLOW
        known: FoundNode | None = found["node"] if (workflow_id, index) == (INNER, 7) else None
        return known

    monkeypatch.setattr(workflow_routes, "read_shown_workflow", read)
    monkeypatch.setattr(workflow_routes, "find_node", find)
    return found


def test_workflow_has_the_fields_of_its_payload(client: Client, shown: dict[str, Any]) -> None:
    error = TaskFailure(error_code="SUBWORKFLOW_FAILED", message="inside")
    inner = tree(
        node(0, NodeState.FAILED, task_id=TASK, started_at=NOW, finished_at=NOW, is_result_cut=True),
        node(1, NodeState.SKIPPED, after=("n0",)),
        id=INNER,
        state=WorkflowState.FAILED,
        error=error,
        finished_at=NOW,
    )
    parked = node(1, NodeState.RUNNING, task_id=OTHER, started_at=NOW, after=("n0",), join="quorum", min_success=1)
    root = tree(
        node(0, NodeState.FAILED, is_workflow=True, workflow=inner, result=TaskResult(error=error)), parked, output="n1"
    )
    failed = Attempt(
        number=3,
        outcome="FAILED",
        will_retry=False,
        started_at=NOW,
        finished_at=NOW,
        worker_id="w",
        hostname="h",
        pid=1,
        error_code="BROKEN",
        error_message="cannot open it",
    )
    waits = replace(failed, number=2, error_code="AWAITING_SIGNAL", will_retry=True)
    shown["workflow"] = ShownWorkflow(
        view=root,
        tasks={
            TASK: view(TASK, TaskState.FAILED, error_code="BROKEN", attempts=(waits, failed)),
            OTHER: view(OTHER, TaskState.PENDING, retry_count=1),
        },
        parked={
            OTHER: Parking(task_id=OTHER, name="approved", occurrence=1, attempt=1, times=1, parked_at=NOW, due_at=NOW)
        },
    )
    answer = client.get(f"{URL}/workflow")
    check(answer, "Workflow")
    found = answer.json()
    assert [(part["id"], part["parent"], part["parent_index"]) for part in found["parts"]] == [
        (WORKFLOW, None, None),
        (INNER, WORKFLOW, 0),
    ]
    outer, waiting, cause, skipped = found["nodes"]
    assert (outer["inner"], outer["error_code"], outer["error_message"]) == (INNER, "SUBWORKFLOW_FAILED", "inside")
    assert (waiting["state"], waiting["waits_for"], waiting["is_output"]) == ("PARKED", "approved", True)
    # Its result is too long to be read with the others: its task tells the cause. Waiting is no attempt.
    assert (cause["error_code"], cause["error_message"], cause["attempts"]) == ("BROKEN", "cannot open it", 1)
    assert (skipped["state"], skipped["error_code"], skipped["attempts"]) == ("SKIPPED", None, None)


def test_text_of_tasks_is_masked_and_cut(client: Client, shown: dict[str, Any]) -> None:
    mask_secret("a-secret-of-a-node")
    error = TaskFailure(error_code="BAD", message=f"{'x' * 480} a-secret-of-a-node {'y' * 9_000}")
    shown["workflow"] = ShownWorkflow(view=tree(node(0, NodeState.FAILED, result=TaskResult(error=error)), error=error))
    text = client.get(f"{URL}/workflow").text
    assert "a-secret" not in text
    assert len(text) < 4_000


@pytest.mark.parametrize(
    ("state", "nodes", "actions"),
    [
        ("RUNNING", ["RUNNING"], ["pause", "signal", "cancel"]),
        ("RUNNING", ["FAILED"], ["pause", "signal", "cancel"]),
        ("PAUSED", ["COMPLETED"], ["resume", "signal", "cancel"]),
        ("PAUSED", ["FAILED"], ["resume", "retry", "signal", "cancel"]),
        ("PENDING", [], ["signal", "cancel"]),
        ("COMPLETED", ["COMPLETED"], []),
        ("FAILED", ["FAILED"], []),
        ("CANCELLED", ["SKIPPED"], []),
        ("EXPIRED", ["FAILED"], []),
    ],
)
def test_only_actions_that_make_sense_are_offered(
    client: Client, shown: dict[str, Any], state: str, nodes: list[str], actions: list[str]
) -> None:
    states = [node(index, NodeState(each)) for index, each in enumerate(nodes)]
    shown["workflow"] = ShownWorkflow(view=tree(*states, state=WorkflowState(state)))
    assert client.get(f"{URL}/workflow").json()["actions"] == actions


def test_actions_of_a_pause_inside(client: Client, shown: dict[str, Any]) -> None:
    inner = tree(node(0, NodeState.FAILED), id=INNER, state=WorkflowState.PAUSED)
    outer = node(0, NodeState.RUNNING, is_workflow=True, workflow=inner)
    shown["workflow"] = ShownWorkflow(view=tree(outer))
    found = client.get(f"{URL}/workflow").json()
    assert (found["state"], found["is_paused"]) == ("RUNNING", True)
    assert found["actions"] == ["pause", "resume", "retry", "signal", "cancel"]
    # A node whose workflow has ended cannot be tried again.
    ended = replace(outer, state=NodeState.FAILED, workflow=replace(inner, state=WorkflowState.FAILED))
    shown["workflow"] = ShownWorkflow(view=tree(ended, state=WorkflowState.PAUSED))
    assert client.get(f"{URL}/workflow").json()["actions"] == ["resume", "signal", "cancel"]


def test_only_the_newest_submission_has_actions(client: Client, pages: FakePages, shown: dict[str, Any]) -> None:
    newer = replace(submission(life=2), horsies_task_id=OTHER, kind=WorkKind.WORKFLOW)
    pages.submissions.append(newer)
    assert client.get(f"{URL}/workflow?life=1&round=1").json()["actions"] == []


def test_what_is_no_workflow_or_past_its_retention_is_not_found(
    client: Client, pages: FakePages, shown: dict[str, Any]
) -> None:
    shown["workflow"] = None
    answer = client.get(f"{URL}/workflow")
    assert (answer.status_code, "past its retention" in answer.json()["detail"]) == (404, True)
    assert client.get(f"{URL}/workflow?life=9").status_code == 404
    pages.submissions = [submission()]
    assert "no workflow" in client.get(f"{URL}/workflow").json()["detail"]
    pages.submissions = []
    assert "has not submitted" in client.get(f"{URL}/workflow").json()["detail"]


def test_node_has_the_fields_of_its_payload_with_and_without_a_task(
    client: Client, pages: FakePages, shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    line = LogLine(attempt=1, number=1, logged_at=NOW, level="INFO", text="said")

    def read_lines(task_id: str, **_: Any) -> list[LogLine]:
        asked.append(task_id)
        return [line]

    monkeypatch.setattr(pages, "read_lines", read_lines)
    address = f"{URL}/workflow/node?workflow={INNER}&index=7"
    assert client.get(address).status_code == 404
    for found in (
        FoundNode(name="n7", task_name="add", task_id=None),
        FoundNode(name="n7", task_name="add", task_id=TASK),
    ):
        shown["node"] = found
        check(client.get(address), "NodeDetail")
    pages.put(view(TASK, TaskState.RUNNING, started_at=NOW - timedelta(seconds=3)))
    answer = client.get(address)
    check(answer, "NodeDetail")
    assert (answer.json()["task"]["state"], len(answer.json()["attempts"])) == ("RUNNING", 1)
    assert asked == [TASK, TASK]


@pytest.mark.parametrize("query", ["", "workflow=x&index=0", f"workflow={WORKFLOW}", f"workflow={WORKFLOW}&index=-1"])
def test_place_of_a_node_is_checked(client: Client, shown: dict[str, Any], query: str) -> None:
    for tail in ("", "/log.txt"):
        assert client.get(f"{URL}/workflow/node{tail}?{query}").status_code == 422


@pytest.mark.parametrize(
    "body", ["", "x", "null", "[]", "{}", '{"horsies_workflow_id": "x", "state": "RUNNING"}', '{"dag_id": "other"}']
)
@pytest.mark.parametrize("action", ["pause", "resume", "retry", "cancel", "signal"])
def test_invalid_body_is_refused(client: Client, shown: dict[str, Any], action: str, body: str) -> None:
    answer = act(client, action, content=body)
    assert answer.status_code == 422


def act(client: Client, action: str, **given: Any) -> httpx.Response:
    headers = {"origin": "http://airflow.test", "content-type": "application/json"}
    return client.request("POST", f"{URL}/workflow/{action}", headers=headers, **given)


def test_every_action_is_audited() -> None:
    actions = [route for route in ROUTES if "/workflow/" in route.path and route.methods == {"POST"}]
    assert len(actions) == 5
    for route in actions:
        assert "log_action" in [getattr(each.call, "__name__", "") for each in route.dependant.dependencies]


def test_audit_log_gets_the_body_without_the_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever JSON a payload is; the body can be read again by the route."""
    kept: list[Any] = []

    async def log_action(request: Request, session: object, user: object) -> None:
        kept.append(await request.json() if await request.body() else None)

    monkeypatch.setattr(workflow_actions, "action_logging", lambda event: log_action)
    body = {"horsies_workflow_id": WORKFLOW, "state": "RUNNING", "name": "go", "key": "k" * 32}
    sent = [json.dumps({**body, "payload": {"word": "sesame", "dag_id": "other"}}).encode()]
    sent.append(sent[0].replace(b'"sesame"', b"9" * 4_000))

    async def ask(content: bytes) -> bytes:
        messages = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> Any:
            return messages.pop()

        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        await asyncio.wait_for(workflow_actions.audit("event", workflow_actions.SignalBody)(request, None, None), 10)
        return await request.body()

    for content in sent:
        assert asyncio.run(ask(content)) == content
    assert kept == [{**body, "node": None}] * 2
