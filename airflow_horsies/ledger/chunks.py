"""Our records of chunks: which items they run, where these stand in their batch, and how they ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from airflow_horsies.core.batch import BatchPlaces, BatchTasks, ChunkCount, ItemView, find_tasks, locate_items
from airflow_horsies.core.chunk import CHUNK_SUFFIX, CHUNKS, item_state
from airflow_horsies.core.cluster import WorkerState
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import Row, Script, Statement, sql_text
from airflow_horsies.exceptions import ChunksUnsupported, HorsiesError, TaskNotFound, WireError
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.ledger.submissions import key_of
from airflow_horsies.wire.cluster import read_workers
from airflow_horsies.wire.encoding import COMPACT
from airflow_horsies.wire.statements import Wire

# The first version of the ledger with chunks.
SINCE = 5
WORK_BYTES = 32
# The clocks of a worker's host and of the server may differ.
CLOCK_SECONDS = 10
# A worker that started this recently, or tables that are this new: it may be about to record what it can do.
RECENT = timedelta(minutes=2)
MEASURED_SUBMISSIONS = 10_000
MEASURED_CHUNKS = 50


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The numbers of the items of a chunk that have an outcome."""

    completed: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()

    def state_of(self, number: int, chunk: TaskState | None) -> TaskState | None:
        """The state of an item; None if neither it nor its chunk is known."""
        if number in self.completed:
            return TaskState.COMPLETED
        if number in self.failed:
            return TaskState.FAILED
        return None if chunk is None else item_state(None, chunk)

    def has(self, number: int) -> bool:
        return number in self.completed or number in self.failed


def split_works(works: bytes) -> list[bytes]:
    return [works[start : start + WORK_BYTES] for start in range(0, len(works), WORK_BYTES)]


def read_outcomes(ids: Collection[str]) -> Script[dict[str, Outcomes]]:
    """Read them after the states of the chunks: all outcomes of a chunk are written before it ends."""
    if not ids:
        return {}
    rows = yield Statement(sql_text(PACKAGE, "read_outcomes"), {"ids": list(ids)})
    return {
        row["horsies_task_id"]: Outcomes(frozenset(row["completed"] or ()), frozenset(row["failed"] or ()))
        for row in rows
    }


def count_items(ids: Collection[str], among: Collection[str] | None = None) -> Script[dict[str, ChunkCount]]:
    """How far the requested items of these tasks are; tasks that are no chunks are omitted.

    :param among: if only these tasks count, an item that was sent again in none of them has failed.
    """
    if not ids or (yield from read_version()) < SINCE:
        return {}
    rows = yield Statement(sql_text(PACKAGE, "count_items"), {"ids": list(ids)})
    replaced: dict[str, int] = {}
    if among is not None and any(row["others"] for row in rows):
        params = {"ids": list(ids), "among": list(among)}
        found = yield Statement(sql_text(PACKAGE, "count_replaced_items"), params)
        replaced = {row["horsies_task_id"]: row["items"] for row in found}
    counts = {}
    for row in rows:
        lost = replaced.get(row["horsies_task_id"], 0)
        counts[row["horsies_task_id"]] = ChunkCount(row["wanted"] + lost, row["completed"], row["failed"] + lost)
    return counts


def read_batch(
    namespace: str, base_url: str, task_instance: TaskInstanceKey, *, life: int | None, size: int | None
) -> Script[BatchPlaces]:
    """Where the items of a batch run, also in tables of an older release; an error if some are missing."""
    has_chunks = (yield from read_version()) >= SINCE
    name = "read_batch" if has_chunks else "read_submissions"
    params = {**key_of(namespace, task_instance), "base_url": base_url}
    rows = yield Statement(sql_text(PACKAGE, name), params)
    latest = [
        (row["horsies_task_id"], row["life"], row["position"], row["places"] if has_chunks else None)
        for row in rows
        if has_chunks or row["is_latest"]
    ]
    return locate_items(latest, life=life, size=size)


def read_batch_tasks(
    namespace: str, base_url: str, task_instance: TaskInstanceKey, *, life: int | None, size: int | None
) -> Script[BatchTasks]:
    """As :func:`read_batch`, without the items, which may be very many."""
    has_chunks = (yield from read_version()) >= SINCE
    name = "read_batch_tasks" if has_chunks else "read_submissions"
    rows = yield Statement(sql_text(PACKAGE, name), {**key_of(namespace, task_instance), "base_url": base_url})
    latest = [
        (row["horsies_task_id"], row["life"], row["position"], row["items"] if has_chunks else None)
        for row in rows
        if has_chunks or row["is_latest"]
    ]
    return find_tasks(latest, life=life, size=size)


def read_items(
    refs: Sequence[tuple[str, int]], states: Mapping[str, TaskState], codes: Mapping[str, str | None], *, values: bool
) -> Script[list[ItemView]]:
    """The items of chunks, in the given order.

    :param refs: chunk and number of each.
    :param states: the states of the chunks, read before.
    :param codes: the error codes of the chunks, for items without an outcome.
    :param values: read the values too.
    """
    found = yield from find_outcomes(refs, values=values)
    return [
        found[ref] if ref in found else _without_outcome(ref, states.get(ref[0]), codes.get(ref[0])) for ref in refs
    ]


def find_outcomes(refs: Sequence[tuple[str, int]], *, values: bool) -> Script[dict[tuple[str, int], ItemView]]:
    """The items of chunks that have an outcome."""
    params = {"ids": [task_id for task_id, _ in refs], "numbers": [number for _, number in refs]}
    rows = yield Statement(sql_text(PACKAGE, "read_items"), {**params, "with_values": values})
    refs_of_rows = [((row["horsies_task_id"], row["number"]), row) for row in rows]
    return {ref: _decode_item(ref, row, values=values) for ref, row in refs_of_rows}


