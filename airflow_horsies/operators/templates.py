"""Which templates a triggerer can render: it knows the DAG run and the task, but not all that a worker can ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta, nodes

# What Airflow gives a triggerer without a question that its supervisor does not understand.
KNOWN_NAMES = frozenset(
    {
        "conn",
        "data_interval_end",
        "data_interval_start",
        "ds",
        "ds_nodash",
        "logical_date",
        "macros",
        "params",
        "partition_date",
        "partition_key",
        "run_id",
        "task_instance_key_str",
        "ts",
        "ts_nodash",
        "ts_nodash_with_tz",
        "var",
    }
)
_OF_INSTANCE = frozenset({"dag_id", "map_index", "run_id", "task_id", "try_number"})
# Of these only some attributes are known there; the others are missing, wrong or block.
KNOWN_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "dag": frozenset({"dag_id"}),
    "dag_run": frozenset(
        {
            "conf",
            "dag_id",
            "data_interval_end",
            "data_interval_start",
            "logical_date",
            "partition_date",
            "partition_key",
            "run_after",
            "run_id",
            "run_type",
            "start_date",
        }
    ),
    "task": frozenset({"task_id"}),
    "task_instance": _OF_INSTANCE,
    "ti": _OF_INSTANCE,
}


def explain_template(text: str, env: Environment, user_filters: frozenset[str] = frozenset()) -> str | None:
    """
    Why a triggerer cannot render a template; None if it can.

    >>> explain_template("{{ ti.xcom_pull('load') }}", Environment())
    'uses ti.xcom_pull, which a triggerer cannot answer'

    :param env: the environment in which Airflow renders it.
    :param user_filters: filters of the DAG, which a triggerer does not have.
    """
    try:
        tree = env.parse(text)
    except TemplateSyntaxError:
        # It fails when it is rendered, with its own message.
        return None
    return next(_problems(tree, env, user_filters), None)


def _problems(tree: nodes.Template, env: Environment, user_filters: frozenset[str]) -> Iterator[str]:
    if next(tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)), None):
        yield "uses another template file, which a triggerer does not have"
    for unknown in sorted({node.name for node in tree.find_all(nodes.Filter)} - (set(env.filters) - user_filters)):
        yield f"uses the filter {unknown}, which a triggerer does not have"
    names = meta.find_undeclared_variables(tree) - set(env.globals)
    for name in sorted(names & KNOWN_ATTRIBUTES.keys()):
        yield from _problems_of_attributes(tree, name)
    for name in sorted(names - KNOWN_NAMES - KNOWN_ATTRIBUTES.keys()):
        yield f"uses {name}, which a triggerer does not have"


def _problems_of_attributes(tree: nodes.Template, name: str) -> Iterator[str]:
    asked = [attribute for node, attribute in _accesses(tree) if isinstance(node, nodes.Name) and node.name == name]
    for attribute in asked:
        if attribute not in KNOWN_ATTRIBUTES[name]:
            yield f"uses {name}.{attribute}, which a triggerer cannot answer"
    if sum(node.name == name for node in tree.find_all(nodes.Name)) > len(asked):
        yield f"uses {name} as a whole, of which a triggerer knows only {', '.join(sorted(KNOWN_ATTRIBUTES[name]))}"


def _accesses(tree: nodes.Template) -> Iterator[tuple[nodes.Node, Any]]:
    for node in tree.find_all(nodes.Getattr):
        yield node.node, node.attr
    for item in tree.find_all(nodes.Getitem):
        yield item.node, item.arg.value if isinstance(item.arg, nodes.Const) else "[…]"
