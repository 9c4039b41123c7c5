"""Calls on batches, driven by both Client and AsyncClient: their items are tasks of their own, or parts of chunks."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Protocol

from airflow_horsies.client.accepting import memory_of
from airflow_horsies.client.calls import (
    FIRST_RETRY_SECONDS,
    Scope,
    canonical_ids,
    encode_tasks,
    find_class,
    migrate_ledger,
    open_gate,
    read_current,
)
from airflow_horsies.client.steps import Call, Pause, PlainTransaction, Transaction
from airflow_horsies.core import batch as rules
from airflow_horsies.core.batch import (
    AUTO,
    NO_NUMBER,
    BatchPlaces,
    BatchSpec,
    BatchTasks,
    ChunkCount,
    ItemView,
    SubmittedBatch,
    find_tasks,
    in_pages,
    item_of_task,
    locate_items,
)
from airflow_horsies.core.submission import AirflowTry, OnClear, TaskInstanceKey, require_on_clear
from airflow_horsies.core.task import TaskView
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import AccessDenied, HistoryPartitionMissing, HorsiesError
from airflow_horsies.ledger import batches, chunks
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.catalog import Doubt, Gate
from airflow_horsies.ledger.chunks import WorkersStarting
from airflow_horsies.ledger.identity import Submitter, UnknownRunKey
from airflow_horsies.ledger.senders import ChunkSender, Sender, TaskSender
from airflow_horsies.wire import chunking, cluster, reading, sending
from airflow_horsies.wire.chunking import EncodedItems
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.known import writing
from airflow_horsies.wire.statements import Wire

# How long to wait for workers that may be about to record that they run chunks. While there are no tables, they look
# for them every fifteen seconds.
STARTING_SECONDS = 20.0
# More are copied, which a pipeline cannot do.
PIPELINED_TASKS = 50
# Of a read of items with their values.
PAGE_ITEMS = 500


# -- sending -----------------------------------------------------------------------------------------------------------


def submit_batch(
    scope: Scope,
    batch: BatchSpec,
    task_instance: TaskInstanceKey,
    tried: AirflowTry,
    *,
    on_clear: OnClear | str = OnClear.ALL,
) -> Call[SubmittedBatch]:
    chosen = require_on_clear(on_clear)
    sender = yield from make_sender(scope, batch)
    settings = scope.settings
    settings.require_deployment()
    yield from migrate_ledger(scope)
    can_cancel = True
    sender.gate = Gate(memory_of(settings.database))
    gives_up_at = time.monotonic() + STARTING_SECONDS
    while True:
        submitter = Submitter(
            namespace=settings.namespace, base_url=settings.base_url, task_instance=task_instance, tried=tried
        )
        submit = partial(
            batches.submit_batch,
            submitter=submitter,
            sender=sender,
            can_cancel=can_cancel,
            on_clear=chosen,
            max_failures=batch.max_failures,
        )
        pipelined = len(sender.first_ids(submitter)) < PIPELINED_TASKS
        try:
            submitted: SubmittedBatch = yield Transaction(writing(submit), pipelined=pipelined)
            return submitted
        except UnknownRunKey as unknown:
            tried = tried.ask_about(unknown.key)
        except HistoryPartitionMissing:
            if not can_cancel:
                raise
            # Unwanted tasks are cancelled as soon as horsies can record it.
            can_cancel = False
        except WorkersStarting as starting:
            yield from _wait_for_workers(starting, gives_up_at)
        except (Doubt, AccessDenied) as error:
            yield from open_gate(scope, sender.gate, error)
            sender.gate = None


def _wait_for_workers(starting: WorkersStarting, gives_up_at: float) -> Call[None]:
    if time.monotonic() > gives_up_at:
        raise starting.problem from None
    yield Pause(FIRST_RETRY_SECONDS)


def enqueue_items(scope: Scope, batch: BatchSpec) -> Call[list[str]]:
    """Send the items in chunks, without a task instance; returns the ids of the chunks."""
    tasks, sizes = yield from _encode_chunks(scope, batch)
    yield from migrate_ledger(scope)
    gives_up_at = time.monotonic() + STARTING_SECONDS
    gate: Gate | None = Gate(memory_of(scope.settings.database))
    runs = count()

    def send(wire: Wire) -> Script[list[str]]:
        ids = [task.id for task in tasks]
        # The commit of an earlier run may have succeeded although its answer was lost.
        if next(runs) and len((yield from reading.find_commands(wire, ids))) == len(ids):
            return ids
        if gate is not None:
            yield from gate.look([(batch.task.queue, batch.task.task_name)])
        yield from chunks.require_chunk_workers(wire, batch.task.queue)
        if gate is not None:
            gate.require(tasks)
        yield from sending.insert_new_tasks(wire, tasks)
        yield chunks.record_unsubmitted(batch.task.task_name, ids, sizes)
        return ids

    while True:
        try:
            ids: list[str] = yield Transaction(writing(send), pipelined=len(tasks) < PIPELINED_TASKS)
            return ids
        except WorkersStarting as starting:
            yield from _wait_for_workers(starting, gives_up_at)
        except (Doubt, AccessDenied) as error:
            yield from open_gate(scope, gate, error)
            gate = None


def _encode_chunks(scope: Scope, batch: BatchSpec) -> Call[tuple[list[EncodedTask], list[int]]]:
    """The chunks and their sizes."""
    common = yield from encode_items(scope, replace(batch, items=()), divided=len(batch.items))
    tasks = common.encode_plain_chunks(batch.items)
    if tasks is not None:
        full, rest = divmod(len(batch.items), common.chunk_size)
        return tasks, [common.chunk_size] * full + [rest] * bool(rest)
    encoded = yield from encode_items(scope, replace(batch, chunk_size=common.chunk_size))
    parts = list(encoded.split(range(len(encoded))))
    return [encoded.encode_chunk(part) for part in parts], [len(part) for part in parts]


def make_sender(scope: Scope, batch: BatchSpec) -> Call[Sender]:
    """Validate and encode the items, so that an invalid one is found before anything is sent."""
    if batch.chunk_size is None:
        specs = [replace(batch.task, kwargs=kwargs) for kwargs in batch.items]
        return TaskSender((yield from encode_tasks(scope, specs, numbered=True)))
    return ChunkSender((yield from encode_items(scope, batch)))


def encode_items(scope: Scope, batch: BatchSpec, *, divided: int | None = None) -> Call[EncodedItems]:
    """:param divided: the number of items that "auto" divides, if they are not those of the batch."""
    size = batch.chunk_size
    encoded = chunking.encode_items(
        batch.task,
        batch.items,
        isolate=batch.isolate,
        chunk_size=size if isinstance(size, int) else rules.UNMEASURED_CHUNK_SIZE,
        max_payload_bytes=scope.settings.max_payload_bytes,
        sent_at=datetime.now(UTC),
    )
    if size == AUTO:
        encoded = replace(
            encoded, chunk_size=(yield from choose_chunk_size(batch, len(batch.items) if divided is None else divided))
        )
    if not batch.task.retention:
        key = yield from find_class(scope, batch.task.queue)
        encoded = replace(encoded, task=replace(batch.task, retention=key))
    return encoded


def choose_chunk_size(batch: BatchSpec, items: int) -> Call[int]:
    """From the durations of recent items of the task, and the slots of the workers of its queue."""
    queue = batch.task.queue

    def measure(wire: Wire) -> Script[tuple[float | None, int]]:
        workers = yield from cluster.read_workers(wire)
        slots = sum(worker.processes for worker in workers if worker.alive and queue in worker.queues)
        if (yield from ledger_schema.read_version()) < chunks.SINCE:
            return None, slots
        return (yield from chunks.measure_items(batch.task.task_name)), slots

    seconds, slots = yield Transaction(measure)
    return rules.choose_chunk_size(items, seconds, slots)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_batch(
    scope: Scope, task_instance: TaskInstanceKey, *, life: int | None, size: int | None
) -> Call[BatchPlaces]:
    """Where the items of the last submission of a task instance run; an error if some are missing."""
    settings = scope.settings
    base_url = "" if settings.is_under_way else settings.base_url
    read = partial(chunks.read_batch, settings.namespace, base_url, task_instance, life=life, size=size)
    found = yield from read_current(scope, read, otherwise=None)
    return locate_items([], life=life, size=size) if found is None else found


def read_batch_tasks(
    scope: Scope, task_instance: TaskInstanceKey, *, life: int | None, size: int | None
) -> Call[BatchTasks]:
    """As :func:`read_batch`, without the items, which may be very many."""
    settings = scope.settings
    base_url = "" if settings.is_under_way else settings.base_url
    read = partial(chunks.read_batch_tasks, settings.namespace, base_url, task_instance, life=life, size=size)
    found = yield from read_current(scope, read, otherwise=None)
    return find_tasks([], life=life, size=size) if found is None else found


def count_items(task_ids: Collection[str], among: Collection[str] | None = None) -> Call[dict[str, ChunkCount]]:
    """How far the requested items of chunks are; other tasks are omitted.

    :param among: if only these tasks count, an item that was sent again in none of them has failed.
    """
    counts: dict[str, ChunkCount] = yield PlainTransaction(partial(chunks.count_items, list(task_ids), among))
    return counts


def read_items(refs: Sequence[tuple[str, int]], tasks: Mapping[str, TaskView], *, values: bool) -> Call[list[ItemView]]:
    """The items of chunks, in the given order. The chunks were read before: they have all outcomes when they end."""
    states = {task_id: task.state for task_id, task in tasks.items()}
    codes = {task_id: task.error_code for task_id, task in tasks.items()}
    items: list[ItemView] = yield PlainTransaction(partial(chunks.read_items, refs, states, codes, values=values))
    return items


class Reads(Protocol):
    """The part of a client that reads items."""

    def read_tasks(self, task_ids: Sequence[str], /) -> dict[str, TaskView]: ...
    def read_outlines(self, task_ids: Sequence[str], /) -> dict[str, TaskView]: ...
    def read_items_of(
        self, refs: Sequence[tuple[str, int]], tasks: Mapping[str, TaskView], /, *, values: bool
    ) -> list[ItemView]: ...


def iterate_items(
    client: Reads,
    places: BatchPlaces,
    *,
    tasks: Mapping[str, TaskView] | None = None,
    are_whole: bool = False,
    values: bool = True,
) -> Iterator[ItemView]:
    """
    The items of a batch in order, read a page at a time.

    :param tasks: its tasks, if they were read before.
    :param are_whole: whether they were read with their results.
    :param values: read the values too.
    """
    for page in in_pages(len(places), PAGE_ITEMS):
        refs = places.page(page.start, len(page))
        known = _tasks_of_page(client, refs, tasks, are_whole=are_whole or not values)
        in_chunks = [ref for ref in refs if ref[1] != NO_NUMBER]
        items = iter(client.read_items_of(in_chunks, known, values=values) if in_chunks else [])
        for place, (task_id, number) in zip(page, refs, strict=True):
            if number == NO_NUMBER:
                yield item_of_task(_require(known, task_id), place)
            else:
                yield replace(next(items), place=place)


def _tasks_of_page(
    client: Reads, refs: Sequence[tuple[str, int]], tasks: Mapping[str, TaskView] | None, *, are_whole: bool
) -> dict[str, TaskView]:
    chunk_ids = list(dict.fromkeys(task_id for task_id, number in refs if number != NO_NUMBER))
    single_ids = [task_id for task_id, number in refs if number == NO_NUMBER]
    if tasks is None:
        found = client.read_outlines(chunk_ids) if chunk_ids else {}
    else:
        found = {task_id: tasks[task_id] for task_id in chunk_ids if task_id in tasks}
    if tasks is not None and are_whole:
        return found | {task_id: tasks[task_id] for task_id in single_ids if task_id in tasks}
    return found | (client.read_tasks(single_ids) if single_ids else {})


def _require(tasks: Mapping[str, TaskView], task_id: str) -> TaskView:
    if task_id not in tasks:
        raise reading.task_not_found(task_id)
    return tasks[task_id]


def iterate_items_of_chunk(client: Reads, task_id: str, size: int | None, *, values: bool) -> Iterator[ItemView]:
    """The items of one chunk in order, read a page at a time.

    :param size: the number of its items; None if it is no chunk.
    """
    wanted = require_task_id(task_id)
    if size is None:
        raise HorsiesError(
            f"Task {wanted} is not a chunk, so it has no items. Read it with read_task, or check the id and the "
            "database of the connection."
        )
    tasks = client.read_outlines(canonical_ids([wanted]))
    for page in in_pages(size, PAGE_ITEMS):
        yield from client.read_items_of([(wanted, number) for number in page], tasks, values=values)
