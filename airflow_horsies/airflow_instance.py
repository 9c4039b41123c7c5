"""What Airflow knows of task instances: the identity of a try, and the state of a task instance."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from airflow_horsies.borrowed import airflow as borrowed
from airflow_horsies.core.submission import TRACE_PREFIX, AirflowTry, TaskInstanceKey

log = logging.getLogger(__name__)

RUN_KEY = "airflow_horsies.run_key"
# Airflow kills a task five seconds after it asked it to stop. Most of that time may go to its answer.
ANSWER_SECONDS = 3.5
# The first question in a triggerer of Airflow 3.1 or 3.2 may take 10 s.
ASYNC_ANSWER_SECONDS = 20.0
# A user marked, cleared or deleted it, or it has ended: nothing waits for its work any more.
GIVEN_UP = frozenset({"failed", "success", "skipped", "removed", "upstream_failed", "restarting"})
AT_WORK = frozenset({"running", "deferred"})
ENDED = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})


@dataclass(frozen=True, slots=True)
class InstanceState:
    """The current state of a task instance. It does not exist if its DAG run was deleted."""

    exists: bool
    state: str | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether nothing waits for its work any more, unlike in a shutdown or a retry.

        A task instance without a state was orphaned when its scheduler died, and is retried.
        """
        return not self.exists or self.state in GIVEN_UP

    @property
    def is_given_up_by_trigger(self) -> bool:
        """As is_given_up, for a deferred task instance: it has no state after a clear, and is never orphaned."""
        return self.is_given_up or self.state is None

    @property
    def is_at_work(self) -> bool:
        """Whether it waits for its work or has ended, and is not about to submit again."""
        return self.has_ended or (self.exists and self.state in AT_WORK)

    @property
    def has_ended(self) -> bool:
        return self.exists and self.state in ENDED


def airflow_try(context: Mapping[str, Any], *, namespace: str | None = None) -> AirflowTry:
    """What Airflow records of the running try.

    :param namespace: the current namespace of its connection. The one of the first try applies if Airflow can keep it.
    """
    ti, dag_run = context["ti"], context["dag_run"]
    run_key = _run_key(context, namespace or "")
    return AirflowTry(
        try_number=ti.try_number,
        max_tries=ti.max_tries,
        clear_number=getattr(dag_run, "clear_number", None) or 0,
        run_started_at=dag_run.start_date,
        run_key=run_key,
        namespace=(run_key or "").partition(" ")[2] or namespace,
        is_key_of_run=None if run_key is None else partial(_is_key_of_run, context["task_state_store"]),
        trace_key=_trace_key(ti),
    )


def traced_try(context: Mapping[str, Any], *, namespace: str | None = None) -> AirflowTry:
    """What a triggerer knows of the try of a task that starts there: neither ``max_tries`` nor ``clear_number``, and
    the task state store is out of its reach. The trace is a new one after each clear and in each DAG run, and the same
    in a retry. Without a trace, each try counts as a life of its own."""
    ti = context["ti"]
    key = _trace_key(ti) or f"{TRACE_PREFIX}{ti.id}"
    return AirflowTry(
        try_number=ti.try_number,
        run_started_at=context["dag_run"].start_date,
        run_key=key,
        namespace=namespace,
        trace_key=key,
    )


def _trace_key(ti: Any) -> str | None:
    carrier = getattr(ti, "context_carrier", None) or {}
    return f"{TRACE_PREFIX}{carrier['traceparent']}" if carrier.get("traceparent") else None


def instance_of(context: Mapping[str, Any]) -> TaskInstanceKey:
    ti = context["ti"]
    map_index = -1 if ti.map_index is None else ti.map_index
    return TaskInstanceKey(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=map_index)


def can_ask() -> bool:
    """Whether there is an Airflow to ask. There is none if an operator is used outside its processes."""
    return borrowed.find_supervisor() is not None


def read_state(instance: TaskInstanceKey) -> InstanceState | None:
    """The state of a task instance; None if Airflow does not answer in time.

    Asks from a separate thread: a signal may have interrupted another question, and asking here would deadlock.
    """
    supervisor = borrowed.find_supervisor()
    if supervisor is None:
        return None
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(supervisor.send(_question(instance)))
        except Exception:
            log.debug("Airflow does not report the state of %s.", instance, exc_info=True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return _decode(instance, answers[0]) if answers else None


async def read_state_async(instance: TaskInstanceKey) -> InstanceState | None:
    """As :func:`read_state`, from a trigger."""
    supervisor = borrowed.find_supervisor()
    if supervisor is None or borrowed.is_shutting_down(supervisor):
        return None
    if not borrowed.asks_asynchronously(supervisor):
        return await asyncio.to_thread(read_state, instance)
    # Never cancelled, because Airflow 3.1 would take a late answer as the answer to the next question.
    answer = asyncio.ensure_future(supervisor.asend(_question(instance)))
    await asyncio.wait({answer}, timeout=ASYNC_ANSWER_SECONDS)
    if not answer.done() or answer.exception() is not None:
        return None
    return _decode(instance, answer.result())


def _question(instance: TaskInstanceKey) -> Any:
    return borrowed.state_question(**asdict(instance))


def _decode(instance: TaskInstanceKey, answer: Any) -> InstanceState | None:
    found = borrowed.states_in(answer, instance.run_id)
    if found is None:
        return None
    return InstanceState(exists=True, state=found[0]) if found else InstanceState(exists=False)


def _is_key_of_run(store: Any, key: str) -> bool | None:
    """Whether a try of the DAG run created this key; None if Airflow does not answer."""
    try:
        return store.get(_trace_of(key)) is not None or store.get(RUN_KEY) == key
    except Exception:
        log.warning(
            "Airflow's task state store does not report whether key %s belongs to this DAG run.", key, exc_info=True
        )
        return None


def _trace_of(key: str) -> str:
    """The name under which a key is found even after another key replaced it."""
    return f"{RUN_KEY}.{key.partition(' ')[0]}"


def _run_key(context: Mapping[str, Any], namespace: str) -> str | None:
    """A value kept with the DAG run (Airflow 3.3). A run that was deleted and recreated has another one. The namespace
    in which the task instance submits is part of it."""
    store = context.get("task_state_store")
    if store is None:
        return None
    try:
        kept = store.get(RUN_KEY)
        if kept is None:
            kept = f"{uuid.uuid4().hex} {namespace}".strip()
            # First, so that another try that creates a key at the same time finds this one.
            store.set(_trace_of(kept), 1, retention=borrowed.never_expire())
            store.set(RUN_KEY, kept, retention=borrowed.never_expire())
        return str(kept)
    except Exception:
        log.warning("Airflow's task state store cannot be used. Only its start identifies the DAG run.", exc_info=True)
        return None
