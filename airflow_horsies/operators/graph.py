"""HorsiesGraphOperator: a graph of tasks and workflows that is written in the DAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import Context

from airflow_horsies.core.graph import Graph, Node
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.operators.rendering import plain_policy, policy_of, validate_json
from airflow_horsies.operators.worker_free import START_TRIGGER
from airflow_horsies.operators.workflow import GraphOperator


class HorsiesGraphOperator(GraphOperator):
    """
    Run a graph of registered tasks and workflows as one horsies workflow, and return its output. One Airflow task runs
    the whole graph; from one node to the next it takes milliseconds.

    The graph is checked when the DAG is parsed: unknown references, circles, and arguments that are not JSON. The rules
    of retries and clears are those of :class:`HorsiesWorkflowOperator`; a graph with other nodes or arguments is other
    work.

    .. code-block:: python

        from airflow_horsies.models import node, ref

        HorsiesGraphOperator(
            task_id="sales",
            nodes={
                "fetch": node("sales.fetch", day="{{ ds }}"),
                "clean": node("sales.clean", table=ref("fetch")),
                "check": node("sales.check", table=ref("fetch")),
                "report": node(workflow="sales.report", after=["clean", "check"]),
            },
            output="report",
            queue="spark",
            deferrable=True,
        )

    :param nodes: the nodes by name; the values of their arguments are templated. The function on the worker gets the
        result of another node, named by ``ref``, as a ``TaskResult``.
    :param output: the node whose value is returned; without it, a dict of the values of the last nodes by name.
    :param on_error: ``fail`` skips what waits for a failed node and fails in the end, ``pause`` stops and waits for
        somebody to resume or cancel it.
    :param success: sets of nodes; the graph has succeeded once all nodes of one set have completed, whatever became of
        the others. By default, no node may fail.
    :param graph_name: what the workflow is called on pages; the id of the Airflow task by default.

    Further parameters: see :class:`HorsiesWorkflowOperator`. ``queue`` and ``priority`` are those of nodes that have
    none of their own, and by ``good_until`` the nodes that wait for no other one must have started. The id of the
    workflow is pushed as XCom ``horsies_workflow_id``.
    """

    template_fields: Sequence[str] = (*GraphOperator.template_fields, "node_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {"node_kwargs": "json"}
    start_trigger = START_TRIGGER

    def __init__(
        self,
        *,
        nodes: Mapping[str, Node | Mapping[str, Any]],
        output: str | None = None,
        on_error: Literal["fail", "pause"] = "fail",
        success: Sequence[Sequence[str]] = (),
        graph_name: str | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        if not isinstance(nodes, Mapping):
            raise InvalidTask("nodes", f"must be a mapping of names to nodes, not {type(nodes).__name__}")
        # A triggerer that starts the graph gets plain values.
        self.nodes = {name: node_of(value) if isinstance(value, Mapping) else value for name, value in nodes.items()}
        # "output" is what other tasks use of an operator.
        self.output_node = output
        self.on_error = on_error
        self.success = [list(case) if isinstance(case, list | tuple) else case for case in success]
        self.graph_name = graph_name
        self._graph(self.nodes, self._values(None))
        self.node_kwargs: Any = {name: dict(node.kwargs) for name, node in self.nodes.items()}
        for name, kwargs in self.node_kwargs.items():
            validate_json(f"nodes.{name}", kwargs)
        self._start_from_trigger()

    def _specs(self, context: Context) -> Graph:
        nodes = {name: replace(node, kwargs=self.node_kwargs[name]) for name, node in self.nodes.items()}
        return self._graph(nodes, self._values(context))

    def _graph(self, nodes: Mapping[str, Node], values: Mapping[str, Any]) -> Graph:
        given = dict(values)
        good_until = given.pop("good_until", None)
        if good_until is not None:
            nodes = {name: _by(good_until, node) for name, node in nodes.items()}
        return Graph(
            name=self.graph_name or self.task_id,
            nodes=nodes,
            output=self.output_node,
            on_error=self.on_error,
            success=self.success,
            **given,
        )

    def _start_fields(self) -> dict[str, Any]:
        own = {
            "kind": "graph",
            "nodes": {
                name: plain_node(replace(node, kwargs=self.node_kwargs[name])) for name, node in self.nodes.items()
            },
            "output": self.output_node,
            "on_error": self.on_error,
            "success": self.success,
            "graph_name": self.graph_name or self.task_id,
        }
        return {**super()._start_fields(), **own}


def _by(good_until: datetime, node: Any) -> Any:
    """A node that waits for no other one, with this deadline unless it has its own."""
    if not isinstance(node, Node) or node.dependencies or node.good_until is not None:
        return node
    return replace(node, good_until=good_until)


def plain_node(node: Node) -> dict[str, Any]:
    """The node as JSON values, without those that are not set."""
    values: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        match field.name, value:
            case _, None | () | False:
                continue
            case "retry_policy", _:
                values[field.name] = plain_policy(value)
            case "good_until", datetime():
                values[field.name] = value.isoformat()
            case "timeout", timedelta():
                values[field.name] = value.total_seconds()
            case "kwargs" | "args_from", _:
                values[field.name] = dict(value)
            case "after", _:
                values[field.name] = list(value)
            case _:
                values[field.name] = value
    return values


def node_of(values: Mapping[str, Any]) -> Node:
    """The node of :func:`plain_node`."""
    given = dict(values)
    if "retry_policy" in given:
        given["retry_policy"] = policy_of(given["retry_policy"])
    if isinstance(given.get("good_until"), str):
        given["good_until"] = datetime.fromisoformat(given["good_until"])
    if isinstance(given.get("timeout"), int | float):
        given["timeout"] = timedelta(seconds=given["timeout"])
    try:
        return Node(**given)
    except TypeError as error:
        raise InvalidTask("nodes", f"must be nodes, as airflow_horsies.models.node makes them: {error}") from error
