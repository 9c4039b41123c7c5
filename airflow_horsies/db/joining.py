"""One call for all who make it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_running: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, asyncio.Task[Any]]] = WeakKeyDictionary()


async def join_call(key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of the call with this key that is under way in this event loop, or of a new one."""
    calls = _running.setdefault(asyncio.get_running_loop(), {})
    if key not in calls:
        # In a task of its own: a caller that is cancelled does not cancel the others.
        calls[key] = asyncio.create_task(call())
        calls[key].add_done_callback(lambda _: calls.pop(key, None))
    result: T = await asyncio.shield(calls[key])
    return result
