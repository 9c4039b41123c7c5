"""The asynchronous client, asked from a test that is not."""

from __future__ import annotations

from typing import Any

from airflow_horsies.hook import HorsiesHook


async def ask(hook: HorsiesHook, verb: str, *args: Any, **more: Any) -> Any:
    return await getattr(await hook.async_client(), verb)(*args, **more)
