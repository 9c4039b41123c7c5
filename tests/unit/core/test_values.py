from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from airflow_horsies.core.values import attempt_values, line_values, progress_values, record_values
from airflow_horsies.models import Attempt, AttemptRecord, LogLine, Progress

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def masked(text: str | None) -> str | None:
    return None if text is None else text.replace("secret", "***")


def test_words_of_a_task_can_be_masked_wherever_they_are() -> None:
    attempt = Attempt(
        number=1,
        outcome="FAILED",
        will_retry=False,
        started_at=NOON,
        finished_at=NOON,
        error_code="secret",
        error_message="secret",
        failed_reason="secret",
    )
    record = AttemptRecord(
        number=1,
        worker_id="w",
        hostname="h",
        pid=1,
        started_at=NOON,
        error_code="secret",
        error_message="secret",
        metrics={"secret": "secret", "jobs": 3},
    )
    progress = Progress(attempt=1, done=1, stage="secret")
    told = [
        attempt_values(attempt, text=masked),
        record_values(record, text=masked),
        progress_values(progress, text=masked),
    ]
    assert "secret" not in json.dumps(told)
    assert told[1]["metrics"] == {"***": "***", "jobs": 3}


def test_record_of_a_running_attempt_has_no_end() -> None:
    record = AttemptRecord(number=2, worker_id="w", hostname="h", pid=1, started_at=NOON)
    told = record_values(record)
    assert (told["attempt"], told["outcome"], told["finished_at"], told["duration_seconds"]) == (2, None, None, None)
    ended = AttemptRecord(
        number=2, worker_id="w", hostname="h", pid=1, started_at=NOON, finished_at=NOON + timedelta(seconds=1.5)
    )
    assert record_values(ended)["duration_seconds"] == 1.5


def test_line_is_a_value_of_its_own() -> None:
    assert line_values(LogLine(attempt=1, number=2, logged_at=NOON, level="INFO", text="done")) == {
        "attempt": 1,
        "number": 2,
        "logged_at": "2026-03-01T12:00:00+00:00",
        "level": "INFO",
        "text": "done",
    }
