"""Sequences that end with a wrong outcome: each test states what is promised, and fails."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_horsies.client.ledger import prune_ledger
from airflow_horsies.client.repairing import request_repair
from airflow_horsies.core.batch import BatchSpec
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import cancelling
from airflow_horsies.ledger.item_pages import cancel_item
from airflow_horsies.ledger.latest import Deployment
from airflow_horsies.models import SubmitOutcome, TaskSpec, TaskState
from airflow_horsies.operators import HorsiesBatchOperator
from airflow_horsies.sensors import HorsiesSensor
from airflow_horsies.wire.statements import Wire
from tests.integration.chunk_rig import INSTANCE, NOON, end, run, sql, start, submit, tried, write
from tests.integration.releases import MOVED
from tests.integration.test_chunks import codes, outcomes, policy, send
from tests.integration.test_operator_changes import context, defer
from tests.integration.test_triggers import CONN_ID, store_connection
from tests.integration.worker_rig import MakeRig, Rig

pytest.importorskip("horsies")

SENT, ADOPTED, KEPT = SubmitOutcome.SENT, SubmitOutcome.ADOPTED, SubmitOutcome.KEPT

pytestmark = [pytest.mark.usefixtures("release"), pytest.mark.parametrize("release", [MOVED], indirect=True)]


@pytest.fixture(autouse=True)
def stored_connection(
    monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, request: pytest.FixtureRequest
) -> None:
    if "hook" in request.fixturenames:
        store_connection(monkeypatch, postgres, request.getfixturevalue("database"))


def repair(hook: HorsiesHook, *, clear_number: int = 0, items: list[int] | None = None) -> None:
    request_repair(hook.client, INSTANCE, clear_number=clear_number, requested_by="ann", items=items)


def cleared(number: int = 2, **more: Any) -> Any:
    return tried(number, **{"max_tries": 2 + number, "clear_number": 1, **more})


# -- H3: an upgrade of one side ----------------------------------------------------------------------------------------

# What HorsiesBatchTrigger of the former release accepts (f057b27).
FORMER_TRIGGER = {
    *("task_instance", "life", "horsies_conn_id", "deadline", "queue_deadline", "cancel_on_kill", "max_failures"),
    *("size", "namespace", "seen", "deferred_at"),
}


def test_a_plain_batch_can_wait_in_a_triggerer_of_the_former_release(hook: HorsiesHook) -> None:
    """Neither chunks nor counts are asked for: nothing here needs the new release of the triggerer."""
    operator = HorsiesBatchOperator(
        task_id="load", task_name="add", items=[{"a": 1}], horsies_conn_id=CONN_ID, deferrable=True,
        inline_wait=timedelta(0),
    )  # fmt: skip
    _, kwargs = defer(operator).serialize()
    assert kwargs.keys() <= FORMER_TRIGGER


# -- H4: a run that was made again -------------------------------------------------------------------------------------


def test_a_request_of_a_deleted_run_is_not_taken_by_the_run_made_again(hook: HorsiesHook) -> None:
    """Before Airflow 3.3 there is no key of the run. The request's run is deleted before its clear has submitted, the
    run is made again under its id, its first try dies before it submits, and its second one submits."""
    (chunk,) = submit(hook, range(2), at=tried(run_key=None)).task_ids
    run(hook, chunk, 1)
    repair(hook)
    remade = tried(2, run_key=None, run_started_at=NOON + timedelta(hours=1), clear_number=0)
    assert submit(hook, range(2), at=remade).outcomes == {SENT: 2}


# -- H5: a repair of single items --------------------------------------------------------------------------------------


def test_a_repair_of_one_item_does_not_run_another_that_was_cancelled(hook: HorsiesHook) -> None:
    """Item 2 was cancelled on the page, and its chunk ended before the worker had recorded that."""
    (chunk,) = submit(hook, range(3), 3).task_ids
    start(hook, chunk)
    write(hook, chunk, {0: 0, 1: "BROKEN"})
    deployment = Deployment(hook.client.namespace, hook.settings.base_url)
    wire = Wire(hook.client.schema)
    hook.client.run(lambda: cancel_item(wire, deployment, INSTANCE, chunk, 2))
    assert hook.read_states([chunk])[chunk] is TaskState.CANCELLED
    repair(hook, items=[1])
    assert submit(hook, range(3), 3, at=cleared()).outcomes == {ADOPTED: 1, SENT: 1, KEPT: 1}


# -- H7


def test_a_retry_within_a_repair_of_one_item_runs_only_that(hook: HorsiesHook) -> None:
    """The process of the repair dies, and Airflow retries: the user still asked for item 1 alone."""
    (chunk,) = submit(hook, range(3), 3).task_ids
    run(hook, chunk, 1, 2)
    repair(hook, items=[1])
    assert submit(hook, range(3), 3, at=cleared()).outcomes == {ADOPTED: 1, SENT: 1, KEPT: 1}
    again = submit(hook, range(3), 3, at=cleared(3, max_tries=4))
    assert SENT not in again.outcomes


# -- H6: completed items with a cancel request -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["retry", "repair"])
@pytest.mark.parametrize("chunk_size", [None, 1], ids=["tasks", "chunks"])
def test_completed_items_do_not_run_again_after_an_interrupted_release(
    hook: HorsiesHook, chunk_size: int | None, how: str
) -> None:
    """A release of many tasks first records requests for all of them; its process is killed before it goes on."""
    ids = submit(hook, range(3), chunk_size).task_ids
    for task_id in ids[:2]:
        if chunk_size is None:
            end(hook, task_id)
        else:
            run(hook, task_id)
    release = partial(
        cancelling.release_tasks,
        namespace=hook.client.namespace,
        task_instance=INSTANCE,
        task_ids=list(ids),
        try_number=1,
        later=True,
    )
    hook.client.write(release)
    if how == "repair":
        repair(hook)
    again = submit(hook, range(3), chunk_size, at=tried(2) if how == "retry" else cleared())
    assert again.outcomes == {ADOPTED: 2, SENT: 1}


# -- H8: sensors -------------------------------------------------------------------------------------------------------


def test_a_sensor_by_id_does_not_succeed_over_an_item_that_failed(hook: HorsiesHook) -> None:
    """The failed item of the chunk was sent again, in a chunk that the sensor was not told of and that has not run."""
    (chunk,) = submit(hook, range(2)).task_ids
    run(hook, chunk, 1)
    sensor = HorsiesSensor(task_id="wait", task_ids=[chunk], horsies_conn_id=CONN_ID)
    with pytest.raises(AirflowFailException):
        sensor.poke(context())
    submit(hook, range(2), at=tried(2))
    with pytest.raises(AirflowFailException):
        sensor.poke(context())


# -- H9: bounds --------------------------------------------------------------------------------------------------------


def test_the_record_of_a_chunk_that_never_ran_is_pruned(hook: HorsiesHook) -> None:
    (chunk,) = hook.enqueue_items(TaskSpec(task_name="add"), [{"a": 1}], chunk_size=1)
    sql(hook, "DELETE FROM horsies_tasks WHERE id = %s", chunk)
    prune_ledger(hook.client, older_than=timedelta(0))
    assert sql(hook, "SELECT count(*) FROM airflow_horsies.chunks") == [(0,)]


# -- on a real worker --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("hunt", app="hunt_tasks:app", processes=2)


# -- H1: the value of other work


def test_a_retry_within_a_chunk_gets_the_arguments_that_were_sent(rig: Rig, tmp_path: Path) -> None:
    """The first try changes what it was given. A task of its own is decoded anew for each attempt."""
    given = {"order": {"rows": [1, 2, 3, 4]}, "folder": str(tmp_path)}
    alone = rig.wait(rig.send("consume", retry_for=["FLAKY"], key="alone", **given))
    assert alone.result and alone.result.ok == 10
    task = rig.wait(send(rig, "consume", [{**given, "key": "item"}], retry_policy=policy(["FLAKY"], [1])))
    (row,) = outcomes(rig, task.id)
    assert (row["outcome"], row["tries"], json.loads(row["value"])) == ("COMPLETED", 2, 10)


# -- H2: an outcome that cannot be written


@pytest.mark.parametrize("how", ["enum", "surrogate", "NUL"])
def test_an_odd_error_code_fails_only_its_item(rig: Rig, how: str) -> None:
    task = rig.wait(send(rig, "odd_code", [{}, {"how": how}, {}]))
    assert [row["outcome"] for row in outcomes(rig, task.id)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert task.error_code == "ITEMS_FAILED", codes(outcomes(rig, task.id))


# -- H10: an item that is dropped while it runs


def test_an_item_that_is_removed_and_asked_for_again_does_not_run_twice(rig: Rig, tmp_path: Path) -> None:
    """It runs when it is removed, and still when it is asked for again. A task of its own would be stopped."""
    file = tmp_path / "lines"

    def ask(keys: str, number: int) -> tuple[str, ...]:
        items: list[dict[str, Any]] = [{"seconds": 5, "file": str(file), "key": key} for key in keys]
        batch = BatchSpec(task=TaskSpec(task_name="work"), items=items, chunk_size=2)
        return rig.hook.client.submit_batch(batch, INSTANCE, tried(number)).task_ids

    ask("ab", 1)
    rig.until(lambda: file.exists() and "a began" in file.read_text(), "the start")
    ask("b", 2)
    ids = ask("ab", 3)
    rig.hook.wait(list(ids), timeout_seconds=60)
    assert file.read_text().splitlines().count("a ended") == 1
