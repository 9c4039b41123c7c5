"""Threads for the routes that read the horsies database, so that Airflow's own routes never wait for them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, TypeVar

from fastapi.routing import APIRoute

from airflow_horsies.exceptions import DatabaseBusy

THREADS = 8
# A request that waits longer for a thread fails.
MOST_WAIT_SECONDS = 5.0

T = TypeVar("T")
_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="airflow-horsies-pages")


class OwnThreadRoute(APIRoute):
    """A route whose function runs in one of these threads."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, in_own_thread(endpoint), **options)


def in_own_thread(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    # Including a router creates its routes again, from functions that are already wrapped.
    if inspect.iscoroutinefunction(endpoint):
        return endpoint

    @wraps(endpoint)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await run_in_thread(partial(endpoint, *args, **kwargs))

    # Older releases of FastAPI look up the names of annotations in the wrong module.
    call.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return call


async def run_in_thread(call: Callable[[], T], threads: ThreadPoolExecutor = _threads) -> T:
    """Run the call in a thread; DatabaseBusy if none becomes free in time.

    :param threads: others than those of the pages.
    """
    running = threads.submit(copy_context().run, call)
    outcome = asyncio.wrap_future(running)
    try:
        await asyncio.wait([outcome], timeout=MOST_WAIT_SECONDS)
        if running.cancel():
            raise DatabaseBusy("All threads of the Horsies pages wait for the horsies database. Try again later.")
        return await outcome
    finally:
        # The client may have disconnected.
        running.cancel()


async def iterate_in_threads(pieces: Iterator[T]) -> AsyncIterator[T]:
    end = object()
    while (piece := await run_in_thread(partial(next, pieces, end))) is not end:
        yield piece
