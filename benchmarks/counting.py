"""What a Postgres server and a worker have done so far: transactions, statements, WAL, waits for the disk, CPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil
import psycopg

from airflow_horsies.embedded.postgres import EmbeddedPostgres

LOGGED = re.compile(r"LOG:  (?:statement|execute [^:]*): ?(.*)", re.DOTALL)
# The first that matches; what matches none is "other". Names are those of the page about short tasks.
KINDS: dict[str, re.Pattern[str]] = {
    kind: re.compile(pattern, re.IGNORECASE)
    for kind, pattern in {
        "begin_commit": r"\s*(BEGIN|COMMIT|ROLLBACK)\b",
        "check": r"\s*(;|SELECT 1)?\s*$",
        "ours": r".*airflow_horsies",
        "claim": r".*\bhorsies_claim\b",
        "heartbeat": r".*INSERT INTO horsies_heartbeats",
        "end": r".*\bhorsies_(complete|fail)\w*\(",
        "finalizing": r".*UPDATE horsies_tasks.*SET\s+finalizing_at",
        "start": r".*UPDATE horsies_tasks.*'RUNNING'",
    }.items()
}
DONE = """
    SELECT
        (SELECT xact_commit FROM pg_stat_database WHERE datname = %(name)s),
        pg_current_wal_insert_lsn() - '0/0',
        (SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal')
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Transactions and statements are those of one database; WAL, its syncs and the CPU are those of the server."""

    transactions: float
    statements: float
    wal_bytes: float
    wal_syncs: float = 0.0
    postgres_seconds: float = 0.0
    worker_seconds: float = 0.0

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))

    def __truediv__(self, by: float) -> Cost:
        return Cost(*(getattr(self, each.name) / by for each in fields(self)))

    def __mul__(self, by: float) -> Cost:
        return self / (1 / by)


def per_task(before: Cost, after: Cost, idle: Cost, *, seconds: float, tasks: int) -> Cost:
    """:param idle: what a worker without tasks costs in a second."""
    return (after - before - idle * seconds) / tasks


class Meter:
    """Counts for one database and its worker."""

    def __init__(self, postgres: EmbeddedPostgres, database: str, worker_pid: int | None) -> None:
        self._postgres = postgres
        self._database = database
        self._worker_pid = worker_pid
        self._own = psycopg.connect(**postgres.conninfo(), autocommit=True)

    def close(self) -> None:
        self._own.close()

    def count(self) -> Cost:
        row = self._own.execute(DONE, {"name": self._database}).fetchone()
        assert row
        transactions, wal_bytes, syncs = map(float, row)
        return Cost(
            transactions,
            sum(self.kinds().values()),
            wal_bytes,
            syncs,
            cpu_seconds(self._postgres.process.pid),
            cpu_seconds(self._worker_pid),
        )

    def kinds(self) -> Counter[str]:
        return count_kinds(self._postgres.folder / "postgres.log", self._database)


def cpu_seconds(pid: int | None) -> float:
    """Of a process and all that it has started, also of those that have ended."""
    if pid is None:
        return 0.0
    leader = psutil.Process(pid)
    total = 0.0
    for process in (leader, *leader.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times: Any = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def count_kinds(log: Path, database: str) -> Counter[str]:
    """The statements that the server has logged of a database; BEGIN and COMMIT count, each is a round trip too."""
    return Counter(kind_of(statement) for statement in _statements(log, database))


def kind_of(statement: str) -> str:
    text = " ".join(statement.split())
    return next((kind for kind, pattern in KINDS.items() if pattern.match(text)), "other")


def log_statements(postgres: EmbeddedPostgres, kind: str) -> None:
    with psycopg.connect(**postgres.conninfo(), autocommit=True) as connection:
        for setting, value in (("log_line_prefix", "%d|"), ("log_statement", kind)):
            connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
        connection.execute("SELECT pg_reload_conf()")


def _statements(log: Path, database: str) -> Iterator[str]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        entry = ""
        for line in lines:
            # What continues an entry is indented.
            if line.startswith("\t"):
                entry += line
                continue
            yield from _statement(entry, database)
            entry = line
        yield from _statement(entry, database)


def _statement(entry: str, database: str) -> Iterator[str]:
    name, _, said = entry.partition("|")
    if name == database and (found := LOGGED.match(said)):
        yield found[1]
