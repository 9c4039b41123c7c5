"""The statements for the schema of a database: the same functions and result columns for both generations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_horsies.core.paging import PageCursor, Slice
from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import CopyIn, Statement, sql_text
from airflow_horsies.wire.copying import task_lines
from airflow_horsies.wire.encoding import COMPACT, EncodedTask
from airflow_horsies.wire.schema import Generation, Schema

PACKAGE = "airflow_horsies.wire"
TASK_ID_LOCK_SPACE = 732
TASK_ID_LOCK_BUCKETS = 256
IDEMPOTENCY_WINDOW = timedelta(hours=24)
# More than is displayed: a secret that is cut in the middle could not be masked.
SUMMARY_CHARS = 5_000
MOST_CHARS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Wire:
    """Builds statements for the detected schema."""

    schema: Schema

    @property
    def supports_idempotency_keys(self) -> bool:
        return self.schema.generation is Generation.MOVED

    @property
    def supports_retention_classes(self) -> bool:
        return self.schema.generation is Generation.MOVED

    @property
    def keeps_snapshots(self) -> bool:
        """Whether horsies stores the attempts of an ended task as one value."""
        return self.schema.generation is Generation.MOVED

    def enqueue_tasks(self, tasks: Sequence[EncodedTask]) -> Statement:
        """An existing id is an error of the server."""
        # One JSON value: an array per column takes the driver several times as long.
        return Statement(self._sql("enqueue_tasks"), {"tasks": COMPACT.encode([_columns(task) for task in tasks])})

    def copy_tasks(self, tasks: Sequence[EncodedTask], now: datetime) -> CopyIn:
        """As enqueue_tasks, for many tasks."""
        with_commands = self.schema.generation is Generation.MOVED
        return CopyIn(self._sql("copy_tasks"), lines=task_lines(tasks, now, with_commands=with_commands))

    def find_paused_workflows(self, workflow_id: str) -> Statement:
        return Statement(self._sql("find_paused_workflows"), {"workflow_id": workflow_id})

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

    def read_tasks(self, ids: Collection[str], *, whole: bool, message_chars: int = SUMMARY_CHARS) -> Statement:
        """:param message_chars: how much to read of each message, unless ``whole``."""
        params = {"ids": list(ids), "whole": whole, "message_chars": MOST_CHARS if whole else message_chars}
        return Statement(self._sql("read_tasks"), params)

    def read_states(self, ids: Collection[str]) -> Statement:
        return Statement(self._sql("read_states"), {"ids": list(ids)})

    def count_states(self, ids: str) -> Statement:
        """:param ids: an array as Postgres text, from our own tables."""
        return Statement(self._sql("count_states"), {"ids": ids})

    def order_tasks(
        self, ids: str, *, sort: str, descending: bool, state: TaskState | None, limit: int, offset: int
    ) -> Statement:
        """:param ids: as for :meth:`count_states`."""
        return Statement(
            self._sql("order_tasks"),
            {
                "ids": ids,
                "sort": sort,
                "descending": descending,
                "state": None if state is None else state.value,
                "limit": limit,
                "offset": offset,
            },
        )

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

    def find_workflows(self, ids: Collection[str]) -> Statement:
        return Statement(self._sql("find_workflows"), {"ids": list(ids)})

    def cancel_task(self, task_id: str, states: Collection[TaskState]) -> Statement:
        name = "cancel_task" if self.schema.has_cancel_function else "cancel_task_by_update"
        return Statement(self._sql(name), {"id": task_id, "states": [state.value for state in states]})

    def read_running_task(self, task_id: str, worker_id: str, claimed_at: datetime | None) -> Statement:
        return Statement(
            sql_text(PACKAGE, "read_running_task"), {"id": task_id, "worker_id": worker_id, "claimed_at": claimed_at}
        )

    def lock_running_task(self, task_id: str, worker_id: str, claimed_at: datetime | None) -> Statement:
        """As read_running_task; the claim cannot change before the end of the transaction."""
        return Statement(
            sql_text(PACKAGE, "lock_running_task"), {"id": task_id, "worker_id": worker_id, "claimed_at": claimed_at}
        )

    def find_claimed_tasks(self, claims: Sequence[tuple[str, str, datetime | None]]) -> Statement:
        """:param claims: the id of the task, the id of the worker, and when it claimed the task."""
        ids, worker_ids, claimed_ats = zip(*claims, strict=True)
        return Statement(
            self._sql("find_claimed_tasks"),
            {"ids": list(ids), "worker_ids": list(worker_ids), "claimed_ats": list(claimed_ats)},
        )

    def find_running_task(self, hostname: str, pid: int) -> Statement:
        return Statement(sql_text(PACKAGE, "find_running_task"), {"hostname": hostname, "pid": pid})

    def read_queues(self) -> Statement:
        return Statement(sql_text(PACKAGE, "read_queues"))

    def read_workers(self, *, within: timedelta) -> Statement:
        return Statement(sql_text(PACKAGE, "read_workers"), {"within_seconds": int(within.total_seconds())})

    def scan_tasks(self, part: Slice) -> Statement:
        return Statement(self._sql("scan_tasks"), part.params)

    def scan_attempts(self, part: Slice) -> Statement:
        return Statement(self._sql("scan_attempts"), part.params)

    def scan_live_attempts(self, part: Slice) -> Statement:
        return Statement(self._sql("scan_live_attempts"), part.params)

    def scan_ended_attempts(self, part: Slice) -> Statement:
        return Statement(self._sql("scan_ended_attempts"), part.params)

    def scan_snapshots(self, part: Slice) -> Statement:
        """Ended tasks, with all attempts of a task in one value."""
        return Statement(self._sql("scan_snapshots"), part.params)

    def scan_workers(self, part: Slice) -> Statement:
        return Statement(sql_text(PACKAGE, "scan_workers"), part.params)

    def scan_workflows(self, part: Slice) -> Statement:
        return Statement(sql_text(PACKAGE, "scan_workflows"), part.params)

    def scan_nodes(self, part: Slice) -> Statement:
        """The nodes of workflows."""
        return Statement(sql_text(PACKAGE, "scan_nodes"), part.params)

    def sample_tasks(self, part: Slice, percent: float) -> Statement:
        return Statement(self._sql("sample_tasks"), {**part.params, "percent": percent})

    def sample_attempts(self, part: Slice, percent: float) -> Statement:
        return Statement(self._sql("sample_attempts"), {**part.params, "percent": percent})

    def sample_workers(self, part: Slice, percent: float) -> Statement:
        return Statement(sql_text(PACKAGE, "sample_workers"), {**part.params, "percent": percent})

    def sample_workflows(self, part: Slice, percent: float) -> Statement:
        return Statement(sql_text(PACKAGE, "sample_workflows"), {**part.params, "percent": percent})

    def sample_nodes(self, part: Slice, percent: float) -> Statement:
        return Statement(sql_text(PACKAGE, "sample_nodes"), {**part.params, "percent": percent})

    def tail_attempts(self, *, since: datetime | None, from_transaction: int, to_transaction: int) -> Statement:
        """The attempts that a range of transactions made final; ``since`` is a time before all of them."""
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

    def of_workflows(self, name: str, /, **params: object) -> Statement:
        """A statement on the tables of workflows, which a user may lack the privileges for."""
        return Statement(self._sql(name), params)

    def _sql(self, name: str) -> str:
        return sql_text(PACKAGE, f"{self.schema.generation}/{name}")


def _columns(task: EncodedTask) -> dict[str, object]:
    """The values of one task for enqueue_tasks.sql, as JSON."""
    command = task.command
    return {
        "id": task.id,
        "task_name": command.task_name,
        "queue_name": command.queue_name,
        "priority": command.priority,
        "kwargs": task.kwargs,
        "sent_at": command.sent_at.isoformat(),
        "delay_seconds": command.delay_seconds,
        "good_until": None if command.good_until is None else command.good_until.isoformat(),
        "max_retries": command.max_retries,
        "task_options": command.task_options,
        "enqueue_sha": task.enqueue_sha,
        "command_fingerprint": _bytea(task.command_fingerprint),
        "input_digest": _bytea(task.input_digest),
        "retention_class_key": command.retention_class_key,
        "retain_rerun_input": command.retain_rerun_input,
        "idempotency_digest": _bytea(task.idempotency_digest),
        "rerun_disposition": task.rerun_disposition,
        "rerun_input": _bytea(task.rerun_input),
    }


def _bytea(value: bytes | None) -> str | None:
    return None if value is None else rf"\x{value.hex()}"
