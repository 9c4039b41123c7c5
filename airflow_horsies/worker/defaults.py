"""Defaults of a worker that depend on its tasks: known once their modules are imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from horsies import Horsies

from airflow_horsies.borrowed.horsies import is_paced
from airflow_horsies.worker.tasks import uses_spark

# A worker that loses its connection during a claim may not know what it claimed, and still renews the claim.
# horsies allows that for three minutes. A child starts a claimed task within seconds.
CLAIMS = {"claim_lease_ms": 20_000, "max_claim_renew_age_ms": 60_000}
# Short tasks follow each other without a pause if the next ones are claimed already. A task that was claimed ahead and
# then waits behind long ones can go to another worker when its claim lapses, after ten seconds at most.
PREFETCHING = {"prefetch_buffer": 16, "claim_lease_ms": 5_000, "max_claim_renew_age_ms": 5_000}
# horsies demands two heartbeats within a lease.
MAX_CLAIMER_BEAT_MS = 2_500
# horsies decides where other settings of the app depend on how long a claim lasts.
OF_CLAIMS = frozenset({"claim_lease_ms", "max_claim_renew_age_ms", "prefetch_buffer", "recovery"})
# Each child has its own memory and connections, and a crash of one ends the tasks of all.
MAX_PROCESSES = 4


class WorkerApp(Horsies):
    """An app that prefetches tasks if none of them uses Spark, unless its settings say otherwise.

    Only with our own command, whose workers claim ahead while tasks are short and not behind long ones.
    """

    may_prefetch = False

    def check(self, *, live: bool = False) -> list[Any]:
        """Imports all tasks; horsies calls it before a worker reads its settings."""
        errors = super().check(live=live)
        if self.may_prefetch and is_paced() and not errors and not uses_spark(self):
            recovery = self.config.recovery
            beat_ms = min(recovery.claimer_heartbeat_interval_ms, MAX_CLAIMER_BEAT_MS)
            beating = recovery.model_copy(update={"claimer_heartbeat_interval_ms": beat_ms})
            self.config = self.config.model_copy(update={**PREFETCHING, "recovery": beating})
        return errors


def claims_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """How long a claim lasts."""
    return {} if config.keys() & OF_CLAIMS else dict(CLAIMS)


def may_prefetch(config: Mapping[str, Any]) -> bool:
    """Whether prefetching is left to us and would exceed no limit: horsies counts only running tasks with it."""
    queues = config.get("custom_queues") or ()
    return not (
        config.keys() & OF_CLAIMS
        or config.get("cluster_wide_cap") is not None
        or any(queue.max_concurrency is not None for queue in queues)
    )


def processes_of(app: Horsies) -> int:
    """One child for Spark, whose session is warm in it; else as many as there are cores, up to four."""
    return 1 if uses_spark(app) else min(_cores(), MAX_PROCESSES)


def _cores() -> int:
    """Those that this process may use, from Python 3.13 on."""
    cores: int | None = getattr(os, "process_cpu_count", os.cpu_count)()
    return cores or 1
