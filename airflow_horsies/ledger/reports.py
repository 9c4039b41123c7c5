"""Reports that tasks produced: a worker writes them, the web server of Airflow shows them."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_horsies.core.report import Report
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.ledger.schema import PACKAGE

# The first version of the ledger with this table.
SINCE = 3
KEEP = 100
# For all names together.
KEEP_OF_ALL = 1_000


def save_report(report: Report, page: str) -> Script[None]:
    """Write a report, replacing one of the same name and period; only the newest are kept."""
    yield Statement(
        sql_text(PACKAGE, "save_report"),
        {
            "name": report.name,
            "period_start": report.period_start,
            "period_end": report.period_end,
            "location": report.location,
            "page": page,
        },
    )
    yield Statement(sql_text(PACKAGE, "prune_reports"), {"name": report.name, "keep": KEEP, "keep_of_all": KEEP_OF_ALL})


def list_reports(*, limit: int = KEEP) -> Script[list[Report]]:
    """The reports, newest first."""
    rows = yield Statement(sql_text(PACKAGE, "list_reports"), {"limit": limit})
    return [
        Report(
            name=row["name"],
            period_start=row["period_start"].astimezone(UTC),
            period_end=row["period_end"].astimezone(UTC),
            made_at=row["made_at"].astimezone(UTC),
            location=row["location"],
        )
        for row in rows
    ]


def read_report(name: str, period_start: datetime, period_end: datetime) -> Script[str | None]:
    """The page of a report, if it exists."""
    rows = yield Statement(
        sql_text(PACKAGE, "read_report"), {"name": name, "period_start": period_start, "period_end": period_end}
    )
    return rows[0]["page"] if rows else None
