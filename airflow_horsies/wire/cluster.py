"""Queues, workers and retention classes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, timedelta

from airflow_horsies.core.cluster import QueueDepth, RetentionClass, WorkerState
from airflow_horsies.db.statement import Row, Script
from airflow_horsies.wire.decoding import (
    decode_retention_class,
    decode_worker,
)
from airflow_horsies.wire.statements import Wire

WORKERS_SEEN_WITHIN = timedelta(hours=1)


def read_queues(wire: Wire) -> Script[list[QueueDepth]]:
    """Every queue that contains live tasks or is served by a live worker."""
    depths = {row["queue_name"]: row for row in (yield wire.read_queues())}
    workers = yield from read_workers(wire)
    served = Counter(queue for worker in workers if worker.alive for queue in worker.queues)
    return [_queue_depth(name, depths.get(name), served[name]) for name in sorted({*depths, *served})]


def read_workers(wire: Wire, *, within: timedelta = WORKERS_SEEN_WITHIN) -> Script[list[WorkerState]]:
    """The last report of every recent worker, live workers first."""
    return [decode_worker(row) for row in (yield wire.read_workers(within=within))]


def read_retention_classes(wire: Wire) -> Script[list[RetentionClass]]:
    """The classes that a task may name; empty if the settings of the workers decide."""
    if not wire.supports_retention_classes:
        return []
    return [decode_retention_class(row) for row in (yield wire.read_retention_classes())]


def _queue_depth(name: str, row: Row | None, served_by: int) -> QueueDepth:
    if row is None:
        return QueueDepth(
            queue=name, ready=0, delayed=0, claimed=0, running=0, oldest_ready_at=None, served_by=served_by
        )
    oldest = row["oldest_ready_at"]
    return QueueDepth(
        queue=name,
        ready=row["ready"],
        delayed=row["delayed"],
        claimed=row["claimed"],
        running=row["running"],
        oldest_ready_at=None if oldest is None else oldest.astimezone(UTC),
        served_by=served_by,
    )
