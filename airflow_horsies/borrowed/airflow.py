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


def is_from_mapped(operator: Any) -> bool:
    """Whether an operator was created from a mapped one, whose arguments are already checked."""
    return bool(getattr(operator, FROM_MAPPED, False))


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
