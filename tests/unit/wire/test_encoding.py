from __future__ import annotations

import enum
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import RetryPolicy, TaskSpec
from airflow_horsies.wire.encoding import INLINE_RERUN_INPUT_BYTES, EncodedTask, encode_task, mint_task_id

SENT_AT = datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=UTC)


def encode(**given: Any) -> EncodedTask:
    return encode_task(TaskSpec(**{"task_name": "add", **given}), sent_at=SENT_AT)


def kwargs_json(value: Any) -> str | None:
    return encode(kwargs={"x": value}).kwargs


class Colour(enum.StrEnum):
    RED = "red"


class OldColour(str, enum.Enum):  # noqa: UP042 - the older kind is what is tested
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Float64(float):
    def __repr__(self) -> str:
        return "np.float64(1.5)"


class Text(str):
    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-7, "-7"),
        (2**63, "9223372036854775808"),
        (1.5, "1.5"),
        (-0.0, "-0.0"),
        ("naïve 馬 🐎 \x00 \u2028", '"naïve 馬 🐎 \\u0000 \u2028"'),
        ((1, (2,)), "[1,[2]]"),
        ([], "[]"),
        ({}, "{}"),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        ({"": 1}, '{"":1}'),
        (Colour.RED, '"red"'),
        (OldColour.RED, '"red"'),
        (Level.HIGH, "3"),
        (Float64(1.5), "1.5"),
        (Text("plain"), '"plain"'),
        ({Colour.RED: 1}, '{"red":1}'),
    ],
    ids=repr,
)
def test_value_becomes_compact_json(value: Any, text: str) -> None:
    assert kwargs_json(value) == f'{{"x":{text}}}'


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        (float("nan"), "kwargs.x", "is nan, which JSON cannot represent"),
        ([0, {"y": float("-inf")}], "kwargs.x[1].y", "is -inf"),
        (datetime(2026, 1, 1, tzinfo=UTC), "kwargs.x", r"type datetime.*isoformat\(\)"),
        (date(2026, 1, 1), "kwargs.x", r"type date.*isoformat\(\)"),
        ({"when": (date(2026, 1, 1),)}, "kwargs.x.when[0]", "type date"),
        ({1, 2}, "kwargs.x", r"type set, which JSON cannot represent\. Pass a JSON value\.$"),
        (b"raw", "kwargs.x", "type bytes"),
        (Decimal("1.5"), "kwargs.x", "type Decimal"),
        (uuid.UUID(int=1), "kwargs.x", "type UUID"),
        (object(), "kwargs.x", "type object"),
        ({"a": {1: 2}}, "kwargs.x.a", "has the key 1. Use strings as keys"),
        ({None: 1}, "kwargs.x", "has the key None"),
        ({"__h_x": 1}, "kwargs.x", "'__h_x', which is reserved"),
        ([[{"__horsies_x": 1}]], "kwargs.x[0][0]", "reserved"),
        ({"__builtin_task_code__": 1}, "kwargs.x", "reserved"),
    ],
    ids=repr,
)
def test_value_that_json_lacks_is_refused_by_its_path(value: Any, path: str, problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem) as caught:
        kwargs_json(value)
    assert caught.value.field == path


def test_argument_name_may_not_be_reserved_either() -> None:
    with pytest.raises(InvalidTask, match="__h_task_result__") as caught:
        encode(kwargs={"__h_task_result__": True})
    assert caught.value.field == "kwargs"


@pytest.mark.parametrize("kwargs", [{"x": "\ud800"}, {"\udfff": 1}, {"x": [{"y": "a\udc00b"}]}], ids=ascii)
def test_lone_surrogate_is_refused_as_value_and_as_key(kwargs: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="lone surrogate"):
        encode(kwargs=kwargs)


def test_no_arguments_are_null_and_not_an_empty_object() -> None:
    assert encode(kwargs={}).kwargs is None


