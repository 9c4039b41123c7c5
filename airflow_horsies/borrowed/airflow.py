"""Private parts of Airflow that tasks, triggers and commands use; read in 3.1.7 to 3.3.2."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk.execution_time import comms, task_runner

PROCESS_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
FROM_MAPPED = "_BaseOperator__from_mapped"


def find_supervisor() -> Any:
    """The channel from a task or triggerer process to its supervisor; None in other processes."""
    return getattr(task_runner, "SUPERVISOR_COMMS", None)


def is_shutting_down(supervisor: Any) -> bool:
    """Whether the triggerer of Airflow 3.2 is shutting down, so that no answer would arrive."""
    reader = getattr(supervisor, "_reader_task", None)
    return reader is not None and reader.done()


def asks_asynchronously(supervisor: Any) -> bool:
    """Whether the channel is asynchronous: in a triggerer, but not in dag.test(), which runs triggers itself."""
    return hasattr(supervisor, "asend")


def state_question(*, dag_id: str, run_id: str, task_id: str, map_index: int) -> Any:
    """The request for the state of one task instance."""
    return comms.GetTaskStates(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index)


def states_in(answer: Any, run_id: str) -> list[str | None] | None:
    """The states in an answer: one, or none if the task instance does not exist; None if it is another message."""
    states: Mapping[str, Mapping[str, str | None]] | None = getattr(answer, "task_states", None)
    # The key of a mapped task instance is not its task_id alone.
    return None if states is None else list(states.get(run_id, {}).values())


def never_expire() -> Any:
    """The retention of a value in the task state store (3.3): as long as its DAG run."""
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    return NEVER_EXPIRE


def template_env(*, native: bool = False) -> Any:
    """The Jinja environment of a task whose DAG sets nothing but ``render_template_as_native_obj``."""
    from airflow.sdk.definitions._internal.templater import create_template_env

    return create_template_env(native=native)


def task_listeners() -> list[str]:
    """The plugins that listen to the start or the success of tasks, which only a worker reports."""
    from airflow.sdk.listener import get_listener_manager

    hooks = get_listener_manager().hook
    found = [*hooks.on_task_instance_running.get_hookimpls(), *hooks.on_task_instance_success.get_hookimpls()]
    # Airflow's own examples only print what they hear.
    return sorted({impl.plugin_name for impl in found if not impl.plugin_name.startswith("airflow.example_dags.")})


def push_result(ti: Any, value: Any, logger: Any) -> None:
    """Store what a task returned, as a worker does at its end. Not for the thread of an event loop."""
    task_runner._push_xcom_if_needed(value, ti, logger)


def complete_task(ti: Any) -> None:
    """Add to the task of a triggerer, which was serialized, what Airflow asks for when an XCom is stored."""
    if not hasattr(ti.task, "returns_dag_result"):
        ti.task.returns_dag_result = False


def delete_result(ti: Any) -> None:
    """Remove what an earlier try returned, as Airflow does when a worker starts a task."""
    place = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    task_runner.SUPERVISOR_COMMS.send(comms.DeleteXCom(key="return_value", **place))


def is_from_mapped(operator: Any) -> bool:
    """Whether an operator was created from a mapped one, whose arguments are already checked."""
    return bool(getattr(operator, FROM_MAPPED, False))


def clear_with_downstream(dag_run: Any, task_id: str, map_index: int, session: Any) -> int:
    """Clear a task instance and its downstream tasks, as Airflow's API does; returns their number.

    :param dag_run: the DagRun of the session.
    """
    # Only server processes import the models.
    from airflow.models.dagbag import DBDagBag
    from airflow.models.taskinstance import find_relevant_relatives

    dag = DBDagBag(load_op_links=False).get_dag_for_run(dag_run, session)
    if dag is None or not dag.has_task(task_id):
        return 0
    names = {task_id} if map_index < 0 else set()
    mapped = {(task_id, map_index)} if map_index >= 0 else set()
    below = find_relevant_relatives(
        names, mapped, dag=dag, run_id=dag_run.run_id, direction="downstream", session=session
    )
    cleared: int = dag.clear(task_ids=[*names, *mapped, *below], run_id=dag_run.run_id, session=session)
    return cleared


@contextmanager
def as_server() -> Iterator[None]:
    """Read connections from Airflow's database, which only server processes may do. Airflow's commands do the same."""
    before = os.environ.get(PROCESS_CONTEXT)
    os.environ[PROCESS_CONTEXT] = "server"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PROCESS_CONTEXT]
        else:
            os.environ[PROCESS_CONTEXT] = before
