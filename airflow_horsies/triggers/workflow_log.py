"""Shows the ends of the nodes of a workflow, and what they write, in the log of the Airflow task that waits for it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.client import Client
from airflow_horsies.core.graph import BEGIN_NODE, WRAPPER_KEY
from airflow_horsies.core.log import LogCursor, TaskNews
from airflow_horsies.core.wording import describe_failure, error_message
from airflow_horsies.core.workflow import NodeState, NodeView, WorkflowOutcome, WorkflowView
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HorsiesError
from airflow_horsies.triggers.task_log import TaskLog

UNSTARTED = frozenset({NodeState.PENDING, NodeState.READY, NodeState.ENQUEUED})


class ShownNode(NamedTuple):
    """A node of the tree.

    :param key: its place in the tree, in few characters.
    :param path: the names of the nodes that lead to it.
    """

    key: str
    path: str
    node: NodeView


def nodes_of(view: WorkflowView) -> Iterator[ShownNode]:
    """All nodes of a workflow and of those inside it. The task that only starts a registered workflow is left out,
    unless it failed."""
    for shown in _walk(view, "", "", is_wrapper=view.definition_key == WRAPPER_KEY):
        if shown.path != BEGIN_NODE or shown.node.state is NodeState.FAILED or view.definition_key != WRAPPER_KEY:
            yield shown


def _walk(view: WorkflowView, key: str, path: str, *, is_wrapper: bool = False) -> Iterator[ShownNode]:
    for node in view.nodes:
        name = node.task_name if is_wrapper and node.is_workflow else node.name
        shown = ShownNode(f"{key}{node.index}", f"{path}{name}", node)
        if node.workflow is not None:
            yield from _walk(node.workflow, f"{shown.key}.", f"{shown.path}/")
        yield shown


def first_tasks(view: WorkflowView) -> list[str]:
    """The tasks that wait to be the first to start; none once one has."""
    nodes = [node for _, node in view.walk()]
    if any(node.state not in UNSTARTED for node in nodes):
        return []
    return [node.task_id for node in nodes if node.state is NodeState.ENQUEUED and node.task_id is not None]


class WorkflowLog:
    """
    Shows the ends of nodes, and what nodes write, each once.

    :param logger: the logger of the operator or the trigger.
    :param workflow_id: the workflow.
    :param seen: attempt and number of the last line shown of each task.
    :param shown: the keys of the nodes whose end was shown.
    :param shows_lines: show what they write, and the ends while the workflow runs; otherwise the ends are shown when it
        has ended.
    """

    def __init__(
        self,
        logger: Any,
        workflow_id: str,
        *,
        seen: dict[str, LogCursor],
        shown: Collection[str] = (),
        shows_lines: bool = True,
    ) -> None:
        self.seen = seen
        self.shown = set(shown)
        self.shows_lines = shows_lines
        self._log = logger
        self._workflow_id = workflow_id
        self._task_ids: list[str] = []
        self._names: dict[str, str] = {}
        self._lines = TaskLog(logger, self._task_ids, seen, names=self._names)
        self._is_readable = True

    def follow(self, client: Client) -> None:
        """Show what is new. Raises only passing errors: the caller's wait meets them, too, and retries."""
        if not self.shows_lines or not self._is_readable:
            return
        try:
            view = client.read_workflow(self._workflow_id, result_chars=0)
            self._show(view, client.read_news(self._cursors(view)))
        except TRANSIENT_ERRORS:
            raise
        except HorsiesError as error:
            self._give_up(error)

    async def follow_async(self, client: AsyncClient) -> bool:
        """As :meth:`follow`; whether there was something new."""
        if not self.shows_lines or not self._is_readable:
            return False
        before = len(self.shown), dict(self.seen)
        try:
            view = await client.read_workflow(self._workflow_id, result_chars=0)
            self._show(view, await client.read_news(self._cursors(view)))
        except TRANSIENT_ERRORS:
            raise
        except HorsiesError as error:
            self._give_up(error)
        return before != (len(self.shown), self.seen)

    def finish(self, client: Client, *, cancelled: Collection[str] = ()) -> None:
        """Show what is left, also what nodes write while they stop.

        :param cancelled: the workflow, if it was cancelled.
        """
        try:
            view = client.read_workflow(self._workflow_id, result_chars=0)
        except HorsiesError as error:
            self._give_up(error)
            return
        if self.shows_lines:
            self._follow_all(view)
            running = [node.task_id for _, node in view.walk() if node.state is NodeState.RUNNING and node.task_id]
            self._lines.finish(client, cancelled=running if cancelled else ())
        self._show_ends(view)

    async def finish_async(self, client: AsyncClient) -> None:
        """As :meth:`finish`, in a triggerer, of a workflow that ended by itself."""
        try:
            view = await client.read_workflow(self._workflow_id, result_chars=0)
        except HorsiesError as error:
            self._give_up(error)
            return
        if self.shows_lines:
            self._follow_all(view)
            await self._lines.finish_async(client)
        self._show_ends(view)

    def _give_up(self, error: HorsiesError) -> None:
        self._is_readable = False
        self._log.warning("The nodes of workflow %s cannot be shown: %s", self._workflow_id, error)

    def _cursors(self, view: WorkflowView) -> dict[str, LogCursor]:
        """Of the tasks that may write, or whose end was not shown yet."""
        self._name_tasks(view)
        return {
            node.task_id: self.seen.get(node.task_id, LogCursor())
            for key, _, node in nodes_of(view)
            if node.task_id is not None and key not in self.shown
        }

    def _follow_all(self, view: WorkflowView) -> None:
        self._name_tasks(view)
        self._task_ids[:] = list(self._names)

    def _name_tasks(self, view: WorkflowView) -> None:
        for _, path, node in nodes_of(view):
            if node.task_id is not None:
                self._names[node.task_id] = path

    def _show(self, view: WorkflowView, news: Mapping[str, TaskNews]) -> None:
        self._lines.show(news)
        self._show_ends(view)

    def _show_ends(self, view: WorkflowView) -> None:
        for key, path, node in nodes_of(view):
            if node.state.is_terminal and key not in self.shown:
                self.shown.add(key)
                level = logging.WARNING if node.state is NodeState.FAILED else logging.INFO
                self._log.log(level, "Node %s: %s", path, describe_node(node))
        if view.is_cut:
            self._log.warning("Workflow %s has more nodes than are shown.", self._workflow_id)


def describe_node(node: NodeView) -> str:
    """The state of a node, how long it took and, if it failed, why."""
    parts = [node.shown_state]
    if node.started_at is not None and node.finished_at is not None:
        parts.append(f"after {(node.finished_at - node.started_at).total_seconds():.1f} s")
    if node.task_id is not None:
        parts.append(f"({node.task_name}, task {node.task_id})")
    text = " ".join(parts)
    error = None if node.result is None else node.result.error
    if error is None:
        return text
    return f"{text}: {describe_failure(error.error_code, error_message(error))}"


def describe_pause(outcome: WorkflowOutcome) -> str:
    """Why a workflow is paused, and what to do."""
    cause = "by a user"
    if outcome.failure is not None:
        error = outcome.failure.error
        cause = f"at node {'/'.join(outcome.failure.path)} ({describe_failure(error.error_code, error_message(error))})"
    return (
        f"Workflow {outcome.id} ({outcome.name}) is paused {cause}. To go on, call resume_workflow of HorsiesHook with "
        "its id, or retry_workflow to run the failed nodes again; to end it, call cancel_workflow."
    )
