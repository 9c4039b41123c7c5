from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_horsies.embedded.demo import attempts_table, clean, kept_namespace
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.models import Attempt, TaskResult, TaskState, TaskView

START = datetime(2024, 1, 1, tzinfo=UTC)


def attempt(number: int, *, will_retry: bool = False, error_code: str | None = None) -> Attempt:
    return Attempt(
        number=number,
        outcome="FAILED" if error_code else "COMPLETED",
        will_retry=will_retry,
        started_at=START,
        finished_at=START + timedelta(seconds=1.5),
        error_code=error_code,
        error_message="went\nwrong " * 30 if error_code else None,
    )


def test_attempts_are_listed_under_their_task() -> None:
    task = TaskView(
        id="0",
        task_name="load",
        queue="default",
        priority=100,
        state=TaskState.COMPLETED,
        sent_at=START,
        enqueued_at=START,
        retry_count=1,
        max_retries=1,
        result=TaskResult(ok={"größe": 3}),
        attempts=(attempt(1, will_retry=True, error_code="BUSY"), attempt(2)),
    )
    header, first, second = attempts_table([task]).splitlines()
    assert header.split() == ["TASK", "STATE", "ATTEMPT", "OUTCOME", "SECONDS", "RESULT", "OR", "ERROR"]
    assert first.split()[:6] == ["load", "COMPLETED", "1", "FAILED", "1.50", "BUSY:"]
    assert first.endswith("… (retried)")
    assert second.split() == ["2", "COMPLETED", "1.50", '{"größe":', "3}"]
    assert second.index("COMPLETED") == first.index("FAILED")


def test_clean_leaves_a_folder_that_holds_no_demo_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(EmbeddedError, match="does not contain the data of a stack"):
        clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_stack_is_not_mixed_with_other_files(tmp_path: Path) -> None:
    """Its folder is deleted as a whole later."""
    (tmp_path / "tasks.py").touch()
    with pytest.raises(EmbeddedError, match="contains files that are not the data of a stack"):
        kept_namespace(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.py"]


def test_the_demo_is_the_same_deployment_over_restarts_and_no_other(tmp_path: Path) -> None:
    first, other = kept_namespace(tmp_path / "first"), kept_namespace(tmp_path / "other")
    (tmp_path / "first" / "airflow").mkdir()
    assert kept_namespace(tmp_path / "first") == first != other


def test_data_of_an_earlier_release_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "postgres.lock").touch()
    assert kept_namespace(tmp_path) == "default"
