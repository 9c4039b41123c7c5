"""Chunks of Spark tasks, on a real worker with a real JVM."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.test_chunks import codes, outcomes, run, send
from tests.integration.worker_rig import MakeRig, Rig

pytest.importorskip("horsies")


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("spark_chunks")


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [None if row["value"] is None else json.loads(row["value"]) for row in rows]


def test_items_share_a_session_unless_they_are_isolated(rig: Rig) -> None:
    items = [{"name": name} for name in ("a", "b")]
    _, rows = run(rig, "views", items)
    assert values(rows) == [[], ["a", "a_by_builder"]]
    _, rows = run(rig, "views", items, isolate="item")
    assert values(rows) == [[], []]
    assert rig.ok("views", name="c") == []


def test_the_attempt_has_the_metrics_of_all_items(rig: Rig) -> None:
    for isolate in ("chunk", "item"):
        task, rows = run(rig, "total", [{"day": "2026-01-02", "rows": 7}] * 3, isolate=isolate)
        assert [row["outcome"] for row in rows] == ["COMPLETED"] * 3
        (record,) = rig.records(task.id)
        assert record.metrics["jobs"] >= 3


def test_a_spark_item_that_takes_too_long_is_stopped_and_the_session_goes_on(rig: Rig) -> None:
    jvm = rig.jvm().pid
    items = [{"rows": 7}, {"rows": 10**14}, {"rows": 7}]
    _, rows = run(rig, "sum_up", items, timeout_ms=15_000)
    assert codes(rows) == [(0, "COMPLETED", None), (1, "FAILED", "TASK_TIMEOUT"), (2, "COMPLETED", None)], rows
    assert values(rows) == [21, None, 21]
    assert rig.jvm().pid == jvm
    assert rig.ok("active_jobs") == 0


def test_a_spark_error_fails_only_its_item(rig: Rig) -> None:
    alone = rig.run("fail", how="missing column")
    _, rows = run(rig, "fail", [{"how": "missing column"}, {"how": "division"}])
    assert [row["error_code"] for row in rows] == ["SPARK_ANALYSIS_ERROR", "SPARK_DATA_ERROR"]
    assert alone.result and alone.result.error
    assert rows[0]["error_message"] == alone.result.error.message


def test_a_jvm_that_dies_fails_its_item_and_the_next_ones_get_another(rig: Rig) -> None:
    jvm = rig.jvm()
    task_id = send(rig, "sum_up", [{"rows": 7}, {"rows": 10**14}, {"rows": 7}])
    rig.until(lambda: outcomes(rig, task_id), "the first outcome")
    jvm.kill()
    rig.wait(task_id)
    rows = outcomes(rig, task_id)
    assert codes(rows) == [
        (0, "COMPLETED", None),
        (1, "FAILED", "SPARK_SESSION_LOST"),
        (2, "COMPLETED", None),
    ], rows
    assert rig.jvm().pid != jvm.pid
