from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from airflow_horsies.ledger.reports import KEEP, KEEP_OF_ALL, list_reports, read_report, save_report
from airflow_horsies.models import Report
from tests.unit.driving import drive

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
REPORT = Report(name="reliability", period_start=MONDAY, period_end=MONDAY + timedelta(days=7), location="/reports")


def test_a_report_is_saved_and_older_ones_are_pruned() -> None:
    driven = drive(save_report(REPORT, "<p>fine</p>"), {})
    assert driven.names == ["save_report", "prune_reports"]
    assert driven.ran[0][1]["page"] == "<p>fine</p>"
    assert driven.ran[1][1] == {"name": "reliability", "keep": KEEP, "keep_of_all": KEEP_OF_ALL}


def test_reports_are_listed_in_utc() -> None:
    there = timezone(timedelta(hours=5))
    row = {
        "name": "reliability",
        "period_start": REPORT.period_start.astimezone(there),
        "period_end": REPORT.period_end.astimezone(there),
        "made_at": MONDAY.astimezone(there),
        "location": "/reports",
    }
    (report,) = drive(list_reports(), {"list_reports": [row]}).outcome
    assert report.period_start.tzinfo is UTC
    assert report == Report(
        name="reliability",
        period_start=MONDAY,
        period_end=MONDAY + timedelta(days=7),
        location="/reports",
        made_at=MONDAY,
    )


def test_a_report_that_is_not_there_is_none() -> None:
    asked = ("reliability", REPORT.period_start, REPORT.period_end)
    assert drive(read_report(*asked), {"read_report": []}).outcome is None
    assert drive(read_report(*asked), {"read_report": [{"page": "<p>"}]}).outcome == "<p>"
