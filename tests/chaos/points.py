"""Named points of a process, at one of which it is killed: what it asks of Postgres, and what it does between."""

from __future__ import annotations

import os
import signal
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg

COMMIT = "COMMIT"


class Death:
    """Where this process dies, if it does."""

    def __init__(self) -> None:
        self._point: str | None = None
        self._left = 0

    def at(self, point: str | None, occurrence: int = 1) -> None:
        self._point = point
        self._left = occurrence

    def reached(self, point: str) -> None:
        if self.is_now(point):
            os.kill(os.getpid(), signal.SIGKILL)

    def is_now(self, point: str) -> bool:
        if point != self._point:
            return False
        self._left -= 1
        return self._left == 0


death = Death()


@cache
def names() -> dict[str, str]:
    """The text of each SQL file of the package to its name."""
    found = {}
    for package in ("airflow_horsies.wire", "airflow_horsies.ledger"):
        unvisited = [files(package).joinpath("sql")]
        while unvisited:
            for each in unvisited.pop().iterdir():
                if each.is_dir():
                    unvisited.append(each)
                elif each.name.endswith(".sql"):
                    found[each.read_text(encoding="utf-8")] = each.name.removesuffix(".sql")
    return found


def name_of(query: Any) -> str:
    text = query.decode() if isinstance(query, bytes) else str(query)
    return names().get(text) or text.split(maxsplit=1)[0]


def send_commit(connection: Any) -> None:
    """Nobody waits for the answer: only the server will know whether it happened."""
    pipeline = connection._pipeline
    if pipeline is None:
        connection.pgconn.send_query(COMMIT.encode())
    else:
        # What is still queued goes first.
        pipeline.sync()
        connection.pgconn.send_query_params(COMMIT.encode(), None)
        connection.pgconn.pipeline_sync()
    connection.pgconn.flush()


def watch() -> None:
    """From now on, whatever this process asks of Postgres is a named point."""
    execute, execute_async, commit = psycopg.Cursor.execute, psycopg.AsyncCursor.execute, psycopg.Connection.commit

    def watched_execute(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        name = name_of(query)
        death.reached(f"before {name}")
        outcome = execute(self, query, *args, **more)
        death.reached(f"after {name}")
        return outcome

    async def watched_execute_async(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        name = name_of(query)
        death.reached(f"before {name}")
        outcome = await execute_async(self, query, *args, **more)
        death.reached(f"after {name}")
        return outcome

    def watched_commit(self: Any) -> None:
        death.reached(f"before {COMMIT}")
        if death.is_now(f"during {COMMIT}"):
            send_commit(self)
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self)
        death.reached(f"after {COMMIT}")

    psycopg.Cursor.execute = watched_execute  # type: ignore[method-assign]
    psycopg.AsyncCursor.execute = watched_execute_async  # type: ignore[method-assign, assignment]
    psycopg.Connection.commit = watched_commit  # type: ignore[method-assign]
