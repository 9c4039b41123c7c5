"""Limits the requests of those who need no login, for each client and in total. The memory for it is bounded."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

# Requests a minute of a client. All together may send five times as many.
DEFAULT_RATE = 120
TOTAL_FACTOR = 5
MAX_CLIENTS = 10_000
# Requests whose body is being read, of a client and in total.
MAX_OPEN, MAX_OPEN_IN_TOTAL = 8, 32
IPV6_PREFIX_BITS = 64


@dataclass(slots=True)
class _Bucket:
    """What a client may still send: as much as in a minute at most, and more with time."""

    left: float
    at: float

    def refill(self, rate: float, now: float) -> None:
        self.left = min(self.left + (now - self.at) * rate / 60, rate)
        self.at = now


class Limiter:
    """For the event loop of one process: each process of the api-server has limits of its own."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, max_clients: int = MAX_CLIENTS) -> None:
        self._clock = clock
        self._max_clients = max_clients
        self._total: _Bucket | None = None
        # The client that was last seen comes last. One that was forgotten begins anew; the total limit holds.
        self._clients: OrderedDict[str, _Bucket] = OrderedDict()
        self._open: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def wait_seconds(self, client: str, rate: int) -> float:
        """Count a request; 0 if it may be served, else how long to wait."""
        now, name = self._clock(), network_of(client)
        bucket = self._clients.pop(name, None) or _Bucket(rate, now)
        self._clients[name] = bucket
        while len(self._clients) > self._max_clients:
            self._clients.popitem(last=False)
        total = self._total = self._total or _Bucket(rate * TOTAL_FACTOR, now)
        bucket.refill(rate, now)
        total.refill(rate * TOTAL_FACTOR, now)
        if bucket.left < 1:
            return (1 - bucket.left) * 60 / max(rate, 1)
        if total.left < 1:
            return (1 - total.left) * 60 / max(rate * TOTAL_FACTOR, 1)
        bucket.left -= 1
        total.left -= 1
        return 0.0

    @contextmanager
    def opened(self, client: str) -> Iterator[bool]:
        """False if too many requests are open already, of this client or in total."""
        name = network_of(client)
        if self._open.get(name, 0) >= MAX_OPEN or sum(self._open.values()) >= MAX_OPEN_IN_TOTAL:
            yield False
            return
        self._open[name] = self._open.get(name, 0) + 1
        try:
            yield True
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


def network_of(client: str) -> str:
    """One customer has many addresses of IPv6."""
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if not isinstance(address, IPv6Address):
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> (128 - IPV6_PREFIX_BITS):x}/{IPV6_PREFIX_BITS}"


limiter = Limiter()
