from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.core.graph import wrap_definition
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import Graph, RetryPolicy, TaskSpec, node, ref
from airflow_horsies.wire.encoding import encode_task
from airflow_horsies.wire.graphs import EncodedWorkflow, encode_workflow

WORKFLOW = "0198a0de-0000-7000-8000-000000000001"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GRAPH = Graph(
    name="sales",
    nodes={
        "fetch": node("t.fetch", n=1, text="馬"),
        "left": node("t.left", x=ref("fetch"), queue="other", priority=3),
        "any": node("t.any", after=["fetch", "left"], join="any", allow_failed=True),
    },
    output="left",
    success=[["left"], ["any", "fetch"]],
    on_error="pause",
)


def encode(graph: Graph = GRAPH, **more: Any) -> EncodedWorkflow:
    return encode_workflow(graph, **{"workflow_id": WORKFLOW, "sent_at": NOON, **more})


def test_rows_are_those_of_upstreams_own_start() -> None:
    columns = encode().columns
    nodes, tasks = json.loads(str(columns["nodes"])), json.loads(str(columns["tasks"]))
    assert (columns["output_index"], columns["on_error"]) == (1, "pause")
    assert json.loads(str(columns["success_policy"])) == {
        "cases": [{"required_indices": [1]}, {"required_indices": [2, 0]}]
    }
    fetch, left, any_of = nodes
    assert (fetch["kwargs"], fetch["dependencies"], fetch["args_from"]) == ('{"n":1,"text":"馬"}', [], None)
    assert fetch["task_id"] == tasks[0]["id"]
    assert (left["dependencies"], left["args_from"], left["task_id"]) == ([0], {"x": 0}, None)
    assert (left["queue_name"], left["priority"]) == ("other", 3)
    assert (any_of["dependencies"], any_of["join_type"], any_of["allow_failed_deps"]) == ([0, 1], "any", True)
    (task,) = tasks
    assert json.loads(task["kwargs"]) == {
        "n": 1,
        "text": "馬",
        "__h_workflow_meta__": {"workflow_id": WORKFLOW, "task_index": 0, "task_name": "t.fetch"},
    }


def test_digests_are_of_the_row_with_an_empty_list_of_arguments() -> None:
    policy = RetryPolicy.fixed([1, 2], auto_retry_for=["FLAKY"])
    good_until = NOON + timedelta(hours=1)
    graph = Graph(name="g", nodes={"a": node("t", retry_policy=policy, good_until=good_until, queue="q")})
    (task,) = json.loads(str(encode(graph, classes={"q": "q_q_7d"}).columns["tasks"]))
    options = task["task_options"]
    assert options == encode_task(TaskSpec(task_name="t", retry_policy=policy, good_until=good_until)).task_options
    until = "2026-03-01T13:00:00.000000+00:00"
    sha = ["t", "q", 100, "[]", task["kwargs"], "2026-03-01T12:00:00.000000+00:00", until, None, options]
    text = json.dumps(sha, separators=(",", ":"))
    assert task["enqueue_sha"] == hashlib.sha256(text.encode()).hexdigest()
    command = [1, "t", "q", 100, "[]", task["kwargs"], until, None, options, "q_q_7d", False, None, None]
    text = json.dumps(command, separators=(",", ":"), ensure_ascii=False)
    assert task["command_fingerprint"] == rf"\x{hashlib.sha256(text.encode()).hexdigest()}"
    assert (task["max_retries"], task["retention_class_key"]) == (2, "q_q_7d")


def test_node_without_arguments_has_only_the_meta_of_its_workflow() -> None:
    (task,) = json.loads(str(encode(Graph(name="g", nodes={"a": node("t")})).columns["tasks"]))
    assert list(json.loads(task["kwargs"])) == ["__h_workflow_meta__"]


def test_wrapper_begins_with_a_task_and_has_the_workflow_as_its_output() -> None:
    columns = encode(wrap_definition("flights.month", {"month": 3})).columns
    begin, workflow = json.loads(str(columns["nodes"]))
    assert columns["output_index"] == 1
    assert (workflow["definition_key"], workflow["task_id"], workflow["dependencies"]) == ("flights.month", None, [0])
    assert json.loads(begin["kwargs"]) == {"definition_key": "flights.month"}


@pytest.mark.parametrize(
    "changed",
    [
        replace(GRAPH, queue="spark"),
        replace(GRAPH, priority=1),
        replace(GRAPH, on_error="fail"),
        replace(GRAPH, nodes=dict(reversed(GRAPH.nodes.items()))),
        replace(GRAPH, nodes={**GRAPH.nodes, "fetch": node("t.fetch", text="馬", n=1, timeout=timedelta(seconds=9))}),
        replace(GRAPH, success=[["fetch", "any"], ["left"]]),
    ],
    ids=["queue", "priority", "on_error", "order", "options", "order of cases"],
)
def test_work_is_the_same_however_it_is_sent(changed: Graph) -> None:
    assert encode(changed).work == encode().work


@pytest.mark.parametrize(
    "changed",
    [
        replace(GRAPH, name="other"),
        replace(GRAPH, output="any"),
        replace(GRAPH, success=()),
        replace(GRAPH, nodes={**GRAPH.nodes, "fetch": node("t.fetch", n=2, text="馬")}),
        replace(GRAPH, nodes={**GRAPH.nodes, "more": node("t")}),
        replace(GRAPH, nodes={**GRAPH.nodes, "left": node("t.left", y=ref("fetch"))}),
        replace(GRAPH, nodes={**GRAPH.nodes, "any": node("t.any", after=["fetch", "left"], allow_failed=True)}),
    ],
    ids=["name", "output", "success", "argument", "node", "reference", "join"],
)
def test_other_work_is_other_work(changed: Graph) -> None:
    assert encode(changed).work != encode().work


def test_task_is_never_the_same_work() -> None:
    assert encode(wrap_definition("t")).work != encode_task(TaskSpec(task_name="t")).work


@pytest.mark.parametrize(
    ("nodes", "field"),
    [
        ({"a": node("t", x=float("nan"))}, r"nodes\.a: kwargs\.x"),
        ({"a": node("t", __h_x=1)}, r"nodes\.a: kwargs"),
        ({"a": node("t", x="y" * 60), "b": node("t", x="y" * 60)}, r"nodes: have 1\d\d characters"),
    ],
    ids=["NaN", "reserved", "size"],
)
def test_arguments_that_cannot_be_sent_are_named_with_their_node(nodes: Any, field: str) -> None:
    with pytest.raises(InvalidTask, match=field):
        encode(Graph(name="g", nodes=nodes), max_payload_bytes=100)


def test_tasks_get_new_ids_each_time() -> None:
    encoded = encode()
    assert encoded.columns["tasks"] != encoded.columns["tasks"]
