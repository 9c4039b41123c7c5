from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Iterable
from typing import Any

import pytest

from airflow_horsies.core.batch import (
    BatchPlaces,
    BatchReference,
    BatchSpec,
    ChunkCount,
    FailureCount,
    are_over,
    choose_chunk_size,
    effective_states,
    find_tasks,
    locate_items,
)
from airflow_horsies.core.chunk import chunk_timeout, item_state
from airflow_horsies.exceptions import InvalidTask, TaskNotFound
from airflow_horsies.models import RetryPolicy, TaskInstanceKey, TaskSpec, TaskState

COMPLETED, FAILED, RUNNING = TaskState.COMPLETED, TaskState.FAILED, TaskState.RUNNING


def test_items_are_found_wherever_they_run() -> None:
    rows = [("a", 1, 1, [3, -1, 1]), ("b", 1, 0, None), ("c", 1, 2, [2])]
    found = locate_items(rows, life=1, size=4)
    assert found.page(0, 4) == [("b", -1), ("a", 2), ("c", 0), ("a", 0)]
    assert found.task_ids == ["b", "a", "c"]
    assert found.chunk_ids() == ["a", "c"]
    places = found.by_item()
    assert dict(places) == {("b", -1): 0, ("a", 2): 1, ("c", 0): 2, ("a", 0): 3}
    assert [places.get(item) for item in (("a", 1), ("a", 3), ("a", -2), ("b", 0), ("d", 0))] == [None] * 5


def test_the_places_of_a_large_batch_are_small() -> None:
    """A trigger that shows log lines keeps them as long as it waits; two integers an item are 0.8 MB."""
    ids = [f"{number:036}" for number in range(2_000)]
    tasks, numbers = array("i", [n // 50 for n in range(100_000)]), array("i", [n % 50 for n in range(100_000)])
    places = BatchPlaces(1, ids, tasks, numbers)
    tracemalloc.start()
    kept = places.by_item()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == 100_000
    assert size < 4e6, f"{size / 1e6:.1f} MB"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [("a", 1, 0, [0, 1, -1])],
        [("a", 1, 0, [0, 1]), ("b", 2, 2, [2])],
        [("a", 1, 0, [1, 2, 3])],
        [("a", 1, 0, [0, 1, 2, 3])],
        [("a", 1, 0, [0, 1, 1])],
    ],
)
def test_a_part_of_a_batch_is_an_error(rows: list[Any]) -> None:
    with pytest.raises(TaskNotFound, match="expected 3"):
        locate_items(rows, life=1, size=3)


def test_tasks_of_a_batch_are_found_without_their_items() -> None:
    found = find_tasks([("a", 1, 0, 2), ("b", 1, 2, None)], life=1, size=3)
    assert (found.task_ids, found.chunk_ids) == (("a", "b"), {"a"})
    for size, life in ((4, 1), (3, 2), (2, 1)):
        with pytest.raises(TaskNotFound):
            find_tasks([("a", 1, 0, 2), ("b", 1, 2, None)], life=life, size=size)


def failures_of(
    ended: dict[str, TaskState | None], counts: dict[str, ChunkCount], chunk_ids: Iterable[str] | None = None
) -> int:
    failures = FailureCount(counts if chunk_ids is None else chunk_ids, interval=30)
    failures.to_count(ended, now=0)
    return failures.total(counts)


def test_failures_are_counted_by_item() -> None:
    counts = {"a": ChunkCount(5, 3, 1), "b": ChunkCount(5, 3, 2), "c": ChunkCount(4, 4, 0)}
    assert failures_of({}, counts) == 3
    # The item without an outcome has that of its chunk.
    assert failures_of({"a": FAILED, "single": FAILED, "other": COMPLETED}, counts) == 5
    assert failures_of({"c": FAILED}, {"c": counts["c"]}) == 0
    # A chunk that is not recorded any more.
    assert failures_of({"a": FAILED}, {"b": counts["b"]}, chunk_ids="ab") == 3
    assert are_over({"b": RUNNING, "d": COMPLETED}, counts)
    assert not are_over({"a": RUNNING}, counts)
    assert not are_over({"single": RUNNING}, counts)
    assert effective_states({"c": FAILED, "b": FAILED}, counts) == {"c": COMPLETED, "b": FAILED}


