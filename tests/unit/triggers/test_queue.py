from __future__ import annotations

from typing import Any

import pytest

from airflow_horsies.models import QueueDepth
from airflow_horsies.testing import FakeHorsies
from airflow_horsies.triggers import HorsiesQueueTrigger
from airflow_horsies.triggers.queue import depth_of, is_open
from tests.unit.triggers.rig import run, soon

pytestmark = pytest.mark.usefixtures("horsies")


def depth(queue: str = "spark", *, ready: int = 0, served_by: int = 1) -> QueueDepth:
    return QueueDepth(
        queue=queue, ready=ready, delayed=7, claimed=7, running=7, oldest_ready_at=None, served_by=served_by
    )


@pytest.mark.parametrize(
    ("depth", "bounds", "expected"),
    [
        (depth(ready=1000), {"min_workers": 1, "max_depth": None}, True),
        (depth(ready=9), {"min_workers": 1, "max_depth": 10}, True),
        (depth(ready=10), {"min_workers": 1, "max_depth": 10}, False),
        (depth(served_by=0), {"min_workers": 1, "max_depth": None}, False),
        (depth(served_by=0), {"min_workers": 0, "max_depth": 10}, True),
        (depth(served_by=2), {"min_workers": 3, "max_depth": None}, False),
    ],
)
def test_queue_is_open_when_it_is_served_and_not_full(depth: QueueDepth, bounds: Any, expected: bool) -> None:
    assert is_open(depth, **bounds) is expected


def test_queue_that_is_not_listed_is_empty_and_unserved() -> None:
    queues = [depth("a"), depth("b", ready=5)]
    assert depth_of("b", queues).ready == 5
    assert (depth_of("c", queues).ready, depth_of("c", queues).served_by) == (0, 0)


def test_queue_trigger_fires_when_the_queue_opens_and_gives_up_at_its_deadline(horsies: FakeHorsies) -> None:
    assert run(HorsiesQueueTrigger(queue="spark", poll_seconds=0.02, deadline=soon()))["reason"] == "timed_out"
    horsies.queue("spark")
    assert run(HorsiesQueueTrigger(queue="spark"))["reason"] == "ended"
