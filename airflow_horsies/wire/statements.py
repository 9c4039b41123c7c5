"""The statements of one database's schema: the same functions, and the same columns back, for both generations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_horsies.models import PageCursor, Slice, TaskState
from airflow_horsies.wire.copying import task_lines
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.schema import Generation, Schema
from airflow_horsies.wire.statement import CopyIn, Statement, sql_text

PACKAGE = "airflow_horsies.wire"
TASK_ID_LOCK_SPACE = 732
TASK_ID_LOCK_BUCKETS = 256
IDEMPOTENCY_WINDOW = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Wire:
    """Builds statements for the schema that was found."""

    schema: Schema

    @property
    def supports_idempotency_keys(self) -> bool:
        return self.schema.generation is Generation.MOVED

    @property
    def supports_retention_classes(self) -> bool:
        return self.schema.generation is Generation.MOVED

    def enqueue_tasks(self, tasks: Sequence[EncodedTask]) -> Statement:
        return Statement(
            self._sql("enqueue_tasks"),
            {
                "ids": [task.id for task in tasks],
                "task_names": [task.task_name for task in tasks],
                "queue_names": [task.queue_name for task in tasks],
                "priorities": [task.priority for task in tasks],
                "kwargs": [task.kwargs for task in tasks],
                "sent_ats": [task.sent_at for task in tasks],
                "delays": [task.delay_seconds for task in tasks],
                "good_untils": [task.good_until for task in tasks],
                "max_retries": [task.max_retries for task in tasks],
                "task_options": [task.task_options for task in tasks],
                "enqueue_shas": [task.enqueue_sha for task in tasks],
                "command_fingerprints": [task.command_fingerprint for task in tasks],
                "input_digests": [task.input_digest for task in tasks],
                "retention_class_keys": [task.retention_class_key for task in tasks],
                "retain_rerun_inputs": [task.retain_rerun_input for task in tasks],
                "idempotency_digests": [task.idempotency_digest for task in tasks],
                "rerun_dispositions": [task.rerun_disposition for task in tasks],
                "rerun_inputs": [task.rerun_input for task in tasks],
            },
        )

    def copy_tasks(self, tasks: Sequence[EncodedTask], now: datetime) -> CopyIn:
        """As enqueue_tasks, for many; an id that exists already is an error of the server."""
        with_commands = self.schema.generation is Generation.MOVED
        return CopyIn(self._sql("copy_tasks"), lines=task_lines(tasks, now, with_commands=with_commands))

    def read_transaction_time(self) -> Statement:
        return Statement(sql_text(PACKAGE, "read_transaction_time"))

    def lock_task_ids(self, ids: Collection[str]) -> Statement:
        buckets = sorted({int(task_id[-2:], 16) % TASK_ID_LOCK_BUCKETS for task_id in ids})
        return Statement(sql_text(PACKAGE, "lock_task_ids"), {"lock_space": TASK_ID_LOCK_SPACE, "buckets": buckets})

    def find_commands(self, ids: Collection[str]) -> Statement:
        return Statement(self._sql("find_commands"), {"ids": list(ids)})

    def claim_idempotency_keys(self, tasks: Sequence[EncodedTask]) -> Statement:
        return Statement(
            self._sql("claim_idempotency_keys"),
            {
                "ids": [task.id for task in tasks],
                "idempotency_digests": [task.idempotency_digest for task in tasks],
                "command_fingerprints": [task.command_fingerprint for task in tasks],
                "window_seconds": int(IDEMPOTENCY_WINDOW.total_seconds()),
            },
        )

    def read_tasks(self, ids: Collection[str], *, whole: bool) -> Statement:
        return Statement(self._sql("read_tasks"), {"ids": list(ids), "whole": whole})

    def read_states(self, ids: Collection[str]) -> Statement:
        return Statement(self._sql("read_states"), {"ids": list(ids)})

    def list_tasks(
        self,
        *,
        states: Collection[TaskState] | None,
        queue: str | None,
        task_name: str | None,
        error_code: str | None,
        before: PageCursor | None,
        limit: int,
        with_attempts: bool,
    ) -> Statement:
        return Statement(
            self._sql("list_tasks"),
            {
                "states": None if states is None else [state.value for state in states],
                "queue": queue,
                "task_name": task_name,
                "error_code": error_code,
                "before_at": None if before is None else before.at,
                "before_id": None if before is None else before.task_id,
                "limit": limit,
                "with_attempts": with_attempts,
            },
        )

    def find_failed(self, *, window: int, limit: int, before: PageCursor | None) -> Statement:
        return Statement(
            self._sql("find_failed"),
            {
                "window": window,
                "limit": limit,
                "before_at": None if before is None else before.at,
                "before_id": None if before is None else before.task_id,
            },
        )

    def cancel_task(self, task_id: str, states: Collection[TaskState]) -> Statement:
        name = "cancel_task" if self.schema.has_cancel_function else "cancel_task_by_update"
        return Statement(self._sql(name), {"id": task_id, "states": [state.value for state in states]})

    def read_running_task(self, task_id: str, worker_id: str, claimed_at: datetime | None) -> Statement:
        return Statement(
            sql_text(PACKAGE, "read_running_task"), {"id": task_id, "worker_id": worker_id, "claimed_at": claimed_at}
        )

    def read_queues(self) -> Statement:
        return Statement(sql_text(PACKAGE, "read_queues"))

    def read_workers(self, *, within: timedelta) -> Statement:
        return Statement(sql_text(PACKAGE, "read_workers"), {"within_seconds": int(within.total_seconds())})

    def scan_tasks(self, part: Slice) -> Statement:
        return Statement(self._sql("scan_tasks"), part.params)

    def scan_attempts(self, part: Slice) -> Statement:
        return Statement(self._sql("scan_attempts"), part.params)

    def scan_workers(self, part: Slice) -> Statement:
        return Statement(sql_text(PACKAGE, "scan_workers"), part.params)

    def sample_tasks(self, part: Slice, percent: float) -> Statement:
        return Statement(self._sql("sample_tasks"), {**part.params, "percent": percent})

    def sample_attempts(self, part: Slice, percent: float) -> Statement:
        return Statement(self._sql("sample_attempts"), {**part.params, "percent": percent})

    def sample_workers(self, part: Slice, percent: float) -> Statement:
        return Statement(sql_text(PACKAGE, "sample_workers"), {**part.params, "percent": percent})

    def tail_attempts(self, *, since: datetime | None, from_transaction: int, to_transaction: int) -> Statement:
        """What became final in transactions from one up to another; ``since`` is a time before all of it."""
        return Statement(
            self._sql("tail_attempts"),
            {"since": since, "from_transaction": from_transaction, "to_transaction": to_transaction},
        )

    def count_written(
        self, *, since: datetime | None, from_transaction: int, to_transaction: int, limit: int
    ) -> Statement:
        return Statement(
            self._sql("count_written"),
            {"since": since, "from_transaction": from_transaction, "to_transaction": to_transaction, "limit": limit},
        )

    def read_retention_classes(self) -> Statement:
        return Statement(self._sql("read_retention_classes"))

    def _sql(self, name: str) -> str:
        return sql_text(PACKAGE, f"{self.schema.generation}/{name}")