def test_ended_chunks_are_counted_once_and_others_at_intervals() -> None:
    failures = FailureCount(["a", "b", "c"], interval=30)
    assert failures.to_count({"a": FAILED}, now=0) == ["a", "b", "c"]
    assert failures.total({"a": ChunkCount(2, 1, 1), "b": ChunkCount(2, 0, 1)}) == 2
    # All that have ended, or only what is new: it is the same.
    assert failures.to_count({"a": FAILED, "b": COMPLETED}, now=1) == []
    assert failures.total({}) == 1
    assert failures.to_count({}, now=31) == ["c"]
    assert failures.total({"c": ChunkCount(5, 1, 2)}) == 3
    assert failures.to_count({"c": FAILED}, now=32) == ["c"]
    assert failures.total({"c": ChunkCount(5, 1, 3)}) == 5
    assert failures.total({}) == 5


@pytest.mark.parametrize(
    ("items", "seconds", "slots", "size"),
    [
        (1_000, None, 0, 20),
        (1_000, 0.1, 4, 15),
        (1_000, 0.0, 0, 1_000),
        (1_000, 0.000_001, 4, 250),
        (1_000, 60, 4, 1),
        (6, 0.1, 4, 2),
        (0, None, 4, 1),
    ],
)
def test_auto_aims_at_a_second_and_a_half(items: int, seconds: float | None, slots: int, size: int) -> None:
    assert choose_chunk_size(items, seconds, slots) == size


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"chunk_size": 0}, "chunk_size: must be None, 'auto' or an integer"),
        ({"chunk_size": True}, "chunk_size: must be"),
        ({"chunk_size": "many"}, "chunk_size: must be"),
        ({"isolate": "no"}, "isolate: must be 'chunk' or 'item'"),
        ({"items": "abc"}, "items: must be a list of dicts, not str"),
        ({"task": TaskSpec(task_name="add", kwargs={"a": 1})}, "kwargs: must not be set"),
    ],
)
def test_invalid_batches_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        BatchSpec(**{"task": TaskSpec(task_name="add"), "items": [], **given})


def test_state_of_an_item_is_its_outcome_or_that_of_its_chunk() -> None:
    assert item_state("COMPLETED", FAILED) is COMPLETED
    assert item_state(None, FAILED) is FAILED


def test_time_limit_of_a_chunk_leaves_every_item_all_its_tries() -> None:
    from datetime import timedelta

    ten = timedelta(seconds=10)
    assert chunk_timeout(None, None, 5) is None
    assert chunk_timeout(ten, None, 5) == timedelta(seconds=110)
    fixed = RetryPolicy.fixed([4, 8], auto_retry_for=["BROKEN"])
    assert chunk_timeout(ten, fixed, 5) == timedelta(seconds=150 + 15 + 60)
    growing = RetryPolicy.exponential(4, max_retries=3, auto_retry_for=["BROKEN"], max_delay_seconds=10)
    assert chunk_timeout(ten, growing, 1) == timedelta(seconds=40 + 27.5 + 60)


def test_reference_comes_back_from_its_dict() -> None:
    from dataclasses import asdict

    instance = TaskInstanceKey(dag_id="d", run_id="r", task_id="t")
    reference = BatchReference(
        horsies_conn_id="c", namespace="n", task_instance=instance, life=2, size=7, counts={"COMPLETED": 7}
    )
    assert BatchReference.from_mapping(asdict(reference)) == reference
    for wrong in ({}, {"task_instance": {}}, {**asdict(reference), "more": 1}):
        with pytest.raises(InvalidTask, match="reference: must be what a batch with results='reference' returned"):
            BatchReference.from_mapping(wrong)
