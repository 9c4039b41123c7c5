from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from airflow_horsies.report.markup import MAX_ROWS, number, percent, seconds
from airflow_horsies.report.page import Period, render_page
from tests.unit.report.rows import (
    MONDAY,
    WEEK,
    attempt,
    error,
    failed_node,
    group,
    node,
    sample,
    sample_workflows,
    worker,
    workflow,
)

MADE_AT = datetime(2026, 1, 12, 3, 4, tzinfo=UTC)
NOBODY: dict[str, list[dict[str, Any]]] = {"groups": [], "errors": [], "slowest": [], "workers": []}
HOSTILE = "</style><script>alert('x')</script><img src=x onerror=alert(1)>{style}"


class Outline(HTMLParser):
    """The tags of a page, their attributes, and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append(data.strip())


def test_a_page_shows_totals_days_groups_errors_attempts_and_workers() -> None:
    words = Outline(render_page(WEEK, **sample(), made_at=MADE_AT)).words
    assert "2026-01-05 00:00 to 2026-01-12 00:00, UTC" in words
    assert "Made 2026-01-12 03:04 UTC by airflow-horsies." in words
    for title in ("By day", "Error codes", "DAGs", "Tasks", "Queues", "Days", "Slowest attempts", "Workers"):
        assert title in words
    for word in ("90 %", "10 not completed", "WORKER_CRASHED", "(not sent by Airflow)", "Monday, 5 January"):
        assert word in words
    assert "sales.load[3], manual__1" in words
    # 60 and 12 of 72 busy seconds.
    assert words[words.index("w1") + 4] == "83.3 %"


def test_a_page_shows_workflows_their_nodes_and_the_innermost_that_failed() -> None:
    words = Outline(render_page(WEEK, **sample(), **sample_workflows(), made_at=MADE_AT)).words
    for title in ("Workflows", "Workflows by day", "Workflows by name", "Workflows by DAG", "Nodes"):
        assert title in words
    assert words[words.index("sales.month") :][:3] == ["sales.month", "1", "75 %"]
    failed = words[words.index("Innermost failed nodes") :]
    begin = failed.index("sales.models / sales.one_shop / train")
    assert failed[begin + 1 : begin + 6] == ["sales.train", "TOO_FEW_SALES", "2", "2", "1"]
    assert "sales.models / parse" in failed
    # Six nodes that were parked for two hours together.
    assert "6 for 2 h" in failed
    assert "Duration of workflows" in words


def test_a_page_without_workflows_does_not_mention_them() -> None:
    words = Outline(render_page(WEEK, **sample(), made_at=MADE_AT)).words
    assert "Workflows" not in words


def test_workflows_that_were_cancelled_before_a_task_ended_are_shown() -> None:
    nothing = {f"{what}_{name}": None for what in ("wait", "duration") for name in ("p50", "p95", "p99")}
    row = workflow("workflow", "none", nodes=0, node_success_rate=None, parked=0, **nothing)
    words = Outline(render_page(WEEK, **NOBODY, workflows=[row], made_at=MADE_AT)).words
    assert "No task ended in this period." in words
    assert "none" in words
    assert {"No node failed.", "No workflow had a node that runs a task."} <= set(words)


def test_a_page_needs_nothing_but_itself() -> None:
    page = render_page(WEEK, **sample(), **sample_workflows(), made_at=MADE_AT)
    outline = Outline(page)
    assert outline.tags.isdisjoint({"script", "link", "img", "iframe", "object", "base"})
    assert outline.attributes.isdisjoint({"src", "href", "onclick", "style"})
    assert re.search(r"url\(|@import|https?:", page) is None


def test_hostile_words_stay_words() -> None:
    rows = {
        "groups": [
            group(),
            group(day=MONDAY.date()),
            *(group(dimension, HOSTILE) for dimension in ("dag", "task", "queue")),
        ],
        "errors": [error(HOSTILE)],
        "slowest": [attempt(task_name=HOSTILE, dag_id=HOSTILE, run_id=HOSTILE, hostname=HOSTILE, outcome=HOSTILE)],
        "workers": [worker(HOSTILE, HOSTILE)],
        "workflows": [workflow("workflow", HOSTILE)],
        "nodes": [node(HOSTILE, workflow=HOSTILE, inner_workflow=HOSTILE, task_name=HOSTILE)],
        "failed_nodes": [failed_node(HOSTILE, task_name=HOSTILE, error_code=HOSTILE)],
    }
    outline = Outline(render_page(WEEK, **rows, made_at=MADE_AT))
    assert outline.tags.isdisjoint({"script", "img"})
    assert outline.words.count(HOSTILE) == 13
    assert f"{HOSTILE} / {HOSTILE}" in outline.words


def test_a_period_without_tasks_says_so() -> None:
    page = render_page(WEEK, **NOBODY, made_at=MADE_AT)
    assert "No task ended in this period." in page
    assert "<table" not in page


def test_tasks_that_never_ran_have_no_times() -> None:
    nothing = {f"{what}_{name}": None for what in ("wait", "run") for name in ("p50", "p95", "p99")}
    rows = {**NOBODY, "groups": [group(**nothing), group(day=MONDAY.date(), **nothing)]}
    words = Outline(render_page(WEEK, **rows, made_at=MADE_AT)).words
    assert "median \u2013" in words
    assert {"Nothing failed.", "No attempt was made.", "No worker made an attempt."} <= set(words)


def test_long_tables_are_cut_and_say_so() -> None:
    rows = {**NOBODY, "groups": [group(), *(group("task", f"task {index}") for index in range(MAX_ROWS + 3))]}
    words = Outline(render_page(WEEK, **rows, made_at=MADE_AT)).words
    assert f"The first {MAX_ROWS} of {MAX_ROWS + 3} rows. The Parquet files contain all rows." in words


def test_a_period_knows_the_days_it_touches() -> None:
    assert [day.day for day in WEEK.days] == [5, 6, 7, 8, 9, 10, 11]
    assert WEEK.key == "2026-01-05T000000--2026-01-12T000000"
    evening = Period(start=MONDAY + timedelta(hours=23), end=MONDAY + timedelta(hours=25))
    assert [day.day for day in evening.days] == [5, 6]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\u2013"),
        (0, "0 ms"),
        (0.0123, "12.3 ms"),
        (1, "1 s"),
        (61.25, "61.2 s"),
        (150, "2.5 min"),
        (5400, "1.5 h"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("part", "text"), [(None, "\u2013"), (0, "0 %"), (1, "100 %"), (0.99999, "> 99.9 %"), (0.905, "90.5 %")]
)
def test_percent(part: float | None, text: str) -> None:
    assert percent(part) == text


def test_number() -> None:
    assert [number(value) for value in (0, 1234567, 2.5)] == ["0", "1,234,567", "2.5"]
