"""Our own tables: migrated once whoever comes first, and never written by a package older than they are."""

from __future__ import annotations

import multiprocessing
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest

from airflow_horsies.client.ledger import list_reports, migrate_ledger, read_ledger_version, read_report
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import reports
from airflow_horsies.ledger.reports import KEEP, save_report
from airflow_horsies.ledger.schema import latest_version, migrations
from airflow_horsies.models import Report, TaskInstanceKey, TaskSpec
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

INSTANCE = TaskInstanceKey(dag_id="d", run_id="r", task_id="t")
PROCESSES = 10
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def test_ten_processes_that_come_first_at_once_migrate_once(
    hook: HorsiesHook, make_hook: MakeHook, database: str
) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(PROCESSES)
    applied = context.Queue()

    def come_first() -> None:
        mine = make_hook(database)
        barrier.wait(30)
        applied.put([migration.version for migration in migrate_ledger(mine.client)])

    processes = [context.Process(target=come_first) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    outcomes = [applied.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(outcomes)[-1] == [migration.version for migration in migrations()]
    assert sorted(outcomes)[:-1] == [[]] * (PROCESSES - 1)
    assert read_ledger_version(hook.client) == latest_version()


def test_reading_never_creates_the_ledger(hook: HorsiesHook) -> None:
    assert hook.read_submissions(INSTANCE) == []
    assert hook.client.read_submissions_of_task("01a1e223-68a7-7210-ad76-a42348fdcb7c") == []
    hook.enqueue_task(TaskSpec(task_name="add"))
    assert read_ledger_version(hook.client) == 0


def test_failed_migration_leaves_nothing_half_done(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_horsies.ledger import schema

    broken = schema.Migration(latest_version() + 1, "broken", "CREATE TABLE airflow_horsies.half (); SELECT 1 / 0")
    monkeypatch.setattr(schema, "migrations", lambda: (*migrations(), broken))
    with pytest.raises(Exception, match="division by zero"):
        migrate_ledger(hook.client)
    assert read_ledger_version(hook.client) == 0
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        assert connection.execute("SELECT to_regnamespace('airflow_horsies')").fetchone() == (None,)


def test_reports_are_replaced_by_those_of_the_same_period_and_the_newest_are_kept(hook: HorsiesHook) -> None:
    migrate_ledger(hook.client)
    weeks = [MONDAY + timedelta(days=7 * week) for week in range(KEEP + 2)]
    for monday in weeks:
        report = Report(name="weekly", period_start=monday, period_end=monday + timedelta(days=7), location="/old")
        hook.client.run(partial(save_report, report, f"<p>{monday}</p>"))
    again = Report(name="weekly", period_start=weeks[-1], period_end=weeks[-1] + timedelta(days=7), location="/new")
    hook.client.run(partial(save_report, again, "<p>again</p>"))
    found = list_reports(hook.client)
    assert [report.period_start for report in found] == weeks[:1:-1]
    assert [report.location for report in found][:2] == ["/new", "/old"]
    assert read_report(hook.client, "weekly", weeks[-1], weeks[-1] + timedelta(days=7)) == "<p>again</p>"
    assert read_report(hook.client, "weekly", weeks[0], weeks[0] + timedelta(days=7)) is None
    assert read_report(hook.client, "other", weeks[-1], weeks[-1] + timedelta(days=7)) is None


def test_reports_of_many_names_have_a_bound_too(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "KEEP_OF_ALL", 5)
    migrate_ledger(hook.client)
    for number in range(8):
        report = Report(name=f"report {number}", period_start=MONDAY, period_end=MONDAY, location="/")
        hook.client.run(partial(save_report, report, "<p></p>"))
    assert {report.name for report in list_reports(hook.client)} == {f"report {number}" for number in range(3, 8)}


def test_no_report_is_found_where_there_is_no_ledger(hook: HorsiesHook) -> None:
    assert list_reports(hook.client) == []
    assert read_report(hook.client, "weekly", MONDAY, MONDAY) is None
