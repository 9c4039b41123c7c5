from __future__ import annotations

from airflow_horsies.db.backoff import Backoff


def test_pauses_grow_to_a_bound_and_no_two_are_alike() -> None:
    backoff = Backoff(1.0, 3.0)
    for most in (1.0, 2.0, 3.0, 3.0):
        assert most / 2 <= backoff.next_pause() <= most
    assert len({backoff.next_pause() for _ in range(10)}) > 1
    backoff.reset()
    assert backoff.next_pause() <= 1.0
