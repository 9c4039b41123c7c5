from __future__ import annotations

import pytest

from airflow_horsies.ui.limiting import MAX_OPEN, MAX_OPEN_IN_TOTAL, TOTAL_FACTOR, Limiter, network_of


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def served(limiter: Limiter, client: str, requests: int, rate: int = 60) -> int:
    return sum(limiter.wait_seconds(client, rate) == 0 for _ in range(requests))


def test_a_client_may_send_as_many_as_in_a_minute_at_once_and_then_one_by_one() -> None:
    clock = Clock()
    limiter = Limiter(clock=clock)
    assert served(limiter, "10.0.0.1", 100) == 60
    assert limiter.wait_seconds("10.0.0.1", 60) == pytest.approx(1)
    clock.now += 5
    assert served(limiter, "10.0.0.1", 100) == 5
    clock.now += 3_600
    assert served(limiter, "10.0.0.1", 100) == 60


def test_a_client_does_not_use_up_what_others_may_send() -> None:
    limiter = Limiter(clock=Clock())
    served(limiter, "10.0.0.1", 10_000)
    assert served(limiter, "10.0.0.2", 60) == 60


def test_all_clients_together_have_a_limit() -> None:
    limiter = Limiter(clock=Clock())
    assert sum(served(limiter, f"10.0.{number}.1", 1) for number in range(200)) == 200
    assert sum(served(limiter, f"10.1.{number}.1", 1) for number in range(255)) == TOTAL_FACTOR * 60 - 200


def test_the_memory_for_clients_is_bounded_and_those_seen_last_are_kept() -> None:
    limiter = Limiter(clock=Clock(), max_clients=100)
    served(limiter, "10.0.0.1", 60)
    for number in range(10_000):
        limiter.wait_seconds(f"client {number}", 60)
        if number % 50 == 0:
            assert limiter.wait_seconds("10.0.0.1", 60) > 0
    assert len(limiter) == 100


def test_addresses_of_one_network_are_one_client() -> None:
    assert network_of("2001:db8:1:2::1") == network_of("2001:db8:1:2:ffff::9")
    assert network_of("2001:db8:1:2::1") != network_of("2001:db8:1:3::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == network_of("fe80::2")
    assert network_of("testclient") == "testclient"


def test_open_requests_are_bounded() -> None:
    limiter = Limiter(clock=Clock())
    opened = [limiter.opened("10.0.0.1") for _ in range(MAX_OPEN)]
    assert all(each.__enter__() for each in opened)
    with limiter.opened("10.0.0.1") as is_open:
        assert not is_open
    others = [limiter.opened(f"10.0.1.{number}") for number in range(MAX_OPEN_IN_TOTAL - MAX_OPEN)]
    assert all(each.__enter__() for each in others)
    with limiter.opened("10.0.2.1") as is_open:
        assert not is_open
    for each in (*opened, *others):
        each.__exit__(None, None, None)
    with limiter.opened("10.0.0.1") as is_open:
        assert is_open
