"""Our own tables in the horsies database: version, migrations, pruning and reports."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from functools import partial

from airflow_horsies.client import calls
from airflow_horsies.client.client import Client
from airflow_horsies.core.report import Report
from airflow_horsies.exceptions import DatabaseError
from airflow_horsies.ledger import pruning, reports, submissions
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.schema import Migration, latest_version

# How often a pruner waits for another one, which holds its lock for one page at a time.
MAX_PRUNE_WAITS = 600
PRUNE_WAIT_SECONDS = 0.1

__all__ = [
    "change_base_url",
    "latest_version",
    "list_reports",
    "migrate_ledger",
    "prune_ledger",
    "read_report",
    "read_ledger_version",
]


def read_ledger_version(client: Client) -> int:
    """The version of the airflow_horsies tables; 0 if there are none."""
    return client.run(ledger_schema.read_version)


def migrate_ledger(client: Client, *, by_hand: bool = False) -> list[Migration]:
    """Create or migrate the airflow_horsies tables; returns the applied migrations. Automatic on first use.

    :param by_hand: migrate also if [horsies] auto_migrate is off.
    """
    return client.drive(calls.migrate_ledger(client.scope, by_hand=by_hand))


def prune_ledger(
    client: Client, *, older_than: timedelta = pruning.PRUNE_AFTER, lines_older_than: timedelta | None = None
) -> int:
    """Remove submissions, logs and progress of tasks that horsies no longer keeps; returns the number of submissions.

    Workers do this automatically. Each page is a transaction of its own.

    :param older_than: keep records with activity within this time.
    :param lines_older_than: also remove log lines of this age, of any task.
    """
    migrate_ledger(client)
    rule = pruning.PruneRule(older_than=older_than, lines_older_than=lines_older_than)
    removed, after, waits = 0, None, 0
    while waits < MAX_PRUNE_WAITS:
        page = client.write(partial(pruning.prune_page, rule=rule, after=after))
        if page is None:
            waits += 1
            time.sleep(PRUNE_WAIT_SECONDS)
            continue
        removed, after = removed + page.submissions, page.last_id
        if page.is_last:
            return removed
    raise DatabaseError("Another process has been pruning the airflow_horsies tables for a minute. Try again later.")


def change_base_url(client: Client, *, old: str, new: str) -> int:
    """Take over the submissions of the former address of this deployment; returns their number."""
    migrate_ledger(client)
    namespace = client.namespace
    return client.run(lambda: submissions.change_base_url(namespace, old=old.rstrip("/"), new=new.rstrip("/")))


def list_reports(client: Client, *, limit: int = reports.KEEP) -> list[Report]:
    """The reports that tasks produced, newest period first."""
    return client.read_ledger(reports.SINCE, lambda: reports.list_reports(limit=limit), otherwise=[])


def read_report(client: Client, name: str, period_start: datetime, period_end: datetime) -> str | None:
    """The page of a report, if it exists."""
    return client.read_ledger(
        reports.SINCE, lambda: reports.read_report(name, period_start, period_end), otherwise=None
    )
