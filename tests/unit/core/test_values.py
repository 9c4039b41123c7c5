from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_horsies.core.attempts import ShownAttempt, Source
from airflow_horsies.core.values import attempt_values, line_values, progress_values, to_plain
from airflow_horsies.models import LogLine, Progress, TaskState

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ATTEMPT = ShownAttempt(
    source=Source.WORKER,
    number=2,
    outcome="RUNNING",
    started_at=NOON,
    finished_at=None,
    error_code="secret",
    error_message="secret",
    failed_reason="secret",
    metrics={"secret": "secret", "jobs": 3},
)
LINE = LogLine(attempt=1, number=2, logged_at=NOON, level="INFO", text="a secret")


def masked(text: str | None) -> str | None:
    return None if text is None else text.replace("secret", "***")


def test_text_that_a_task_wrote_can_be_masked_wherever_it_is() -> None:
    attempt = attempt_values(ATTEMPT, text=masked)
    progress = progress_values(Progress(attempt=1, done=1, stage="secret"), text=masked)
    line = line_values(LINE, text=masked)
    assert "secret" not in json.dumps(to_plain([attempt, progress, line]))
    assert attempt.metrics == {"***": "***", "jobs": 3}
    assert line.text == "a ***"


def test_running_attempt_has_no_end() -> None:
    values = attempt_values(ATTEMPT)
    assert (values.attempt, values.finished_at, values.duration_seconds) == (2, None, None)
    ended = replace(ATTEMPT, finished_at=NOON + timedelta(seconds=1.5))
    assert attempt_values(ended).duration_seconds == 1.5


def test_line_is_a_value_of_its_own() -> None:
    assert to_plain(line_values(LINE)) == {
        "attempt": 1,
        "number": 2,
        "logged_at": "2026-03-01T12:00:00+00:00",
        "level": "INFO",
        "text": "a secret",
    }


def test_plain_values_are_what_json_has() -> None:
    given = {"state": TaskState.FAILED, "times": (NOON, None), "counts": {TaskState.RUNNING: 1}, "line": LINE}
    plain = to_plain(given)
    assert type(plain["state"]) is str
    assert json.loads(json.dumps(plain)) == {
        "state": "FAILED",
        "times": ["2026-03-01T12:00:00+00:00", None],
        "counts": {"RUNNING": 1},
        "line": {**to_plain(line_values(LINE)), "item": None},
    }
