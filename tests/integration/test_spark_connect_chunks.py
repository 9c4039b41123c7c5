"""Chunks of Spark tasks behind a real Spark Connect server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_horsies.embedded.spark import EmbeddedSparkConnect
from airflow_horsies.models import TaskState
from tests.integration.test_chunks import codes, outcomes, run, send
from tests.integration.test_spark_chunks import values
from tests.integration.worker_rig import MakeRig, Rig

pytest.importorskip("horsies")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, make_rig: MakeRig) -> Iterator[Rig]:
    with EmbeddedSparkConnect(tmp_path_factory.mktemp("connect")) as server:
        yield make_rig("connect_chunks", HORSIES_SPARK_MASTER=server.url)


def test_items_share_a_session_unless_they_are_isolated(rig: Rig) -> None:
    items = [{"name": name} for name in ("a", "b")]
    _, rows = run(rig, "views", items)
    assert values(rows) == [[], ["a", "a_by_builder"]]
    _, rows = run(rig, "views", items, isolate="item")
    assert values(rows) == [[], []]
    assert rig.ok("views", name="c") == []


@pytest.mark.parametrize("isolate", ["chunk", "item"])
def test_the_attempt_has_the_metrics_of_all_items(rig: Rig, isolate: str) -> None:
    # A server tells every two seconds what runs, and of what ends between only at times.
    (alone,) = rig.records(rig.run("sleep_in_a_stage", ms=5000).id)
    task, rows = run(rig, "sleep_in_a_stage", [{"ms": 5000}] * 3, isolate=isolate)
    assert [row["outcome"] for row in rows] == ["COMPLETED"] * 3
    (record,) = rig.records(task.id)
    assert (alone.metrics["stages"], record.metrics["stages"]) == (1, 3)
    (after,) = rig.records(rig.run("sleep_in_a_stage", ms=5000).id)
    assert after.metrics["stages"] == 1


def test_an_item_that_takes_too_long_is_stopped_on_the_server_and_the_session_goes_on(rig: Rig) -> None:
    items = [{"rows": 7}, {"rows": 10**14}, {"rows": 7}]
    _, rows = run(rig, "sum_up", items, timeout_ms=15_000)
    assert codes(rows) == [(0, "COMPLETED", None), (1, "FAILED", "TASK_TIMEOUT"), (2, "COMPLETED", None)], rows
    assert values(rows) == [21, None, 21]


def test_an_error_of_the_server_fails_only_its_item(rig: Rig) -> None:
    alone = rig.run("fail", how="missing column")
    _, rows = run(rig, "fail", [{"how": "missing column"}, {"how": "division"}])
    assert [row["error_code"] for row in rows] == ["SPARK_ANALYSIS_ERROR", "SPARK_DATA_ERROR"]
    assert alone.result and alone.result.error
    assert rows[0]["error_message"] == alone.result.error.message


def test_a_cancelled_chunk_stops_on_the_server_and_keeps_its_outcomes(rig: Rig) -> None:
    task_id = send(rig, "sum_up", [{"rows": 7}, {"rows": 10**14}, {"rows": 7}])
    rig.until(lambda: outcomes(rig, task_id), "the first outcome")
    rig.hook.cancel_task(task_id)
    rig.until(lambda: next((each for each in rig.records(task_id) if each.finished_at), None), "the end")
    assert codes(outcomes(rig, task_id)) == [(0, "COMPLETED", None)]
    assert rig.ok("sum_up", rows=7) == 21


def test_a_server_that_died_fails_the_items_that_met_it(
    tmp_path_factory: pytest.TempPathFactory, make_rig: MakeRig
) -> None:
    with EmbeddedSparkConnect(tmp_path_factory.mktemp("mortal")) as server:
        rig = make_rig("mortal_connect_chunks", HORSIES_SPARK_MASTER=server.url)
        task_id = send(rig, "sum_up", [{"rows": 7}, {"rows": 10**14}, {"rows": 7}])
        rig.until(lambda: outcomes(rig, task_id), "the first outcome")
        for process in server.processes:
            process.stop()
        task = rig.wait(task_id)
    assert (task.state, task.error_code) == (TaskState.FAILED, "ITEMS_FAILED")
    assert codes(outcomes(rig, task_id)) == [
        (0, "COMPLETED", None),
        (1, "FAILED", "SPARK_SESSION_LOST"),
        (2, "FAILED", "SPARK_SESSION_LOST"),
    ]
