"""Shared by all unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow_horsies.testing import FakeHorsies


@pytest.fixture
def horsies() -> Iterator[FakeHorsies]:
    """In the place of a database and of workers, for all hooks of a test."""
    from airflow_horsies.testing import FakeHorsies

    with FakeHorsies() as fake:
        yield fake
