"""HorsiesBatchOperator in chunks on a real database, with a worker that is played by SQL."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_horsies.client.client import Client
from airflow_horsies.client.ledger import prune_ledger
from airflow_horsies.client.repairing import request_repair
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import BatchFailed, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState, latest_task_ids
from airflow_horsies.operators import HorsiesBatchOperator
from airflow_horsies.operators.outcomes import TaskTimedOut
from airflow_horsies.sensors import HorsiesSensor
from airflow_horsies.triggers import batch as batch_trigger
from airflow_horsies.triggers.sensing import HorsiesSensorTrigger, HorsiesSubmissionTrigger
from tests.integration import chunk_rig as rig
from tests.integration.chunk_rig import INSTANCE, sql, start, write
from tests.integration.releases import MOVED
from tests.integration.test_operator_changes import context, defer
from tests.integration.test_triggers import CONN_ID, event_of, run, soon, store_connection

pytestmark = [pytest.mark.usefixtures("release"), pytest.mark.parametrize("release", [MOVED], indirect=True)]


@pytest.fixture(autouse=True)
def stored_connection(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, database: str) -> None:
    store_connection(monkeypatch, postgres, database)


def batch(size: int = 6, **given: Any) -> HorsiesBatchOperator:
    items = [{"a": number} for number in range(size)]
    waiting = {"horsies_conn_id": CONN_ID, "deferrable": True, "inline_wait": timedelta(0), "chunk_size": 2}
    return HorsiesBatchOperator(**{"task_id": "load", "task_name": "add", "items": items, **waiting, **given})


def ids_of(hook: HorsiesHook) -> list[str]:
    return latest_task_ids(hook.read_submissions(INSTANCE))


def finish(hook: HorsiesHook, operator: HorsiesBatchOperator, *failing: int, results: str = "values") -> Any:
    """Defer, run the chunks, and resume on another copy of the task."""
    trigger = defer(operator)
    for task_id in ids_of(hook):
        rig.run(hook, task_id, *failing)
    return batch(results=results).execute_complete(context(), run(event_of(trigger)))


def test_values_counts_and_reference(hook: HorsiesHook) -> None:
    assert finish(hook, batch()) == [0, 10, 20, 30, 40, 50]
    # A retry with another wish adopts everything.
    for results, expected in (("counts", {"COMPLETED": 6}), ("values", [0, 10, 20, 30, 40, 50])):
        again = batch(deferrable=False, results=results)
        assert again.execute(context(try_number=2)) == expected
    reference = batch(deferrable=False, results="reference").execute(context(try_number=3))
    assert (reference["size"], reference["counts"]) == (6, {"COMPLETED": 6})
    assert list(HorsiesHook(CONN_ID).read_values(reference)) == [0, 10, 20, 30, 40, 50]
    sql(hook, "UPDATE airflow_horsies.chunks SET places[1] = -1 WHERE places[1] = 0")
    with pytest.raises(TaskNotFound, match="Found 5 items of the batch"):
        list(HorsiesHook(CONN_ID).read_values(reference))


def test_counts_and_reference_need_no_chunks(hook: HorsiesHook) -> None:
    for task_id in defer_and_list(hook, batch(3, chunk_size=None)):
        rig.end(hook, task_id)
    asked = {"chunk_size": None, "deferrable": False}
    assert batch(3, results="counts", **asked).execute(context(try_number=2)) == {"COMPLETED": 3}
    reference = batch(3, results="reference", **asked).execute(context(try_number=3))
    assert list(HorsiesHook(CONN_ID).read_values(reference)) == [1, 1, 1]


def defer_and_list(hook: HorsiesHook, operator: HorsiesBatchOperator) -> list[str]:
    defer(operator)
    return ids_of(hook)


@pytest.mark.parametrize(
    ("results", "now", "expected"),
    [
        ("counts", "values", {"COMPLETED": 5, "FAILED": 1}),
        ("values", "counts", [0, 10, 20, None, 40, 50]),
    ],
)
def test_what_was_asked_for_is_returned_though_the_dag_changed_meanwhile(
    hook: HorsiesHook, results: str, now: str, expected: Any
) -> None:
    assert finish(hook, batch(results=results, max_failures=1), 3, results=now) == expected


def test_too_many_failures_name_the_first_item(hook: HorsiesHook) -> None:
    with pytest.raises(BatchFailed, match=r"2 of 6 items .* first is item 3: BROKEN: it was BROKEN\.") as failed:
        finish(hook, batch(max_failures=1), 3, 4)
    assert failed.value.error_code == "BROKEN"
    assert failed.value.task_id == ids_of(hook)[1]


def test_allowed_failures_are_values_of_none(hook: HorsiesHook) -> None:
    assert finish(hook, batch(min_success=4), 3, 4) == [0, 10, 20, None, None, 50]


def test_a_retry_runs_only_what_failed(hook: HorsiesHook) -> None:
    with pytest.raises(BatchFailed):
        finish(hook, batch(), 3)
    operator = batch(chunk_size=10)
    before = set(ids_of(hook))
    trigger = defer_at_try(operator, 2)
    (new,) = set(ids_of(hook)) - before
    rig.run(hook, new)
    assert batch().execute_complete(context(try_number=2), run(event_of(trigger))) == [0, 10, 20, 30, 40, 50]
    assert sql(hook, "SELECT size FROM airflow_horsies.chunks WHERE horsies_task_id = %s", new) == [(1,)]


def defer_at_try(operator: HorsiesBatchOperator, number: int) -> Any:
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context(try_number=number))
    return deferred.value.trigger


def test_trigger_fires_when_an_item_fails_in_a_chunk_that_goes_on(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_trigger, "POLL_SECONDS", 0.3)
    trigger = defer(batch())
    first, second, _ = ids_of(hook)
    start(hook, first)
    write(hook, first, {0: "BROKEN"})
    event = run(event_of(trigger))
    assert event["reason"] == "decided"
    with pytest.raises(BatchFailed, match=r"1 of 6 items .* 5 items had not ended\. Unfinished tasks were cancelled\."):
        batch().execute_complete(context(), event)
    assert hook.read_task(second).state is TaskState.CANCELLED


def test_trigger_stores_no_items_and_what_older_releases_stored_still_works(hook: HorsiesHook) -> None:
    trigger = defer(batch(200, chunk_size=50))
    path, stored = trigger.serialize()
    assert len(str(stored)) < 700
    stored.pop("size")
    for task_id in ids_of(hook):
        rig.run(hook, task_id)
    event = run(event_of(type(trigger)(**stored)))
    assert path == "airflow_horsies.triggers.HorsiesBatchTrigger"
    assert batch().execute_complete(context(), event) == [10 * number for number in range(200)]


@pytest.mark.parametrize("lost", ["places", "a chunk", "all"])
def test_a_part_of_a_batch_is_an_error_in_the_trigger_too(hook: HorsiesHook, lost: str) -> None:
    trigger = defer(batch())
    if lost == "places":
        sql(hook, "UPDATE airflow_horsies.chunks SET places[1] = -1 WHERE places[1] = 0")
    else:
        which = ids_of(hook) if lost == "all" else ids_of(hook)[:1]
        sql(hook, "DELETE FROM airflow_horsies.submissions WHERE horsies_task_id = ANY(%s::uuid[])", which)
    event = run(event_of(trigger))
    assert (event["reason"], "items of the batch" in event["message"]) == ("not_found", True)
    with pytest.raises(TaskNotFound):
        batch().execute_complete(context(), event)


# -- time-outs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [[0, 1], [0]])
def test_a_time_out_that_finds_all_items_done_is_a_success(hook: HorsiesHook, writes: list[int]) -> None:
    """A chunk ends a moment after its last item."""
    trigger = defer(batch(2))
    trigger.deadline = soon()
    (chunk,) = ids_of(hook)
    start(hook, chunk)
    write(hook, chunk, {number: 10 * number for number in writes})
    event = run(event_of(trigger))
    assert event["reason"] == "timed_out"
    if len(writes) == 2:
        assert batch(2).execute_complete(context(), event) == [0, 10]
    else:
        with pytest.raises(TaskTimedOut, match="did not end within the execution_timeout"):
            batch(2).execute_complete(context(), event)
        assert hook.read_task(chunk).state is TaskState.CANCELLED


def test_items_that_end_just_before_the_cancel_count(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = defer(batch(2))
    trigger.deadline = soon()
    (chunk,) = ids_of(hook)
    start(hook, chunk)
    event = run(event_of(trigger))
    release_tasks = Client.release_tasks

    def late(self: Client, *args: Any, **kwargs: Any) -> Any:
        write(hook, chunk, {0: 0, 1: 10})
        return release_tasks(self, *args, **kwargs)

    monkeypatch.setattr(Client, "release_tasks", late)
    assert batch(2).execute_complete(context(), event) == [0, 10]
    assert hook.read_task(chunk).state is TaskState.CANCELLED


def test_inline_wait_counts_by_item(hook: HorsiesHook) -> None:
    outcome: list[Any] = []

    def execute() -> None:
        try:
            outcome.append(batch(4, deferrable=False).execute(context()))
        except BatchFailed as failed:
            outcome.append(str(failed))

    thread = threading.Thread(target=execute)
    thread.start()
    give_up = time.monotonic() + 20
    while not (ids := ids_of(hook)) and time.monotonic() < give_up:
        time.sleep(0.05)
    rig.run(hook, ids[0], 1)
    thread.join(40)
    assert len(outcome) == 1
    assert "1 of 4 items did not complete" in outcome[0]
    assert "2 items had not ended" in outcome[0]


# -- the sensor -------------------------------------------------------------------------------------------------------


def sensor(**given: Any) -> HorsiesSensor:
    other = {"external_dag_id": INSTANCE.dag_id, "external_task_id": INSTANCE.task_id}
    return HorsiesSensor(
        **{"task_id": "s", "horsies_conn_id": CONN_ID, "external_run_id": INSTANCE.run_id, **other, **given}
    )


def test_sensor_succeeds_only_if_every_requested_item_completed(hook: HorsiesHook) -> None:
    first, second = rig.submit(hook, range(4)).task_ids
    rig.run(hook, first)
    assert sensor().poke(context()) is False
    rig.run(hook, second, 3)
    with pytest.raises(AirflowFailException, match=r"1 of 2 tasks did not end as COMPLETED"):
        sensor().poke(context())
    again = rig.submit(hook, range(4), at=rig.tried(2))
    assert sensor().poke(context()) is False
    rig.run(hook, again.task_ids[-1])
    assert sensor().poke(context()) is True
    # By the ids that the batch returned, too.
    by_id = {"external_dag_id": None, "external_task_id": None, "task_ids": list(again.task_ids)}
    assert sensor(**by_id).poke(context()) is True


def test_sensor_of_a_chunk_fails_over_an_item_that_was_sent_again_elsewhere(hook: HorsiesHook) -> None:
    """The end of a chunk does not change by what is submitted later, chunked or not."""
    (chunk,) = rig.submit(hook, range(2)).task_ids
    rig.run(hook, chunk, 1)
    by_id = {"external_dag_id": None, "external_task_id": None, "task_ids": [chunk]}
    trigger = HorsiesSensorTrigger(
        task_ids=[chunk], failed_states=["FAILED"], horsies_conn_id=CONN_ID, deadline=soon(9)
    )
    for number, chunk_size in ((1, 2), (2, 2), (3, None)):
        again = rig.submit(hook, range(2), chunk_size, at=rig.tried(number + 1)).task_ids
        with pytest.raises(AirflowFailException, match="1 of 1 task did not end as COMPLETED"):
            sensor(**by_id).poke(context())
        rig.end(hook, again[-1], TaskState.FAILED)
    assert run(event_of(trigger))["reason"] == "decided"
    # What nobody requests any more does not count.
    rig.submit(hook, range(1), at=rig.tried(5))
    assert sensor(**by_id).poke(context()) is True


def test_triggers_of_the_sensor_do_not_fire_for_a_chunk_whose_failed_item_was_repeated(hook: HorsiesHook) -> None:
    first = rig.submit(hook, range(2)).task_ids[0]
    rig.run(hook, first, 1)
    again = rig.submit(hook, range(2), at=rig.tried(2)).task_ids
    common = {"failed_states": ["FAILED"], "horsies_conn_id": CONN_ID}
    waiting = HorsiesSensorTrigger(task_ids=again, deadline=soon(), **common)
    assert run(event_of(waiting))["reason"] == "timed_out"
    instance = {"dag_id": INSTANCE.dag_id, "run_id": INSTANCE.run_id, "task_id": INSTANCE.task_id, "map_index": -1}
    by_instance = HorsiesSubmissionTrigger(task_instance=instance, poll_seconds=0.2, deadline=soon(1.5), **common)
    assert run(event_of(by_instance))["reason"] == "timed_out"
    rig.run(hook, again[-1])
    assert run(event_of(HorsiesSensorTrigger(task_ids=again, deadline=soon(9), **common)))["reason"] == "ended"


def test_trigger_of_the_sensor_counts_again_when_the_failed_item_is_no_longer_requested(hook: HorsiesHook) -> None:
    (chunk,) = rig.submit(hook, range(2)).task_ids
    rig.run(hook, chunk, 1)
    trigger = HorsiesSubmissionTrigger(
        task_instance=asdict(INSTANCE), poll_seconds=0.2, deadline=soon(6), horsies_conn_id=CONN_ID
    )

    async def submit_meanwhile() -> Any:
        event = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(1)
        again = await asyncio.to_thread(rig.submit, hook, range(1), at=rig.tried(2))
        # The same task, of which another item is requested.
        assert again.task_ids == (chunk,)
        return await event

    assert run(submit_meanwhile())["reason"] == "ended"


# -- without a task instance ------------------------------------------------------------------------------------------


def test_items_without_a_task_instance(hook: HorsiesHook) -> None:
    items = [{"a": number} for number in range(5)]
    ids = hook.enqueue_items(TaskSpec(task_name="add"), items, chunk_size=2)
    assert len(ids) == 3
    assert [item.state for item in hook.read_items(ids[0])] == [TaskState.PENDING] * 2
    for task_id in ids:
        rig.run(hook, task_id, 4)
    found = [item for task_id in ids for item in hook.read_items(task_id)]
    assert [item.value for item in found] == [0, 10, 20, 30, None]
    assert [(item.task_id, item.number) for item in found][-1] == (ids[2], 0)
    assert (found[-1].state, found[-1].error_code, found[-1].message) == (TaskState.FAILED, "BROKEN", "it was BROKEN")
    assert hook.client.count_items(ids)[ids[2]].failed == 1
    single = hook.enqueue_task(TaskSpec(task_name="add"))
    with pytest.raises(Exception, match=f"Task {single} is not a chunk, so it has no items"):
        hook.read_items(single).__next__()
    assert datetime.now(UTC) - found[0].finished_at < timedelta(minutes=5)  # type: ignore[operator]


def test_lines_have_the_place_of_their_item(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trigger = defer(batch(3, show_logs=True))
    for task_id in ids_of(hook):
        for number in (0, None):
            insert = "INSERT INTO airflow_horsies.logs VALUES (%s, 1, %s, now(), 'INFO', %s, %s)"
            sql(hook, insert, task_id, 1 if number is None else 2, f"line of {number}", number)
        rig.run(hook, task_id)
    shown: list[str] = []
    trigger._log = SimpleNamespace(log=lambda _, text, *given: shown.append(text % given), info=lambda *_: None)
    event = run(event_of(trigger))
    operator = batch(3, show_logs=True)
    monkeypatch.setattr(HorsiesBatchOperator, "log", trigger._log)
    assert operator.execute_complete(context(), event) == [0, 10, 20]
    assert sorted(shown) == [
        "[chunk 0, attempt 1] line of None",
        "[chunk 1, attempt 1] line of None",
        "[item 0, attempt 1] line of 0",
        "[item 2, attempt 1] line of 0",
    ]


@pytest.mark.parametrize("chunk_size", [2, None])
def test_a_reference_of_a_life_whose_records_are_gone_does_not_read_a_later_one(
    hook: HorsiesHook, chunk_size: int | None
) -> None:
    defer(batch(2, chunk_size=chunk_size))
    finish_all(hook, chunk_size)
    asked: dict[str, Any] = {"chunk_size": chunk_size, "deferrable": False, "results": "reference"}
    reference = batch(2, **asked).execute(context(try_number=2))
    sql(hook, "TRUNCATE horsies_task_history")
    prune_ledger(hook.client, older_than=timedelta(0))
    with pytest.raises(TaskDeferred):
        batch(items=[{"a": 7}, {"a": 8}], chunk_size=chunk_size).execute(context(try_number=3, max_tries=5))
    finish_all(hook, chunk_size)
    with pytest.raises(TaskNotFound, match=r"The batch of .* was submitted again"):
        list(HorsiesHook(CONN_ID).read_values(reference))


def finish_all(hook: HorsiesHook, chunk_size: int | None) -> None:
    for task_id in ids_of(hook):
        rig.end(hook, task_id) if chunk_size is None else rig.run(hook, task_id)


def test_a_repaired_item_that_fails_again_is_retried_if_the_others_are_allowed_to_have_failed(
    hook: HorsiesHook,
) -> None:
    with pytest.raises(BatchFailed):
        finish(hook, batch(max_failures=1), 1, 2)
    request_repair(hook.client, INSTANCE, clear_number=0, requested_by="ann", items=[2])
    cleared: list[dict[str, Any]] = [context(try_number=number, max_tries=5) for number in (2, 3)]
    for after in cleared:
        after["dag_run"].clear_number = 1
    with pytest.raises(TaskDeferred) as deferred:
        batch(max_failures=1).execute(cleared[0])
    rig.run(hook, pending(hook), 2)
    with pytest.raises(BatchFailed, match="2 of 6 items") as failed:
        batch(max_failures=1).execute_complete(cleared[0], run(event_of(deferred.value.trigger)))
    assert not isinstance(failed.value, AirflowFailException)
    with pytest.raises(TaskDeferred) as deferred:
        batch(max_failures=1).execute(cleared[1])
    rig.run(hook, pending(hook))
    values = batch(max_failures=1).execute_complete(cleared[1], run(event_of(deferred.value.trigger)))
    assert values == [0, None, 20, 30, 40, 50]


@pytest.mark.parametrize(("chunk_size", "method"), [(1, "complete_chunks"), (None, "execute_complete")])
def test_a_release_without_chunks_cannot_resume_a_chunked_batch(
    hook: HorsiesHook, chunk_size: int | None, method: str
) -> None:
    """It would take the values of chunks for those of items where there are as many: it lacks the method."""
    with pytest.raises(TaskDeferred) as deferred:
        batch(3, chunk_size=chunk_size).execute(context())
    assert deferred.value.method_name == method
    finish_all(hook, chunk_size)
    resume = getattr(batch(3, chunk_size=None), method)
    values = [0, 10, 20] if chunk_size else [1, 1, 1]
    assert resume(context(), run(event_of(deferred.value.trigger))) == values


def pending(hook: HorsiesHook) -> str:
    """The only task that waits for a worker."""
    (task_id,) = [task_id for task_id in ids_of(hook) if hook.read_task(task_id).state is TaskState.PENDING]
    return task_id
