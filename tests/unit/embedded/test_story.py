from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from airflow_horsies.embedded import story
from airflow_horsies.embedded.airflow_api import AirflowApi
from airflow_horsies.embedded.demo import print_summary
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.story import ALL_DAYS, Outcome
from airflow_horsies.models import Attempt, TaskResult, TaskState, TaskView

START = datetime(2024, 1, 1, tzinfo=UTC)


def view(name: str, state: TaskState, *codes: str | None) -> TaskView:
    return TaskView(
        id="0",
        task_name=name,
        queue="default",
        priority=100,
        state=state,
        sent_at=START,
        enqueued_at=START,
        retry_count=len(codes) - 1,
        max_retries=3,
        error_code=codes[-1],
        result=None if codes[-1] else TaskResult(ok={"rows": 3}),
        attempts=tuple(
            Attempt(
                number=number,
                outcome="FAILED" if code else "COMPLETED",
                will_retry=code is not None and number < len(codes),
                started_at=START,
                finished_at=START + timedelta(seconds=1),
                error_code=code,
                error_message="because" if code else None,
            )
            for number, code in enumerate(codes, start=1)
        ),
    )


GOOD = Outcome(
    expected_days=ALL_DAYS,
    days=Counter({"success": ALL_DAYS}),
    month={"days": ALL_DAYS, "flights": 27004, "cancelled": 521},
    quarantined=21,
    models={
        "month": "2013-01",
        "models": 3,
        "minutes_per_hour": {"EWR": 1.25, "JFK": 0.5, "LGA": -0.125},
        "left_out": {"HPN": "NO_FLIGHTS"},
        "approved_by": "the demo",
    },
    healed=view("flights.enrich", TaskState.COMPLETED, "WEATHER_UNAVAILABLE", None),
    broken=view("flights.validate", TaskState.FAILED, "QUALITY_GATE_FAILED"),
    report={"tasks": 220, "success_rate": 219 / 220, "retries": 1, "page": "/reports/pages/week.html"},
    links={},
)


@pytest.mark.parametrize(
    ("wrong", "problems"),
    [
        ({}, []),
        ({"days": Counter({"success": 30, "failed": 1})}, ["Not all of 31 days succeeded."]),
        ({"month": {"days": 30}}, ["The roll-up of 2013-01 lacks days."]),
        (
            {"healed": view("flights.enrich", TaskState.COMPLETED, None)},
            ["The weather of 2013-01-08 was not read after a retry."],
        ),
        ({"models": {"models": 2}}, ["The models of the airports were not published after the approval."]),
        (
            {"broken": view("flights.validate", TaskState.FAILED, "WORKER_CRASHED")},
            ["2013-02-01 did not fail the quality gate."],
        ),
    ],
)
def test_what_did_not_go_as_it_should_is_told(wrong: dict[str, Any], problems: list[str]) -> None:
    assert replace(GOOD, **wrong).problems == problems


def test_the_summary_tells_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(GOOD, 3.25)
    output = capsys.readouterr().out
    for part in (
        "The pipeline processed 31 days of January 2013 in 3.2 minutes",
        "27,004 flights,\n521 of them cancelled. The quality gate quarantined 21 rows",
        "WEATHER_UNAVAILABLE: because (retried)",
        "QUALITY_GATE_FAILED: because",
        "in minutes per hour of the day:\nEWR +1.25, JFK +0.50, LGA -0.12. Three",
        "it went on without HPN (NO_FLIGHTS).\n",
        "until the demo sent the signal of approval, and published 3 models.",
        "counts 220 tasks, of which 99.5% completed. Retries: 1. The report is in:\n  /reports/pages/week.html",
    ):
        assert part in output


def test_waiting_ends_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(story, "STUCK_SECONDS", 0.05)
    with pytest.raises(EmbeddedError, match="There was no progress for 0 minutes while waiting for Godot"):
        story._until(lambda: False, "Godot")


def test_waiting_goes_on_while_something_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(story, "STUCK_SECONDS", 0.05)
    steps = iter(range(20))
    left = [20]

    def moved() -> int:
        left[0] -= 1
        return next(steps)

    story._until(lambda: left[0] == 0, "the end", progress=moved)


def api(answer: httpx.Response) -> AirflowApi:
    made = object.__new__(AirflowApi)
    made._client = httpx.Client(transport=httpx.MockTransport(lambda _: answer), base_url="http://airflow.test/api/v2")
    return made


class RunsOfAirflow:
    """As much of the API as waiting needs, with runs in given states."""

    def __init__(self, **states: str) -> None:
        self.states = states
        # Runs that go on, although one of their tasks has failed.
        self.failing: list[str] = []
        self.cleared: list[tuple[str, str]] = []

    def runs(self, dag_id: str, state: str | None = None, **query: Any) -> list[dict[str, Any]]:
        return [
            {"dag_run_id": run_id, "state": held, "logical_date": run_id}
            for run_id, held in self.states.items()
            if run_id.startswith(dag_id) and state in (None, held)
        ]

    def runs_with_failures(self, dag_id: str, **query: Any) -> list[str]:
        return [run_id for run_id in self.failing if run_id.startswith(dag_id)]

    def clear(self, dag_id: str, run_id: str) -> None:
        self.cleared.append((dag_id, run_id))

    def errors(self, dag_id: str, run_id: str) -> dict[str, str]:
        return {"ingest": "Task failed with exception TaskFailed: no disk"}


def test_a_day_that_fails_ends_the_waiting_with_its_reason() -> None:
    airflow = RunsOfAirflow(flights_daily_1="success", flights_daily_2="failed", flights_daily_3="queued")
    with pytest.raises(EmbeddedError, match=r"Run flights_daily_2 of flights_daily failed\.\n  ingest: .* no disk"):
        story._wait_for_days(airflow, "a", "b", 3, lambda text: None)  # type: ignore[arg-type]


def test_what_failed_in_an_earlier_demo_runs_again() -> None:
    airflow = RunsOfAirflow(flights_daily_1="success", flights_daily_2="failed", flights_monthly_1="failed")
    story._rerun_failed(airflow, "a", "b")  # type: ignore[arg-type]
    assert airflow.cleared == [("flights_daily", "flights_daily_2"), ("flights_monthly", "flights_monthly_1")]


def test_a_task_that_failed_while_the_demo_was_interrupted_runs_again() -> None:
    airflow = RunsOfAirflow(flights_daily_1="success", flights_daily_2="running", flights_daily_3="failed")
    airflow.failing = ["flights_daily_2", "flights_daily_3"]
    story._rerun_failed(airflow, "a", "b")  # type: ignore[arg-type]
    assert airflow.cleared == [("flights_daily", "flights_daily_2"), ("flights_daily", "flights_daily_3")]


def test_a_refusal_of_airflow_is_told_with_its_words() -> None:
    with pytest.raises(EmbeddedError, match=r"Airflow rejected PATCH /dags/x with 404: no such DAG"):
        api(httpx.Response(404, text="no such DAG")).unpause("x")


def test_a_run_that_is_there_already_is_no_error() -> None:
    api(httpx.Response(409, text="there is one")).trigger("x", "run")
    api(httpx.Response(409, text="there is one")).backfill("x", "a", "b", at_once=1)


def test_a_file_that_airflow_cannot_read_is_told() -> None:
    answer = httpx.Response(200, json={"import_errors": [{"filename": "x.py", "stack_trace": "SyntaxError"}]})
    with pytest.raises(EmbeddedError, match=r"Airflow cannot import x\.py:\nSyntaxError"):
        api(answer).missing_dags(["x"])
