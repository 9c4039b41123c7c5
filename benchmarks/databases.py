"""Databases with horsies' tables, and hooks on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from airflow.sdk import Connection

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from tests.integration.many_tasks import fill
from tests.integration.releases import keeps_history, release_python

TESTS = Path(__file__).parents[1] / "tests" / "integration"


def make_database(postgres: EmbeddedPostgres, name: str) -> dict[str, Any]:
    """A database with horsies' tables; how to connect to it."""
    postgres.create_database(name)
    url = postgres.dsn(name, scheme="postgresql+psycopg")
    subprocess.run(
        [sys.executable, TESTS / "upstream_init.py"], env={**os.environ, "HORSIES_DATABASE_URL": url}, check=True
    )
    return postgres.conninfo(name)


def make_full_database(postgres: EmbeddedPostgres, *, release: str, tasks: int, days: int, log: Path) -> dict[str, Any]:
    """… of a release, with so many tasks of so many days."""
    name = f"bench_{release}_{tasks}"
    postgres.create_database(name)
    info = postgres.conninfo(name)
    # A worker completes the tables of the newer releases.
    with HorsiesWorker("contract_tasks:app", conninfo=info, log=log, folder=TESTS, python=release_python(release)):
        pass
    with open_hook(info) as hook:
        hook.ensure_ledger()
    with psycopg.connect(**info) as connection:
        fill(connection, tasks=tasks, days=days, keeps_history=keeps_history(release))
    return info


def connection_fields(info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "conn_type": "horsies",
        "host": info["host"],
        "port": info["port"],
        "login": info["user"],
        "password": info["password"],
        "schema": info["dbname"],
    }


def open_hook(info: Mapping[str, Any]) -> HorsiesHook:
    return HorsiesHook("bench", connection=Connection(conn_id="bench", **connection_fields(info)))
