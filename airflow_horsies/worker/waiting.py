"""The tasks that every app has: wait for a signal, and sleep, without holding a worker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from horsies import Horsies, RetryPolicy, TaskNode

from airflow_horsies.core.signals import (
    AWAITING_SIGNAL,
    PARKED_SECONDS,
    SLEEP,
    WAIT_FOR_SIGNAL,
    require_signal_name,
    require_timeout,
)
from airflow_horsies.worker.child import park_for, park_until

MAX_RETRIES = 20


def with_parking(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a task whose retry policy also retries parked attempts."""
    policy = options.get("retry_policy")
    if policy is None:
        policy = RetryPolicy.fixed([PARKED_SECONDS], auto_retry_for=[AWAITING_SIGNAL], jitter=False)
    elif AWAITING_SIGNAL not in policy.auto_retry_for:
        policy = policy.model_copy(update={"auto_retry_for": [*policy.auto_retry_for, AWAITING_SIGNAL]})
    return {**options, "retry_policy": policy}


def wait_for_signal(*, name: str, timeout_seconds: float | None = None) -> Any:
    """Wait for a signal without holding a worker; returns its payload."""
    return park_until(name, timeout=timeout_seconds)


def sleep(*, seconds: float) -> None:
    """Wait for a time without holding a worker."""
    park_for(seconds)


def signal_node(
    app: Horsies,
    name: str,
    *,
    timeout: timedelta | float | None = None,
    node_id: str | None = None,
    **options: Any,
) -> TaskNode[Any]:
    """
    A node of a workflow that waits for a signal to the workflow, to one around it or to the node's task. Its result is
    the payload. It holds no worker meanwhile.

    .. code-block:: python

        approved = signal_node(app, "approved", timeout=timedelta(days=2))
        publish = TaskNode(fn=app.tasks["reports.publish"], waits_for=[approved])

    :param app: the app made by ``horsies_app``.
    :param name: the name of the signal.
    :param timeout: the node fails with ``SIGNAL_TIMED_OUT`` after this time; None waits without end.
    :param node_id: the id of the node; by default, horsies chooses one.
    :param options: other options of ``TaskNode``: ``waits_for``, ``queue``, ``allow_failed_deps`` …
    """
    arguments = {"name": require_signal_name(name), "timeout_seconds": require_timeout(timeout)}
    return TaskNode(fn=_task(app, WAIT_FOR_SIGNAL), kwargs=arguments, node_id=node_id, **options)


def sleep_node(
    app: Horsies, duration: timedelta | float, *, node_id: str | None = None, **options: Any
) -> TaskNode[Any]:
    """
    A node of a workflow that waits for a time, from its start. It holds no worker meanwhile, and the time goes on while
    no worker runs.

    :param app: the app made by ``horsies_app``.
    :param duration: how long to wait.
    :param node_id: the id of the node; by default, horsies chooses one.
    :param options: other options of ``TaskNode``.
    """
    arguments = {"seconds": require_timeout(duration) or 0.0}
    return TaskNode(fn=_task(app, SLEEP), kwargs=arguments, node_id=node_id, **options)


def _task(app: Horsies, name: str) -> Any:
    return app.tasks[name]
