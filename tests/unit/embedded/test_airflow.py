from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from airflow_horsies.embedded.airflow import EmbeddedAirflow


def make(folder: Path, **options: object) -> EmbeddedAirflow:
    return EmbeddedAirflow(
        folder,
        database_url="postgresql+psycopg2://u:p@127.0.0.1:1/airflow",
        dags_folder=folder / "dags",
        **options,  # type: ignore[arg-type]
    )


def test_secrets_and_port_are_kept(tmp_path: Path) -> None:
    first, second = make(tmp_path).environ(), make(tmp_path).environ()
    for name in ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET"):
        assert first[name] == second[name]
    assert first["AIRFLOW__API__BASE_URL"] == second["AIRFLOW__API__BASE_URL"]
    assert stat.S_IMODE((tmp_path / "secrets.json").stat().st_mode) == 0o600


def test_everything_listens_on_the_loopback_address_below_the_base_path(tmp_path: Path) -> None:
    airflow = make(tmp_path, base_path="/air/flow/")
    environ = airflow.environ()
    assert environ["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert airflow.base_url.startswith("http://127.0.0.1:")
    assert airflow.base_url.endswith("/air/flow")
    assert environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == f"{airflow.base_url}/execution/"


def test_everyone_is_admin_only_when_asked_for(tmp_path: Path) -> None:
    assert "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS" not in make(tmp_path / "a").environ()
    assert make(tmp_path / "b", all_admins=True).environ()["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "True"


def test_users_get_passwords_of_their_own(tmp_path: Path) -> None:
    airflow = make(tmp_path, users={"ann": "admin", "vic": "viewer"})
    environ = airflow.environ()
    assert environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "ann:admin,vic:viewer"
    held = json.loads(Path(environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]).read_text())
    assert held == {"ann": airflow.password("ann"), "vic": airflow.password("vic")}
    assert airflow.password("ann") != airflow.password("vic")


def test_the_callers_own_airflow_does_not_leak_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "postgres://")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    environ = make(tmp_path, connections={"horsies_default": {"conn_type": "horsies"}}).environ()
    assert environ["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert "AIRFLOW_CONN_OTHER" not in environ
    assert json.loads(environ["AIRFLOW_CONN_HORSIES_DEFAULT"]) == {"conn_type": "horsies"}
    assert environ["NO_PROXY"] == "example.org,127.0.0.1,localhost"
