"""Deprecated names of HorsiesHook members from release 0.1, kept for one release."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from airflow_horsies.client import ledger
from airflow_horsies.core.validation import require_task_id

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
    "require_deployment": "settings.require_deployment",
    "run_script": "client.run",
    "can_listen": "client.can_listen",
}
VALUES: Mapping[str, str] = {
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


def _attempt_records(hook: Any, task_id: str) -> Any:
    wanted = require_task_id(task_id)
    return hook.read_attempts([wanted]).get(wanted, ())


def _stay_in(hook: Any, namespace: str | None) -> None:
    if namespace:
        # Both clients follow.
        hook._given_namespace = namespace
        hook.__dict__.pop("settings", None)
        hook.client.stay_in(namespace)


OTHERS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "attempts": ("read_task(task_id).attempts", lambda hook, task_id: hook.read_task(task_id).attempts),
    "attempt_records": ("read_attempts([task_id])", _attempt_records),
    "stay_in": ("HorsiesHook(namespace=…)", _stay_in),
}


class FormerNames:
    """The deprecated members of HorsiesHook. A subclass can call them, and a test can replace them."""


def _method(name: str, instead: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def former(self: Any, *args: Any, **kwargs: Any) -> Any:
        _warn(name, instead)
        return call(self, *args, **kwargs)

    return former


def _async_method(name: str, instead: str, call: Callable[..., Any]) -> Callable[..., Any]:
    async def former(self: Any, *args: Any, **kwargs: Any) -> Any:
        _warn(name, instead)
        return await call(self, *args, **kwargs)

    return former


def _value(name: str, instead: str) -> property:
    def former(self: Any) -> Any:
        _warn(name, instead)
        return attrgetter(instead)(self)

    return property(former)


def _renamed(target: str) -> Callable[..., Any]:
    return lambda hook, *args, **kwargs: attrgetter(target)(hook)(*args, **kwargs)


def _on_async_client(target: str) -> Callable[..., Any]:
    async def call(hook: Any, *args: Any, **kwargs: Any) -> Any:
        return await getattr(await hook.async_client(), target)(*args, **kwargs)

    return call


def _of_the_ledger(target: Callable[..., Any]) -> Callable[..., Any]:
    return lambda hook, *args, **kwargs: target(hook.client, *args, **kwargs)


def _add(name: str, member: Any) -> None:
    if not isinstance(member, property):
        member.__name__, member.__qualname__ = name, f"HorsiesHook.{name}"
    setattr(FormerNames, name, member)


def _warn(name: str, instead: str) -> None:
    warnings.warn(f"HorsiesHook.{name} is deprecated. Use {instead} instead.", DeprecationWarning, stacklevel=3)


for _name, _target in RENAMED.items():
    _add(_name, (_async_method if _name.endswith("_async") else _method)(_name, _target, _renamed(_target)))
for _name, _target in VALUES.items():
    _add(_name, _value(_name, _target))
for _name, _target in ON_ASYNC_CLIENT.items():
    _add(_name, _async_method(_name, f"(await async_client()).{_target}", _on_async_client(_target)))
for _name, _function in OF_THE_LEDGER.items():
    _instead = f"airflow_horsies.client.ledger.{_function.__name__}(hook.client)"
    _add(_name, _method(_name, _instead, _of_the_ledger(_function)))
for _name, (_instead, _call) in OTHERS.items():
    _add(_name, _method(_name, _instead, _call))
