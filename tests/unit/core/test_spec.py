from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import RetryPolicy, TaskSpec

POLICY = RetryPolicy.fixed([1], auto_retry_for=["FLAKY"])
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def spec(**given: Any) -> TaskSpec:
    return TaskSpec(**{"task_name": "add", **given})


@pytest.mark.parametrize(
    "given",
    [
        {"task_name": "x" * 255},
        {"task_name": "größe.馬"},
        {"queue": "q" * 100},
        {"retention": "r" * 64},
        {"priority": 1},
        {"priority": 100},
        {"kwargs": {}},
        {"retry_policy": POLICY},
        {"good_until": NOW - timedelta(days=1)},
        {"delay": timedelta()},
        {"delay": timedelta(days=400)},
        {"timeout": timedelta(seconds=1)},
        {"timeout": timedelta(milliseconds=1500)},
        {"idempotency_key": "k" * 255},
        {"retain_rerun_input": True},
    ],
    ids=str,
)
def test_spec_keeps_what_it_was_given(given: dict[str, Any]) -> None:
    made = spec(**given)
    assert {name: getattr(made, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"task_name": ""}, "must not be empty"),
        ({"task_name": " \t"}, "must not be empty"),
        ({"task_name": None}, "must be a string, not NoneType"),
        ({"task_name": "x" * 256}, "256 characters long. Use at most 255"),
        ({"task_name": "a\x00b"}, "NUL"),
        ({"task_name": "\ud800"}, "lone surrogate"),
        ({"queue": ""}, "must not be empty"),
        ({"queue": 7}, "must be a string, not int"),
        ({"queue": "q" * 101}, "at most 100"),
        ({"retention": ""}, "must not be empty"),
        ({"retention": "é" * 33}, "66 bytes long. Use at most 64"),
        ({"priority": 0}, "from 1 to 100"),
        ({"priority": 101}, "from 1 to 100"),
        ({"priority": 1.0}, "from 1 to 100"),
        ({"priority": True}, "from 1 to 100"),
        ({"priority": "5"}, "from 1 to 100"),
        ({"kwargs": [("a", 1)]}, "must be a mapping"),
        ({"kwargs": None}, "must be a mapping"),
        ({"retry_policy": {"max_retries": 1}}, "must be a RetryPolicy, not dict"),
        ({"retain_rerun_input": 1}, "must be True or False"),
        ({"good_until": "2026-03-01"}, "must be a datetime"),
        ({"good_until": datetime(2026, 3, 1)}, "has no time zone"),
        ({"good_until": datetime.max.replace(tzinfo=UTC)}, r"at the limit of the calendar \(9999-12-31\)"),
        ({"good_until": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "Leave it out"),
        ({"good_until": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))}, "at the limit of the calendar"),
        ({"delay": 5}, "must be a timedelta"),
        ({"delay": timedelta(seconds=-1)}, "at least 0 seconds"),
        ({"delay": timedelta(milliseconds=1)}, "whole number of seconds"),
        ({"timeout": 30}, "must be a timedelta"),
        ({"timeout": timedelta(milliseconds=999)}, "at least one second"),
        ({"idempotency_key": ""}, "must not be empty"),
        ({"idempotency_key": "é" * 128}, "256 bytes long. Use at most 255"),
        ({"task_id": "42"}, "must be a UUID"),
    ],
    ids=repr,
)
def test_spec_refuses_by_naming_field_and_problem(given: dict[str, Any], problem: str) -> None:
    (field,) = given
    with pytest.raises(InvalidTask, match=problem) as caught:
        spec(**given)
    assert caught.value.field == field


@given(st.integers())
def test_priority_is_accepted_exactly_from_1_to_100(priority: int) -> None:
    if 1 <= priority <= 100:
        assert spec(priority=priority).priority == priority
    else:
        with pytest.raises(InvalidTask, match="priority"):
            spec(priority=priority)


@pytest.mark.parametrize(
    "instant",
    [
        NOW,
        NOW.astimezone(timezone(timedelta(hours=5, minutes=30))),
        pendulum.datetime(2026, 3, 1, 13, tz="Europe/Paris"),
    ],
)
def test_good_until_becomes_a_plain_utc_datetime(instant: datetime) -> None:
    good_until = spec(good_until=instant).good_until
    assert good_until is not None
    assert (type(good_until), good_until.isoformat()) == (datetime, "2026-03-01T12:00:00+00:00")


