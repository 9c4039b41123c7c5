from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from airflow_horsies import retry_policies as loaded
from airflow_horsies.exceptions import (
    DatabaseUnreachable,
    HorsiesError,
    InvalidTask,
    TaskExpired,
    TaskFailed,
    WaitTimeout,
)

TEN_MINUTES = timedelta(minutes=10)
needs_retry_policies = pytest.mark.skipif(not loaded.HAS_RETRY_POLICIES, reason="Airflow 3.3 brings retry policies")


def failed(code: str | None) -> TaskFailed:
    return TaskFailed("it failed", task_id="0198a0de-0000-7000-8000-000000000001", error_code=code)


def decide(policy: Any, exception: BaseException) -> tuple[str, timedelta | None]:
    decision = policy.evaluate(exception=exception, try_number=1, max_tries=3, context=None)
    return decision.action.value, decision.retry_delay


def make_policy(**options: Any) -> Any:
    return loaded.HorsiesRetryPolicy(
        **{"fail": ["BAD_INPUT"], "retry": {"RATE_LIMITED": TEN_MINUTES, "WORKER_CRASHED": None}, **options}
    )


@needs_retry_policies
@pytest.mark.parametrize(
    ("exception", "decision"),
    [
        (failed("BAD_INPUT"), ("fail", None)),
        (failed("RATE_LIMITED"), ("retry", TEN_MINUTES)),
        (failed("WORKER_CRASHED"), ("retry", None)),
        (failed("SOMETHING_ELSE"), ("default", None)),
        (failed(None), ("default", None)),
        (TaskExpired("late", task_id="x", error_code="BAD_INPUT"), ("fail", None)),
        (WaitTimeout("late", task_id="x"), ("default", None)),
        (DatabaseUnreachable("gone"), ("default", None)),
        (ValueError("BAD_INPUT"), ("default", None)),
    ],
    ids=repr,
)
def test_error_code_decides(exception: Exception, decision: tuple[str, timedelta | None]) -> None:
    assert decide(make_policy(), exception) == decision


@needs_retry_policies
@pytest.mark.parametrize("otherwise", ["default", "fail", "retry"])
def test_other_codes_go_the_way_that_was_chosen(otherwise: str) -> None:
    policy = make_policy(otherwise=otherwise)
    assert decide(policy, failed("SOMETHING_ELSE")) == (otherwise, None)
    assert decide(policy, failed("BAD_INPUT")) == ("fail", None)
    assert decide(policy, ValueError()) == ("default", None), "only a horsies task has a code"


@needs_retry_policies
def test_code_is_found_behind_another_exception() -> None:
    try:
        try:
            raise failed("BAD_INPUT")
        except TaskFailed as cause:
            raise RuntimeError("wrapped") from cause
    except RuntimeError as wrapped:
        assert decide(make_policy(), wrapped) == ("fail", None)
    circular = RuntimeError()
    circular.__cause__ = ValueError()
    circular.__cause__.__context__ = circular
    assert decide(make_policy(), circular) == ("default", None)


@needs_retry_policies
def test_reason_names_the_code() -> None:
    decision = make_policy().evaluate(failed("RATE_LIMITED"), 1, 3)
    assert decision.reason == "RATE_LIMITED is in the codes that are retried."


@needs_retry_policies
def test_list_of_codes_waits_the_delay_of_the_task() -> None:
    assert decide(make_policy(retry=["RATE_LIMITED"]), failed("RATE_LIMITED")) == ("retry", None)


@needs_retry_policies
def test_policy_survives_serialization() -> None:
    data = json.loads(json.dumps(make_policy(otherwise="fail").serialize()))
    assert data == {
        "fail": ["BAD_INPUT"],
        "retry": {"RATE_LIMITED": 600.0, "WORKER_CRASHED": None},
        "otherwise": "fail",
    }
    restored = loaded.HorsiesRetryPolicy.deserialize(data)
    assert restored.serialize() == data
    assert decide(restored, failed("RATE_LIMITED")) == ("retry", TEN_MINUTES)


@needs_retry_policies
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fail": ["ValueError"]}, "looks like an exception class"),
        ({"fail": "BAD_INPUT"}, "fail: must be a list of error codes, not the string 'BAD_INPUT'"),
        ({"retry": "BAD_INPUT"}, "retry: must be a list of error codes"),
        ({"retry": {"bad": None}}, "retry: 'bad' is not in UPPER_SNAKE_CASE"),
        ({"retry": {"RATE_LIMITED": 60}}, "delay of RATE_LIMITED must be a timedelta of 0 or more, or None, not 60"),
        ({"retry": {"RATE_LIMITED": timedelta(seconds=-1)}}, "must be a timedelta of 0 or more"),
        ({"retry": ["BAD_INPUT"]}, "must not contain a code of fail: BAD_INPUT"),
        ({"otherwise": "ignore"}, "otherwise: must be 'default', 'fail' or 'retry', not 'ignore'"),
    ],
    ids=str,
)
def test_mistake_is_found_when_the_dag_is_parsed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        make_policy(**options)
    assert message in str(caught.value)


@pytest.fixture
def on_older_airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module as it is where Airflow has no retry policies."""
    monkeypatch.setitem(sys.modules, "airflow.sdk.definitions.retry_policy", None)
    monkeypatch.delitem(sys.modules, "airflow_horsies.retry_policies")
    yield importlib.import_module("airflow_horsies.retry_policies")
    sys.modules["airflow_horsies.retry_policies"] = loaded


def test_older_airflow_is_told_when_the_policy_is_used_and_not_before(on_older_airflow: ModuleType) -> None:
    with pytest.raises(HorsiesError, match=r"needs Airflow 3\.3 or newer.*fail_fast_codes"):
        on_older_airflow.HorsiesRetryPolicy(fail=["BAD_INPUT"])
