"""What writers do to chunked batches, the states they begin with, and what must hold of each item afterwards."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_horsies.client.repairing import request_repair, withdraw_repair
from airflow_horsies.client.reporting import Claim, WorkerClient
from airflow_horsies.core.batch import NO_NUMBER, SubmittedBatch
from airflow_horsies.core.item import ItemOutcome
from airflow_horsies.core.submission import TRACE_PREFIX
from airflow_horsies.ledger.identity import NO_LONGER_REQUESTED
from airflow_horsies.ledger.item_pages import cancel_item
from airflow_horsies.ledger.latest import Deployment
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec, TaskState
from tests.interleavings.pairs import INSTANCE, OLD_RUN, Check, Ended, make_try
from tests.interleavings.stage import ADDRESS, Actor, Found, Stage
from tests.interleavings.upstream import WORKER

OTHER_WORKER = "worker-2"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DROPPED = "DROPPED"
IN_USE = frozenset({"PENDING", "CLAIMED", "RUNNING", "COMPLETED"})
Run = Callable[[Actor, Stage, Any], Any]


@dataclass(frozen=True)
class SentBatch:
    """What a submission of items asked for, and what it was told."""

    instance: TaskInstanceKey
    works: tuple[str, ...]
    batch: SubmittedBatch

    @property
    def ids(self) -> list[str]:
        return list(self.batch.task_ids)


# -- writers -----------------------------------------------------------------------------------------------------------


def submit_items(
    hook: Any,
    stage: Stage,
    *works: str,
    chunk_size: int | None = 2,
    try_number: int = 1,
    clears: int = 0,
    trace: str | None = None,
    on_clear: str = "all",
) -> SentBatch:
    """
    A task instance submits these items.

    :param trace: of a triggerer, which knows nothing else of the life.
    """
    tried = make_try(try_number, clears) if trace is None else make_traced_try(try_number, trace)
    items = [stage.item(work) for work in works]
    batch = hook.submit_items(
        TaskSpec(task_name="add"), items, INSTANCE, tried, chunk_size=chunk_size, on_clear=on_clear
    )
    return SentBatch(INSTANCE, works, batch)


def make_traced_try(try_number: int, trace: str) -> AirflowTry:
    key = f"{TRACE_PREFIX}{trace}"
    return AirflowTry(try_number=try_number, run_started_at=OLD_RUN, run_key=key, trace_key=key)


def submitting_items(*works: str, **fields: Any) -> Run:
    return lambda actor, stage, given: submit_items(actor.hook, stage, *works, **fields)


def reporting(*numbers: int, failed: Collection[int] = ()) -> Run:
    """The child of a worker reports what became of items of its chunk."""
    return lambda actor, stage, given: report(actor.child(), given, numbers, failed)


def reporting_and_failing(*numbers: int, failed: Collection[int] = ()) -> Run:
    """The last report of an attempt, and the end of its chunk."""

    def run(actor: Actor, stage: Stage, given: SentBatch) -> Any:
        told = report(actor.child(), given, numbers, failed)
        return told, actor.upstream().fail(given.ids[0]) if told[0] == "HELD" else "STOPPED"

    return run


def report(child: WorkerClient, sent: SentBatch, numbers: Collection[int], failed: Collection[int]) -> Any:
    ended = [make_outcome(number, None if number in failed else sent.works[number]) for number in numbers]
    news = child.report_items(claim_of(sent), ended)
    return news.claim.name, sorted(news.dropped - set(numbers))


def make_outcome(number: int, value: str | None) -> ItemOutcome:
    return ItemOutcome(
        number=number,
        outcome="FAILED" if value is None else "COMPLETED",
        attempt=1,
        tries=1,
        started_at=NOON,
        finished_at=NOON,
        error_code="TASK_EXCEPTION" if value is None else None,
        value=None if value is None else json.dumps(value),
    )


def claim_of(sent: SentBatch, worker: str = WORKER) -> Claim:
    return Claim(task_id=sent.ids[0], worker_id=worker, claimed_at=None)


def beginning_next_attempt(actor: Actor, stage: Stage, sent: SentBatch) -> Any:
    """The attempt has failed, and another worker begins the next one: it runs what has no outcome."""
    if actor.upstream().retry(sent.ids[0]) != "SCHEDULED":
        return "MISSED"
    actor.upstream().start(sent.ids[0], OTHER_WORKER)
    begun = actor.child().begin_chunk(claim_of(sent, OTHER_WORKER))
    return None if begun is None else sorted(begun.recorded)


def cancelling_item(number: int) -> Run:
    """A person cancels one item on the page of the batch."""
    deployment = Deployment("default", ADDRESS)

    def run(actor: Actor, stage: Stage, sent: SentBatch) -> Any:
        def cancel(wire: Any) -> Any:
            return cancel_item(wire, deployment, INSTANCE, sent.ids[0], number)

        return str(actor.hook.client.write(cancel))

    return run


def requesting_repair(*places: int, by: str = "somebody") -> Run:
    """A person asks that the next clear runs only what did not complete, or only the items at these places."""

    def run(actor: Actor, stage: Stage, given: Any) -> Any:
        asked = request_repair(actor.hook.client, INSTANCE, clear_number=0, requested_by=by, items=places or None)
        return asked.life, asked.items

    return run


def withdrawing_repair(actor: Actor, stage: Stage, request_id: int) -> bool:
    return withdraw_repair(actor.hook.client, INSTANCE, request_id)


# -- start states ------------------------------------------------------------------------------------------------------


def pending_items(*works: str, **fields: Any) -> Callable[[Stage], SentBatch]:
    return lambda stage: submit_items(stage.plain, stage, *works, **fields)


def running_chunk(
    *works: str, reported: Collection[int] = (), failed: Collection[int] = (), fails: bool = False, **fields: Any
) -> Callable[[Stage], SentBatch]:
    """
    All items in one chunk, which a worker runs.

    :param reported: the numbers of items that have an outcome; ``failed`` are those of them that failed.
    :param fails: the chunk has ended.
    """

    def make(stage: Stage) -> SentBatch:
        sent = submit_items(stage.plain, stage, *works, chunk_size=len(works), **fields)
        worker, child = stage.worker(), stage.child()
        worker.start(sent.ids[0])
        if reported:
            assert report(child, sent, reported, failed) == ("HELD", [])
        if fails:
            assert worker.fail(sent.ids[0]) == "APPLIED"
        child.close()
        worker.connection.close()
        return sent

    return make


def repair_requested(stage: Stage) -> int:
    """Of a chunk of which one item completed and one failed; the id of the request."""
    running_chunk("x", "y", reported=(0, 1), failed=(1,), fails=True)(stage)
    return request_repair(stage.plain.client, INSTANCE, clear_number=0, requested_by="somebody").id


def then(make: Callable[[Stage], SentBatch], *statements: str) -> Callable[[Stage], SentBatch]:
    def run(stage: Stage) -> SentBatch:
        sent = make(stage)
        for statement in statements:
            stage.watcher.execute(statement.encode())
        return sent

    return run


def running_task(stage: Stage) -> str:
    """A task that no task instance sent: it needs no ledger."""
    task_id = stage.plain.enqueue_task(stage.spec("x"))
    worker = stage.worker()
    worker.start(task_id)
    worker.connection.close()
    return task_id


# -- what must hold after an order -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    """Where an item runs or ran."""

    task_id: str
    number: int
    work: str
    state: str
    value: str | None = None


def holders_of(found: Found, *, all_places: bool = False) -> dict[int, list[Holder]]:
    """
    Of the newest life of the task instance, who has the item at each place.

    :param all_places: also those that are no longer requested, at -1.
    """
    newest = max((row["life"] for row in found.submissions), default=0)
    latest: dict[int, Mapping[str, Any]] = {}
    for row in sorted(found.submissions, key=lambda row: int(row["round"])):
        if row["life"] == newest:
            latest[row["position"]] = row
    holders = defaultdict(list)
    for row in latest.values():
        for place, holder in _held_by(row, found):
            if all_places or place != NO_LONGER_REQUESTED:
                holders[place].append(holder)
    return dict(holders)


def _held_by(row: Mapping[str, Any], found: Found) -> Iterator[tuple[int, Holder]]:
    task_id = row["horsies_task_id"]
    task, chunk = found.tasks.get(task_id), found.chunks.get(task_id)
    state = "FORGOTTEN" if task is None else task.state.value
    if chunk is None:
        place = row["position"] if row["place"] is None else row["place"]
        yield place, Holder(task_id, NO_NUMBER, "unknown" if task is None else task.work, state)
        return
    for number, (work, place) in enumerate(zip(chunk.works, chunk.places, strict=True)):
        outcome, value = found.items.get((task_id, number), (DROPPED if number in chunk.dropped else state, None))
        yield place, Holder(task_id, number, work, outcome, value)


def held(*works: str, states: Collection[str] = IN_USE) -> Check:
    """Each item has one holder, which does what was asked for, is live or has completed, and has its own value."""

    def check(ended: Ended) -> Iterator[str]:
        holders = holders_of(ended.found)
        if sorted(holders) != list(range(len(works))):
            yield f"the batch has items at {sorted(holders)}, and asked for were {len(works)}"
        for place, found in holders.items():
            yield from _held(place, found, works, states)

    return check


def _held(place: int, found: list[Holder], works: tuple[str, ...], states: Collection[str]) -> Iterator[str]:
    if len(found) != 1:
        yield f"item {place} is held by {len(found)}: {found}"
        return
    (holder,) = found
    if place < len(works) and holder.work != works[place]:
        yield f"item {place} is {works[place]}, and {holder} holds it"
    if holder.state not in states:
        yield f"item {place} is {holder.state}: {holder}"
    if holder.value is not None and json.loads(holder.value) != holder.work:
        yield f"item {place} does {holder.work}, and its value is {holder.value}"


def completed_once(ended: Ended) -> Iterator[str]:
    """What completed in the life is not sent again in it."""
    by_work = defaultdict(list)
    for found in holders_of(ended.found, all_places=True).values():
        for holder in found:
            by_work[holder.work].append(holder)
    for work, found in by_work.items():
        if len(found) > 1 and any(holder.state == TaskState.COMPLETED.value for holder in found):
            yield f"{work} completed, and was sent {len(found)} times: {found}"


def recorded_if_held(*numbers: int, by: str = "b") -> Check:
    """A report is written as a whole while the worker has the claim, and not at all without it.

    Whoever did not hear of its commit reports again, and may hear that the claim was lost after that.
    """

    def check(ended: Ended) -> Iterator[str]:
        (task_id,), (claim, _) = ended.given.ids, ended.value(by)
        recorded = [number for number in numbers if (task_id, number) in ended.found.items]
        expected = [list(numbers)] if claim == "HELD" else [[]]
        if ended.order.has_unheard_commit:
            expected.append(list(numbers))
        if recorded not in expected:
            yield f"the report was told {claim}, and recorded are {recorded} of {list(numbers)}"

    return check


def next_attempt_knows(*numbers: int) -> Check:
    """Whatever was recorded by the earlier attempt is not run by the next one."""

    def check(ended: Ended) -> Iterator[str]:
        (claim, _), known = ended.value("a"), ended.value("b")
        if claim == "HELD" and isinstance(known, list) and not set(numbers) <= set(known):
            yield f"the earlier attempt recorded {numbers}, and the next one knows {known}"

    return check


def dropped_or_ended(work: str) -> Check:
    """An item that is no longer asked for is cancelled, unless it has ended."""

    def check(ended: Ended) -> Iterator[str]:
        for task_id in ended.found.live:
            if work in ended.found.open_works(task_id):
                yield f"{work} is no longer asked for, and may still be started in {task_id}"

    return check


def repaired_or_sent_anew(ended: Ended) -> Iterator[str]:
    """A request that was taken keeps what completed; without one, all is sent."""
    (first,) = ended.given.ids
    holders = holders_of(ended.found)
    is_taken = any(row["taken_life"] is not None for row in ended.found.repairs)
    kept = sorted(place for place, found in holders.items() for holder in found if holder.task_id == first)
    if kept != ([0] if is_taken else []):
        yield f"the request was {'' if is_taken else 'not '}taken, and kept are the items {kept}"


def one_open_request(ended: Ended) -> Iterator[str]:
    """The last request is the open one; whoever did not hear of its commit makes it once more."""
    made = 2 + ended.order.has_unheard_commit
    still_open = [row["requested_by"] for row in ended.found.repairs if row["is_open"]]
    if len(ended.found.repairs) != made or len(still_open) != 1:
        yield f"of {len(ended.found.repairs)} requests, open are those of {still_open}"


def withdrawn_or_taken(ended: Ended) -> Iterator[str]:
    (row,) = ended.found.repairs
    was_withdrawn = ended.value("a")
    if row["is_open"] or was_withdrawn == (row["taken_life"] is not None):
        yield f"withdrawing said {was_withdrawn}, and the request is {row}"


def kept_single_items(ended: Ended) -> Iterator[str]:
    """Of three items, the first completed, and only the second was asked for."""
    (first,) = ended.given.ids
    holders = {place: found[0] for place, found in holders_of(ended.found).items()}
    if any(row["taken_life"] is not None for row in ended.found.repairs):
        kept = sorted(place for place, holder in holders.items() if holder.task_id == first)
        if kept != [0, 2]:
            yield f"asked for was item 1, and kept are {kept}"


def outcomes_are_kept(*numbers: int) -> Check:
    def check(ended: Ended) -> Iterator[str]:
        (task_id,) = ended.given.ids
        gone = [number for number in numbers if (task_id, number) not in ended.found.items]
        if gone or task_id not in ended.found.chunks:
            yield f"the outcomes of {gone} of chunk {task_id} are gone, which runs"

    return check
