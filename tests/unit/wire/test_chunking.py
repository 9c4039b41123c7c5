from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import TaskSpec
from airflow_horsies.wire.chunking import EncodedItems, encode_items, works_of_chunk
from airflow_horsies.wire.encoding import encode_task

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = TaskSpec(task_name="add")
ITEMS = st.lists(
    st.dictionaries(
        st.text("ab", min_size=1, max_size=2), st.one_of(st.integers(), st.text(max_size=3), st.lists(st.none()))
    ),
    min_size=1,
    max_size=6,
)


def encode(items: list[Any], **given: Any) -> EncodedItems:
    options = {"isolate": "chunk", "chunk_size": 2, "max_payload_bytes": 8_000, "sent_at": NOW, **given}
    return encode_items(SPEC, items, **options)


@settings(max_examples=50)
@given(items=ITEMS)
def test_items_keep_their_arguments_and_have_the_work_of_a_task(items: list[Any]) -> None:
    encoded = encode(items)
    assert encoded.works == [encode_task(TaskSpec(task_name="add", kwargs=item)).work for item in items]
    task = encoded.encode_chunk(range(len(items)))
    kwargs = json.loads(task.kwargs or "")
    assert kwargs == {"items": items, "timeout_ms": None, "retry_policy": None, "isolate": "chunk"}
    assert [list(item) for item in kwargs["items"]] == [list(item) for item in items]
    assert works_of_chunk("add", kwargs) == encoded.works
    # As a task with these arguments, so that horsies finds what it writes itself.
    whole = encode_task(TaskSpec(task_name="add[]", kwargs=kwargs), sent_at=NOW)
    assert (task.kwargs, task.input_digest, task.enqueue_sha) == (whole.kwargs, whole.input_digest, whole.enqueue_sha)
    assert task.command_fingerprint == whole.command_fingerprint


@settings(max_examples=50)
@given(items=ITEMS)
def test_the_quick_way_writes_the_same(items: list[Any]) -> None:
    encoded = encode(items)
    quick = encode([]).encode_plain_chunks(items)
    if quick is not None:
        slow = [encoded.encode_chunk(part) for part in encoded.split(range(len(items)))]
        assert [task.kwargs for task in quick] == [task.kwargs for task in slow]
        assert [task.input_digest for task in quick] == [task.input_digest for task in slow]


def test_chunks_are_bounded_in_number_and_bytes() -> None:
    encoded = encode([{"a": "x" * 50} for _ in range(7)], chunk_size=3)
    assert [list(part) for part in encoded.split(range(7))] == [[0, 1, 2], [3, 4, 5], [6]]
    small = encode([{"a": "x" * 50} for _ in range(7)], chunk_size=7, max_payload_bytes=260)
    parts = [list(part) for part in small.split(range(7))]
    assert [number for part in parts for number in part] == list(range(7))
    assert len(parts) > 1
    assert all(len((small.encode_chunk(part).kwargs or "").encode()) <= 260 for part in parts)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"a": {1}}, "item 1: kwargs.a: is of type set"),
        ({"a": float("nan")}, "item 1: kwargs.a: is nan"),
        ({"__h_x": 1}, "item 1: kwargs: has the key '__h_x'"),
        ({1: 1}, "item 1: kwargs: has the key 1"),
        ([1], "item 1: kwargs: must be a mapping"),
        ({"a": "\ud800"}, "item 1: kwargs: contain a lone surrogate"),
        ({"a": "x" * 9_000}, "item 1: kwargs: are 9,008 bytes"),
        ({"a": 1 << 20_000}, "item 1: kwargs.a: is an integer of 20001 bits"),
    ],
)
def test_invalid_item_is_named(item: Any, problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        encode([{"a": 1}, item])
    if isinstance(item, dict):
        assert encode([]).encode_plain_chunks([{"a": 1}, item]) is None


def test_long_name_is_refused_before_the_items_are_encoded() -> None:
    with pytest.raises(InvalidTask, match="task_name: is 257 characters long"):
        encode_items(
            TaskSpec(task_name="x" * 255), [], isolate="chunk", chunk_size=1, max_payload_bytes=1_000, sent_at=NOW
        )


def test_work_is_the_digest_that_is_in_databases() -> None:
    assert encode([{"b": 1, "a": 2}]).works == [hashlib.sha256(b'"add"{"a":2,"b":1}').digest()]
