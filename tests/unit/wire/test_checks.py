from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_horsies.wire.checks import (
    CLOCK_TOLERANCE,
    MissingPrivilege,
    find_missing_privileges,
    find_outdated_workers,
    judge_worker,
    read_server,
)
from tests.unit.driving import IN_PLACE, MOVED, drive

UPGRADED = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = UPGRADED + timedelta(seconds=1)
# The settings that workers of these releases report, by what differs.
ALWAYS = {"auto_requeue_stale_claimed", "check_interval_ms"}
R_0_2 = ALWAYS | {"heartbeat_retention_hours"}
R_0_4 = R_0_2 | {"crashed_worker_recovery_grace_ms"}
R_0_5_0 = ALWAYS | {"crashed_worker_recovery_grace_ms"}
R_0_5_4 = R_0_5_0 | {"orphan_task_audit_interval_ms", "partition_coverage"}
AT_35 = replace(MOVED, version=35)


@pytest.mark.parametrize(
    ("schema", "settings"),
    [
        (MOVED, R_0_5_4),
        (AT_35, R_0_5_0),
        (AT_35, R_0_5_4),
        (IN_PLACE, R_0_4),
        (replace(IN_PLACE, version=8), R_0_2),
        (replace(IN_PLACE, version=None), R_0_2),
        (MOVED, set()),
        (MOVED, {"settings_of_another_port"}),
    ],
)
def test_worker_that_fits_the_schema_or_cannot_be_judged_is_left_alone(schema: Any, settings: set[str]) -> None:
    assert judge_worker(schema, UPGRADED, "w", LATER, settings) is None


@pytest.mark.parametrize(
    ("schema", "settings", "evidence", "is_useless"),
    [
        (MOVED, R_0_4, "horsies 0.4 or older", True),
        (AT_35, R_0_2, "horsies 0.4 or older", True),
        (MOVED, R_0_5_0, "orphan_task_audit_interval_ms", False),
        (IN_PLACE, R_0_2, "crashed_worker_recovery_grace_ms", False),
    ],
)
def test_worker_older_than_the_schema_is_known_by_its_settings(
    schema: Any, settings: set[str], evidence: str, is_useless: bool
) -> None:
    judged = judge_worker(schema, UPGRADED, "w", LATER, settings)
    assert judged is not None
    assert evidence in judged.evidence
    assert judged.is_useless is is_useless


@pytest.mark.parametrize("settings", [R_0_5_4, set()])
def test_worker_that_started_before_the_upgrade_is_older(settings: set[str]) -> None:
    before = UPGRADED - CLOCK_TOLERANCE
    assert judge_worker(MOVED, UPGRADED, "w", before, settings) is None
    judged = judge_worker(MOVED, UPGRADED, "w", before - timedelta(seconds=1), settings)
    assert judged is not None and "before the schema was upgraded" in judged.evidence
    assert judge_worker(MOVED, None, "w", before - timedelta(seconds=1), settings) is None


def test_outdated_workers_are_those_that_are_judged_so() -> None:
    row = {"worker_started_at": LATER, "settings": sorted(R_0_5_4)}
    answers = {
        "read_schema_upgrade": [{"upgraded_at": UPGRADED}],
        "read_worker_settings": [
            {**row, "worker_id": "new"},
            {**row, "worker_id": "old", "settings": sorted(R_0_4)},
        ],
    }
    driven = drive(find_outdated_workers(MOVED, {"old", "new"}), answers)
    assert [worker.worker_id for worker in driven.outcome] == ["old"]
    assert driven.params("read_worker_settings") == {"worker_ids": ["new", "old"]}


def test_upgrade_is_not_read_where_the_schema_has_no_number() -> None:
    assert drive(find_outdated_workers(replace(IN_PLACE, version=None), ["w"])).names == ["read_worker_settings"]


def test_server_tells_its_clock_in_utc() -> None:
    row = {
        "clock": UPGRADED.astimezone(timezone(timedelta(hours=2))),
        "database": "d",
        "username": "u",
        "version": "17.5",
        "is_read_only": False,
    }
    server = drive(read_server(), {"read_server": [row]}).outcome
    assert (server.clock.isoformat(), server.username) == ("2026-03-01T12:00:00+00:00", "u")


def test_missing_privilege_comes_with_its_remedy() -> None:
    row = {"purpose": "send", "missing": "INSERT on horsies_tasks", "remedy": "GRANT INSERT …;"}
    driven = drive(find_missing_privileges(), {"find_missing_privileges": [row]})
    assert driven.outcome == [MissingPrivilege(**row)]
