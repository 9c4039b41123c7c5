"""Plays the worker of chunks by SQL: claims them, writes outcomes of their items, and ends them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg

from airflow_horsies.client.batches import iterate_items
from airflow_horsies.core.batch import BatchSpec, ItemView, SubmittedBatch
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import cancelling
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec, TaskState
from tests.integration.releases import MOVED
from tests.integration.test_submit import end_task

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="scheduled__2026-01-01T00:00:00+00:00", task_id="load")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def tried(number: int = 1, **more: Any) -> AirflowTry:
    return AirflowTry(**{"try_number": number, "max_tries": 2, "run_started_at": NOON, "run_key": "a run", **more})


def batch(numbers: Iterable[int], chunk_size: Any = 2, **more: Any) -> BatchSpec:
    items = [{"a": number} for number in numbers]
    return BatchSpec(task=TaskSpec(task_name="add", **more), items=items, chunk_size=chunk_size)


def submit(
    hook: HorsiesHook, numbers: Iterable[int], chunk_size: Any = 2, *, at: AirflowTry | None = None
) -> SubmittedBatch:
    return hook.client.submit_batch(batch(numbers, chunk_size), INSTANCE, at or tried())


def sql(hook: HorsiesHook, query: str, *params: Any) -> list[Any]:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        cursor = connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []


def start(hook: HorsiesHook, task_id: str) -> None:
    sql(hook, "UPDATE horsies_tasks SET status = 'RUNNING', started_at = now() WHERE id = %s", task_id)


def write(hook: HorsiesHook, task_id: str, outcomes: Mapping[int, Any]) -> None:
    """Values of completed items by number; an upper-case text is the code of one that failed."""
    for number, value in outcomes.items():
        failed = isinstance(value, str) and value.isupper()
        sql(
            hook,
            "INSERT INTO airflow_horsies.items (horsies_task_id, number, outcome, attempt, tries, started_at,"
            " finished_at, error_code, error_message, value, hostname)"
            " VALUES (%s, %s, %s, 1, 1, now() - interval '10 ms', now(), %s, %s, %s, 'here')",
            task_id,
            number,
            "FAILED" if failed else "COMPLETED",
            value if failed else None,
            f"it was {value}" if failed else None,
            None if failed else json.dumps(value),
        )


def end(hook: HorsiesHook, task_id: str, state: TaskState = TaskState.COMPLETED, release: str = MOVED) -> None:
    end_task(hook, task_id, state, release)


def run(hook: HorsiesHook, task_id: str, *failing: int) -> None:
    """Runs every item without an outcome that is not dropped: its value is ten times its argument, and those with an
    argument in ``failing`` fail."""
    (row,) = sql(hook, "SELECT kwargs FROM horsies_tasks WHERE id = %s", task_id)
    items = json.loads(row[0])["items"]
    (dropped,) = sql(hook, "SELECT dropped FROM airflow_horsies.chunks WHERE horsies_task_id = %s", task_id)
    has = {
        number
        for (number,) in sql(hook, "SELECT number FROM airflow_horsies.items WHERE horsies_task_id = %s", task_id)
    }
    start(hook, task_id)
    left = {n: item["a"] for n, item in enumerate(items) if n not in dropped[0] and n not in has}
    write(hook, task_id, {n: "BROKEN" if a in failing else 10 * a for n, a in left.items()})
    failed = sql(
        hook,
        "SELECT 1 FROM airflow_horsies.items WHERE horsies_task_id = %s AND outcome <> 'COMPLETED'",
        task_id,
    )
    end(hook, task_id, TaskState.FAILED if failed or dropped[0] else TaskState.COMPLETED)


def interrupt_release(hook: HorsiesHook, task_ids: Collection[str]) -> None:
    """A release of many tasks first records requests for all of them; its process is killed before it goes on."""
    release = partial(cancelling.release_tasks, task_instance=INSTANCE, task_ids=set(task_ids), later=True)
    hook.client.write(partial(release, namespace=hook.client.namespace))


def items_of(hook: HorsiesHook, size: int, *, life: int = 1) -> list[ItemView]:
    client = hook.client
    return list(iterate_items(client, client.read_batch(INSTANCE, life=life, size=size)))


def values_of(hook: HorsiesHook, size: int, *, life: int = 1) -> list[Any]:
    return [item.value for item in items_of(hook, size, life=life)]


def other(instance: TaskInstanceKey = INSTANCE, **changes: Any) -> TaskInstanceKey:
    return replace(instance, **changes)
