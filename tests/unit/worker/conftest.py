"""Shared by the tests of the worker: no secret that one of them masks stays masked in the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_secrets_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from airflow_horsies.worker import masking

    monkeypatch.setattr(masking, "_secrets", set())
    masking._pattern.cache_clear()
    yield
    masking._pattern.cache_clear()
