"""The app that Airflow mounts: it adds the security headers to every response of the routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any

from airflow_horsies.core.masking import TOKEN_PREFIX, mask_tokens

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# For a response that does not set its own.
SECURITY_HEADERS = {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


class Gate:
    """An ASGI app that imports the real one, ``app`` of a module, at the first request.

    Every process of Airflow loads the plugin, but only the api-server needs the routes and their imports.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._app: Any = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = (await asyncio.to_thread(import_module, self._module)).app

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                given = {name.lower() for name, _ in headers}
                headers += [(name, value) for name, value in SECURITY_HEADERS.items() if name not in given]
                message = {**message, "headers": headers}
            await send(message)

        # Airflow logs the path of a request after it. A token in it is for the routes only.
        inner = {**scope}
        _hide_tokens(scope)
        await self._app(inner, receive, send_with_headers)


def _hide_tokens(scope: Message) -> None:
    path = scope.get("path", "")
    if TOKEN_PREFIX in path:
        scope["path"] = mask_tokens(path)
        scope["raw_path"] = scope["path"].encode()
