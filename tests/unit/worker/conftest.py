"""Shared by the tests of the worker: no secret that one of them masks stays masked in the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.worker.tables import Tables


@pytest.fixture(autouse=True)
def _no_secrets_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from airflow_horsies.worker import masking

    monkeypatch.setattr(masking, "_secrets", set())
    masking._pattern.cache_clear()
    yield
    masking._pattern.cache_clear()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    """In the place of a database."""
    from airflow_horsies.client import reporting
    from tests.unit.worker.tables import Tables

    tables = Tables()
    monkeypatch.setattr(reporting, "Session", lambda database, limits: tables)
    return tables
