"""Checkpoints on a real worker: over kills, over retries by horsies and by Airflow, until a clear; of items, too."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.core.batch import BatchSpec, SubmittedBatch
from airflow_horsies.models import AirflowTry, ItemView, RetryPolicy, TaskInstanceKey, TaskSpec, TaskState
from tests.integration.chunk_rig import sql
from tests.integration.worker_rig import MakeRig, Rig

pytest.importorskip("horsies")

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
CRASHES = RetryPolicy.fixed([1, 1, 1], auto_retry_for=["WORKER_CRASHED"], jitter=False)


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("checkpoints", app="signal_tasks:app", processes=1)


def instance(name: str) -> TaskInstanceKey:
    return TaskInstanceKey(dag_id="d", run_id="r", task_id=name)


def tried(number: int, *, clears: int = 0) -> AirflowTry:
    began = BEGAN + timedelta(hours=clears)
    return AirflowTry(
        try_number=number, run_started_at=began, clear_number=clears, max_tries=2 + clears, run_key="a run"
    )


def submit(
    rig: Rig,
    name: str,
    items: list[dict[str, Any]],
    at: AirflowTry,
    *,
    chunk_size: int | None = 10,
    on_clear: str = "all",
) -> SubmittedBatch:
    batch = BatchSpec(task=TaskSpec(task_name="count_up", retry_policy=CRASHES), items=items, chunk_size=chunk_size)
    sent = rig.hook.client.submit_batch(batch, instance(name), at, on_clear=on_clear)
    rig.hook.wait(sent.task_ids, timeout_seconds=180)
    return sent


def items_of(rig: Rig, sent: SubmittedBatch) -> list[ItemView]:
    (chunk_id,) = sent.task_ids
    return list(rig.hook.read_items(chunk_id))


def began_at(items: list[ItemView]) -> list[Any]:
    return [item.value["began_at"] if item.state is TaskState.COMPLETED else item.error_code for item in items]


def saved(rig: Rig, task_id: str, item: int = -1) -> str | None:
    query = "SELECT value FROM airflow_horsies.checkpoints WHERE horsies_task_id = %s AND item = %s"
    found = sql(rig.hook, query, task_id, item)
    return found[0][0] if found else None


# -- kill -9 ---------------------------------------------------------------------------------------------------------


def test_item_goes_on_where_it_was_when_its_process_was_killed(rig: Rig) -> None:
    items = [{"to": 5}, {"to": 20, "die_at": 9}, {"to": 8}]
    (task_id,) = rig.hook.enqueue_items(TaskSpec(task_name="count_up", retry_policy=CRASHES), items, chunk_size=3)
    assert rig.wait(task_id).state is TaskState.COMPLETED
    first, second, third = rig.hook.read_items(task_id)
    assert second.value == {"began_at": 10, "ended_at": 20}
    # Each item has its own: the others do not go on where the second was.
    assert (first.value["ended_at"], first.value["began_at"] in (0, 5)) == (5, True)
    assert third.value == {"began_at": 0, "ended_at": 8}


@pytest.mark.parametrize("chunked", [False, True], ids=["task", "item"])
def test_checkpoint_outlives_the_whole_worker(rig: Rig, chunked: bool) -> None:
    given = {"to": 40, "nap": 0.25}
    spec = TaskSpec(task_name="count_up", kwargs={} if chunked else given, retry_policy=CRASHES)
    if chunked:
        (task_id,) = rig.hook.enqueue_items(spec, [{"to": 2}, given], chunk_size=2)
    else:
        task_id = rig.hook.enqueue_task(spec)
    number = 1 if chunked else -1
    rig.until(lambda: int(saved(rig, task_id, number) or 0) >= 4, "some steps")
    for process in rig.family():
        # A child may have ended with the worker.
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    kept = int(saved(rig, task_id, number) or 0)
    rig.worker.stop()
    rig.worker.start()
    rig.worker.wait_live()
    task = rig.wait(task_id)
    assert task.state is TaskState.COMPLETED, task
    value = list(rig.hook.read_items(task_id))[1].value if chunked else task.result and task.result.ok
    assert value["ended_at"] == 40
    assert kept >= 4
    assert value["began_at"] >= kept, "every step that was kept is not repeated"


# -- retries and clears by Airflow -------------------------------------------------------------------------------------


def test_item_goes_on_where_it_was_when_airflow_tries_again(rig: Rig) -> None:
    items = [{"to": 4}, {"to": 8, "fail_at": 3}, {"to": 9, "fail_at": 5}]
    first = submit(rig, "again", items, tried(1))
    assert began_at(items_of(rig, first)) == [0, "AGAIN", "AGAIN"]
    second = submit(rig, "again", items, tried(2))
    places = rig.hook.client.read_batch(instance("again"), life=second.life, size=3)
    assert len(places.task_ids) == 2, "what failed is in another chunk now"
    retried = next(task_id for task_id in places.task_ids if task_id not in first.task_ids)
    assert began_at(list(rig.hook.read_items(retried))) == [4, 6]


@pytest.mark.parametrize(("before", "after"), [(10, None), (None, 10)], ids=["chunk to task", "task to chunk"])
def test_item_goes_on_where_it_was_when_the_batch_is_cut_in_another_way(
    rig: Rig, before: int | None, after: int | None
) -> None:
    name = f"from_{before}_to_{after}"
    items = [{"to": 8, "fail_at": 3}]
    submit(rig, name, items, tried(1), chunk_size=before)
    (task_id,) = submit(rig, name, items, tried(2), chunk_size=after).task_ids
    task = rig.wait(task_id)
    assert task.state is TaskState.COMPLETED, task
    value = next(rig.hook.read_items(task_id)).value if after else task.result and task.result.ok
    assert value == {"began_at": 4, "ended_at": 8}


def test_equal_items_have_a_checkpoint_each(rig: Rig) -> None:
    items = [{"to": 8, "fail_at": 3}] * 2
    first = submit(rig, "equal", items, tried(1))
    (chunk_id,) = first.task_ids
    sql(
        rig.hook, "UPDATE airflow_horsies.checkpoints SET value = '7' WHERE horsies_task_id = %s AND item = 1", chunk_id
    )
    assert began_at(items_of(rig, submit(rig, "equal", items, tried(2)))) == [4, 7]


@pytest.mark.parametrize("on_clear", ["all", "failed"], ids=["clear", "repair"])
@pytest.mark.parametrize("chunk_size", [10, None], ids=["items", "tasks"])
def test_clear_and_repair_begin_anew(rig: Rig, on_clear: str, chunk_size: int | None) -> None:
    name = f"anew_{on_clear}_{chunk_size}"
    items = [{"to": 4}, {"to": 8, "fail_at": 3}]
    submit(rig, name, items, tried(1), chunk_size=chunk_size)
    again = submit(rig, name, items, tried(2, clears=1), chunk_size=chunk_size, on_clear=on_clear)
    assert again.life == 2
    tasks = [rig.wait(task_id) for task_id in again.task_ids]
    # Had it found the checkpoint, the step that fails would be behind it.
    if chunk_size is None:
        assert [task.error_code for task in tasks] == [None, "AGAIN"]
    else:
        newest = rig.hook.client.read_batch(instance(name), life=2, size=2).task_ids[-1]
        assert began_at(list(rig.hook.read_items(newest)))[-1] == "AGAIN"


def test_items_of_another_batch_and_another_run_share_nothing(rig: Rig) -> None:
    items = [{"to": 8, "fail_at": 3}]
    submit(rig, "one", items, tried(1))
    assert began_at(items_of(rig, submit(rig, "two", items, tried(1)))) == ["AGAIN"]
