"""What is edited, cleared, reordered, killed or lost while a chunked batch is under way, on real databases.

An item with an outcome does not run again in its life, a clear runs everything, and a value belongs to the arguments
that were asked for, wherever its item stands and whatever task ran it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_horsies.client import batches as client_batches
from airflow_horsies.client.ledger import prune_ledger
from airflow_horsies.core.batch import BatchSpec
from airflow_horsies.exceptions import ChunksUnsupported, InvalidTask, StaleSubmission, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import batches
from airflow_horsies.models import SubmitOutcome, TaskSpec, TaskState
from tests.integration.chunk_rig import (
    INSTANCE,
    NOON,
    batch,
    end,
    interrupt_release,
    items_of,
    run,
    sql,
    start,
    submit,
    tried,
    values_of,
    write,
)
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED

SENT, REATTACHED, ADOPTED = SubmitOutcome.SENT, SubmitOutcome.REATTACHED, SubmitOutcome.ADOPTED

pytestmark = [pytest.mark.usefixtures("release"), pytest.mark.parametrize("release", [MOVED], indirect=True)]


def sizes(hook: HorsiesHook) -> list[int]:
    return [size for (size,) in sql(hook, "SELECT size FROM airflow_horsies.chunks ORDER BY places[1], size")]


def live(hook: HorsiesHook) -> int:
    return int(sql(hook, "SELECT count(*) FROM horsies_tasks")[0][0])


# -- the first submission ---------------------------------------------------------------------------------------------


def test_items_are_sent_in_chunks_and_their_values_are_in_order(hook: HorsiesHook) -> None:
    sent = submit(hook, range(5))
    assert (sent.size, len(sent.task_ids), sent.outcomes, sent.is_chunked) == (5, 3, {SENT: 5}, True)
    assert sizes(hook) == [2, 2, 1]
    rows = sql(hook, "SELECT DISTINCT task_name, queue_name FROM airflow_horsies.submissions")
    assert rows == [("add[]", "default")]
    for task_id in sent.task_ids:
        run(hook, task_id)
    assert values_of(hook, 5) == [0, 10, 20, 30, 40]


def test_a_chunk_carries_what_the_worker_needs(hook: HorsiesHook) -> None:
    spec = batch([1, 2], timeout=timedelta(seconds=7))
    hook.client.submit_batch(replace(spec, isolate="item"), INSTANCE, tried())
    ((name, kwargs, options),) = sql(hook, "SELECT task_name, kwargs::json, task_options::json FROM horsies_tasks")
    assert name == "add[]"
    assert kwargs == {"items": [{"a": 1}, {"a": 2}], "timeout_ms": 7000, "retry_policy": None, "isolate": "item"}
    assert options["timeout_ms"] == 74_000


def test_a_first_submission_is_a_handful_of_statements(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(hook, range(3), at=tried())
    ran: list[str] = []
    submit_batch = batches.submit_batch

    def counting(*args: Any, **kwargs: Any) -> Any:
        script = submit_batch(*args, **kwargs)
        rows = None
        while True:
            try:
                statement = script.send(rows)
            except StopIteration as stop:
                return stop.value
            ran.append(statement.sql)
            rows = yield statement

    monkeypatch.setattr(batches, "submit_batch", counting)
    sent = hook.client.submit_batch(batch(range(1_000), 50), replace(INSTANCE, task_id="another"), tried())
    assert len(sent.task_ids) == 20
    assert len(ran) <= 8


def test_chunks_are_split_by_bytes_too(make_hook: MakeHook) -> None:
    hook = make_hook(extra={"max_payload_bytes": 1_024})
    items = [{"text": "x" * 250} for _ in range(6)]
    hook.client.submit_batch(BatchSpec(task=TaskSpec(task_name="add"), items=items, chunk_size=100), INSTANCE, tried())
    assert sizes(hook) == [3, 3]
    assert sql(hook, "SELECT max(length(kwargs)) <= 1024 FROM horsies_tasks") == [(True,)]
    with pytest.raises(InvalidTask, match=r"item 1: kwargs: are 1,0\d\d bytes"):
        large = [{"text": "x"}, {"text": "x" * 1_000}]
        hook.client.submit_batch(
            BatchSpec(task=TaskSpec(task_name="add"), items=large, chunk_size=2), INSTANCE, tried()
        )


def test_equal_items_are_each_run(hook: HorsiesHook) -> None:
    sent = submit(hook, [7, 7, 7])
    assert submit(hook, [7, 7, 7], at=tried(2)).outcomes == {REATTACHED: 3}
    for task_id in sent.task_ids:
        run(hook, task_id)
    assert submit(hook, [7, 7, 7, 7], at=tried(3)).outcomes == {ADOPTED: 3, SENT: 1}


# -- retries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [2, 3, 1, None, 100])
def test_a_retry_runs_only_what_did_not_complete_whatever_the_chunk_size_is_now(
    hook: HorsiesHook, chunk_size: int | None
) -> None:
    first, second, third = submit(hook, range(6)).task_ids
    run(hook, first)
    run(hook, second, 3)
    start(hook, third)
    write(hook, third, {0: 40})
    again = submit(hook, range(6), chunk_size, at=tried(2))
    assert again.outcomes == {ADOPTED: 4, REATTACHED: 1, SENT: 1}
    assert set(again.task_ids) >= {first, second, third}
    (new,) = set(again.task_ids) - {first, second, third}
    run(hook, third)
    if chunk_size is None:
        end(hook, new)
        assert [item.value for item in items_of(hook, 6)] == [0, 10, 20, 1, 40, 50]
    else:
        run(hook, new)
        assert values_of(hook, 6) == [0, 10, 20, 30, 40, 50]
    assert submit(hook, range(6), chunk_size, at=tried(3)).outcomes == {ADOPTED: 6}


def test_a_batch_of_tasks_that_becomes_chunked_runs_nothing_again(hook: HorsiesHook) -> None:
    tasks = submit(hook, range(4), None).task_ids
    assert len(tasks) == 4
    end(hook, tasks[0])
    end(hook, tasks[1], TaskState.FAILED)
    again = submit(hook, range(4), 2, at=tried(2))
    assert again.outcomes == {ADOPTED: 1, SENT: 1, REATTACHED: 2}
    assert again.task_ids[0] == tasks[0]
    run(hook, again.task_ids[1])
    end(hook, tasks[2])
    end(hook, tasks[3])
    assert [item.value for item in items_of(hook, 4)] == [1, 10, 1, 1]
    back = submit(hook, range(4), None, at=tried(3))
    assert back.outcomes == {ADOPTED: 4}
    assert back.task_ids == again.task_ids


def test_a_second_retry_counts_the_rounds_of_an_item(hook: HorsiesHook) -> None:
    for number in range(1, 4):
        sent = submit(hook, [1, 2], at=tried(number))
        run(hook, sent.task_ids[-1], 2)
    assert sql(hook, "SELECT rounds FROM airflow_horsies.chunks ORDER BY rounds") == [([2],), ([3],), (None,)]
    assert [item.state for item in items_of(hook, 2)] == [TaskState.COMPLETED, TaskState.FAILED]


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.CANCELLED])
def test_items_without_an_outcome_have_that_of_their_chunk(hook: HorsiesHook, state: TaskState) -> None:
    (chunk,) = submit(hook, range(4), 4).task_ids
    start(hook, chunk)
    write(hook, chunk, {0: 0, 2: 20})
    end(hook, chunk, state)
    assert [item.state for item in items_of(hook, 4)] == [TaskState.COMPLETED, state] * 2
    assert submit(hook, range(4), 4, at=tried(2)).outcomes == {ADOPTED: 2, SENT: 2}


@pytest.mark.parametrize("chunk_size", [None, 1], ids=["tasks", "chunks"])
def test_a_request_to_cancel_that_came_too_late_changes_nothing(hook: HorsiesHook, chunk_size: int | None) -> None:
    ids = submit(hook, range(3), chunk_size).task_ids
    for task_id in ids[:2]:
        end(hook, task_id) if chunk_size is None else run(hook, task_id)
    interrupt_release(hook, ids)
    assert submit(hook, range(3), chunk_size, at=tried(2)).outcomes == {ADOPTED: 2, SENT: 1}


def test_a_task_that_completed_before_a_request_to_cancel_was_carried_out_is_adopted(hook: HorsiesHook) -> None:
    task = TaskSpec(task_name="add", kwargs={"a": 1})
    first = hook.submit_task(task, INSTANCE, tried())
    interrupt_release(hook, [first.task_id])
    assert hook.submit_task(task, INSTANCE, tried(2)).outcome is SENT
    second = hook.submit_task(task, INSTANCE, tried(2)).task_id
    end(hook, second)
    interrupt_release(hook, [second])
    assert hook.submit_task(task, INSTANCE, tried(3)).outcome is ADOPTED


# -- edits -------------------------------------------------------------------------------------------------------------


def test_reordered_items_keep_their_values(hook: HorsiesHook) -> None:
    for task_id in submit(hook, range(5)).task_ids:
        run(hook, task_id)
    assert submit(hook, [4, 2, 0, 1, 3], at=tried(2)).outcomes == {ADOPTED: 5}
    assert values_of(hook, 5) == [40, 20, 0, 10, 30]


def test_edited_items_are_sent_and_the_old_ones_dropped_or_cancelled(hook: HorsiesHook) -> None:
    first, second, third = submit(hook, range(6)).task_ids
    again = submit(hook, [0, 7, 8, 9, 4, 5], at=tried(2))
    assert again.outcomes == {REATTACHED: 3, SENT: 3}
    dropped = dict(sql(hook, "SELECT horsies_task_id::text, dropped FROM airflow_horsies.chunks WHERE dropped <> '{}'"))
    assert dropped == {first: [1]}
    assert hook.read_task(second).state is TaskState.CANCELLED
    assert hook.read_task(third).state is TaskState.PENDING
    for task_id in again.task_ids:
        run(hook, task_id)
    assert values_of(hook, 6) == [0, 70, 80, 90, 40, 50]


def test_fewer_items_release_the_rest_and_bring_them_back(hook: HorsiesHook) -> None:
    first, second = submit(hook, range(4)).task_ids
    run(hook, first)
    start(hook, second)
    assert submit(hook, [0, 2], at=tried(2)).outcomes == {ADOPTED: 1, REATTACHED: 1}
    back = submit(hook, range(4), at=tried(3))
    # The dropped item is sent again, because its chunk does not run it any more; the completed one is not.
    assert back.outcomes == {ADOPTED: 2, REATTACHED: 1, SENT: 1}
    for task_id in back.task_ids[1:]:
        run(hook, task_id)
    assert values_of(hook, 4) == [0, 10, 20, 30]


def test_an_empty_batch_cancels_everything(hook: HorsiesHook) -> None:
    sent = submit(hook, range(4))
    assert submit(hook, [], at=tried(2)).size == 0
    assert {hook.read_task(task_id).state for task_id in sent.task_ids} == {TaskState.CANCELLED}
    with pytest.raises(TaskNotFound, match="Found 0 items of the batch"):
        hook.client.read_batch(INSTANCE, life=1, size=4)


def test_another_task_never_gets_the_summary_of_a_chunk(hook: HorsiesHook) -> None:
    """An operator whose class is edited asks for the same work, but cannot read an item."""
    (chunk,) = submit(hook, [1, 2]).task_ids
    single = hook.submit_task(TaskSpec(task_name="add", kwargs={"a": 1}), INSTANCE, tried(2))
    assert single.outcome is SENT
    assert hook.read_task(chunk).state is TaskState.CANCELLED


def test_a_task_with_other_arguments_is_another_item(hook: HorsiesHook) -> None:
    run(hook, submit(hook, [1, 2]).task_ids[0])
    assert submit(hook, [1, 3], at=tried(2)).outcomes == {ADOPTED: 1, SENT: 1}


# -- lives -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "later",
    [
        tried(2, max_tries=4),
        tried(2, clear_number=1),
        tried(1, run_key="another run", run_started_at=NOON + timedelta(days=1)),
    ],
    ids=["clear", "clear of the run", "run made again"],
)
def test_a_new_life_sends_everything_and_cancels_live_chunks(hook: HorsiesHook, later: Any) -> None:
    first, second = submit(hook, range(4)).task_ids
    run(hook, first)
    start(hook, second)
    again = submit(hook, range(4), at=later)
    assert (again.outcomes, again.life) == ({SENT: 4}, 2)
    assert hook.read_task(second).state is TaskState.CANCELLED
    assert sql(hook, "SELECT count(*) FROM airflow_horsies.signals") == [(1,)]
    with pytest.raises(StaleSubmission):
        submit(hook, range(4))
    for task_id in again.task_ids:
        run(hook, task_id)
    assert values_of(hook, 4, life=2) == [0, 10, 20, 30]


def test_two_tries_at_once_send_one_batch(make_hook: MakeHook) -> None:
    hooks = [make_hook() for _ in range(6)]
    submit(hooks[0], [99], at=tried())
    with ThreadPoolExecutor() as pool:
        sent = list(pool.map(lambda hook: submit(hook, range(40), 4, at=tried(2)), hooks))
    assert len({each.task_ids for each in sent}) == 1
    assert sum(each.outcomes.get(SENT, 0) for each in sent) == 40
    assert live(hooks[0]) == 10


# -- losses ------------------------------------------------------------------------------------------------------------


def test_chunks_whose_record_was_lost_are_found_by_their_ids(hook: HorsiesHook) -> None:
    first, second, third = submit(hook, range(6)).task_ids
    run(hook, first)
    run(hook, second, 3)
    for table in ("submissions", "chunks"):
        sql(hook, f"DELETE FROM airflow_horsies.{table}")
    again = submit(hook, range(6))
    assert again.outcomes == {ADOPTED: 3, REATTACHED: 2, SENT: 1}
    assert set(again.task_ids) > {first, second, third}
    for task_id in again.task_ids[2:]:
        run(hook, task_id)
    assert values_of(hook, 6) == [0, 10, 20, 30, 40, 50]


def test_a_missing_outcome_of_a_completed_chunk_is_an_error(hook: HorsiesHook) -> None:
    (chunk,) = submit(hook, [1, 2]).task_ids
    run(hook, chunk)
    sql(hook, "DELETE FROM airflow_horsies.items WHERE number = 1")
    with pytest.raises(TaskNotFound, match=f"Item 1 of chunk {chunk} has no recorded outcome, but its chunk has compl"):
        items_of(hook, 2)


def test_a_part_of_a_batch_is_an_error(hook: HorsiesHook) -> None:
    submit(hook, range(4))
    sql(hook, "UPDATE airflow_horsies.chunks SET places[1] = -1 WHERE places[1] = 2")
    with pytest.raises(TaskNotFound, match="Found 3 items of the batch in the airflow_horsies tables, expected 4"):
        hook.client.read_batch(INSTANCE, life=1, size=4)
    with pytest.raises(TaskNotFound):
        hook.client.read_batch(INSTANCE, life=2, size=4)


def test_a_killed_submitter_leaves_all_or_nothing(hook: HorsiesHook) -> None:
    submit(hook, [99])
    numbers = range(60)
    for round_ in range(12):
        later = tried(1, clear_number=round_ + 1)
        child = os.fork()
        if not child:
            try:
                submit(HorsiesHook(connection=hook.connection), numbers, 5, at=later)
            finally:
                os._exit(0)
        time.sleep(random.uniform(0.0, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        again = submit(hook, numbers, 5, at=later)
        assert again.outcomes in ({SENT: 60}, {REATTACHED: 60})
        assert live(hook) == 12
        assert len(hook.client.read_batch(INSTANCE, life=again.life, size=60)) == 60


def test_records_of_chunks_are_pruned_with_their_task(hook: HorsiesHook) -> None:
    first, second = submit(hook, range(4)).task_ids
    run(hook, first)
    run(hook, second)
    sql(hook, "DELETE FROM horsies_task_history WHERE task_id = %s", first)
    prune_ledger(hook.client, older_than=timedelta(0))
    for table in ("chunks", "items", "submissions"):
        left = sql(hook, f"SELECT DISTINCT horsies_task_id::text FROM airflow_horsies.{table}")
        assert left == [(second,)]


# -- workers -----------------------------------------------------------------------------------------------------------


def put_worker(hook: HorsiesHook, pid: int, *, started: str = "1 hour", features: str | None = None) -> None:
    sql(
        hook,
        "INSERT INTO horsies_worker_states (worker_id, snapshot_at, hostname, pid, queues, processes,"
        " tasks_running, tasks_claimed, worker_started_at, max_claim_batch, max_claim_per_worker)"
        " VALUES (%s, now(), 'here', %s, '{default}', 2, 0, 0, now() - %s::interval, 1, 1)",
        f"worker {pid}",
        pid,
        started,
    )
    if features is not None:
        sql(
            hook,
            "INSERT INTO airflow_horsies.workers (hostname, pid, release, features) VALUES ('here', %s, '9', %s)",
            pid,
            features,
        )


@pytest.mark.parametrize("tables", ["new", "old"])
def test_a_worker_that_does_not_know_chunks_is_an_error_before_anything_is_sent(
    hook: HorsiesHook, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_batches, "STARTING_SECONDS", 0.6 if tables == "new" else 60)
    submit(hook, [99])
    if tables == "old":
        sql(hook, "UPDATE airflow_horsies.migrations SET applied_at = now() - interval '1 day'")
    put_worker(hook, 1, features="{chunks}")
    assert submit(hook, [1, 2], at=tried(2)).outcomes == {SENT: 2}
    put_worker(hook, 2, features="{}")
    with pytest.raises(ChunksUnsupported, match="1 of 2 live workers of queue 'default' cannot run chunks; the f"):
        submit(hook, [1, 2, 3, 4], at=tried(3))
    # What is under way needs no new chunk.
    assert submit(hook, [1, 2], at=tried(3)).outcomes == {REATTACHED: 2}
    assert submit(hook, [1, 2, 3], None, at=tried(3)).outcomes == {REATTACHED: 2, SENT: 1}
    assert sql(hook, "SELECT count(*) FROM horsies_tasks WHERE task_name = 'add[]'") == [(1,)]


def test_a_record_of_an_earlier_process_with_the_same_number_does_not_count(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_batches, "STARTING_SECONDS", 0.1)
    submit(hook, [99])
    put_worker(hook, 1, features="{chunks}")
    sql(hook, "UPDATE airflow_horsies.workers SET seen_at = now() - interval '2 hours'")
    with pytest.raises(ChunksUnsupported):
        submit(hook, [1, 2], at=tried(2))


def test_a_worker_that_has_just_started_gets_a_moment(make_hook: MakeHook) -> None:
    hook = make_hook()
    submit(hook, [99])
    put_worker(hook, 1, started="0 s")
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(submit, make_hook(), [1, 2], at=tried(2))
        time.sleep(1)
        assert not sending.done()
        sql(hook, "INSERT INTO airflow_horsies.workers VALUES ('here', 1, '9', '{chunks}')")
        assert sending.result(timeout=10).outcomes == {SENT: 2}


def test_auto_aims_at_the_measured_duration(hook: HorsiesHook) -> None:
    (chunk,) = submit(hook, range(10), 10).task_ids
    run(hook, chunk)
    sql(hook, "UPDATE airflow_horsies.items SET started_at = finished_at - interval '300 ms'")
    other = replace(INSTANCE, task_id="another")
    sent = hook.client.submit_batch(batch(range(100), "auto"), other, tried())
    assert len(sent.task_ids) == 20
    put_worker(hook, 1, features="{chunks}")
    third = replace(INSTANCE, task_id="third")
    assert len(hook.client.submit_batch(batch(range(4), "auto"), third, tried()).task_ids) == 2


def test_counting_replaced_items_does_not_pair_all_chunks_with_each_other(hook: HorsiesHook) -> None:
    ids = list(submit(hook, range(4_000), 2).task_ids)
    sql(hook, "UPDATE airflow_horsies.chunks SET places[1] = -1 WHERE horsies_task_id = %s", ids[0])
    sql(hook, "ANALYZE airflow_horsies.submissions, airflow_horsies.chunks")
    began = time.monotonic()
    hook.client.count_items(ids)
    plain = time.monotonic() - began
    began = time.monotonic()
    hook.client.count_items(ids, ids)
    assert time.monotonic() - began < 5 * plain + 0.2
