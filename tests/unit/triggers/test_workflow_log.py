"""Which nodes of a workflow are shown, and how."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.core.graph import WRAPPER_KEY
from airflow_horsies.core.task import TaskFailure, TaskResult
from airflow_horsies.models import LogCursor, LogLine, NodeState, NodeView, TaskNews, WorkflowState, WorkflowView
from airflow_horsies.triggers.workflow_log import WorkflowLog, describe_node, first_tasks, nodes_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COMPLETED, FAILED, RUNNING, ENQUEUED = NodeState.COMPLETED, NodeState.FAILED, NodeState.RUNNING, NodeState.ENQUEUED


def node(index: int, name: str, state: NodeState, **more: Any) -> NodeView:
    times = {"started_at": NOON, "finished_at": NOON + timedelta(seconds=2)} if state.is_terminal else {}
    return NodeView(index=index, name=name, task_name=f"t.{name}", state=state, task_id=f"id {name}", **times, **more)


def workflow(*nodes: NodeView, key: str | None = None) -> WorkflowView:
    return WorkflowView(
        id="w",
        name="flights.month",
        definition_key=key,
        state=WorkflowState.RUNNING,
        on_error="fail",
        depth=0,
        sent_at=NOON,
        started_at=NOON,
        finished_at=None,
        nodes=nodes,
    )


def wrapped(begin: NodeState, *nodes: NodeView) -> WorkflowView:
    around = replace(node(1, "workflow", RUNNING), is_workflow=True, task_name="flights.month", task_id=None)
    return workflow(node(0, "begin", begin), replace(around, workflow=workflow(*nodes)), key=WRAPPER_KEY)


class Client:
    """Answers with what a test puts into it."""

    def __init__(self, view: WorkflowView) -> None:
        self.view = view
        self.lines: dict[str, list[LogLine]] = {}
        self.asked: list[set[str]] = []

    def read_workflow(self, workflow_id: str, *, result_chars: int) -> WorkflowView:
        return self.view

    def read_news(self, seen: dict[str, LogCursor]) -> dict[str, TaskNews]:
        self.asked.append(set(seen))
        found = {one: [line for line in self.lines.get(one, ()) if line.cursor > after] for one, after in seen.items()}
        return {one: TaskNews(lines=tuple(lines)) for one, lines in found.items() if lines}

    def read_attempts(self, ids: Any) -> dict[str, Any]:
        return {}


def log_of(client: Client, **options: Any) -> WorkflowLog:
    return WorkflowLog(logging.getLogger("nodes"), "w", seen={}, **options)


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_start_of_a_registered_workflow_is_no_node_unless_it_failed() -> None:
    assert [shown.path for shown in nodes_of(wrapped(COMPLETED, node(0, "load", RUNNING)))] == [
        "flights.month/load",
        "flights.month",
    ]
    assert [shown.path for shown in nodes_of(wrapped(FAILED))] == ["begin", "flights.month"]
    assert [shown.key for shown in nodes_of(wrapped(COMPLETED, node(0, "load", RUNNING)))] == ["1.0", "1"]


def test_node_of_a_graph_that_is_called_begin_is_shown() -> None:
    assert [shown.path for shown in nodes_of(workflow(node(0, "begin", COMPLETED)))] == ["begin"]


def test_tasks_that_wait_to_be_the_first() -> None:
    assert first_tasks(workflow(node(0, "a", ENQUEUED), node(1, "b", NodeState.PENDING))) == ["id a"]
    assert first_tasks(workflow(node(0, "a", ENQUEUED), node(1, "b", RUNNING))) == []


def test_ends_and_lines_are_shown_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Client(workflow(node(0, "a", RUNNING), node(1, "b", ENQUEUED)))
    client.lines["id a"] = [LogLine(attempt=1, number=1, logged_at=NOON, level="INFO", text="hello")]
    log = log_of(client)
    log.follow(client)  # type: ignore[arg-type]
    assert texts(caplog) == ["[a, attempt 1] hello"]
    client.view = workflow(node(0, "a", COMPLETED), node(1, "b", RUNNING))
    log.follow(client)  # type: ignore[arg-type]
    log.follow(client)  # type: ignore[arg-type]
    assert texts(caplog)[1:] == ["Node a: COMPLETED after 2.0 s (t.a, task id a)"]
    assert client.asked[-1] == {"id b"}
    # The last lines of a may have come after its end.
    client.lines["id a"].append(LogLine(attempt=1, number=2, logged_at=NOON, level="INFO", text="bye"))
    client.view = workflow(node(0, "a", COMPLETED), node(1, "b", COMPLETED))
    again = WorkflowLog(logging.getLogger("nodes"), "w", seen=dict(log.seen), shown=sorted(log.shown))
    again.finish(client)  # type: ignore[arg-type]
    assert texts(caplog)[2:] == ["[a, attempt 1] bye", "Node b: COMPLETED after 2.0 s (t.b, task id b)"]


def test_without_lines_the_ends_are_shown_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Client(workflow(node(0, "a", COMPLETED)))
    log = log_of(client, shows_lines=False)
    log.follow(client)  # type: ignore[arg-type]
    assert texts(caplog) == client.asked == []
    log.finish(client)  # type: ignore[arg-type]
    assert texts(caplog) == ["Node a: COMPLETED after 2.0 s (t.a, task id a)"]


def test_failed_node_says_why(caplog: pytest.LogCaptureFixture) -> None:
    error = TaskResult(error=TaskFailure(error_code="BROKEN", message="two\nlines"))
    assert describe_node(replace(node(0, "a", FAILED), result=error)).endswith("(t.a, task id a): BROKEN: two lines")
    client = Client(workflow(replace(node(0, "a", FAILED), result=error)))
    log_of(client).finish(client)  # type: ignore[arg-type]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
