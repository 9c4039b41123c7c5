"""A worker keeps our tables small by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from benchmarks import housekeeping

pytest.importorskip("horsies")


@pytest.mark.timeout(300)
def test_our_tables_stay_below_their_bounds_without_anybody_calling_prune(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``python -m benchmarks.housekeeping`` does with many more tasks."""
    monkeypatch.setattr(housekeeping, "KEEP_SECONDS", 4)
    monkeypatch.setattr(housekeeping, "LOG_AGE_SECONDS", 2)
    monkeypatch.setattr(housekeeping, "PRUNE_AFTER_SECONDS", 1)
    monkeypatch.setattr(housekeeping, "EVERY_SECONDS", 1)
    outcome = housekeeping.run(postgres, tasks=100, lines=5, folder=tmp_path)
    postgres.drop_database("housekeeping")
    assert outcome.most_rows["attempts"] > 0 and outcome.most_rows["logs"] > 0
    assert outcome.violations == []
