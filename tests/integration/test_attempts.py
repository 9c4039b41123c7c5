"""What workers tell of their attempts, as the hook reads it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.ledger import migrate_ledger, read_ledger_version
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import attempts
from airflow_horsies.models import LogChunk, LogCursor, LogLine, Progress, TaskNews
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

TASK_ID = "01a1e223-68a7-7210-ad76-a42348fdcb7c"
OTHER_ID = "01a1e223-68a7-7210-ad76-a42348fdcb7d"
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def begin_attempt(hook: HorsiesHook, task_id: str, number: int = 1, *, hostname: str = "node") -> None:
    hook.client.session.run(
        lambda: attempts.begin_attempt(
            task_id, number, worker_id="worker-7", hostname=hostname, pid=42, started_at=BEGAN
        )
    )


def end_attempt(hook: HorsiesHook, task_id: str, number: int = 1, *, outcome: str = "COMPLETED", **told: Any) -> None:
    finished_at = BEGAN + timedelta(seconds=12.3)
    hook.client.session.run(
        lambda: attempts.end_attempt(task_id, number, finished_at=finished_at, outcome=outcome, **told)
    )


def write_lines(
    hook: HorsiesHook, task_id: str, *texts: str, attempt: int = 1, first: int = 1, level: str = "INFO"
) -> None:
    chunk = LogChunk(first, BEGAN, level, texts)
    hook.client.session.run(lambda: attempts.append_lines(task_id, attempt, [chunk]))


def write_progress(
    hook: HorsiesHook, task_id: str, done: int, total: int | None = 10, stage: str | None = None
) -> None:
    progress = Progress(attempt=1, done=done, total=total, stage=stage)
    hook.client.session.run(lambda: attempts.write_progress(task_id, progress))


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_what_a_worker_wrote_is_read_back(
    make_hook: MakeHook, database: str, driver: str, request: pytest.FixtureRequest
) -> None:
    if driver == "psycopg2":
        request.getfixturevalue("with_psycopg2")
    hook = make_hook()
    migrate_ledger(hook.client)
    begin_attempt(hook, TASK_ID)
    write_lines(hook, TASK_ID, "one", "two", level="WARNING")
    end_attempt(hook, TASK_ID, outcome="CANCELLED", metrics={"jobs": 3})
    begin_attempt(hook, TASK_ID, 2)
    write_lines(hook, TASK_ID, "three", attempt=2)
    write_progress(hook, TASK_ID, 4, stage="sort")

    reader = make_hook()
    assert [(line.attempt, line.number, line.level, line.text) for line in reader.read_lines(TASK_ID.upper())] == [
        (1, 1, "WARNING", "one"),
        (1, 2, "WARNING", "two"),
        (2, 1, "INFO", "three"),
    ]
    assert [line.text for line in reader.read_lines(TASK_ID, LogCursor(1, 1), limit=1)] == ["two"]
    assert [line.text for line in reader.read_lines(TASK_ID, after=LogCursor(1, 2))] == ["three"]
    assert reader.read_lines(TASK_ID, after=LogCursor(2, 1)) == []
    first, second = reader.read_attempts([TASK_ID]).get(TASK_ID, ())
    assert (first.outcome, first.metrics, first.hostname) == ("CANCELLED", {"jobs": 3}, "node")
    assert (second.number, second.outcome, second.finished_at) == (2, None, None)
    progress = reader.read_progress([TASK_ID, OTHER_ID])
    assert {task_id: (told.done, told.total, told.stage) for task_id, told in progress.items()} == {
        TASK_ID: (4, 10, "sort")
    }
    news = reader.client.read_news({TASK_ID: LogCursor(1, 2), OTHER_ID: LogCursor()})
    lines = tuple(reader.read_lines(TASK_ID, LogCursor(1, 2)))
    assert news == {TASK_ID: TaskNews(lines=lines, progress=progress[TASK_ID])}


def test_nothing_is_told_where_nothing_was_written(hook: HorsiesHook) -> None:
    migrate_ledger(hook.client)
    assert hook.read_lines(TASK_ID) == []
    assert (
        hook.read_progress([TASK_ID])
        == hook.read_attempts([TASK_ID])
        == hook.client.read_news({TASK_ID: LogCursor()})
        == {}
    )
    assert hook.read_attempts([TASK_ID]).get(TASK_ID, ()) == ()
    assert hook.read_progress([]) == hook.client.read_news({}) == {}


@pytest.mark.parametrize("version", [0, 1])
def test_missing_and_older_tables_tell_nothing(hook: HorsiesHook, make_hook: MakeHook, version: int) -> None:
    if version == 1:
        migrate_ledger(hook.client)
        with psycopg.connect(**hook.settings.database.connect_args) as connection:
            connection.execute("DROP TABLE airflow_horsies.attempts")
            connection.execute("DELETE FROM airflow_horsies.migrations WHERE version > 1")
    reader = make_hook()
    assert read_ledger_version(reader.client) == version
    assert reader.read_lines(TASK_ID) == []
    assert reader.read_progress([TASK_ID]) == reader.client.read_news({TASK_ID: LogCursor()}) == {}
    assert reader.read_attempts([TASK_ID]).get(TASK_ID, ()) == ()


@pytest.mark.parametrize("limit", [0, 1_001])
def test_lines_are_read_in_bounded_pieces(hook: HorsiesHook, limit: int) -> None:
    with pytest.raises(InvalidTask, match="limit: must be an integer from 1 to 1000"):
        hook.read_lines(TASK_ID, limit=limit)


def test_next_piece_begins_where_the_last_ended(hook: HorsiesHook) -> None:
    migrate_ledger(hook.client)
    texts = [str(number) for number in range(2_500)]
    write_lines(hook, TASK_ID, *texts[:1_700])
    write_lines(hook, TASK_ID, *texts[1_700:], attempt=2)
    read: list[LogLine] = []
    while lines := hook.read_lines(TASK_ID, after=read[-1].cursor if read else None):
        read += lines
    assert [line.text for line in read] == texts


def test_chunks_of_lines_are_lines_again_also_empty_ones(hook: HorsiesHook) -> None:
    migrate_ledger(hook.client)
    task_id = str(uuid.uuid4())
    chunks = [
        LogChunk(1, BEGAN, "INFO", ["a", "", "b"]),
        LogChunk(4, BEGAN, "ERROR", [""]),
        LogChunk(5, BEGAN, "INFO", ["c"]),
    ]
    for _ in range(2):
        hook.client.session.run(lambda: attempts.append_lines(task_id, 1, chunks))
    assert [(line.number, line.level, line.text) for line in hook.read_lines(task_id)] == [
        (1, "INFO", "a"),
        (2, "INFO", ""),
        (3, "INFO", "b"),
        (4, "ERROR", ""),
        (5, "INFO", "c"),
    ]
