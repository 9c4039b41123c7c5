"""Fails when a private part of horsies moves."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("horsies")

from horsies.core.worker import child_runner

from airflow_horsies.borrowed import horsies as borrowed


def test_the_frame_of_horsies_has_what_is_read_from_it() -> None:
    entry = getattr(child_runner, borrowed.ENTRY)
    assert {"task_id", "master_worker_id", "claimed_at", "timeout_ms"} <= set(entry.__code__.co_varnames)


def test_the_frame_is_found_below_the_task() -> None:
    assert borrowed.find_assignment() is None
    now = datetime.now(UTC)

    def _run_task_entry(task_id: str, master_worker_id: str, claimed_at: datetime, timeout_ms: int) -> object:
        return borrowed.find_assignment()

    assert _run_task_entry("a", "w", now, 1_500) == borrowed.Assignment("a", "w", now, 1.5)


def test_the_command_line_and_the_codes_are_where_they_were() -> None:
    for name in ("main", "worker_command", "discover_app", "_resolve_module_argument"):
        assert callable(getattr(borrowed.cli, name))
    assert borrowed.OutcomeCode.TASK_CANCELLED.value == "TASK_CANCELLED"
    assert borrowed.OperationalErrorCode.UNHANDLED_EXCEPTION.value == "UNHANDLED_EXCEPTION"


def test_the_rules_of_retries_and_of_exceptions_are_where_they_were() -> None:
    policy = {"intervals": [2, 5], "backoff_strategy": "fixed", "jitter": False}
    assert [borrowed.calculate_retry_delay(retry, policy) for retry in (1, 2, 3)] == [2.0, 5.0, 5.0]
    doubling = {"intervals": [2], "backoff_strategy": "exponential", "jitter": False, "max_delay_seconds": 5}
    assert [borrowed.calculate_retry_delay(retry, doubling) for retry in (1, 2, 3)] == [2.0, 4.0, 5.0]
    mapped = {KeyError: "OF_TASK"}, {KeyError: "OF_APP", OSError: "OF_APP"}
    codes = [
        borrowed.resolve_exception_error_code(error, *mapped, None, "DEFAULT")
        for error in (KeyError(), OSError(), ValueError())
    ]
    assert codes == ["OF_TASK", "OF_APP", "DEFAULT"]


def test_unknown_arguments_are_refused_as_before() -> None:
    def task(*, known: borrowed.JsonValue) -> None: ...

    with pytest.raises(borrowed.StrictJsonError, match="unknown"):
        borrowed.decode_kwargs(task, {"unknown": 1})