POLICY_FIELDS: dict[str, Any] = {"max_retries": 2, "intervals": [1, 2], "auto_retry_for": ["FLAKY"]}


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ({"max_retries": 0, "intervals": []}, "max_retries", "from 1 to 20"),
        ({"max_retries": 21, "intervals": [1] * 21}, "max_retries", "from 1 to 20"),
        ({"max_retries": True, "intervals": [1]}, "max_retries", "must be an integer"),
        ({"intervals": "12"}, "intervals", "list of seconds"),
        ({"intervals": 12}, "intervals", "list of seconds"),
        ({"intervals": [1, 0]}, "intervals", "from 1 to 86400"),
        ({"intervals": [1, 86_401]}, "intervals", "from 1 to 86400"),
        ({"intervals": [1, 1.5]}, "intervals", "must be an integer"),
        ({"intervals": [1]}, "intervals", "one interval per retry in a fixed policy, not 1 for 2"),
        ({"backoff_strategy": "exponential"}, "intervals", "exactly one base interval in an exponential policy, not 2"),
        ({"backoff_strategy": "linear"}, "backoff_strategy", "'fixed' or 'exponential'"),
        ({"jitter": "yes"}, "jitter", "must be True or False"),
        ({"max_delay_seconds": 0}, "max_delay_seconds", "from 1"),
        ({"max_delay_seconds": 1.5}, "max_delay_seconds", "must be an integer"),
        ({"auto_retry_for": []}, "auto_retry_for", "at least one error code"),
        ({"auto_retry_for": "FLAKY"}, "auto_retry_for", "at least one error code"),
        ({"auto_retry_for": None}, "auto_retry_for", "at least one error code"),
        ({"auto_retry_for": [""]}, "auto_retry_for", "expected an error code"),
        ({"auto_retry_for": [7]}, "auto_retry_for", "expected an error code"),
        ({"auto_retry_for": ["ValueError"]}, "auto_retry_for", "looks like an exception class"),
        ({"auto_retry_for": ["flaky"]}, "auto_retry_for", "not in UPPER_SNAKE_CASE"),
        ({"auto_retry_for": ["FLAKY\n"]}, "auto_retry_for", "not in UPPER_SNAKE_CASE"),
    ],
    ids=repr,
)
def test_retry_policy_refuses_by_naming_field_and_problem(given: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem) as caught:
        RetryPolicy(**{**POLICY_FIELDS, **given})
    assert caught.value.field == f"retry_policy.{field}"


def test_retry_policies_are_built_as_fixed_or_exponential() -> None:
    assert RetryPolicy.fixed([1, 86_400], auto_retry_for=["A", "B_2"], jitter=False) == RetryPolicy(
        max_retries=2, intervals=(1, 86_400), auto_retry_for=("A", "B_2"), backoff_strategy="fixed", jitter=False
    )
    assert RetryPolicy.exponential(5, max_retries=20, auto_retry_for=["A"], max_delay_seconds=60) == RetryPolicy(
        max_retries=20,
        intervals=(5,),
        auto_retry_for=("A",),
        backoff_strategy="exponential",
        max_delay_seconds=60,
    )
    with pytest.raises(InvalidTask, match="list of seconds"):
        RetryPolicy.fixed(5, auto_retry_for=["A"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "policy"),
    [
        ({"intervals": [1, 2], "auto_retry_for": ["A"]}, RetryPolicy.fixed([1, 2], auto_retry_for=["A"])),
        (
            {"intervals": [3], "auto_retry_for": ["A"], "backoff_strategy": "exponential", "max_retries": 4},
            RetryPolicy.exponential(3, max_retries=4, auto_retry_for=["A"]),
        ),
    ],
)
def test_retry_policy_is_read_from_a_mapping(values: dict[str, Any], policy: RetryPolicy) -> None:
    assert RetryPolicy.from_mapping(values) == policy


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1, 2], "must be a mapping"),
        ({"intervals": [1], "auto_retry_for": ["A"], "retries": 3}, r"unknown key\(s\) retries\."),
        ({"intervals": [1]}, "is missing auto_retry_for"),
        ({}, "is missing intervals and auto_retry_for"),
        ({"intervals": [1], "auto_retry_for": ["A"], "backoff_strategy": "exponential"}, "needs max_retries"),
        ({"intervals": 5, "auto_retry_for": ["A"]}, "intervals"),
        ({"intervals": "12", "auto_retry_for": ["A"]}, "list of seconds"),
    ],
    ids=repr,
)
def test_mapping_that_is_no_retry_policy_is_refused(values: Any, problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        RetryPolicy.from_mapping(values)
