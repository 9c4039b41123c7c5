"""The graph of a workflow and the actions on it, through Airflow's real api-server: of this task instance, of what the
page showed, and nothing of any other workflow."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import httpx
import pytest

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, Graph, TaskInstanceKey, WorkflowState, node, ref, wrap_definition
from tests.integration.chunk_rig import sql
from tests.integration.releases import MOVED
from tests.integration.test_attempts import begin_attempt, write_lines
from tests.integration.ui_site import (
    ANOTHER_DAG,
    BASE_PATH,
    DAG_OF_STRANGERS,
    FOREIGN_WRITER,
    HIDDEN_MARK,
    INSTANCE,
    STRANGER,
    Site,
    api_path,
    submit,
)

pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

CHAIN = Graph(
    name="chain",
    nodes={
        "fetch": node("w.fetch", n=1),
        "left": node("w.double", x=ref("fetch")),
        "right": node("w.check", x=ref("fetch")),
        "inner": node(workflow="contract.child", after=["fetch"], n=1),
        "total": node("w.sum", a=ref("left"), b=ref("right"), join="quorum", min_success=1),
    },
    output="total",
    queue="spark",
)
OTHER = replace(CHAIN, nodes={**CHAIN.nodes, "fetch": node("w.fetch", n=2)})
ACTIONS = ("pause", "resume", "retry", "cancel", "signal")


@pytest.fixture
def instance() -> TaskInstanceKey:
    return replace(INSTANCE, run_id=f"manual__{uuid.uuid4().hex}")


def start(hook: HorsiesHook, instance: TaskInstanceKey, graph: Graph = CHAIN, *, life: int = 1) -> str:
    tried = AirflowTry(clear_number=life - 1, try_number=life)
    return hook.client.submit_workflow(graph, instance, tried).task_id


def read(site: Site, instance: TaskInstanceKey, user: str = "viewer") -> dict[str, Any]:
    answer = site.ask(api_path(instance, "/workflow"), user)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def named(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in found["nodes"]}


def act(
    site: Site, instance: TaskInstanceKey, action: str, workflow_id: str, state: str = "RUNNING", **more: Any
) -> httpx.Response:
    if action == "signal":
        more = {"name": "approved", "payload": {"by": "me"}, "key": uuid.uuid4().hex, **more}
    body = {"horsies_workflow_id": workflow_id, "state": state, **more}
    return site.ask(api_path(instance, f"/workflow/{action}"), "writer", "POST", json=body)


def set_state(hook: HorsiesHook, workflow_id: str, state: str, **nodes: str) -> None:
    sql(hook, "UPDATE horsies_workflows SET status = %s WHERE id = %s", state, workflow_id)
    for name, status in nodes.items():
        sql(
            hook,
            "UPDATE horsies_workflow_tasks SET status = %s, completed_at = now()"
            " WHERE workflow_id = %s AND node_id = %s",
            status,
            workflow_id,
            name,
        )


def node_path(instance: TaskInstanceKey, workflow_id: str, index: int, tail: str = "", more: str = "") -> str:
    return api_path(instance, f"/workflow/node{tail}?workflow={workflow_id}&index={index}{more}")


def states(hook: HorsiesHook) -> list[Any]:
    return sql(
        hook,
        "SELECT w.id::text, w.status, n.task_index, n.status FROM horsies_workflows AS w"
        " JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.id ORDER BY 1, 3",
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def test_nodes_have_their_states_dependencies_and_joins(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    workflow_id = start(hook, instance)
    found = read(connected, instance)
    assert (found["horsies_workflow_id"], found["state"], found["queue"]) == (workflow_id, "RUNNING", "spark")
    assert (found["is_cut"], found["actions"]) == (False, [])
    nodes = named(found)
    assert {name: each["state"] for name, each in nodes.items()} == {
        "fetch": "ENQUEUED",
        **dict.fromkeys(("left", "right", "inner", "total"), "PENDING"),
    }
    assert {name: each["after"] for name, each in nodes.items()} == {
        "fetch": [],
        **{name: ["fetch"] for name in ("left", "right", "inner")},
        "total": ["left", "right"],
    }
    total = nodes["total"]
    assert (total["join"], total["min_success"], total["is_output"]) == ("quorum", 1, True)
    assert [name for name, each in nodes.items() if each["is_workflow"]] == ["inner"]
    assert [name for name, each in nodes.items() if each["has_task"]] == ["fetch"]
    submission = connected.ask(api_path(instance)).json()["submissions"][0]
    assert (submission["kind"], submission["workflow_state"]) == ("WORKFLOW", "RUNNING")
    assert connected.ask(api_path(instance)).json()["counts"] == {"RUNNING": 1}


def test_only_who_may_write_the_dag_is_offered_actions_and_only_on_the_newest_workflow(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    first = start(hook, instance)
    assert read(connected, instance, "viewer")["actions"] == []
    assert read(connected, instance, "writer")["actions"] == ["pause", "signal", "cancel"]
    set_state(hook, first, "PAUSED", fetch="FAILED")
    assert read(connected, instance, "writer")["actions"] == ["resume", "retry", "signal", "cancel"]
    set_state(hook, first, "PAUSED", fetch="COMPLETED")
    assert read(connected, instance, "writer")["actions"] == ["resume", "signal", "cancel"]
    second = start(hook, instance, life=2)
    assert read(connected, instance, "writer")["horsies_workflow_id"] == second
    older = connected.ask(api_path(instance, "/workflow?life=1&round=1"), "writer").json()
    assert (older["horsies_workflow_id"], older["state"], older["actions"]) == (first, "CANCELLED", [])
    set_state(hook, second, "COMPLETED")
    assert read(connected, instance, "writer")["actions"] == []


def test_workflow_inside_is_a_part_of_its_own(connected: Site, hook: HorsiesHook, instance: TaskInstanceKey) -> None:
    workflow_id = start(hook, instance, wrap_definition("contract.diamond", {"n": 1}))
    child = add_child(hook, workflow_id, index=1)
    found = read(connected, instance, "writer")
    root, inner = found["parts"]
    assert (root["is_wrapper"], root["parent"]) == (True, None)
    assert (inner["id"], inner["parent"], inner["parent_index"], inner["is_wrapper"]) == (child, workflow_id, 1, False)
    assert [(each["workflow_id"] == child, each["name"], each["inner"]) for each in found["nodes"]] == [
        (False, "begin", None),
        (False, "workflow", child),
        (True, "seed", None),
    ]
    assert named(found)["workflow"]["state"] == "PAUSED"
    # A pause inside does not change the state of the outer workflow.
    assert (found["state"], found["is_paused"]) == ("RUNNING", True)
    assert found["actions"] == ["pause", "resume", "signal", "cancel"]


def add_child(hook: HorsiesHook, workflow_id: str, *, index: int) -> str:
    """As horsies leaves a workflow inside another that has paused."""
    child, task_id = str(uuid.uuid4()), str(uuid.uuid4())
    sql(
        hook,
        "INSERT INTO horsies_workflows (id, name, status, on_error, definition_key, depth, root_workflow_id,"
        " parent_workflow_id, parent_task_index, sent_at, created_at, updated_at)"
        " VALUES (%s, 'child', 'PAUSED', 'pause', 'contract.child', 1, %s, %s, %s, now(), now(), now())",
        child,
        workflow_id,
        workflow_id,
        index,
    )
    sql(
        hook,
        "INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, task_args, task_kwargs,"
        " queue_name, priority, dependencies, allow_failed_deps, join_type, status, task_id, is_subworkflow, created_at"
        ") VALUES (gen_random_uuid(), %s, 0, 'seed', 'w.fetch', '[]', '{}', 'default', 100, '{}', FALSE, 'all',"
        " 'READY', %s, FALSE, now())",
        child,
        task_id,
    )
    sql(
        hook,
        "UPDATE horsies_workflow_tasks SET status = 'RUNNING', sub_workflow_id = %s"
        " WHERE workflow_id = %s AND task_index = %s",
        child,
        workflow_id,
        index,
    )
    return child


def test_failed_node_tells_its_code_and_its_cause_without_secrets(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    workflow_id = start(hook, instance)
    error = {"error_code": "BROKEN", "message": "cannot open postgresql://joe:hunter2@db/x", "data": None}
    result = json.dumps({"__h_task_result__": True, "ok": None, "err": {"__task_error__": True, **error}})
    set_state(hook, workflow_id, "RUNNING", fetch="FAILED")
    sql(
        hook,
        "UPDATE horsies_workflow_tasks SET result = %s WHERE workflow_id = %s AND task_index = 0",
        result,
        workflow_id,
    )
    failed = named(read(connected, instance))["fetch"]
    assert (failed["state"], failed["error_code"]) == ("FAILED", "BROKEN")
    assert failed["error_message"].startswith("cannot open postgresql://")
    assert "hunter2" not in json.dumps(failed)


def test_node_whose_task_waits_for_a_signal_is_parked(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    workflow_id = start(hook, instance)
    task_id = str(hook.read_workflow(workflow_id).nodes[0].task_id)
    sql(hook, "UPDATE horsies_workflow_tasks SET status = 'RUNNING' WHERE task_id = %s", task_id)
    sql(hook, "UPDATE horsies_tasks SET retry_count = 2 WHERE id = %s", task_id)
    for occurrence, name, attempt in ((1, "earlier", 1), (2, "approved", 2)):
        sql(
            hook,
            "INSERT INTO airflow_horsies.parkings (horsies_task_id, name, occurrence, targets, attempt)"
            " VALUES (%s, %s, %s, %s, %s)",
            task_id,
            name,
            occurrence,
            [task_id],
            attempt,
        )
    parked = named(read(connected, instance))["fetch"]
    assert (parked["state"], parked["waits_for"], parked["due_at"]) == ("PARKED", "approved", None)
    sql(hook, "UPDATE horsies_tasks SET status = 'RUNNING' WHERE id = %s", task_id)
    assert named(read(connected, instance))["fetch"]["state"] == "RUNNING"


def test_large_workflow_is_cut_and_says_so(connected: Site, hook: HorsiesHook, instance: TaskInstanceKey) -> None:
    workflow_id = start(hook, instance)
    sql(
        hook,
        "INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, task_args, task_kwargs,"
        " queue_name, priority, dependencies, allow_failed_deps, join_type, status, is_subworkflow, created_at)"
        " SELECT gen_random_uuid(), %s, number, 'n' || number, 'w.fetch', '[]', '{}', 'default', 100, '{}', FALSE,"
        " 'all', 'PENDING', FALSE, now() FROM generate_series(5, 3000) AS number",
        workflow_id,
    )
    found = read(connected, instance)
    assert (len(found["nodes"]), found["is_cut"], found["limit"]) == (2_000, True, 2_000)


def test_node_has_the_attempts_and_the_log_of_its_task(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    workflow_id = start(hook, instance)
    task_id = str(hook.read_workflow(workflow_id).nodes[0].task_id)
    begin_attempt(hook, task_id, hostname="the-host")
    write_lines(hook, task_id, "first line", "second line")
    found = connected.ask(node_path(instance, workflow_id, 0)).json()
    assert (found["name"], found["horsies_task_id"], found["task"]["state"]) == ("fetch", task_id, "PENDING")
    assert [each["hostname"] for each in found["attempts"]] == ["the-host"]
    assert [each["text"] for each in found["log"]["lines"]] == ["first line", "second line"]
    last = found["log"]["lines"][0]
    more = f"&after_attempt={last['attempt']}&after_number={last['number']}"
    after = connected.ask(node_path(instance, workflow_id, 0, more=more)).json()
    assert [each["text"] for each in after["log"]["lines"]] == ["second line"]
    text = connected.ask(node_path(instance, workflow_id, 0, "/log.txt"))
    assert [line.rpartition(" ")[0].endswith(("first", "second")) for line in text.text.splitlines()] == [True, True]
    # Its task does not exist yet.
    waiting = connected.ask(node_path(instance, workflow_id, 1)).json()
    assert (waiting["name"], waiting["horsies_task_id"], waiting["attempts"]) == ("left", None, [])
    assert connected.ask(node_path(instance, workflow_id, 1, "/log.txt")).status_code == 404


def test_node_of_another_workflow_is_not_there(connected: Site, hook: HorsiesHook, instance: TaskInstanceKey) -> None:
    """Whatever the browser asks for: the ids of another task instance, also of a DAG that the user may not see."""
    own = replace(instance, dag_id=DAG_OF_STRANGERS)
    hidden = replace(instance, dag_id=ANOTHER_DAG)
    mine = start(hook, own)
    other = start(hook, hidden, Graph(name=HIDDEN_MARK, nodes={f"{HIDDEN_MARK}_node": node("w.fetch", n=1)}))
    child = add_child(hook, other, index=0)
    write_lines(hook, str(hook.read_workflow(other).nodes[0].task_id), f"{HIDDEN_MARK} line")
    for user in (STRANGER, FOREIGN_WRITER, "admin"):
        assert connected.ask(node_path(own, mine, 0), user).status_code == 200
        for workflow_id in (other, child, str(uuid.uuid4())):
            for tail in ("", "/log.txt"):
                answer = connected.ask(node_path(own, workflow_id, 0, tail), user)
                assert answer.status_code == 404, (user, workflow_id, tail)
                assert HIDDEN_MARK not in answer.text
    assert connected.ask(node_path(hidden, other, 0), STRANGER).status_code == 403
    assert connected.ask(node_path(hidden, child, 0), "admin").status_code == 200
    assert connected.ask(node_path(own, mine, 99), "admin").status_code == 404
    for wrong in ("nonsense", "%00", "1; DROP TABLE horsies_tasks"):
        assert connected.ask(node_path(own, wrong, 0), "admin").status_code == 422
    sent = act(connected, own, "signal", mine, node={"workflow_id": other, "index": 0})
    assert (sent.status_code, sql(hook, "SELECT count(*) FROM airflow_horsies.messages")) == (404, [(0,)])


def test_what_is_no_workflow_or_no_longer_kept_is_told(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    migrate_ledger(hook.client)
    assert connected.ask(api_path(instance, "/workflow")).status_code == 404
    submit(hook, instance)
    answer = connected.ask(api_path(instance, "/workflow"))
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        "This task instance has submitted tasks and no workflow.",
    )
    other = replace(instance, task_id="other")
    workflow_id = start(hook, other)
    sql(hook, "DELETE FROM horsies_workflow_tasks WHERE workflow_id = %s", workflow_id)
    sql(hook, "DELETE FROM horsies_workflows WHERE id = %s", workflow_id)
    answer = connected.ask(api_path(other, "/workflow"))
    assert answer.status_code == 404
    assert "past its retention" in answer.json()["detail"]
    shown = connected.ask(api_path(other)).json()
    assert (shown["past_retention"], shown["submissions"][0]["workflow_state"]) == (1, None)
    for action in ACTIONS:
        assert act(connected, other, action, workflow_id).status_code == 404


# -- actions -----------------------------------------------------------------------------------------------------------


def test_workflow_is_paused_resumed_and_cancelled(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    workflow_id = start(hook, instance)
    assert act(connected, instance, "pause", workflow_id).json()["workflows"] == 1
    assert read(connected, instance)["state"] == "PAUSED"
    # No worker serves the queue, so that the recovery of the workers must go on with it.
    resumed = act(connected, instance, "resume", workflow_id, "PAUSED").json()
    assert (resumed["workflows"], resumed["at_once"]) == (1, False)
    assert read(connected, instance)["state"] == "RUNNING"
    assert act(connected, instance, "cancel", workflow_id).json()["outcomes"] == {"CANCELLED": 1}
    assert hook.read_workflow_outcome(workflow_id).state is WorkflowState.CANCELLED
    assert {each["state"] for each in read(connected, instance)["nodes"]} == {"SKIPPED"}


def test_worker_that_is_asked_to_resume_finds_what_is_paused(hook: HorsiesHook, instance: TaskInstanceKey) -> None:
    workflow_id = start(hook, instance)
    client = WorkerClient(hook.settings.database)
    try:
        assert client.find_paused_workflows(workflow_id) == []
        hook.pause_workflow(workflow_id)
        assert client.find_paused_workflows(workflow_id) == [workflow_id]
        assert client.find_paused_workflows(str(uuid.uuid4())) is None
    finally:
        client.close()


def test_failed_nodes_of_a_paused_workflow_are_tried_again(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    workflow_id = start(hook, instance)
    refused = act(connected, instance, "retry", workflow_id)
    assert (refused.status_code, "is not paused" in refused.json()["detail"]) == (409, True)
    set_state(hook, workflow_id, "PAUSED", fetch="FAILED")
    retried = act(connected, instance, "retry", workflow_id, "PAUSED").json()
    assert (retried["retried"], retried["left"], retried["at_once"]) == (["fetch"], [], False)
    found = read(connected, instance)
    assert (found["state"], named(found)["fetch"]["state"]) == ("RUNNING", "READY")


@pytest.mark.parametrize("action", ACTIONS)
def test_action_on_a_workflow_that_is_no_longer_there_is_refused(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, action: str
) -> None:
    """Cleared and started again, or gone on meanwhile."""
    first = start(hook, instance)
    second = start(hook, instance, OTHER, life=2)
    before = states(hook)
    answer = act(connected, instance, action, first)
    assert (answer.status_code, "another workflow" in answer.json()["detail"]) == (409, True)
    for state, status in (("PAUSED", 409), ("COMPLETED", 409), ("NO_STATE", 422)):
        assert act(connected, instance, action, second, state).status_code == status
    assert act(connected, instance, action, str(uuid.uuid4())).status_code == 409
    assert act(connected, instance, action, "nonsense").status_code == 422
    # Of another task instance.
    other = replace(instance, task_id="other")
    third = start(hook, other)
    assert act(connected, instance, action, third).status_code == 409
    assert [row for row in states(hook) if row[0] != third] == before
    assert sql(hook, "SELECT count(*) FROM airflow_horsies.messages") == [(0,)]


@pytest.mark.parametrize("action", ACTIONS)
def test_action_without_the_right_or_from_another_site_does_nothing(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey, action: str
) -> None:
    workflow_id = start(hook, instance)
    body = {"horsies_workflow_id": workflow_id, "state": "RUNNING"}
    if action == "signal":
        body |= {"name": "approved", "key": uuid.uuid4().hex}
    before, path = states(hook), api_path(instance, f"/workflow/{action}")
    for user, status in (("viewer", 403), (STRANGER, 403), (None, 401)):
        assert connected.ask(path, user, "POST", json=body).status_code == status
    for origin in ("https://evil.example", "null", ""):
        headers = {"origin": origin}
        answer = connected.ask(path, "writer", "POST", json=body, headers=headers, with_cookie=True)
        assert answer.status_code == 403
    assert connected.ask(path, "writer", "POST", data=body).status_code == 415
    for wrong in ({}, {**body, "more": 1}, {"state": "RUNNING"}, {**body, "state": None}):
        assert connected.ask(path, "writer", "POST", json=wrong).status_code == 422
    assert states(hook) == before


def test_signal_is_stored_once_for_the_workflow_or_for_a_node(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    workflow_id = start(hook, instance)
    key = uuid.uuid4().hex
    answers = [act(connected, instance, "signal", workflow_id, key=key).json() for _ in range(2)]
    assert [each["is_new"] for each in answers] == [True, False]
    place = {"workflow_id": workflow_id, "index": 0}
    assert act(connected, instance, "signal", workflow_id, payload=[1, None], node=place).json()["is_new"]
    task_id = str(hook.read_workflow(workflow_id).nodes[0].task_id)
    stored = sql(hook, "SELECT target::text, name, payload, sent_by FROM airflow_horsies.messages ORDER BY number")
    assert stored == [(workflow_id, "approved", '{"by":"me"}', "writer"), (task_id, "approved", "[1,null]", "writer")]
    without_task = act(connected, instance, "signal", workflow_id, node={**place, "index": 1})
    assert (without_task.status_code, "has no task yet" in without_task.json()["detail"]) == (409, True)
    for wrong in ({"name": "no name"}, {"name": "x" * 201}, {"payload": "x" * 300_000}, {"key": "x"}):
        assert act(connected, instance, "signal", workflow_id, **wrong).status_code == 422, wrong
    assert sql(hook, "SELECT count(*) FROM airflow_horsies.messages") == [(2,)]


def test_actions_are_in_the_audit_log_without_the_payload_of_a_signal(
    connected: Site, hook: HorsiesHook, instance: TaskInstanceKey
) -> None:
    workflow_id = start(hook, instance)
    assert act(connected, instance, "signal", workflow_id, payload={"word": "open-sesame"}).status_code == 200
    assert act(connected, instance, "pause", workflow_id).status_code == 200
    assert act(connected, instance, "resume", workflow_id, "PAUSED").status_code == 200
    set_state(hook, workflow_id, "PAUSED", fetch="FAILED")
    assert act(connected, instance, "retry", workflow_id, "PAUSED").status_code == 200
    assert act(connected, instance, "cancel", workflow_id).status_code == 200
    query = {"dag_id": instance.dag_id, "run_id": instance.run_id, "limit": 100, "order_by": "id"}
    kept = connected.ask(f"{BASE_PATH}/api/v2/eventLogs", "admin", params=query).json()["event_logs"]
    told = [(each["event"], each["owner"], each["task_id"]) for each in kept]
    verbs = ("signal", "pause_workflow", "resume_workflow", "retry_workflow", "cancel_workflow")
    assert told == [(f"horsies_{verb}", "writer", instance.task_id) for verb in verbs]
    assert "approved" in kept[0]["extra"]
    assert workflow_id in kept[0]["extra"]
    assert "open-sesame" not in json.dumps(kept)
    assert "open-sesame" not in connected.written_log()
