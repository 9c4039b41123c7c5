from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.core.graph import BEGIN_TASK, MAX_NODES, WRAPPER_KEY, wrap_definition
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import Graph, Node, RetryPolicy, node, ref

POLICY = RetryPolicy.fixed([1], auto_retry_for=["FLAKY"])
SOON = datetime(2030, 1, 1, tzinfo=UTC)


def make(**nodes: Node) -> Graph:
    return Graph(name="g", nodes=nodes)


def test_reference_is_an_argument_and_a_node_to_wait_for() -> None:
    made = node("t.left", x=ref("fetch"), n=1, after=["other", "fetch"])
    assert (made.kwargs, made.args_from, made.dependencies) == ({"n": 1}, {"x": "fetch"}, ("fetch", "other"))
    assert node("t", after="one").after == ("one",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one of them must be set"),
        ({"task_name": "t", "workflow": "w"}, "exclude each other"),
        ({"task_name": " "}, "must not be empty"),
        ({"task_name": "t" * 256}, "at most 255"),
        ({"task_name": "t", "kwargs": [1]}, "must be a mapping of argument names to values, not list"),
        ({"task_name": "t", "kwargs": {"x": 1}, "args_from": {"x": "a"}}, "which is in kwargs, too"),
        ({"task_name": "t", "after": "fetch"}, "must be a list of names of nodes"),
        ({"task_name": "t", "join": "most"}, "must be 'all', 'any', 'quorum', not 'most'"),
        ({"task_name": "t", "join": "quorum", "after": ["a"]}, "must be set for the join 'quorum'"),
        ({"task_name": "t", "join": "quorum", "after": ["a"], "min_success": 2}, "is 2, and the node waits for 1"),
        ({"task_name": "t", "join": "quorum", "after": ["a"], "min_success": 0}, "must be an integer from 1"),
        ({"task_name": "t", "min_success": 1, "after": ["a"]}, "only for the join 'quorum'"),
        ({"task_name": "t", "allow_failed": "yes"}, "must be True or False"),
        ({"task_name": "t", "priority": 0}, "must be an integer from 1 to 100"),
        ({"task_name": "t", "queue": ""}, "must not be empty"),
        ({"task_name": "t", "retry_policy": {}}, "must be a RetryPolicy, not dict"),
        ({"task_name": "t", "good_until": datetime(2030, 1, 1)}, "has no time zone"),
        ({"task_name": "t", "timeout": timedelta(milliseconds=1)}, "at least one second"),
        ({"workflow": "w", "retry_policy": POLICY}, "whose nodes have their own"),
        ({"workflow": "w", "timeout": timedelta(seconds=2)}, "whose nodes have their own"),
        ({"workflow": "w", "queue": "q", "after": ["a"]}, "is started by the worker of the last of them"),
    ],
    ids=str,
)
def test_node_that_is_wrong_says_what_to_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        Node(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": {}}, "must not be empty"),
        ({"nodes": [node("t")]}, "must be a mapping of names to nodes, not list"),
        ({"nodes": {"a b": node("t")}}, "has the name 'a b'. Use only letters"),
        ({"nodes": {"a" * 129: node("t")}}, "at most 128"),
        ({"nodes": {"a": "t"}}, "must be a Node, not str"),
        ({"nodes": {str(n): node("t") for n in range(MAX_NODES + 1)}}, "has 2,001 nodes"),
        ({"nodes": {"a": node("t", after=["a"])}}, "must not wait for itself"),
        ({"nodes": {"fetch": node("t"), "b": node("t", x=ref("fetsch"))}}, "refers to 'fetsch'.*Use 'fetch'"),
        ({"nodes": {"a": node("t", after=["zzz"])}}, "refers to 'zzz'.*Use one of a"),
        (
            {"nodes": {"a": node("t", after=["c"]), "b": node("t", x=ref("a")), "c": node("t", after=["b"])}},
            "in a circle: a after c after b after a",
        ),
        ({"nodes": {"a": node("t")}, "output": "b"}, "output: refers to 'b'"),
        ({"nodes": {"a": node("t")}, "on_error": "stop"}, "must be 'fail' or 'pause', not 'stop'"),
        ({"nodes": {"a": node("t")}, "success": ["a"]}, "must contain lists"),
        ({"nodes": {"a": node("t")}, "success": [[]]}, "at least one name"),
        ({"nodes": {"a": node("t")}, "success": [["b"]]}, "success: refers to 'b'"),
        ({"nodes": {"a": node("t")}, "success": "a"}, "must be a list of lists"),
        ({"nodes": {"a": node("t")}, "priority": 101}, "from 1 to 100"),
        ({"nodes": {"a": node("t")}, "name": ""}, "must not be empty"),
    ],
    ids=lambda given: str(given)[:60],
)
def test_graph_that_is_wrong_says_what_to_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        Graph(**{"name": "g", **given})


def test_registered_workflow_is_wrapped_in_a_graph_of_two_nodes() -> None:
    graph = wrap_definition("flights.month", {"month": 3}, queue="spark", priority=7, good_until=SOON)
    assert (graph.name, graph.output, graph.definition_key, graph.is_wrapper) == (
        *("flights.month", "workflow", WRAPPER_KEY, True),
    )
    assert graph.good_until == SOON
    whole = graph.with_begin()
    assert list(whole.nodes) == ["begin", "workflow"]
    begin, wrapped = whole.nodes.values()
    assert (begin.task_name, begin.kwargs, begin.good_until) == (BEGIN_TASK, {"definition_key": "flights.month"}, SOON)
    assert begin.retry_policy is not None and begin.retry_policy.auto_retry_for == ("WORKER_CRASHED",)
    assert (wrapped.workflow, wrapped.kwargs, wrapped.dependencies, wrapped.good_until) == (
        *("flights.month", {"month": 3}, ("begin",), None),
    )


def test_each_workflow_at_the_start_has_a_task_before_it_on_its_queue() -> None:
    graph = make(
        begin=node("t"), one=node(workflow="w1", queue="q1", good_until=SOON), two=node(workflow="w2"), last=node("t")
    )
    whole = graph.with_begin()
    assert list(whole.nodes) == ["begin.one", "begin.two", "begin", "one", "two", "last"]
    assert whole.nodes["begin.one"].queue == "q1"
    assert whole.nodes["one"].after == ("begin.one",)
    assert whole.with_begin() is whole


def test_name_that_is_taken_is_numbered() -> None:
    whole = make(begin=node("t"), one=node(workflow="w")).with_begin()
    assert whole.nodes["one"].after == ("begin.2",)


def test_graph_of_tasks_needs_nothing_before_it() -> None:
    graph = make(a=node("t"), b=node(workflow="w", after=["a"]))
    assert graph.with_begin() is graph


def test_graph_has_a_deadline_if_all_its_first_nodes_have() -> None:
    assert make(a=node("t", good_until=SOON), b=node("t", good_until=SOON + timedelta(hours=1))).good_until == (
        SOON + timedelta(hours=1)
    )
    assert make(a=node("t", good_until=SOON), b=node("t")).good_until is None
