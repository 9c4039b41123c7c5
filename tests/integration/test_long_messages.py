"""Errors with whole plans in them: many at once are read in part, one is read whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from airflow_horsies.client.pages import PageClient
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskView
from airflow_horsies.wire.statements import SUMMARY_CHARS
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED

LONG = "Plan: ü " * 10_000
MARK = "the end of the plan"


@pytest.fixture
def hook(make_hook: MakeHook, served_database: str) -> HorsiesHook:
    return make_hook(served_database)


@pytest.fixture
def page(hook: HorsiesHook) -> Iterator[PageClient]:
    with PageClient(hook.settings, seconds=60) as page:
        yield page


def fail(hook: HorsiesHook, text: str) -> TaskView:
    (task,) = hook.wait([hook.enqueue_task(TaskSpec(task_name="blow_up", kwargs={"text": text}))], timeout_seconds=60)
    return task


def without_messages(task: TaskView) -> list[object]:
    return [replace(attempt, error_message=None, failed_reason=None) for attempt in task.attempts]


def test_long_messages_are_cut_where_many_are_read(hook: HorsiesHook, page: PageClient) -> None:
    whole = fail(hook, LONG)
    (attempt,) = whole.attempts
    assert attempt.error_message is not None and len(attempt.error_message) >= len(LONG)
    summary = page.read_summaries([whole.id])[whole.id]
    assert summary.attempts[0].error_message == attempt.error_message[:SUMMARY_CHARS]
    (listed,) = [task for task in page.list_recent_tasks(limit=100).tasks if task.id == whole.id]
    assert listed.attempts[0].error_message is None
    assert without_messages(whole) == without_messages(summary) == without_messages(listed)
    assert len(listed.failed_reason or "") <= SUMMARY_CHARS


@pytest.mark.parametrize("release", [MOVED], indirect=True)
@pytest.mark.parametrize("odd", [r"\u0000", r"\ud800"])
def test_a_long_message_that_is_no_text_to_postgres_fails_nobody(
    hook: HorsiesHook, page: PageClient, postgres: EmbeddedPostgres, served_database: str, odd: str
) -> None:
    whole = fail(hook, f"{LONG}{MARK}")
    with psycopg.connect(**postgres.conninfo(served_database)) as connection:
        # The history is not changed by anybody else.
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "UPDATE horsies_task_history SET attempt_snapshot = "
            "convert_to(replace(convert_from(attempt_snapshot, 'UTF8'), %s, %s), 'UTF8') WHERE task_id = %s",
            (MARK, odd, whole.id),
        )
    summary = page.read_summaries([whole.id])[whole.id]
    assert summary.attempts[0].error_message == (whole.attempts[0].error_message or "")[:SUMMARY_CHARS]
    assert whole.id in {task.id for task in page.list_recent_tasks(limit=100).tasks}
