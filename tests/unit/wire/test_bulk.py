from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import RetryPolicy, TaskSpec
from airflow_horsies.wire import bulk
from airflow_horsies.wire.bulk import encode_plain, encode_tasks, look_at
from airflow_horsies.wire.copying import task_lines
from airflow_horsies.wire.encoding import EncodedTask, encode_task

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MAX_BYTES = 600


class Text(str):
    pass


TEXTS = st.text(max_size=5) | st.sampled_from(
    ["},{", '"},{"', "\\", "\t\n", "é", "馬", "\x7f", "\\u0000", "\ud800", "x" * 500]
)
KEYS = st.sampled_from(["a", "b", "é", "__c", "__h_x", "__builtin_task_code__", "", "},{", 1]) | TEXTS
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
ODD = st.sampled_from([2**63, -(2**63), 1 << 12_000, 1 << 20_000, Text("t"), (1, 2), [1], {"b": 1, "a": {}}, {1}, NOW])
KWARGS = st.dictionaries(st.sampled_from(["a", "b", "c"]), PLAIN, max_size=3) | st.dictionaries(
    KEYS, PLAIN | ODD, max_size=3
)
SPECS = st.builds(
    TaskSpec,
    task_name=st.sampled_from(["add", "größe\t"]),
    kwargs=KWARGS | KWARGS.map(MappingProxyType),
    priority=st.sampled_from([1, 100]),
    retry_policy=st.sampled_from([None, RetryPolicy.fixed([1], auto_retry_for=["A"])]),
    good_until=st.sampled_from([None, NOW + timedelta(hours=1)]),
    delay=st.sampled_from([None, timedelta(), timedelta(seconds=9)]),
    timeout=st.sampled_from([None, timedelta(seconds=2)]),
    retention=st.sampled_from([None, "forever"]),
    retain_rerun_input=st.booleans(),
    idempotency_key=st.sampled_from([None, "k"]),
    task_id=st.none() | st.integers(0, 2**128 - 1).map(lambda number: str(uuid.UUID(int=number))),
)


def one_by_one(specs: Sequence[TaskSpec]) -> list[EncodedTask] | str:
    tasks = []
    for number, spec in enumerate(specs):
        try:
            tasks.append(encode_task(spec, max_payload_bytes=MAX_BYTES, sent_at=NOW))
        except InvalidTask as error:
            return str(InvalidTask(f"task {number}: {error.field}", error.problem))
    return tasks


def at_once(specs: Sequence[TaskSpec]) -> list[EncodedTask] | str:
    try:
        return encode_tasks(specs, max_payload_bytes=MAX_BYTES, sent_at=NOW)
    except InvalidTask as error:
        return str(error)


def rows(tasks: list[EncodedTask] | str) -> list[list[str]] | str:
    """As they are copied to both generations of the table; an id that was not given is left out."""
    if isinstance(tasks, str):
        return tasks
    return [
        [line if task.id_is_given else line[len(task.id) :] for task, line in zip(tasks, lines, strict=True)]
        for lines in (task_lines(tasks, NOW, with_commands=True), task_lines(tasks, NOW, with_commands=False))
    ]


@settings(max_examples=300)
@given(st.lists(SPECS, max_size=8), st.integers(1, 4))
def test_many_are_encoded_as_one_by_one(specs: list[TaskSpec], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "ENCODED_AT_ONCE", size)
        assert rows(at_once(specs)) == rows(one_by_one(specs))


def test_plain_arguments_take_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(bulk, "encode_task")
    kwargs: list[dict[str, Any]] = [{"b": "x", "a": 1.5}, {}, {"a": None, "__c": True}]
    tasks = encode_tasks([TaskSpec(task_name="add", kwargs=each) for each in kwargs], max_payload_bytes=99, sent_at=NOW)
    assert [task.kwargs for task in tasks] == ['{"b":"x","a":1.5}', None, '{"a":null,"__c":true}']
    assert [task.arguments for task in tasks] == [b'{"a":1.5,"b":"x"}', b"{}", b'{"__c":true,"a":null}']


def test_ids_of_a_batch_ascend_whichever_way_a_task_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "ENCODED_AT_ONCE", 2)
    specs = [TaskSpec(task_name="add", kwargs={"a": [1] if number % 3 else 1}) for number in range(50)]
    ids = [task.id for task in encode_tasks(specs, max_payload_bytes=99, sent_at=NOW)]
    assert ids == sorted(set(ids))


def test_nothing_is_encoded_as_nothing() -> None:
    assert encode_tasks([], max_payload_bytes=99, sent_at=NOW) == []


def test_list_is_encoded_with_both_orders_of_its_keys() -> None:
    items = [{"b": 1, "a": 2}, {"a": 3}]
    assert look_at(items) == (True, False)
    assert encode_plain(items, are_sorted=False) == ('[{"b":1,"a":2},{"a":3}]', '[{"a":2,"b":1},{"a":3}]', 23)
    assert look_at([{"a": 1}, {"a": "é", "b": None}]) == (True, True)
    assert look_at([{"a": [1]}]) == (False, False)
