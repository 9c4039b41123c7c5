"""The active FakeHorsies of a thread, and the members of hooks, operators and links that ask for it."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime
from threading import RLock
from typing import Any, Protocol

from airflow_horsies.client.client import Client
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.operators.waiting import WaitingOperator
from airflow_horsies.testing.async_client import FakeAsyncClient
from airflow_horsies.testing.client import FakeClient, make_settings
from airflow_horsies.testing.running import FakeTaskInstance


class Fake(Protocol):
    """What gives a hook its client."""

    def find_client(self, hook: HorsiesHook) -> FakeClient: ...


_lock = RLock()
_active: list[Fake] = []
# Those of this thread and of what it starts on an event loop. Another thread uses the last one that became active.
_entered: ContextVar[tuple[Fake, ...]] = ContextVar("entered", default=())
_originals: dict[tuple[type[Any], str], Any] = {}


def activate(fake: Fake) -> None:
    with _lock:
        if any(other is fake for other in _active):
            raise RuntimeError(
                "This FakeHorsies is already active. Use the object of the outer with block, or create another one."
            )
        if not _active:
            _replace_members()
        _active.append(fake)
    _entered.set((*_entered.get(), fake))


def deactivate(fake: Fake) -> None:
    """In any order: the members are the real ones again after the last one."""
    with _lock:
        _active[:] = [other for other in _active if other is not fake]
        if not _active:
            _restore_members()
    _entered.set(tuple(other for other in _entered.get() if other is not fake))


def find_active() -> Fake | None:
    with _lock:
        own = [fake for fake in _entered.get() if any(other is fake for other in _active)]
        found = own or _active
        return found[-1] if found else None


def _replace_members() -> None:
    for (owner, name), fake in FAKES.items():
        _originals[owner, name] = owner.__dict__[name]
        setattr(owner, name, fake)


def _restore_members() -> None:
    for (owner, name), original in _originals.items():
        setattr(owner, name, original)


def _client(hook: HorsiesHook) -> Client:
    fake = find_active()
    if fake is None:
        raise _outlived()
    return fake.find_client(hook)


async def _async_client(hook: HorsiesHook) -> FakeAsyncClient:
    fake = find_active()
    if fake is None:
        raise _outlived()
    return FakeAsyncClient(fake.find_client(hook))


def _settings(hook: HorsiesHook) -> ClientSettings:
    return make_settings(f"connection {hook.horsies_conn_id}", namespace=hook._given_namespace)


def _push(link: HorsiesAttemptsLink, context: Any) -> None:
    """A task that run_task runs has no database of Airflow to store the link in."""
    if not isinstance(context["ti"], FakeTaskInstance):
        _originals[HorsiesAttemptsLink, "push"](link, context)


def _defer_at(operator: WaitingOperator) -> datetime | None:
    """A deferrable task always defers in a test, so that its trigger and execute_complete run."""
    return datetime.now(UTC) if operator.deferrable else None


def _outlived() -> RuntimeError:
    return RuntimeError("The FakeHorsies of this thread has ended. Wait for the thread inside the with block.")


FAKES: dict[tuple[type[Any], str], Any] = {
    (HorsiesHook, "client"): property(_client),
    (HorsiesHook, "async_client"): _async_client,
    (HorsiesHook, "settings"): property(_settings),
    (HorsiesAttemptsLink, "push"): _push,
    (WaitingOperator, "_defer_at"): _defer_at,
}
