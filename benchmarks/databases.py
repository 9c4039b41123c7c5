"""Databases with horsies' tables, and hooks on them."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
from airflow.sdk import Connection

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from tests.integration.many_tasks import fill
from tests.integration.releases import MOVED, keeps_history, release_python

TESTS = Path(__file__).parents[1] / "tests" / "integration"


@contextlib.contextmanager
def durable_postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A server that waits for the disk as one in production does; its data, outside the folder for root, is deleted."""
    postgres = EmbeddedPostgres(folder, durable=True)
    try:
        with postgres:
            yield postgres
    finally:
        postgres.delete()


def make_database(postgres: EmbeddedPostgres, name: str, release: str = MOVED) -> dict[str, Any]:
    """A database with the tables of a release, as a worker leaves them; how to connect to it."""
    postgres.create_database(name)
    info = postgres.conninfo(name)
    with (
        tempfile.TemporaryDirectory() as folder,
        HorsiesWorker(
            "contract_tasks:app", conninfo=info, log=Path(folder) / "worker.log", folder=TESTS,
            python=release_python(release),
        ),
    ):  # fmt: skip
        return info


def make_full_database(postgres: EmbeddedPostgres, *, release: str, tasks: int, days: int) -> dict[str, Any]:
    """… with so many tasks of so many days."""
    info = make_database(postgres, f"bench_{release}_{tasks}", release)
    with open_hook(info) as hook:
        migrate_ledger(hook.client)
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
    fields = {**connection_fields(info), "extra": json.dumps({"namespace": "bench"})}
    return HorsiesHook("bench", connection=Connection(conn_id="bench", **fields))
