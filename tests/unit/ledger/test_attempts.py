from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_horsies.exceptions import WireError
from airflow_horsies.ledger.attempts import SINCE, read_attempts, read_news
from airflow_horsies.ledger.schema import read_since
from airflow_horsies.models import LogCursor, LogLine, Progress, TaskNews
from tests.unit.driving import drive

ONE, TWO, THREE = (f"0198a0de-0000-7000-8000-00000000000{number}" for number in (1, 2, 3))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def row(task_id: str, *, line: int | None = None, done: int | None = None) -> dict[str, Any]:
    written = {"attempt": 2, "line_number": line, "logged_at": NOON, "level": "INFO", "line": f"line {line}"}
    written["item"] = line
    told = {"progress_attempt": 2, "done": done, "total": 10, "stage": "sort", "updated_at": NOON}
    return {
        "horsies_task_id": task_id,
        **(written if line is not None else dict.fromkeys(written)),
        **(told if done is not None else dict.fromkeys(told)),
    }


def test_news_are_lines_and_progress_by_task() -> None:
    rows = [row(ONE, line=5, done=4), row(ONE, line=6, done=4), row(TWO, line=1), row(THREE, done=0)]
    seen = {ONE: LogCursor(2, 4), TWO: LogCursor(), THREE: LogCursor(1, 9)}
    driven = drive(read_news(seen), {"read_news": rows})

    def line(number: int) -> LogLine:
        return LogLine(attempt=2, number=number, logged_at=NOON, level="INFO", text=f"line {number}", item=number)

    def progress(done: int) -> Progress:
        return Progress(attempt=2, done=done, total=10, stage="sort", updated_at=NOON)

    assert driven.outcome == {
        ONE: TaskNews(lines=(line(5), line(6)), progress=progress(4)),
        TWO: TaskNews(lines=(line(1),)),
        THREE: TaskNews(progress=progress(0)),
    }
    assert driven.names == ["read_news"]
    assert driven.params("read_news") == {
        "ids": [ONE, TWO, THREE],
        "attempts": [2, 0, 1],
        "line_numbers": [4, 0, 9],
        "limit": 1_000,
    }


@pytest.mark.parametrize(("version", "reads"), [(None, False), (1, False), (2, True), (99, True)])
def test_nothing_is_read_where_the_tables_are_missing_or_older(version: int | None, reads: bool) -> None:
    answers = {
        "find_migrations_table": [{"found": version is not None}],
        "read_version": [{"version": version, "min_writer": 1}],
    }
    driven = drive(read_since(SINCE, read_news({ONE: LogCursor()}), {}), answers)
    assert driven.outcome == {}
    assert ("read_news" in driven.names) is reads


@pytest.mark.parametrize("metrics", ["{", "[1]", "3"])
def test_metrics_that_are_no_object_are_a_wire_error(metrics: str) -> None:
    told = {"attempt": 1, "worker_id": "w", "hostname": "h", "pid": 1, "started_at": NOON, "finished_at": None}
    unknown = {"outcome": None, "error_code": None, "error_message": None}
    with pytest.raises(WireError, match="are not a JSON object"):
        drive(
            read_attempts([ONE]), {"read_attempts": [{"horsies_task_id": ONE, **told, **unknown, "metrics": metrics}]}
        )
