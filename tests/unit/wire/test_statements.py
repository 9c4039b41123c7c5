from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_horsies.db.statement import Statement
from airflow_horsies.models import PageCursor, TaskSpec, TaskState
from airflow_horsies.wire.encoding import encode_task
from airflow_horsies.wire.schema import Schema
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import IN_PLACE, MOVED, file_of

ID = "0198a0de-0000-7000-8000-0000000000ff"
TASK = encode_task(TaskSpec(task_name="add", task_id=ID))
CURSOR = PageCursor(at=datetime(2026, 3, 1, tzinfo=UTC), task_id=ID)


def every_statement(schema: Schema) -> list[Statement]:
    wire = Wire(schema)
    made = [
        wire.enqueue_tasks([TASK, TASK]),
        wire.lock_task_ids([ID]),
        wire.find_commands([ID]),
        wire.read_tasks([ID], whole=True),
        wire.read_states([ID]),
        wire.list_tasks(
            states={TaskState.FAILED},
            queue="q",
            task_name="n",
            error_code="E",
            before=CURSOR,
            limit=3,
            with_attempts=True,
        ),
        wire.find_failed(window=10, limit=3, before=CURSOR),
        wire.cancel_task(ID, [TaskState.PENDING]),
        wire.read_queues(),
        wire.read_workers(within=timedelta(hours=1)),
    ]
    if wire.supports_idempotency_keys:
        made.append(wire.claim_idempotency_keys([TASK]))
    if wire.supports_retention_classes:
        made.append(wire.read_retention_classes())
    return made


@pytest.mark.parametrize(
    "schema", [IN_PLACE, replace(IN_PLACE, has_cancel_function=False), MOVED], ids=["in place", "by update", "moved"]
)
def test_every_parameter_of_a_statement_is_given(schema: Schema) -> None:
    for statement in every_statement(schema):
        named = set(re.findall(r"%\((\w+)\)s", statement.sql))
        assert named <= set(statement.params), file_of(statement)


def test_both_generations_have_the_same_statements_under_their_own_folder() -> None:
    def names(schema: Schema, folder: str) -> set[str]:
        return {file_of(statement).removeprefix(f"{folder}/") for statement in every_statement(schema)}

    assert names(MOVED, "moved") - names(IN_PLACE, "in_place") == {"claim_idempotency_keys", "read_retention_classes"}
    assert names(IN_PLACE, "in_place") <= names(MOVED, "moved")


def test_release_without_a_cancel_function_is_cancelled_by_update() -> None:
    without = Wire(replace(IN_PLACE, has_cancel_function=False))
    assert file_of(without.cancel_task(ID, [TaskState.PENDING])) == "in_place/cancel_task_by_update"
    assert file_of(Wire(IN_PLACE).cancel_task(ID, [TaskState.PENDING])) == "in_place/cancel_task"


@pytest.mark.parametrize("schema", [IN_PLACE, MOVED], ids=lambda schema: schema.generation)
def test_every_column_of_a_task_that_is_sent_is_given(schema: Schema) -> None:
    statement = Wire(schema).enqueue_tasks([TASK, TASK])
    given = json.loads(statement.params["tasks"])
    columns = statement.sql.partition("AS new (")[2].partition(")")[0].split(",")
    assert len(given) == 2 and {column.split()[0] for column in columns} <= given[0].keys()


def test_ids_are_locked_by_sorted_buckets_without_repeats() -> None:
    ids = [f"0198a0de-0000-7000-8000-0000000000{end}" for end in ("ff", "0a", "ff", "01")]
    assert Wire(MOVED).lock_task_ids(ids).params["buckets"] == [0x01, 0x0A, 0xFF]


def test_filters_of_a_listing_are_null_where_not_asked_for() -> None:
    nothing = Wire(MOVED).list_tasks(
        states=None, queue=None, task_name=None, error_code=None, before=None, limit=5, with_attempts=False
    )
    assert {name for name, value in nothing.params.items() if value is not None} == {"limit", "with_attempts"}
    (asked,) = [statement for statement in every_statement(MOVED) if file_of(statement) == "moved/list_tasks"]
    assert asked.params == {
        "with_attempts": True,
        "states": ["FAILED"],
        "queue": "q",
        "task_name": "n",
        "error_code": "E",
        "before_at": CURSOR.at,
        "before_id": ID,
        "limit": 3,
    }