def test_payload_limit_counts_bytes_and_is_inclusive() -> None:
    text = '{"x":"é"}'
    spec = TaskSpec(task_name="add", kwargs={"x": "é"})
    assert encode_task(spec, max_payload_bytes=len(text.encode())).kwargs == text
    with pytest.raises(InvalidTask, match="10 bytes of JSON, more than the 9 allowed"):
        encode_task(spec, max_payload_bytes=len(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda key: not key.startswith("__")), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values).filter(lambda value: not any(key.startswith("__") for key in value)))
def test_arguments_are_encoded_alike_whether_or_not_they_are_plain(kwargs: dict[str, Any]) -> None:
    encoded, slowly = encode(kwargs=kwargs), encode(kwargs=MappingProxyType(kwargs))
    assert (encoded.kwargs, encoded.arguments) == (slowly.kwargs, slowly.arguments)
    assert encoded.arguments.decode() == json.dumps(kwargs, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert (encoded.enqueue_sha, encoded.input_digest) == (slowly.enqueue_sha, slowly.input_digest)


@given(json_values)
def test_json_value_comes_back_as_it_was(value: Any) -> None:
    assert json.loads(kwargs_json(value) or "") == {"x": value}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, '{"retry_policy":null,"good_until":null,"timeout_ms":null}'),
        (
            {"retry_policy": RetryPolicy.fixed([1, 2], auto_retry_for=["A"], jitter=False)},
            '{"retry_policy":{"max_retries":2,"intervals":[1,2],"backoff_strategy":"fixed","jitter":false,'
            '"auto_retry_for":["A"]},"good_until":null,"timeout_ms":null}',
        ),
        (
            {
                "retry_policy": RetryPolicy.exponential(5, max_retries=3, auto_retry_for=["A"], max_delay_seconds=9),
                "good_until": datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1))),
                "timeout": timedelta(seconds=1, microseconds=999),
            },
            '{"retry_policy":{"max_retries":3,"intervals":[5],"backoff_strategy":"exponential","jitter":true,'
            '"max_delay_seconds":9,"auto_retry_for":["A"]},"good_until":"2026-03-01T12:00:00+00:00",'
            '"timeout_ms":1000}',
        ),
    ],
    ids=["none", "fixed", "all"],
)
def test_options_have_the_keys_and_the_order_of_upstream(given: dict[str, Any], text: str) -> None:
    assert encode(**given).task_options == text


def test_digests_are_those_of_upstream() -> None:
    # Taken from horsies 0.5.4 itself: enqueue_fingerprint, EnqueueCommandV1, ScopedIdempotencyKey.
    encoded = encode(
        task_name="größe",
        kwargs={"b": [1, 2.5, None], "a": "馬"},
        queue="reports",
        priority=7,
        retry_policy=RetryPolicy.exponential(5, max_retries=3, auto_retry_for=["FLAKY"], max_delay_seconds=60),
        good_until=datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1))),
        delay=timedelta(seconds=90),
        timeout=timedelta(seconds=2),
        retention="forever",
        retain_rerun_input=True,
        idempotency_key="k-1",
    )
    assert encoded.enqueue_sha == "b1fb95e84cb0945933718bf8525635507e227e3c046df75a9dd0e85fbebe8e24"
    fingerprint = "c5f26d0437560c81ec974362f98d2d0bf1b03e4176f0923eeacc6730f536bfd8"
    assert encoded.command_fingerprint.hex() == fingerprint
    assert encoded.input_digest.hex() == "25f4c540412d777042ca0af082ed7ec4f86f03232035cc5ac549cb3b39b4b519"
    assert encoded.idempotency_digest is not None
    assert encoded.idempotency_digest.hex() == "ed3a14c056d3b5c6558987b17c1565bd66f5bcdd7a48e8c59aacd9fe931f0637"


