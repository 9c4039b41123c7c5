"""The pairs of writers of chunked batches: submissions, reports of items, repairs, pruning and migrations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_horsies.client.reporting import AttemptNews, Claim, StartedAttempt
from airflow_horsies.core.log import LogChunk
from airflow_horsies.exceptions import StaleSubmission, TaskNotFound
from tests.integration.releases import MOVED
from tests.interleavings.batches import (
    IN_USE,
    beginning_next_attempt,
    cancelling_item,
    completed_once,
    dropped_or_ended,
    held,
    kept_single_items,
    next_attempt_knows,
    one_open_request,
    outcomes_are_kept,
    pending_items,
    recorded_if_held,
    repair_requested,
    repaired_or_sent_anew,
    reporting,
    reporting_and_failing,
    requesting_repair,
    running_chunk,
    running_task,
    submitting_items,
    then,
    withdrawing_repair,
    withdrawn_or_taken,
)
from tests.interleavings.pairs import (
    MADE_LONG_AGO,
    OWN_READS,
    PAST_RETENTION,
    PRUNING_BEGUN,
    VERSION_READ,
    Pair,
    all_of,
    both_got_the_same,
    cancelling,
    given_ids,
    is_cancelled,
    ledger_is_whole,
    migrating,
    pruning,
    releasing,
)
from tests.interleavings.stage import Actor, Stage
from tests.interleavings.upstream import WORKER

# What a submitter reads that no other writer of these pairs changes, or only under the lock that it holds.
BATCH_READS = OWN_READS | {"read_workers", "find_recorded"}
# What follows within a transaction: nobody else sees it before the COMMIT, and nobody else waits for it.
WRITES = frozenset(
    {
        "moved/enqueue_tasks",
        "in_place/enqueue_tasks",
        "record_submissions",
        "record_chunks",
        "change_chunks",
        "move_items",
        "keep_submissions",
        "see_try",
        "read_dropped_items",
        "record_items",
    }
)
MET_BY_REPORT = BATCH_READS | WRITES
PRUNED = PRUNING_BEGUN | WRITES | {"prune_lines", "prune_items"}
ENDED_AND_LIVE = IN_USE | {"FAILED"}
HALF_DONE = running_chunk("x", "y", reported=(0, 1), failed=(1,), fails=True)
ENDED_LONG_AGO = "UPDATE airflow_horsies.items SET finished_at = now() - interval '30 days'"
BEFORE_CHUNKS = 4


def beginning_attempt(actor: Actor, stage: Stage, task_id: str) -> Any:
    """A worker of this release reports an attempt and its first line."""
    started = StartedAttempt(
        claim=Claim(task_id=task_id, worker_id=WORKER, claimed_at=None),
        hostname="node-1",
        pid=7,
        started_at=datetime.now(UTC),
    )
    line = LogChunk(first_number=1, logged_at=datetime.now(UTC), level="INFO", lines=["began"])
    begun = actor.child().begin_attempt(started, AttemptNews(lines=[line]))
    return None if begun is None else begun.number


BATCH_PAIRS = (
    Pair(
        name="chunked submit and chunked submit",
        in_both=True,
        a=submitting_items("x", "y", "z"),
        b=submitting_items("x", "y", "z"),
        check=all_of(held("x", "y", "z"), both_got_the_same),
        cuts={"a": 1},
        joined=VERSION_READ | {"read_workers"},
    ),
    Pair(
        name="chunked submit and submit with another chunk_size",
        a=submitting_items("x", "y", "z"),
        b=submitting_items("z", "x", "y", chunk_size=3, try_number=2),
        check=held("z", "x", "y"),
        may_raise={"a": (StaleSubmission,)},
        joined=BATCH_READS,
    ),
    Pair(
        name="chunked submit and submit without chunks",
        a=submitting_items("x", "y"),
        b=submitting_items("x", "y", chunk_size=None, try_number=2),
        check=held("x", "y"),
        may_raise={"a": (StaleSubmission,)},
        joined=BATCH_READS,
    ),
    Pair(
        name="chunked batch and shrunken chunked batch",
        a=submitting_items("x", "y", "z"),
        b=submitting_items("z", "x", try_number=2),
        check=all_of(held("z", "x"), dropped_or_ended("y")),
        may_raise={"a": (StaleSubmission,)},
        cuts={"a": 1},
        joined=BATCH_READS,
    ),
    Pair(
        name="shrunken chunked batch and retry of the whole one",
        is_long=True,
        given=pending_items("x", "y", "z", chunk_size=3),
        a=submitting_items("x", try_number=2),
        b=submitting_items("y", "x", try_number=2),
        may_cancel=given_ids,
    ),
    Pair(
        name="chunked retry and report of items",
        in_both=True,
        given=running_chunk("x", "y"),
        a=submitting_items("x", "y", try_number=2),
        b=reporting(0),
        check=all_of(held("x", "y"), completed_once, recorded_if_held(0)),
        joined=MET_BY_REPORT,
    ),
    Pair(
        name="chunked retry and report of a failed item",
        is_long=True,
        given=running_chunk("x", "y"),
        a=submitting_items("x", "y", try_number=2),
        b=reporting(0, 1, failed=(1,)),
        # What failed after the retry has looked is the retry's to see.
        check=all_of(held("x", "y", states=ENDED_AND_LIVE), completed_once, recorded_if_held(0, 1)),
        joined=MET_BY_REPORT,
    ),
    Pair(
        name="chunked retry with another chunk_size and the end of the chunk",
        is_long=True,
        given=running_chunk("x", "y", "z", reported=(0,)),
        a=submitting_items("x", "y", "z", chunk_size=1, try_number=2),
        b=reporting_and_failing(1, 2, failed=(2,)),
        check=all_of(held("x", "y", "z", states=ENDED_AND_LIVE), completed_once),
        joined=MET_BY_REPORT,
        # The retry may see the report, and not yet the end of its chunk.
        as_if_in_turn=False,
    ),
    Pair(
        name="cancel of a chunk and report of items",
        in_both=True,
        given=running_chunk("x", "y"),
        a=cancelling,
        b=reporting(0, 1),
        check=all_of(is_cancelled, recorded_if_held(0, 1)),
        may_cancel=given_ids,
        joined=VERSION_READ,
    ),
    Pair(
        name="release of a chunk and report of items",
        is_long=True,
        given=running_chunk("x", "y"),
        a=releasing,
        b=reporting(0, 1),
        check=all_of(is_cancelled, recorded_if_held(0, 1)),
        may_cancel=given_ids,
        joined=MET_BY_REPORT,
        cuts={"b": 1},
    ),
    Pair(
        name="next attempt of a chunk and report of items",
        in_both=True,
        given=running_chunk("x", "y"),
        a=reporting(0),
        b=beginning_next_attempt,
        joined=WRITES | {"read_recorded_items"},
        check=all_of(recorded_if_held(0, by="a"), next_attempt_knows(0)),
    ),
    Pair(
        name="clear and report of items",
        given=running_chunk("x", "y"),
        a=submitting_items("x", "y", clears=1),
        b=reporting(0, 1),
        check=all_of(held("x", "y", states=("PENDING",)), recorded_if_held(0, 1)),
        may_cancel=given_ids,
        joined=MET_BY_REPORT,
    ),
    Pair(
        name="clear that repairs and report of items",
        given=running_chunk("x", "y"),
        a=submitting_items("x", "y", clears=1, on_clear="failed"),
        b=reporting(0, 1, failed=(1,)),
        check=all_of(held("x", "y", states=ENDED_AND_LIVE), completed_once, recorded_if_held(0, 1)),
        joined=MET_BY_REPORT,
    ),
    Pair(
        name="clear that repairs and the end of the chunk",
        is_long=True,
        given=running_chunk("x", "y", "z", reported=(0,)),
        a=submitting_items("x", "y", "z", clears=1, on_clear="failed"),
        b=reporting_and_failing(1, 2, failed=(2,)),
        check=all_of(held("x", "y", "z", states=ENDED_AND_LIVE), completed_once),
        joined=MET_BY_REPORT,
        as_if_in_turn=False,
    ),
    Pair(
        name="shrunken chunked batch and report of items",
        in_both=True,
        given=running_chunk("x", "y", "z"),
        a=submitting_items("x", "z", try_number=2),
        b=reporting(1, 2),
        check=all_of(held("x", "z"), dropped_or_ended("y"), recorded_if_held(1, 2), completed_once),
        joined=MET_BY_REPORT,
    ),
    Pair(
        name="cancel of an item and report of items",
        given=running_chunk("x", "y"),
        a=cancelling_item(1),
        b=reporting(0, 1),
        check=all_of(recorded_if_held(0, 1), dropped_or_ended("y")),
        may_cancel=given_ids,
        joined=MET_BY_REPORT,
    ),
    Pair(
        name="cancel of an item and chunked retry",
        given=running_chunk("x", "y"),
        a=cancelling_item(1),
        b=submitting_items("x", "y", try_number=2),
        check=held("x", "y", states=IN_USE | {"DROPPED"}),
        joined=BATCH_READS,
    ),
    Pair(
        name="repair request and submit of the clear",
        in_both=True,
        given=HALF_DONE,
        a=requesting_repair(),
        b=submitting_items("x", "y", clears=1),
        check=all_of(held("x", "y"), repaired_or_sent_anew),
        joined=BATCH_READS,
    ),
    Pair(
        name="repair request of one item and submit of the clear",
        given=running_chunk("x", "y", "z", reported=(0, 1, 2), failed=(1, 2), fails=True),
        a=requesting_repair(1),
        b=submitting_items("x", "y", "z", clears=1),
        check=all_of(held("x", "y", "z", states=ENDED_AND_LIVE), kept_single_items),
        joined=BATCH_READS,
    ),
    Pair(
        name="repair request and repair request",
        given=HALF_DONE,
        a=requesting_repair(1, by="one"),
        b=requesting_repair(by="another"),
        check=one_open_request,
        cuts={"a": 1},
    ),
    Pair(
        name="repair request withdrawn and submit of the clear",
        given=repair_requested,
        a=withdrawing_repair,
        b=submitting_items("x", "y", clears=1),
        check=all_of(held("x", "y"), withdrawn_or_taken),
        joined=MET_BY_REPORT,
    ),
    Pair(
        name="repair by the operator and by the operator",
        given=HALF_DONE,
        a=submitting_items("x", "y", clears=1, on_clear="failed"),
        b=submitting_items("x", "y", clears=1, on_clear="failed"),
        check=all_of(held("x", "y"), both_got_the_same, completed_once),
        joined=VERSION_READ | {"read_workers"},
        cuts={"a": 1},
    ),
    Pair(
        name="prune and report of items",
        given=then(running_chunk("x", "y", reported=(0,)), MADE_LONG_AGO, ENDED_LONG_AGO),
        a=pruning,
        b=reporting(1),
        check=outcomes_are_kept(0, 1),
        joined=PRUNED,
    ),
    Pair(
        name="prune and chunked retry",
        is_long=True,
        given=then(running_chunk("x", "y", reported=(0,)), MADE_LONG_AGO, ENDED_LONG_AGO, PAST_RETENTION),
        a=pruning,
        b=submitting_items("x", "y", try_number=2),
        may_raise={"b": (TaskNotFound,)},
        forgets=True,
        joined=PRUNED | BATCH_READS | {"probe_schema", "lock_task_instance", "read_outcomes"},
        as_if_in_turn=False,
    ),
    Pair(
        name="prune and chunked clear",
        given=then(running_chunk("x", "y", reported=(0,)), MADE_LONG_AGO, ENDED_LONG_AGO, PAST_RETENTION),
        a=pruning,
        b=submitting_items("x", "y", clears=1),
        check=held("x", "y"),
        forgets=True,
        is_long=True,
        joined=PRUNED | BATCH_READS,
    ),
    Pair(
        name="migrate and chunked submit",
        releases=(MOVED,),
        is_long=True,
        from_ledger=BEFORE_CHUNKS,
        knows_ledger=False,
        a=migrating,
        b=submitting_items("x", "y"),
        check=all_of(ledger_is_whole, held("x", "y")),
        joined=MET_BY_REPORT | {"record_migration"},
    ),
    Pair(
        name="migrate and report of an attempt",
        releases=(MOVED,),
        from_ledger=BEFORE_CHUNKS,
        knows_ledger=False,
        given=running_task,
        a=migrating,
        b=beginning_attempt,
        check=ledger_is_whole,
        loose=True,
        joined=VERSION_READ | {"record_migration", "commit_lazily"},
        is_long=True,
    ),
    Pair(
        name="worker-free start and start by another triggerer",
        a=submitting_items("x", "y", trace="one"),
        b=submitting_items("x", "y", trace="one"),
        check=all_of(held("x", "y"), both_got_the_same),
        cuts={"a": 1},
        joined=VERSION_READ | {"read_workers"},
    ),
    Pair(
        name="worker-free start by another triggerer and the end of the chunk",
        is_long=True,
        given=running_chunk("x", "y", trace="one"),
        a=submitting_items("x", "y", trace="one"),
        b=reporting_and_failing(0, 1, failed=(1,)),
        # The try goes on where it is: what failed in it is not sent again by it.
        check=all_of(held("x", "y", states=ENDED_AND_LIVE), completed_once),
        joined=MET_BY_REPORT,
        as_if_in_turn=False,
    ),
)
