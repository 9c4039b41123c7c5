"""The proxy of the trials passes on what it is given, unless it is told to do harm."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.chaos.proxy import Proxy, Route


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


@pytest.fixture
def route(proxy: Proxy) -> Iterator[Route]:
    """Leads to a server that says everything back."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield proxy.add("echo", server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


def echo(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while data := connection.recv(1024):
            connection.sendall(data)


def connect(route: Route) -> socket.socket:
    connection = socket.create_connection((route.address, route.port), timeout=10)
    connection.sendall(b"hello")
    assert connection.recv(1024) == b"hello"
    return connection


def test_connection_that_is_cut_is_reset(proxy: Proxy, route: Route) -> None:
    with connect(route) as one:
        assert proxy.cut("echo") == 1
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    with connect(route):
        pass


def test_one_of_several_connections_is_cut(proxy: Proxy, route: Route) -> None:
    with connect(route) as one, connect(route) as two:
        assert proxy.cut("echo", 0.9) == 1
        outcomes = []
        for each in (one, two):
            try:
                each.sendall(b"again")
                outcomes.append(each.recv(1024))
            except OSError:
                outcomes.append(b"")
        assert sorted(outcomes) == [b"", b"again"]


def test_half_open_connection_says_nothing_and_is_reset_in_the_end(proxy: Proxy, route: Route) -> None:
    with connect(route) as one:
        with proxy.half_open("echo"):
            one.sendall(b"lost")
            one.settimeout(0.3)
            with pytest.raises(TimeoutError):
                one.recv(1)
        one.settimeout(10)
        with pytest.raises(ConnectionResetError):
            one.recv(1)


def test_slow_route_delays(proxy: Proxy, route: Route) -> None:
    with connect(route) as one, proxy.slow("echo", 0.2):
        begun = time.monotonic()
        one.sendall(b"late")
        assert one.recv(1024) == b"late"
        assert time.monotonic() - begun >= 0.4


def test_nobody_listens_while_connections_are_refused(proxy: Proxy, route: Route) -> None:
    with connect(route) as one:
        with proxy.refusing("echo"):
            with pytest.raises(ConnectionResetError):
                one.recv(1)
            with pytest.raises(ConnectionRefusedError):
                connect(route)
        connect(route).close()