def test_same_instant_is_the_same_command_however_it_is_written() -> None:
    written = [
        datetime(2026, 3, 1, 12, tzinfo=UTC),
        datetime(2026, 3, 1, 7, tzinfo=timezone(timedelta(hours=-5))),
        pendulum.datetime(2026, 3, 1, 13, tz="Europe/Paris"),
    ]
    encoded = [encode(good_until=instant) for instant in written]
    assert len({(task.command_fingerprint, task.task_options, task.enqueue_sha) for task in encoded}) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"task_name": "other"},
        {"queue": "other"},
        {"priority": 99},
        {"kwargs": {"a": 2}},
        {"good_until": SENT_AT},
        {"delay": timedelta(seconds=1)},
        {"timeout": timedelta(seconds=1)},
        {"retention": "forever"},
        {"retain_rerun_input": True},
    ],
    ids=str,
)
def test_fingerprint_tells_commands_apart(given: dict[str, Any]) -> None:
    assert encode(**given).command_fingerprint != encode().command_fingerprint


def test_fingerprint_does_not_depend_on_id_key_or_time_of_sending() -> None:
    other = encode_task(
        TaskSpec(task_name="add", task_id=str(uuid.UUID(int=1)), idempotency_key="k"),
        sent_at=SENT_AT + timedelta(days=1),
    )
    assert other.command_fingerprint == encode().command_fingerprint
    assert other.enqueue_sha != encode().enqueue_sha


def test_idempotency_key_belongs_to_its_task_name() -> None:
    def digest(name: str, key: str | None) -> bytes | None:
        return encode(task_name=name, idempotency_key=key).idempotency_digest

    assert digest("ab", "c") == digest("ab", "c")
    assert len({digest("ab", "c"), digest("a", "bc"), digest("a", "c")}) == 3
    assert digest("ab", None) is None


def test_rerun_input_is_kept_inline_up_to_its_bound() -> None:
    empty = encode(kwargs={"x": ""}, retain_rerun_input=True)
    assert empty.rerun_input is not None
    room = INLINE_RERUN_INPUT_BYTES - len(empty.rerun_input)
    for size, disposition in ((room, "INLINE"), (room + 1, "OVER_BOUND")):
        encoded = encode(kwargs={"x": "y" * size}, retain_rerun_input=True)
        assert encoded.rerun_disposition == disposition
        assert (encoded.rerun_input is None) == (disposition != "INLINE")
    declined = encode(kwargs={"x": ""})
    assert (declined.rerun_disposition, declined.rerun_input) == ("DECLINED_BY_POLICY", None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (0, None)),
        ({"retry_policy": RetryPolicy.fixed([1, 1], auto_retry_for=["A"])}, (2, None)),
        ({"delay": timedelta(days=1, seconds=1)}, (0, 86_401)),
        ({"delay": timedelta()}, (0, 0)),
    ],
    ids=str,
)
def test_retries_and_delay_become_columns(given: dict[str, Any], expected: tuple[int, int | None]) -> None:
    encoded = encode(**given)
    assert (encoded.max_retries, encoded.delay_seconds) == expected


def test_given_id_is_used_and_marked_as_such() -> None:
    given_id = str(uuid.UUID(int=7))
    assert (encode(task_id=given_id).id, encode(task_id=given_id).id_is_given) == (given_id, True)
    assert encode().id_is_given is False


def test_minted_ids_are_uuid7_of_this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns() // 1_000_000
    minted = [uuid.UUID(mint_task_id()) for _ in range(1_000)]
    after = time.time_ns() // 1_000_000
    assert {(each.version, each.variant) for each in minted} == {(7, uuid.RFC_4122)}
    assert len(set(minted)) == len(minted)
    assert all(before <= each.int >> 80 <= after for each in minted)
    clock: Callable[[], int] = iter(range(10**18, 10**18 + 10**10, 10**9)).__next__
    monkeypatch.setattr(time, "time_ns", clock)
    in_order = [mint_task_id() for _ in range(5)]
    assert in_order == sorted(in_order)
