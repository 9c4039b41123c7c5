"""What to send: a graph of tasks and workflows, which horsies runs as one workflow.

A registered workflow is started by a graph too: of a task that checks that the worker knows it, and of the workflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, get_args

from airflow_horsies.core.spec import (
    DEFAULT_QUEUE,
    MAX_QUEUE_NAME_CHARS,
    MAX_TASK_NAME_CHARS,
    RetryPolicy,
    require_instant,
)
from airflow_horsies.core.validation import require, require_int, require_text

Join = Literal["all", "any", "quorum"]
OnError = Literal["fail", "pause"]

# Never change these values: they are in databases, and workers register the tasks.
BEGIN_TASK = "airflow_horsies.begin"
RESUME_TASK = "airflow_horsies.resume_workflow"
WRAPPER_KEY = "airflow_horsies.wrapper.v1"
GRAPH_KEY = "airflow_horsies.graph.v1"

BEGIN_NODE = "begin"
WORKFLOW_NODE = "workflow"
MAX_NODES = 2_000
MAX_NODE_NAME_CHARS = 128
MAX_NAME_CHARS = 255
MAX_SUCCESS_CASES = 100
NODE_NAME = re.compile(r"[A-Za-z0-9_\-:.]+")
DEFAULT_PRIORITY = 100
# A worker that dies while it starts a workflow has done nothing yet.
BEGIN_RETRIES = RetryPolicy.fixed([1, 5, 15], auto_retry_for=["WORKER_CRASHED"])


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of another node, as an argument of :func:`node`."""

    node: str


