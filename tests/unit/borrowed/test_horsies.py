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
    assert callable(borrowed.run_command_line)
    assert borrowed.OutcomeCode.TASK_CANCELLED.value == "TASK_CANCELLED"
    assert borrowed.OperationalErrorCode.UNHANDLED_EXCEPTION.value == "UNHANDLED_EXCEPTION"