def _decode_item(ref: tuple[str, int], row: Row, *, values: bool) -> ItemView:
    task_id, number = ref
    state = TaskState(row["outcome"])
    value = None
    if values and state is TaskState.COMPLETED:
        value = _decode_value(task_id, number, row["value"])
    began, ended = row["started_at"], row["finished_at"]
    return ItemView(
        task_id=task_id,
        number=number,
        state=state,
        error_code=row["error_code"],
        message=row["error_message"],
        value=value,
        tries=row["tries"],
        attempt=row["attempt"],
        started_at=None if began is None else began.astimezone(UTC),
        finished_at=ended.astimezone(UTC),
        hostname=row["hostname"],
    )


def _decode_value(task_id: str, number: int, text: str | None) -> object:
    try:
        return json.loads(text or "")
    except ValueError:
        raise WireError(
            f"The value of item {number} of chunk {task_id} cannot be read as JSON. Upgrade airflow-horsies if a newer "
            "release wrote it."
        ) from None


def _without_outcome(ref: tuple[str, int], chunk: TaskState | None, code: str | None) -> ItemView:
    task_id, number = ref
    if chunk is None or chunk is TaskState.COMPLETED:
        raise TaskNotFound(
            f"Item {number} of chunk {task_id} has no recorded outcome, but its chunk "
            f"{'is not in the horsies database' if chunk is None else 'has completed'}. The records are past their "
            "retention or were removed, so the outcome is unknown. Clear the task instance to run the item again.",
            task_id=task_id,
        )
    return ItemView(task_id=task_id, number=number, state=item_state(None, chunk), error_code=code)


def read_sizes(ids: Collection[str]) -> Script[dict[str, int]]:
    """The number of items of each chunk; tasks that are no chunks are omitted."""
    if not ids or (yield from read_version()) < SINCE:
        return {}
    rows = yield Statement(sql_text(PACKAGE, "read_sizes"), {"ids": list(ids)})
    return {row["horsies_task_id"]: row["size"] for row in rows}


def record_unsubmitted(task_name: str, ids: Sequence[str], sizes: Sequence[int]) -> Statement:
    """Chunks that no task instance submitted. Nobody reattaches to their items, so their works are not recorded."""
    starts = [0, *accumulate(sizes)][: len(sizes)]
    params = {"task_name": task_name, "ids": list(ids), "sizes": list(sizes), "starts": starts}
    return Statement(sql_text(PACKAGE, "record_unsubmitted"), params)


# -- workers ---------------------------------------------------------------------------------------------------------


class WorkersStarting(Exception):
    """A worker may record in a moment that it runs chunks, or what else is needed. Nothing was sent."""

    def __init__(self, problem: HorsiesError) -> None:
        super().__init__(str(problem))
        self.problem = problem


def require_chunk_workers(wire: Wire, queue: str) -> Script[None]:
    """Every live worker of the queue runs chunks; a worker that does not would fail them. None may be alive."""
    yield from require_workers_with(wire, queue, CHUNKS, unsupported=_unsupported, since=SINCE)


def require_workers_with(
    wire: Wire,
    queue: str,
    feature: str,
    *,
    unsupported: Callable[[WorkerState, str, int, int], HorsiesError],
    since: int,
) -> Script[None]:
    """Every live worker of the queue has recorded the feature.

    :param unsupported: the error, of the first worker without it, the queue, their number and that of all.
    :param since: the version of the ledger with the feature: workers record it soon after a migration.
    """
    live = [worker for worker in (yield from read_workers(wire)) if worker.alive and queue in worker.queues]
    if not live:
        return
    described = [
        {"hostname": worker.hostname, "pid": worker.pid, "started_at": worker.started_at.isoformat()} for worker in live
    ]
    rows = yield Statement(
        sql_text(PACKAGE, "find_features"), {"workers": COMPACT.encode(described), "clock_seconds": CLOCK_SECONDS}
    )
    able = {(row["hostname"], row["pid"]) for row in rows if feature in row["features"]}
    unable = [worker for worker in live if (worker.hostname, worker.pid) not in able]
    if not unable:
        return
    problem = unsupported(unable[0], queue, len(unable), len(live))
    if all(datetime.now(UTC) - worker.started_at < RECENT for worker in unable) or (yield from _are_tables_new(since)):
        raise WorkersStarting(problem)
    raise problem


def _are_tables_new(since: int) -> Script[bool]:
    params = {"version": since, "seconds": RECENT.total_seconds()}
    (row,) = yield Statement(sql_text(PACKAGE, "find_new_chunks"), params)
    return bool(row["is_new"])


def _unsupported(worker: WorkerState, queue: str, count: int, live: int) -> ChunksUnsupported:
    return ChunksUnsupported(
        f"{count} of {live} live workers of queue {queue!r} cannot run chunks; the first is process {worker.pid} on "
        f"{worker.hostname}. Nothing was sent. Start the workers of the queue with a release of "
        "airflow_horsies.worker that runs chunks, or leave out chunk_size. A stopped worker counts as live for up to "
        "two minutes."
    )


def measure_items(task_name: str) -> Script[float | None]:
    """The average duration of recent items of a task in chunks, in seconds; None without measurements."""
    (row,) = yield Statement(
        sql_text(PACKAGE, "measure_items"),
        {
            "task_name": f"{task_name}{CHUNK_SUFFIX}",
            "submissions": MEASURED_SUBMISSIONS,
            "chunks": MEASURED_CHUNKS,
        },
    )
    return row["seconds"] if row["items"] else None
