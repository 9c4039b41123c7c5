from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_horsies.models import LIVE_STATES, TERMINAL_STATES, Attempt, TaskState

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_states_are_live_or_terminal() -> None:
    assert {state for state in TaskState if state.is_terminal} == TERMINAL_STATES
    assert {TaskState.PENDING, TaskState.CLAIMED, TaskState.RUNNING} == LIVE_STATES


def test_attempt_tells_how_long_it_took() -> None:
    attempt = Attempt(
        number=1, outcome="COMPLETED", will_retry=False, started_at=NOW, finished_at=NOW + timedelta(seconds=1.5)
    )
    assert attempt.duration_seconds == 1.5
