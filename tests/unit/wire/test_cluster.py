from __future__ import annotations

from datetime import UTC, datetime

from airflow_horsies.wire import cluster
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import MOVED, drive

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_queues_are_those_with_tasks_and_those_that_are_served() -> None:
    worker = {
        "worker_id": "w",
        "hostname": "host",
        "pid": 1,
        "queues": ["default"],
        "processes": 1,
        "tasks_running": 0,
        "tasks_claimed": 0,
        "worker_started_at": NOON,
        "snapshot_at": NOON,
        "alive": True,
        "memory_mb": None,
        "cpu_percent": None,
    }
    depth = {
        "queue_name": "nobody",
        "ready": 2,
        "delayed": 1,
        "claimed": 0,
        "running": 0,
        "oldest_ready_at": NOON,
    }
    answers = {"read_queues": [depth], "read_workers": [worker, {**worker, "worker_id": "dead", "alive": False}]}
    queues = drive(cluster.read_queues(Wire(MOVED)), answers).outcome
    assert [(queue.queue, queue.ready, queue.oldest_ready_at, queue.served_by) for queue in queues] == [
        ("default", 0, None, 1),
        ("nobody", 2, NOON, 0),
    ]
