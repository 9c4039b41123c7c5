"""A chunked batch through the whole road: operator, trigger, real worker, and back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_horsies.exceptions import BatchFailed
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.operators import HorsiesBatchOperator
from tests.integration.chunk_rig import sql
from tests.integration.test_operator_changes import context, defer
from tests.integration.test_triggers import CONN_ID, event_of, run, store_connection
from tests.integration.worker_rig import MakeRig, Rig

pytest.importorskip("horsies")


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("chunks_end_to_end", app="chunk_tasks:app")


@pytest.fixture(autouse=True)
def stored_connection(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    store_connection(monkeypatch, rig.postgres, rig.hook.settings.database.connect_args["dbname"])


def batch(items: list[dict[str, Any]], **given: Any) -> HorsiesBatchOperator:
    waiting = {"horsies_conn_id": CONN_ID, "deferrable": True, "inline_wait": timedelta(0)}
    return HorsiesBatchOperator(
        **{"task_id": "load", "task_name": "add", "items": items, "chunk_size": 10, **waiting, **given}
    )


def finish(operator: HorsiesBatchOperator, try_number: int = 1) -> Any:
    event = run(event_of(defer(operator)))
    return operator.execute_complete(context(try_number=try_number), event)


def items_of(count: int, failing: int | None = None) -> list[dict[str, Any]]:
    return [
        {"day": "2026-01-02", "number": number, **({"how": "fault"} if number == failing else {})}
        for number in range(count)
    ]


def test_batch_in_chunks_on_a_real_worker(rig: Rig) -> None:
    values = finish(batch(items_of(45)))
    assert [value["number"] for value in values] == list(range(45))
    assert sql(rig.hook, "SELECT count(*), sum(size) FROM airflow_horsies.chunks") == [(5, 45)]
    # Another task instance, with an item that fails and one that may.
    with pytest.raises(BatchFailed, match=r"1 of 45 items .* item 7: NO_DATA_YET: No data for 7\."):
        finish(batch(items_of(45, failing=7)))
    assert finish(batch(items_of(45, failing=7), max_failures=1, results="counts")) == {"COMPLETED": 44, "FAILED": 1}


def test_items_without_a_task_instance_on_a_real_worker(rig: Rig) -> None:
    with HorsiesHook(CONN_ID) as hook:
        ids = hook.enqueue_items(TaskSpec(task_name="nothing"), [{"number": n} for n in range(30)])
        hook.wait(ids, timeout_seconds=60)
        assert [item.value for task_id in ids for item in hook.read_items(task_id)] == list(range(30))
