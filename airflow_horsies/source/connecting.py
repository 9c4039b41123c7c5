"""Finds the database in the environment of the reading process, so that no credentials are sent to executors."""

from __future__ import annotations

import os
from typing import Any

import psycopg

from airflow_horsies.core.environment import DATABASE_URL
from airflow_horsies.db.connection import Database, args_of_url
from airflow_horsies.exceptions import SourceError

LIBPQ_VARIABLES = ("PGSERVICE", "PGHOST", "PGHOSTADDR", "PGDATABASE")
APPLICATION_NAME = "airflow-horsies spark"
CONNECT_SECONDS = 30


def find_database(service: str | None) -> Database:
    """The database according to the environment of this process."""
    ours = {"application_name": APPLICATION_NAME, "client_encoding": "utf8"}
    args = {"connect_timeout": CONNECT_SECONDS, **_connect_args(service), **ours}
    return Database(connect_args=args, listen_args=args)


def open_reading(database: Database) -> psycopg.Connection[Any]:
    """A connection with read-only transactions that each see one snapshot of the database."""
    connection: psycopg.Connection[Any] = database.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection


def _connect_args(service: str | None) -> dict[str, Any]:
    if service is not None:
        return {"service": service}
    url = os.environ.get(DATABASE_URL)
    if url:
        try:
            return args_of_url(url)
        except ValueError:
            raise SourceError(
                f"{DATABASE_URL} is not a Postgres URL. Use postgresql://user:password@host:5432/horsies."
            ) from None
    if any(os.environ.get(name) for name in LIBPQ_VARIABLES):
        return {}
    raise SourceError(
        f"No database is configured for this Spark process. Set {DATABASE_URL} in the environment of the driver and of "
        "every executor, or use option('service', ...) with a pg_service.conf on each machine."
    )
