"""The database, from the environment of whichever process reads: nothing that travels holds how to log in."""

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
    """Where to read, as the environment of this process says."""
    ours = {"application_name": APPLICATION_NAME, "client_encoding": "utf8"}
    args = {"connect_timeout": CONNECT_SECONDS, **_found(service), **ours}
    return Database(connect_args=args, listen_args=args)


def open_reading(database: Database) -> psycopg.Connection[Any]:
    """A connection whose transactions see one state of the database, and change nothing."""
    connection: psycopg.Connection[Any] = database.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection


def _found(service: str | None) -> dict[str, Any]:
    if service is not None:
        return {"service": service}
    url = os.environ.get(DATABASE_URL)
    if url:
        try:
            return args_of_url(url)
        except ValueError:
            raise SourceError(
                f"{DATABASE_URL} is no Postgres URL; write postgresql://user:password@host:5432/horsies"
            ) from None
    if any(os.environ.get(name) for name in LIBPQ_VARIABLES):
        return {}
    raise SourceError(
        f"this process of Spark knows no database: set {DATABASE_URL} in the environment of the driver and of every "
        "executor, or give option('service', ...) and a pg_service.conf on each machine"
    )
