"""Deprecated names of HorsiesHook members from release 0.1, kept for one release."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from airflow_horsies.client import ledger

RENAMED: Mapping[str, str] = {
    "enqueue": "enqueue_task",
    "enqueue_async": "enqueue_task_async",
    "enqueue_many": "enqueue_tasks",
    "submit": "submit_task",
    "submit_many": "submit_tasks",
    "get_task": "read_task",
    "get_task_async": "read_task_async",
    "get_tasks": "read_tasks",
    "get_states": "read_states",
    "queues": "read_queues",
    "workers": "read_workers",
    "retention_classes": "client.read_retention_classes",
    "submissions_of": "read_submissions",
    "submitters_of": "client.read_submissions_of_task",
    "submissions_of_run": "client.read_submissions_of_run",
    "logs": "read_lines",
    "progress": "read_progress",
    "attempt_records_of": "read_attempts",
    "news": "client.read_news",
    "cancel": "cancel_task",
    "cancel_async": "cancel_task_async",
    "cancel_many": "cancel_tasks",
    "release": "client.release_tasks",
    "stay_in": "client.stay_in",
    "require_deployment": "settings.require_deployment",
    "run_script": "client.run",
    "can_listen": "client.can_listen",
    "namespace": "client.namespace",
    "base_url": "settings.base_url",
    "horsies_schema": "client.schema",
    "connect_args": "settings.database.connect_args",
}
ON_ASYNC_CLIENT: Mapping[str, str] = {
    "get_tasks_async": "read_tasks",
    "queues_async": "read_queues",
    "workers_async": "read_workers",
    "submissions_of_async": "read_submissions",
    "cancel_many_async": "cancel_tasks",
    "release_async": "release_tasks",
}
OF_THE_LEDGER: Mapping[str, Callable[..., Any]] = {
    "ledger_version": ledger.read_ledger_version,
    "ensure_ledger": ledger.migrate_ledger,
    "prune": ledger.prune_ledger,
    "change_base_url": ledger.change_base_url,
    "reports": ledger.list_reports,
    "report_page": ledger.read_report,
}
OTHERS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "attempts": ("read_task(task_id).attempts", lambda hook, task_id: hook.read_task(task_id).attempts),
    "attempt_records": (
        "read_attempts([task_id])",
        lambda hook, task_id: hook.read_attempts([task_id]).get(str(task_id).lower(), ()),
    ),
}


def find_former(hook: Any, name: str) -> Any:
    """The member of a hook with a deprecated name, with a warning; AttributeError for an unknown name."""
    if name in RENAMED:
        _warn(name, RENAMED[name])
        return attrgetter(RENAMED[name])(hook)
    if name in ON_ASYNC_CLIENT:
        _warn(name, f"(await async_client()).{ON_ASYNC_CLIENT[name]}")
        return _on_async_client(hook, ON_ASYNC_CLIENT[name])
    if name in OF_THE_LEDGER:
        _warn(name, f"airflow_horsies.client.ledger.{OF_THE_LEDGER[name].__name__}(hook.client)")
        return partial(OF_THE_LEDGER[name], hook.client)
    if name in OTHERS:
        instead, call = OTHERS[name]
        _warn(name, instead)
        return partial(call, hook)
    raise AttributeError(f"{type(hook).__name__!r} object has no attribute {name!r}")


def _on_async_client(hook: Any, name: str) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await getattr(await hook.async_client(), name)(*args, **kwargs)

    return call


def _warn(name: str, instead: str) -> None:
    warnings.warn(f"HorsiesHook.{name} is deprecated. Use {instead} instead.", DeprecationWarning, stacklevel=4)
