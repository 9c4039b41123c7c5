"""A claim that its worker does not know of, as when the answer to its commit was lost."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.health import Status, check_health
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from benchmarks.databases import open_hook
from benchmarks.housekeeping import PROJECT

pytest.importorskip("horsies")

# As the worker itself would: a task of the queue, for a lease of 20 seconds.
CLAIM = """
SELECT id::text
FROM horsies_claim(%s, '["default"]', '{"default": 100}', '{}', TRUE, 1, 0, 1, 1, NULL, 20000, '[1]')
"""


def finding(hook: HorsiesHook) -> tuple[Status, str]:
    (found,) = [each for each in check_health(hook.client) if each.check == "claims"]
    return found.status, found.message


def claim_for(
    worker_id: str, hook: HorsiesHook, own: psycopg.Connection[Any], claim: str, *, good_for: timedelta | None = None
) -> str:
    """A task that the worker has claimed and does not know of."""
    # The worker may be quicker; then there is another one.
    for _ in range(50):
        good_until = None if good_for is None else datetime.now(UTC) + good_for
        spec = TaskSpec(task_name="bench.talk", kwargs={"number": 1, "lines": 1}, good_until=good_until)
        task_id = hook.enqueue_task(spec)
        if own.execute(claim, (worker_id,)).fetchone() == (task_id,):
            return task_id
        hook.wait([task_id], timeout_seconds=60)
    pytest.fail("the worker was quicker each time")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_claim_that_its_live_worker_does_not_know_of_is_named_and_lapses(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    postgres.create_database("claims")
    info = postgres.conninfo("claims")
    worker = HorsiesWorker(
        "benchmarks.housekeeping_tasks:app",
        conninfo=info,
        log=tmp_path / "worker.log",
        folder=PROJECT,
        # With a limit, the worker claims nothing ahead, and its claims last longer.
        environ={"PYTHONPATH": str(PROJECT), "HORSIES_QUEUES": "default:1:4"},
        command=SPARK_WORKER,
    )
    with worker, open_hook(info) as hook, psycopg.connect(**info, autocommit=True) as own:
        (state,) = [each for each in hook.read_workers() if each.alive]
        task_id = claim_for(state.id, hook, own, CLAIM)
        began = time.monotonic()
        named: set[Status] = set()
        while hook.read_states([task_id])[task_id] is not TaskState.COMPLETED:
            assert time.monotonic() < began + 240, "it never lapsed"
            status, message = finding(hook)
            if status is Status.WARN:
                assert task_id in message
            named.add(status)
            time.sleep(1)
        print(f"the task completed after {time.monotonic() - began:.0f} s")
        assert named == {Status.OK, Status.WARN}
    postgres.drop_database("claims")


@pytest.mark.timeout(600)
def test_a_task_whose_claim_its_live_worker_does_not_know_of_expires(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    postgres.create_database("late_claims")
    info = postgres.conninfo("late_claims")
    worker = HorsiesWorker(
        "benchmarks.housekeeping_tasks:app",
        conninfo=info,
        log=tmp_path / "worker.log",
        folder=PROJECT,
        environ={"PYTHONPATH": str(PROJECT), "HORSIES_DEAD_AFTER_SECONDS": "5"},
        command=SPARK_WORKER,
    )
    # The lease of a worker that claims ahead.
    claim = CLAIM.replace("20000", "5000")
    with worker, open_hook(info) as hook, psycopg.connect(**info, autocommit=True) as own:
        (state,) = [each for each in hook.read_workers() if each.alive]
        task_id = claim_for(state.id, hook, own, claim, good_for=timedelta(seconds=3))
        (task,) = hook.wait([task_id], timeout_seconds=180)
        assert task.state is TaskState.EXPIRED
    postgres.drop_database("late_claims")
