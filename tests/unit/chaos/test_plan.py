"""The faults of a seed are always the same, and all kinds are among them."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from tests.chaos.plan import CHANGE_KINDS, KINDS, POINTS, Fault, faults

ALL = {kind.needs or "" for kind in KINDS.values()}
DEAR = ("scheduler SIGKILL", "api-server SIGKILL", "triggerer SIGKILL", "Postgres immediate shutdown", "worker SIGKILL")


def drawn(seed: int, count: int, **options: object) -> list[Fault]:
    return list(islice(faults(seed, **{"pace": 1.0, "able": ALL, **options}), count))  # type: ignore[arg-type]


def test_same_seed_draws_the_same_faults_and_another_does_not() -> None:
    assert drawn(7, 300) == drawn(7, 300)
    assert drawn(7, 300) != drawn(8, 300)


def test_every_kind_comes_first_once() -> None:
    assert {fault.kind for fault in drawn(3, len(KINDS))} == set(KINDS)


def test_what_costs_much_comes_often_in_the_long_run() -> None:
    counts = Counter(fault.kind for fault in drawn(7, 5_000))
    assert min(counts.values()) >= 5
    assert all(counts[kind] >= 10 for kind in DEAR), counts


def test_a_third_of_what_is_drawn_are_changes() -> None:
    changes = sum(fault.kind in CHANGE_KINDS for fault in drawn(7, 5_000))
    assert 1_250 <= changes <= 2_500


def test_every_named_point_comes_in_the_long_run() -> None:
    points = {fault.drawn["point"] for fault in drawn(7, 5_000) if "point" in fault.drawn}
    assert points == set(POINTS)


def test_kinds_that_cannot_be_made_here_are_left_out() -> None:
    assert {KINDS[fault.kind].needs for fault in drawn(7, 500, able={"airflow"})} == {None, "airflow"}


def test_only_some_kinds_can_be_asked_for() -> None:
    assert {fault.kind for fault in drawn(7, 50, only=["clock skew", "DNS failing"])} == {"clock skew", "DNS failing"}