def ref(name: str) -> Ref:
    """The result of another node of the graph: ``node("t.load", table=ref("fetch"))``. The function on the worker gets
    a ``TaskResult``.

    :param name: the name of the other node.
    """
    return Ref(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a graph: a task, or a registered workflow.

    :param task_name: the name the task is registered under.
    :param workflow: the definition key of a registered workflow, instead of a task.
    :param kwargs: its keyword arguments; JSON values only.
    :param args_from: arguments that get the result of another node: the name of the node by argument.
    :param after: the names of other nodes that it waits for.
    :param join: ``all`` runs it once all the nodes that it waits for have completed, ``any`` after the first,
        ``quorum`` after ``min_success`` of them.
    :param min_success: how many nodes must complete for the join ``quorum``.
    :param allow_failed: run it even if nodes that it waits for have failed; it gets their errors.
    :param queue: the queue; by default that of the graph. Of a workflow without ``after``, where it is started.
    :param priority: 1 (first) to 100 (last), within the queue; by default that of the graph.
    :param retry_policy: when a failed attempt is retried; never without a policy.
    :param good_until: a task that has not started by this time fails with TASK_EXPIRED. Timezone-aware.
    :param timeout: the worker kills an attempt that runs for longer; at least one second.
    """

    task_name: str | None = None
    workflow: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    args_from: Mapping[str, str] = field(default_factory=dict)
    after: Sequence[str] = ()
    join: Join = "all"
    min_success: int | None = None
    allow_failed: bool = False
    queue: str | None = None
    priority: int | None = None
    retry_policy: RetryPolicy | None = None
    good_until: datetime | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        require(
            (self.task_name is None) != (self.workflow is None),
            "task_name",
            "and workflow exclude each other, and one of them must be set",
        )
        what = "workflow" if self.task_name is None else "task_name"
        require_text(what, getattr(self, what), max_chars=MAX_TASK_NAME_CHARS)
        _require_mapping("kwargs", self.kwargs, "argument names to values")
        _require_mapping("args_from", self.args_from, "argument names to names of nodes")
        for argument, source in self.args_from.items():
            require_text("args_from", argument)
            require_text("args_from", source)
            require(
                argument not in self.kwargs,
                "args_from",
                f"has the argument {argument!r}, which is in kwargs, too. Leave one of them out",
            )
        require(
            isinstance(self.after, Sequence) and not isinstance(self.after, str),
            "after",
            f"must be a list of names of nodes, not {self.after!r}",
        )
        for name in self.after:
            require_text("after", name)
        object.__setattr__(self, "after", tuple(self.after))
        self._require_join()
        require(
            isinstance(self.allow_failed, bool), "allow_failed", f"must be True or False, not {self.allow_failed!r}"
        )
        if self.queue is not None:
            require_text("queue", self.queue, max_chars=MAX_QUEUE_NAME_CHARS)
        if self.priority is not None:
            require_int("priority", self.priority, 1, 100)
        require(
            self.retry_policy is None or isinstance(self.retry_policy, RetryPolicy),
            "retry_policy",
            f"must be a RetryPolicy, not {type(self.retry_policy).__name__}",
        )
        if self.good_until is not None:
            object.__setattr__(self, "good_until", require_instant("good_until", self.good_until))
        if self.timeout is not None:
            require(
                isinstance(self.timeout, timedelta),
                "timeout",
                f"must be a timedelta, not {type(self.timeout).__name__}",
            )
            require(self.timeout >= timedelta(seconds=1), "timeout", f"must be at least one second, not {self.timeout}")
        if self.workflow is not None:
            self._require_workflow()

    def _require_join(self) -> None:
        require(
            self.join in get_args(Join), "join", f"must be {', '.join(map(repr, get_args(Join)))}, not {self.join!r}"
        )
        if self.join != "quorum":
            require(self.min_success is None, "min_success", "is only for the join 'quorum'. Leave it out")
            return
        require(self.min_success is not None, "min_success", "must be set for the join 'quorum'")
        require_int("min_success", self.min_success, 1, MAX_NODES)
        most = len(self.dependencies)
        require(
            (self.min_success or 0) <= most,
            "min_success",
            f"is {self.min_success}, and the node waits for {most}. Use at most {most}",
        )

    def _require_workflow(self) -> None:
        for name in ("retry_policy", "timeout"):
            require(getattr(self, name) is None, name, "must not be set for a workflow, whose nodes have their own")
        if self.dependencies:
            for name in ("queue", "priority", "good_until"):
                require(
                    getattr(self, name) is None,
                    name,
                    "of a workflow is where and by when it is started, and a workflow that waits for other nodes is "
                    "started by the worker of the last of them. Leave it out",
                )

    @property
    def dependencies(self) -> tuple[str, ...]:
        """The nodes that it waits for."""
        return tuple(dict.fromkeys([*self.args_from.values(), *self.after]))

    @property
    def runs(self) -> str:
        """The name of its task or of its definition."""
        return self.task_name or self.workflow or ""


def node(
    task_name: str | None = None,
    /,
    *,
    workflow: str | None = None,
    after: Sequence[str] | str = (),
    join: Join = "all",
    min_success: int | None = None,
    allow_failed: bool = False,
    queue: str | None = None,
    priority: int | None = None,
    retry_policy: RetryPolicy | None = None,
    good_until: datetime | None = None,
    timeout: timedelta | None = None,
    **arguments: Any,
) -> Node:
    """
    A node of a graph, with its arguments as keywords. An argument that is called like one of these parameters needs
    :class:`Node` itself.

    .. code-block:: python

        from airflow_horsies.models import Graph, node, ref

        graph = Graph(
            name="sales",
            nodes={
                "fetch": node("sales.fetch", day="2026-03-01"),
                "left": node("sales.left", table=ref("fetch")),
                "right": node("sales.right", table=ref("fetch")),
                "report": node(workflow="sales.report", after=["left", "right"]),
            },
            output="report",
        )

    :param task_name: the name the task is registered under.
    :param workflow: the definition key of a registered workflow, instead of a task.
    :param after: the names of other nodes that it waits for, beside those of its references.
    :param join: ``all``, ``any`` or ``quorum`` of the nodes that it waits for.
    :param min_success: how many nodes must complete for the join ``quorum``.
    :param allow_failed: run it even if nodes that it waits for have failed.
    :param queue: the queue; by default that of the graph.
    :param priority: 1 (first) to 100 (last), within the queue.
    :param retry_policy: when a failed attempt is retried; never without a policy.
    :param good_until: a task that has not started by this time fails with TASK_EXPIRED.
    :param timeout: the worker kills an attempt that runs for longer.
    :param arguments: its arguments; the result of another node is ``ref("name")``.
    """
    return Node(
        task_name=task_name,
        workflow=workflow,
        kwargs={name: value for name, value in arguments.items() if not isinstance(value, Ref)},
        args_from={name: value.node for name, value in arguments.items() if isinstance(value, Ref)},
        after=[after] if isinstance(after, str) else after,
        join=join,
        min_success=min_success,
        allow_failed=allow_failed,
        queue=queue,
        priority=priority,
        retry_policy=retry_policy,
        good_until=good_until,
        timeout=timeout,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What to send: a graph of tasks and workflows.

    :param name: what it is called on pages and in upstream's monitor.
    :param nodes: the nodes by name.
    :param output: the node whose value the graph returns; without it, the values of the last nodes by name.
    :param on_error: ``fail`` skips what waits for a failed node and fails in the end, ``pause`` stops and waits for
        somebody to resume or cancel it.
    :param success: sets of nodes; it has succeeded once all nodes of one set have completed, whatever became of the
        others. By default, no node may fail.
    :param queue: the queue of nodes that have none of their own.
    :param priority: 1 (first) to 100 (last), within the queue, of nodes that have none of their own.
    """

    name: str
    nodes: Mapping[str, Node]
    output: str | None = None
    on_error: OnError = "fail"
    success: Sequence[Sequence[str]] = ()
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    definition_key: str = GRAPH_KEY

    def __post_init__(self) -> None:
        require_text("name", self.name, max_chars=MAX_NAME_CHARS)
        require_text("queue", self.queue, max_chars=MAX_QUEUE_NAME_CHARS)
        require_int("priority", self.priority, 1, 100)
        require(
            self.on_error in get_args(OnError),
            "on_error",
            f"must be {' or '.join(map(repr, get_args(OnError)))}, not {self.on_error!r}",
        )
        _require_mapping("nodes", self.nodes, "names to nodes")
        require(len(self.nodes) > 0, "nodes", "must not be empty: a graph needs at least one node")
        require(
            len(self.nodes) <= MAX_NODES,
            "nodes",
            f"has {len(self.nodes):,} nodes. Use at most {MAX_NODES:,}, or a batch for many equal items",
        )
        for name, known in self.nodes.items():
            self._require_node(name, known)
        self._require_no_cycle()
        if self.output is not None:
            self._require_known("output", self.output)
        self._require_success()

    def _require_node(self, name: object, known: object) -> None:
        require_text("nodes", name, max_chars=MAX_NODE_NAME_CHARS)
        assert isinstance(name, str)  # noqa: S101 - narrows the type only
        require(
            NODE_NAME.fullmatch(name) is not None,
            "nodes",
            f"has the name {name!r}. Use only letters, digits, '_', '-', ':' and '.'",
        )
        if not isinstance(known, Node):
            require(False, f"nodes.{name}", f"must be a Node, not {type(known).__name__}")
            return
        for other in known.dependencies:
            require(other != name, f"nodes.{name}", "must not wait for itself")
            self._require_known(f"nodes.{name}", other)

    def _require_known(self, where: str, name: object) -> None:
        if name in self.nodes:
            return
        close = get_close_matches(str(name), map(str, self.nodes), n=1)
        known = f"{close[0]!r}" if close else f"one of {', '.join(sorted(self.nodes)[:10])}"
        require(False, where, f"refers to {name!r}, which is not a node of the graph. Use {known}, or add the node")

    def _require_no_cycle(self) -> None:
        waiting = {name: set(known.dependencies) for name, known in self.nodes.items()}
        while waiting:
            free = {name for name, others in waiting.items() if not others}
            if not free:
                cycle = _find_cycle(waiting)
                require(False, "nodes", f"wait for each other in a circle: {' after '.join(cycle)}. Break the circle")
            waiting = {name: others - free for name, others in waiting.items() if name not in free}

    def _require_success(self) -> None:
        cases = self.success
        require(
            isinstance(cases, Sequence) and not isinstance(cases, str),
            "success",
            f"must be a list of lists of names of nodes, not {cases!r}",
        )
        require(len(cases) <= MAX_SUCCESS_CASES, "success", f"has {len(cases)} cases. Use at most {MAX_SUCCESS_CASES}")
        for case in cases:
            require(
                isinstance(case, Sequence) and not isinstance(case, str) and len(case) > 0,
                "success",
                f"must contain lists of at least one name of a node, not {case!r}",
            )
            for name in case:
                self._require_known("success", name)
        object.__setattr__(self, "success", tuple(tuple(case) for case in cases))

    @property
    def is_wrapper(self) -> bool:
        """Whether it starts one registered workflow and does nothing else."""
        return self.definition_key == WRAPPER_KEY

    @property
    def good_until(self) -> datetime | None:
        """By when its first nodes must have started; None if one of them has no such time."""
        deadlines = [known.good_until for known in self.nodes.values() if not known.dependencies]
        known_deadlines = [deadline for deadline in deadlines if deadline is not None]
        return max(known_deadlines) if len(known_deadlines) == len(deadlines) else None

    def with_begin(self) -> Graph:
        """The graph with a task before each workflow that waits for no node: only a worker starts a workflow, and it
        does so when a task ends."""
        begins: dict[str, Node] = {}
        rest: dict[str, Node] = {}
        roots = [name for name, known in self.nodes.items() if known.workflow is not None and not known.dependencies]
        for name, known in self.nodes.items():
            if name not in roots:
                rest[name] = known
                continue
            begin = self._free_name(BEGIN_NODE if len(roots) == 1 else f"{BEGIN_NODE}.{name}", begins)
            begins[begin] = Node(
                task_name=BEGIN_TASK,
                kwargs={"definition_key": known.workflow},
                queue=known.queue,
                priority=known.priority,
                retry_policy=BEGIN_RETRIES,
                good_until=known.good_until,
            )
            rest[name] = replace(known, after=[begin], queue=None, priority=None, good_until=None)
        return replace(self, nodes={**begins, **rest}) if begins else self

    def _free_name(self, wanted: str, taken: Mapping[str, Node]) -> str:
        name, number = wanted[:MAX_NODE_NAME_CHARS], 2
        while name in self.nodes or name in taken:
            suffix = f".{number}"
            name, number = f"{wanted[: MAX_NODE_NAME_CHARS - len(suffix)]}{suffix}", number + 1
        return name


def wrap_definition(
    definition_key: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    queue: str = DEFAULT_QUEUE,
    priority: int = DEFAULT_PRIORITY,
    good_until: datetime | None = None,
) -> Graph:
    """
    The graph that starts a registered workflow.

    :param definition_key: the key under which workers register the definition.
    :param kwargs: its parameters; JSON values only.
    :param queue: where it is started; the workers of this queue must know the definition.
    :param priority: 1 (first) to 100 (last), of the start.
    :param good_until: a workflow that has not been started by this time fails with TASK_EXPIRED. Timezone-aware.
    """
    wrapped = Node(workflow=definition_key, kwargs={} if kwargs is None else kwargs, good_until=good_until)
    return Graph(
        name=definition_key,
        nodes={WORKFLOW_NODE: wrapped},
        output=WORKFLOW_NODE,
        queue=queue,
        priority=priority,
        definition_key=WRAPPER_KEY,
    )


def _require_mapping(name: str, value: object, what: str) -> None:
    require(isinstance(value, Mapping), name, f"must be a mapping of {what}, not {type(value).__name__}")


def _find_cycle(waiting: Mapping[str, Iterable[str]]) -> list[str]:
    """Names that wait for each other, the first one twice; every name waits for another one of them."""
    path = [min(waiting)]
    while True:
        following = min(waiting[path[-1]])
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
