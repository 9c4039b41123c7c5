"""Encodes a Graph as the rows of one workflow: its row, its nodes, and the tasks of its first nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from airflow_horsies.core.graph import Graph, Node
from airflow_horsies.core.spec import DEFAULT_RETENTION
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.wire.encoding import (
    ASCII,
    COMPACT,
    DEFAULT_MAX_PAYLOAD_BYTES,
    SORTED,
    canonical_time,
    encode_item,
    encode_task_options,
    mint_task_id,
    mint_task_ids,
)

# The arguments by position, which workflows store as an empty list.
NO_ARGS = "[]"
META_KEY = "__h_workflow_meta__"


@dataclass(frozen=True, slots=True)
class EncodedNode:
    """A node as stored; ``kwargs`` are its arguments as JSON, and ``work`` is its digest."""

    index: int
    name: str
    node: Node
    queue: str
    priority: int
    kwargs: str
    task_options: str | None
    dependencies: tuple[int, ...]
    args_from: Mapping[str, int]
    work: bytes

    @property
    def is_first(self) -> bool:
        """Whether it waits for no other node; never a workflow, which has a task before it."""
        return not self.dependencies

    @property
    def identity(self) -> tuple[object, ...]:
        """What it runs and when, independent of queue, priority, deadlines and retries."""
        known = self.node
        return (
            self.index,
            self.name,
            known.runs,
            known.workflow is not None,
            self.kwargs,
            self.dependencies,
            dict(self.args_from),
            known.join,
            known.min_success,
            known.allow_failed,
        )


class EncodedWorkflow(NamedTuple):
    """A workflow that is about to be started. It stands beside EncodedTask where something is submitted."""

    id: str
    id_is_given: bool
    graph: Graph
    nodes: tuple[EncodedNode, ...]
    sent_at: datetime
    work: bytes
    # The retention class of the tasks of a queue, where it has one.
    classes: Mapping[str, str]
    idempotency_digest: bytes | None = None

    @property
    def kind(self) -> WorkKind:
        return WorkKind.WORKFLOW

    @property
    def task_name(self) -> str:
        """What a record of its submission calls it."""
        return self.graph.name

    @property
    def queue_name(self) -> str:
        return self.graph.queue

    @property
    def good_until(self) -> datetime | None:
        return self.graph.good_until

    @property
    def first_queues(self) -> frozenset[str]:
        return frozenset(node.queue for node in self.nodes if node.is_first)

    @property
    def identity(self) -> tuple[object, ...]:
        """What a stored workflow of the same id must be."""
        graph = self.graph
        return graph.name, graph.definition_key, tuple(node.identity for node in self.nodes)

    @property
    def columns(self) -> dict[str, object]:
        """The values for start_workflow.sql."""
        indices = {node.name: node.index for node in self.nodes}
        tasks = dict(zip((node.index for node in self.nodes if node.is_first), self._mint_ids(), strict=True))
        return {
            "id": self.id,
            "name": self.graph.name,
            "on_error": self.graph.on_error,
            "output_index": None if self.graph.output is None else indices[self.graph.output],
            "success_policy": self._success_policy(indices),
            "definition_key": self.graph.definition_key,
            "sent_at": self.sent_at,
            "nodes": COMPACT.encode([_node_columns(node, tasks.get(node.index)) for node in self.nodes]),
            "tasks": COMPACT.encode(
                [self._task_columns(node, tasks[node.index]) for node in self.nodes if node.is_first]
            ),
        }

    def _mint_ids(self) -> list[str]:
        """Minted and not derived: workflows and tasks are pruned separately, and a used id of a task that has ended
        would occupy a slot for ever."""
        return mint_task_ids(sum(node.is_first for node in self.nodes))

    def _success_policy(self, indices: Mapping[str, int]) -> str | None:
        if not self.graph.success:
            return None
        return COMPACT.encode({"cases": [{"required_indices": [indices[n] for n in c]} for c in self.graph.success]})

    def _task_columns(self, node: EncodedNode, task_id: str) -> dict[str, object]:
        """The values of the task of a node that waits for no other one."""
        known = node.node
        meta = {"workflow_id": self.id, "task_index": node.index, "task_name": known.runs}
        # The other arguments are JSON already.
        kwargs = f'{node.kwargs[:-1]}{"" if node.kwargs == "{}" else ","}"{META_KEY}":{COMPACT.encode(meta)}}}'
        good_until = None if known.good_until is None else canonical_time(known.good_until)
        retention = self.classes.get(node.queue, DEFAULT_RETENTION)
        command = [known.runs, node.queue, node.priority, NO_ARGS, kwargs]
        sha = [*command, canonical_time(self.sent_at), good_until, None, node.task_options]
        fingerprint = [1, *command, good_until, None, node.task_options, retention, False, None, None]
        return {
            "id": task_id,
            "task_name": known.runs,
            "queue_name": node.queue,
            "priority": node.priority,
            "kwargs": kwargs,
            "sent_at": self.sent_at.isoformat(),
            "max_retries": known.retry_policy.max_retries if known.retry_policy else 0,
            "task_options": node.task_options,
            "good_until": None if known.good_until is None else known.good_until.isoformat(),
            "enqueue_sha": hashlib.sha256(ASCII.encode(sha).encode()).hexdigest(),
            "command_fingerprint": rf"\x{hashlib.sha256(COMPACT.encode(fingerprint).encode()).hexdigest()}",
            "retention_class_key": retention,
        }


def encode_workflow(
    graph: Graph,
    *,
    workflow_id: str | None = None,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
    sent_at: datetime | None = None,
    classes: Mapping[str, str] | None = None,
) -> EncodedWorkflow:
    """Validate and encode, without a database; InvalidTask names the node and the field."""
    whole = graph.with_begin()
    indices = {name: index for index, name in enumerate(whole.nodes)}
    nodes = tuple(_encode_node(whole, name, known, indices, max_payload_bytes) for name, known in whole.nodes.items())
    total = sum(len(node.kwargs) for node in nodes)
    if total > max_payload_bytes:
        raise InvalidTask(
            "nodes",
            f"have {total:,} characters of arguments, more than the {max_payload_bytes:,} allowed. Write the data to "
            "storage and pass its path, or raise max_payload_bytes in the connection's extra",
        )
    return EncodedWorkflow(
        workflow_id or mint_task_id(),
        workflow_id is not None,
        whole,
        nodes,
        sent_at or datetime.now(UTC),
        _work_of(whole, nodes),
        classes or {},
    )


def _encode_node(
    graph: Graph, name: str, node: Node, indices: Mapping[str, int], max_payload_bytes: int
) -> EncodedNode:
    try:
        encoded = encode_item(node.runs, node.kwargs, max_payload_bytes)
    except InvalidTask as invalid:
        raise InvalidTask(f"nodes.{name}: {invalid.field}", invalid.problem) from None
    options = None
    if node.workflow is None:
        options = encode_task_options(node.retry_policy, node.good_until, node.timeout)
    return EncodedNode(
        index=indices[name],
        name=name,
        node=node,
        queue=node.queue or graph.queue,
        priority=node.priority or graph.priority,
        kwargs=encoded.text,
        task_options=options,
        dependencies=tuple(sorted(indices[other] for other in node.dependencies)),
        args_from={argument: indices[source] for argument, source in node.args_from.items()},
        work=encoded.work,
    )


def _work_of(graph: Graph, nodes: tuple[EncodedNode, ...]) -> bytes:
    """The digest of what a workflow does, independent of queues, priorities, deadlines and retries. It is never that
    of a task, whose digest begins with a name."""
    what: list[Any] = [
        WorkKind.WORKFLOW,
        graph.name,
        graph.definition_key,
        graph.output,
        sorted(sorted(case) for case in graph.success),
        [
            {
                "name": node.name,
                "is_workflow": node.node.workflow is not None,
                "work": node.work.hex(),
                "after": sorted(node.node.dependencies),
                "args_from": dict(node.node.args_from),
                "join": [node.node.join, node.node.min_success, node.node.allow_failed],
            }
            for node in sorted(nodes, key=lambda node: node.name)
        ],
    ]
    return hashlib.sha256(SORTED.encode(what).encode()).digest()


def _node_columns(node: EncodedNode, task_id: str | None) -> dict[str, object]:
    known = node.node
    return {
        "task_index": node.index,
        "node_id": node.name,
        "task_name": known.runs,
        "kwargs": node.kwargs,
        "queue_name": node.queue,
        "priority": node.priority,
        "dependencies": node.dependencies,
        "args_from": dict(node.args_from) or None,
        "allow_failed_deps": known.allow_failed,
        "join_type": known.join,
        "min_success": known.min_success,
        "task_options": node.task_options,
        "task_id": task_id,
        "definition_key": known.workflow,
    }
