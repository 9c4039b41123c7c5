from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from airflow_horsies.core.signals import (
    AWAITING_SIGNAL,
    MAX_PAYLOAD_BYTES,
    SLEEP,
    WAIT_FOR_SIGNAL,
    encode_payload,
    require_signal_name,
    require_timeout,
)
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import RetryPolicy, TaskSpec


@pytest.mark.parametrize("name", ["approved", "order/7:paid", "a.b-c_d", "0", "x" * 200])
def test_a_name_of_a_signal_is_plain(name: str) -> None:
    assert require_signal_name(name) == name


@pytest.mark.parametrize("name", ["", " ", "with space", "@timer", "ö", "x" * 201, "a\n", None, 7])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(InvalidTask, match="name: "):
        require_signal_name(name)


def test_a_timeout_is_a_timedelta_or_seconds() -> None:
    assert require_timeout(timedelta(minutes=1)) == 60
    assert (require_timeout(0), require_timeout(1.5), require_timeout(None)) == (0, 1.5, None)


@pytest.mark.parametrize("timeout", [-1, timedelta(days=3_651), True, "60", math.nan, math.inf])
def test_other_timeouts_are_refused(timeout: Any) -> None:
    with pytest.raises(InvalidTask, match="timeout: "):
        require_timeout(timeout)


def test_a_payload_is_compact_json_within_its_limit() -> None:
    assert encode_payload({"by": "änne", "n": [1, None]}) == '{"by":"änne","n":[1,null]}'
    assert len(encode_payload("x" * (MAX_PAYLOAD_BYTES - 2))) == MAX_PAYLOAD_BYTES
    with pytest.raises(InvalidTask, match=r"payload: has 262,145 bytes of JSON, and the limit is 262,144"):
        encode_payload("x" * (MAX_PAYLOAD_BYTES - 1))


@pytest.mark.parametrize("payload", [object(), math.nan, {1, 2}, "\ud800"])
def test_a_payload_that_is_no_json_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidTask, match="payload: "):
        encode_payload(payload)


def test_a_policy_that_parks_keeps_the_other_retries() -> None:
    assert RetryPolicy.parking().auto_retry_for == (AWAITING_SIGNAL,)
    policy = RetryPolicy.exponential(5, max_retries=3, auto_retry_for=["FLAKY"], max_delay_seconds=60).with_parking()
    assert (policy.auto_retry_for, policy.max_retries, policy.max_delay_seconds) == (("FLAKY", AWAITING_SIGNAL), 3, 60)
    assert policy.with_parking() is policy


@pytest.mark.parametrize("name", [WAIT_FOR_SIGNAL, SLEEP])
def test_the_ready_made_tasks_park_by_themselves(name: str) -> None:
    policy = TaskSpec(task_name=name).retry_policy
    assert policy
    assert policy.auto_retry_for == (AWAITING_SIGNAL,)
    own = RetryPolicy.fixed([1], auto_retry_for=["FLAKY"])
    policy = TaskSpec(task_name=name, retry_policy=own).retry_policy
    assert policy
    assert policy.auto_retry_for == ("FLAKY", AWAITING_SIGNAL)
    assert TaskSpec(task_name="load").retry_policy is None
