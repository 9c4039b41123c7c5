from __future__ import annotations

import time
from typing import Any

from airflow_horsies.core.batch import MAX_CHUNK_SIZE
from airflow_horsies.core.task import TaskState
from airflow_horsies.ledger.batches import Known


def seconds_to_sort(dropped: list[int]) -> float:
    known = Known({"a task": TaskState.RUNNING})
    row: Any = {"horsies_task_id": "a task", "dropped": dropped}
    began = time.perf_counter()
    open_numbers = [number for number in range(MAX_CHUNK_SIZE) if known.is_open(row, number)]
    assert len(open_numbers) == MAX_CHUNK_SIZE - len(dropped)
    return time.perf_counter() - began


def test_a_chunk_with_many_dropped_items_takes_no_longer_than_one_without() -> None:
    without = min(seconds_to_sort([]) for _ in range(3))
    assert min(seconds_to_sort(list(range(0, MAX_CHUNK_SIZE, 2))) for _ in range(3)) < 10 * without
