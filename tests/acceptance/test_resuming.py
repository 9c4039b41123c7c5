"""Airflow's scheduler fails a task that resumes before it has heard of the end of its first process: ours do not."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from airflow_horsies.embedded.stack import AIRFLOW_DATABASE, EmbeddedStack
from tests.acceptance.conftest import AirflowApi

LOGGED = """
SELECT map_index, task_id, event, dttm
  FROM log
 WHERE dag_id = 'resuming' AND run_id = %s
 ORDER BY dttm
"""
# As late as Airflow may notice the end of a process.
NOTICE_SECONDS = 5
RUN_SECONDS = 300


@pytest.fixture(scope="module")
def logged(stack: EmbeddedStack, api: AirflowApi) -> list[tuple[Any, ...]]:
    """What Airflow logged of a run in which tasks defer and sensors reschedule themselves, all of them for a moment."""
    run_id = api.trigger("resuming")
    assert api.wait("resuming", run_id, RUN_SECONDS) == "success", api.story("resuming", run_id)
    with psycopg.connect(**stack.postgres.conninfo(AIRFLOW_DATABASE)) as connection:
        return connection.execute(LOGGED, (run_id,)).fetchall()


def test_airflow_fails_nobody(logged: list[tuple[Any, ...]]) -> None:
    assert "state mismatch" not in {event for _, _, event, _ in logged}


@pytest.mark.parametrize(("task_id", "left"), [("nap", "deferred"), ("watch", "up_for_reschedule")])
def test_task_resumes_after_airflow_has_noticed_the_end_of_its_process(
    logged: list[tuple[Any, ...]], task_id: str, left: str
) -> None:
    pauses = []
    for index in {index for index, name, event, _ in logged if (name, event) == (task_id, left)}:
        events = [(event, at) for number, name, event, at in logged if (number, name) == (index, task_id)]
        left_at = next(at for event, at in events if event == left)
        resumed_at = next(at for event, at in events if event == "running" and at > left_at)
        pauses.append((resumed_at - left_at).total_seconds())
    # A task that ends before anybody looks does not leave its process.
    assert pauses
    assert min(pauses) > NOTICE_SECONDS
