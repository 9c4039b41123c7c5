"""A TCP proxy between the stack and Postgres, whose connections can be cut, slowed down, refused or left half open."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")
CHUNK = 65_536
CALL_SECONDS = 10.0


class Route:
    """A port that leads to a server; what happens to one route leaves the others alone."""

    def __init__(self, name: str, address: str, upstream: int) -> None:
        self.name = name
        self.address = address
        self.upstream = upstream
        self.port = 0
        self.delay = 0.0
        self.swallows = False
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()
        self._frozen: set[asyncio.Transport] = set()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.address, self.port, backlog=256)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self, pick: float | None = None) -> int:
        """Reset all connections, or the one that ``pick``, from 0 to 1, comes to; how many there were."""
        found = sorted(self._open, key=id)
        if pick is not None and found:
            found = [found[int(pick * len(found))]]
        for each in found:
            _reset(each)
        return len(found)

    def freeze(self) -> int:
        """Nothing arrives any more over what is open now, and nobody is told; how many connections there are."""
        self._frozen |= self._open
        return len(self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near: Any = writer.transport
        self._open.add(near)
        far: asyncio.StreamWriter | None = None
        try:
            from_server, far = await asyncio.open_connection("127.0.0.1", self.upstream)
            copying = [
                asyncio.ensure_future(self._copy(near, *pair)) for pair in ((reader, far), (from_server, writer))
            ]
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
            for each in copying:
                each.cancel()
            await asyncio.gather(*copying, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._open.discard(near)
            self._frozen.discard(near)
            _reset(near)
            if far is not None:
                # Not a reset: Postgres would log each one.
                far.close()

    async def _copy(self, near: asyncio.Transport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if not self.swallows and near not in self._frozen:
                    writer.write(data)
                    await writer.drain()


def _reset(transport: Any) -> None:
    raw = transport.get_extra_info("socket")
    if raw is not None and not transport.is_closing():
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    transport.abort()


class Proxy:
    """All routes, served by a thread."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def add(self, name: str, upstream: int, address: str = "127.0.0.1") -> Route:
        route = Route(name, address, upstream)
        self._run(route.listen())
        self.routes[name] = route
        return route

    def cut(self, name: str, pick: float | None = None) -> int:
        async def cut() -> int:
            return self.routes[name].cut(pick)

        return self._run(cut())

    def freeze(self, name: str) -> int:
        async def freeze() -> int:
            return self.routes[name].freeze()

        return self._run(freeze())

    @contextmanager
    def refusing(self, name: str) -> Iterator[None]:
        """Nobody listens for a while, and what was open is cut."""
        route = self.routes[name]

        async def refuse() -> None:
            route.refuse()
            route.cut()

        self._run(refuse())
        try:
            yield
        finally:
            self._run(route.listen())

    @contextmanager
    def half_open(self, name: str) -> Iterator[None]:
        """What is sent arrives nowhere, and nobody is told; in the end the connections are reset."""
        route = self.routes[name]
        route.swallows = True
        try:
            yield
        finally:
            # In this order: whoever has lost something is cut.
            route.swallows = False
            self.cut(name)

    @contextmanager
    def slow(self, name: str, delay: float) -> Iterator[None]:
        route = self.routes[name]
        route.delay = delay
        try:
            yield
        finally:
            route.delay = 0.0

    def close(self) -> None:
        async def end() -> None:
            for route in self.routes.values():
                route.refuse()
                route.cut()
            await asyncio.sleep(0.1)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        if self._thread.is_alive():
            self._run(end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_SECONDS)
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)
