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
    """What the process of a task or a triggerer asks its supervisor through; None outside of them."""
    return getattr(task_runner, "SUPERVISOR_COMMS", None)


def is_shutting_down(supervisor: Any) -> bool:
    """Whether nobody would hear the answer: the triggerer of Airflow 3.2 in a shutdown."""
    reader = getattr(supervisor, "_reader_task", None)
    return reader is not None and reader.done()


def asks_asynchronously(supervisor: Any) -> bool:
    """A triggerer does; dag.test() runs triggers in its own process, which does not."""
    return hasattr(supervisor, "asend")


def state_question(*, dag_id: str, run_id: str, task_id: str, map_index: int) -> Any:
    """What asks for the state of one task instance."""
    return comms.GetTaskStates(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index)


def states_in(answer: Any, run_id: str) -> list[str | None] | None:
    """The states in an answer: one, or none where there is no such task instance; None where it is no answer."""
    states: Mapping[str, Mapping[str, str | None]] | None = getattr(answer, "task_states", None)
    # A mapped task instance is not named by its task_id alone.
    return None if states is None else list(states.get(run_id, {}).values())


def never_expire() -> Any:
    """How long a value in the task state store is kept (3.3): as long as its DAG run."""
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    return NEVER_EXPIRE


def is_from_mapped(operator: Any) -> bool:
    """Whether an operator is made from a mapped one, whose arguments were checked before."""
    return bool(getattr(operator, FROM_MAPPED, False))


@contextmanager
def as_server() -> Iterator[None]:
    """Only a process that calls itself a server finds connections in Airflow's database; core's commands do so too."""
    before = os.environ.get(PROCESS_CONTEXT)
    os.environ[PROCESS_CONTEXT] = "server"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PROCESS_CONTEXT]
        else:
            os.environ[PROCESS_CONTEXT] = before
