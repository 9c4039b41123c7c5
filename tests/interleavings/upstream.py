"""What horsies' own workers and reaper write, statement by statement, in upstream's own texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from horsies.core.lifecycle import persistence
from horsies.core.worker import sql

from tests.integration.releases import keeps_history

WORKER = "worker-1"
RESULT = '{"__h_task_result__":true,"ok":1,"err":null}'
FAILURE = '{"__h_task_result__":true,"ok":null,"err":{"error_code":"TASK_EXCEPTION","message":"no"}}'

START = """
UPDATE horsies_tasks
SET status = 'RUNNING', claimed = FALSE, claimed_at = now(), started_at = now(), claimed_by_worker_id = %(worker)s,
    worker_hostname = 'node-1', worker_pid = 7, worker_process_name = 'SpawnProcess-1'
WHERE id = %(id)s
"""


T = TypeVar("T")
P = ParamSpec("P")


def finalizing(
    method: Callable[Concatenate[Upstream, P], T],
) -> Callable[Concatenate[Upstream, P], T]:
    """Upstream tries once more after an error of the connection, and takes a deadlock for one."""

    @wraps(method)
    def run(self: Upstream, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except psycopg.OperationalError:
            self.connection.rollback()
            return method(self, *args, **kwargs)

    return run


class Upstream:
    """A worker on a connection; each method is one transaction, as upstream runs it."""

    def __init__(self, connection: psycopg.Connection[Any], release: str) -> None:
        self.connection = connection
        self._id_type = "uuid" if keeps_history(release) else "varchar"

    def start(self, task_id: str, worker: str = WORKER) -> None:
        """Not upstream's text: the start state of a pair, or an attempt that follows a step."""
        self.connection.execute(START, {"worker": worker, "id": task_id})
        self.connection.commit()

    @finalizing
    def complete(self, task_id: str) -> str:
        """A plain task that returned a value: one statement."""
        channel = {"notify_channel": "task_queue_default", "notify_payload": f"capacity:{task_id}"}
        owner = {"task_id": task_id, "worker_id": WORKER, "claimed_at": None}
        return self._terminalize(persistence._COMPLETE_TASK_FUSED_SQL, {**owner, "result": RESULT, **channel})

    @finalizing
    def fail(self, task_id: str) -> str:
        """A task that failed for good: its row is locked, the attempt recorded, the end recorded."""
        if not self._lock(task_id):
            self.connection.rollback()
            return "MISSED"
        self._record_attempt(task_id, will_retry=False)
        return self._terminalize(
            persistence._FAIL_LOCKED_TASK_SQL,
            {
                "task_id": task_id,
                "worker_id": WORKER,
                "result": FAILURE,
                "error_code": "TASK_EXCEPTION",
                "failed_reason": None,
            },
        )

    @finalizing
    def retry(self, task_id: str) -> str:
        """A task that failed and is tried again by its retry policy."""
        if not self._lock(task_id):
            self.connection.rollback()
            return "MISSED"
        scheduled = self._run(
            sql.SCHEDULE_TASK_RETRY_SQL,
            {"id": task_id, "wid": WORKER, "retry_count": 1, "next_retry_at": "2026-01-01T00:00:00+00:00"},
        )
        self._record_attempt(task_id, will_retry=True)
        self.connection.commit()
        return "SCHEDULED" if scheduled else "MISSED"

    def expire(self) -> int:
        """The reaper's pass over what is past its good_until."""
        rows = self._run(
            persistence._EXPIRE_PENDING_TASKS_SQL,
            {"batch_size": 100, "result": FAILURE, "error_code": "TASK_EXPIRED"},
        )
        self.connection.commit()
        return len(rows)

    def claim(self) -> int:
        rows = self._run(
            sql.HORSIES_CLAIM_SQL,
            {
                "p_worker_id": WORKER,
                "p_queues": '["default"]',
                "p_queue_priority": '{"default": 1}',
                "p_queue_max_concurrency": "{}",
                "p_hard_cap_mode": True,
                "p_processes": 4,
                "p_prefetch_buffer": 0,
                "p_max_claim_per_worker": 0,
                "p_max_claim_batch": 0,
                "p_cluster_wide_cap": None,
                "p_lease_ms": 60_000,
                "p_lock_keys": "[]",
            },
        )
        self.connection.commit()
        return len(rows)

    def _lock(self, task_id: str) -> bool:
        owner = {"id": task_id, "wid": WORKER, "claimed_at": None}
        return bool(self._run(sql.SELECT_RUNNING_TASK_CONTEXT_FOR_UPDATE_SQL, owner))

    def _record_attempt(self, task_id: str, *, will_retry: bool) -> None:
        self._run(
            sql.UPSERT_TASK_ATTEMPT_SQL,
            {
                "task_id": task_id,
                "attempt": 1,
                "outcome": "FAILED",
                "will_retry": will_retry,
                "started_at": "2026-01-01T00:00:00+00:00",
                "finished_at": "2026-01-01T00:00:01+00:00",
                "error_code": "TASK_EXCEPTION",
                "error_message": "no",
                "failed_reason": None,
                "worker_id": WORKER,
                "worker_hostname": "node-1",
                "worker_pid": 7,
                "worker_process_name": "SpawnProcess-1",
            },
        )

    def _terminalize(self, clause: Any, params: Mapping[str, Any]) -> str:
        ((outcome,),) = [(row["outcome"],) for row in self._run(clause, params)]
        if outcome == "APPLIED":
            self.connection.commit()
        else:
            self.connection.rollback()
        return str(outcome)

    def _run(self, clause: Any, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        cursor = self.connection.cursor()
        cursor.execute(driver_text(clause.text, self._id_type), params)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in (cursor.fetchall() if cursor.description else [])]


def driver_text(text: str, id_type: str) -> bytes:
    """SQLAlchemy's ``:name`` as the driver has it; ids of the older generation are no uuids."""
    named = re.sub(r"(?<!:):([a-z_][a-z_0-9]*)", r"%(\1)s", text.replace("%", "%%"))
    return re.sub(r"\bAS uuid\)", f"AS {id_type})", named, flags=re.IGNORECASE).encode()
