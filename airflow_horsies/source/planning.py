"""Divides a table into slices for several readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from airflow_horsies.client.scanning import find_wire, measure_tables, require_ledger, sample_submissions
from airflow_horsies.core.paging import Slice
from airflow_horsies.db.statement import Script
from airflow_horsies.source.tables import ATTEMPTS, NODES, SUBMISSIONS, TASKS, WORKERS, WORKFLOWS, Table

# Some thousand rows, which is enough for the quantiles of a time.
SAMPLE_BYTES = 2_000_000
Place = tuple[datetime, str]


def cut(table: Table, whole: Slice, parts: int) -> Script[list[Slice]]:
    """At most this many slices of about the same size that make up the whole."""
    if parts == 1:
        return [whole]
    size = yield from measure_tables(table.relations)
    percent = min(100.0, 100.0 * SAMPLE_BYTES / max(size, 1))
    if table.name == SUBMISSIONS.name:
        yield from require_ledger()
        rows = yield sample_submissions(whole, percent)
    else:
        wire = yield from find_wire()
        sample = {
            TASKS.name: wire.sample_tasks,
            ATTEMPTS.name: wire.sample_attempts,
            WORKFLOWS.name: wire.sample_workflows,
            NODES.name: wire.sample_nodes,
            WORKERS.name: wire.sample_workers,
        }
        rows = yield sample[table.name](whole, percent)
    return slices(whole, quantiles([(row["at"], row["key"]) for row in rows if row["at"] is not None], parts))


def quantiles(places: Sequence[Place], parts: int) -> list[Place]:
    """The distinct places between the parts."""
    chosen = [places[len(places) * number // parts] for number in range(1, parts)] if places else []
    return list(dict.fromkeys(place for place in chosen if place != places[0]))


def slices(whole: Slice, between: Sequence[Place]) -> list[Slice]:
    begins = [(None, None), *between]
    ends = [*between, (None, None)]
    return [
        replace(whole, from_at=from_at, from_key=from_key, to_at=to_at, to_key=to_key)
        for (from_at, from_key), (to_at, to_key) in zip(begins, ends, strict=True)
    ]
