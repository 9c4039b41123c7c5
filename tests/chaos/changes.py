"""How each kind of change is made to happen: by people, to task instances, connections and the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from airflow_horsies.ledger.schema import latest_version
from tests.chaos.airflow_load import AirflowLoad
from tests.chaos.load import LightLoad
from tests.chaos.plan import Fault
from tests.chaos.stack import HORSIES, SUBMITTER, Stack

# Who has to wait longer for a lock than this has no target.
LOCK_WAIT = "2s"
MIGRATION_LOCK = "SELECT pg_advisory_xact_lock(734, 0)"


class NoTarget(Exception):
    """There was nothing to do it to."""


class Changes:
    """Makes changes happen to the loads, and to the database beneath them."""

    def __init__(self, stack: Stack) -> None:
        self.light: LightLoad | None = None
        self.airflow: AirflowLoad | None = None
        self._stack = stack
        self._alone = threading.Lock()

    def made(self, change: Fault) -> AbstractContextManager[Any]:
        """A context within which the change lasts."""
        made: dict[str, Callable[[Fault], AbstractContextManager[Any]]] = {
            "namespace moved": self._moved,
            "connection moved to another database": self._moved,
            "triggerer asleep, another took over": self._asleep,
            "submitter taken for dead": self._taken_for_dead,
            "role's time-out": self._timed_out,
            "table locked": self._locked,
            "connections used up": self._used_up,
            "prune": self._pruned,
            "ledger migrated": self._migrated,
        }
        if change.kind.startswith("Airflow "):
            return self._of_airflow(change)
        return made.get(change.kind, self._of_light)(change)

    # -- task instances ----------------------------------------------------------------------------------------------

    @contextmanager
    def _of_light(self, change: Fault) -> Iterator[None]:
        _require(self._light().change(change))
        yield

    @contextmanager
    def _of_airflow(self, change: Fault) -> Iterator[None]:
        _require(self.airflow is not None and self.airflow.change(change))
        yield

    @contextmanager
    def _moved(self, change: Fault) -> Iterator[None]:
        move_back = self._light().move_connection(change)
        if move_back is None:
            raise NoTarget
        try:
            yield
        finally:
            move_back()

    @contextmanager
    def _asleep(self, change: Fault) -> Iterator[None]:
        with _waking(self._light().put_triggerer_to_sleep(change)):
            yield

    @contextmanager
    def _taken_for_dead(self, change: Fault) -> Iterator[None]:
        with _waking(self._light().take_for_dead(change)):
            yield

    @contextmanager
    def _pruned(self, change: Fault) -> Iterator[None]:
        _require(self._light().prune(change))
        yield

    # -- the database ------------------------------------------------------------------------------------------------

    @contextmanager
    def _timed_out(self, change: Fault) -> Iterator[None]:
        """Of the role that submits; those who are connected keep what they have, so they connect again."""
        names = {"role": sql.Identifier(SUBMITTER), "name": sql.Identifier(change.drawn["name"])}
        limit = sql.Literal(f"{change.drawn['milliseconds']}ms")
        with self._one_at_a_time():
            try:
                self._stack.query(sql.SQL("ALTER ROLE {role} SET {name} = {limit}").format(limit=limit, **names))
                self._disconnect_some()
                yield
            finally:
                self._restore(sql.SQL("ALTER ROLE {role} RESET {name}").format(**names))

    @contextmanager
    def _used_up(self, change: Fault) -> Iterator[None]:
        role = sql.Identifier(SUBMITTER)
        with self._one_at_a_time():
            try:
                self._stack.query(sql.SQL("ALTER ROLE {} CONNECTION LIMIT 0").format(role))
                self._disconnect_some()
                yield
            finally:
                self._restore(sql.SQL("ALTER ROLE {} CONNECTION LIMIT -1").format(role))

    @contextmanager
    def _locked(self, change: Fault) -> Iterator[None]:
        table = sql.Identifier(*change.drawn["table"].split("."))
        with self._transaction() as connection:
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(table))
            yield

    @contextmanager
    def _migrated(self, change: Fault) -> Iterator[None]:
        """A later release adds a column, takes the lock of migrations meanwhile, and may refuse this one to write."""
        version = latest_version() + change.number
        column = sql.Identifier(f"added_{change.number}")
        min_writer = version if change.drawn["min_writer"] == "newer" else latest_version()
        with self._one_at_a_time():
            with self._transaction() as connection:
                connection.execute(MIGRATION_LOCK)
                connection.execute(
                    sql.SQL("ALTER TABLE airflow_horsies.submissions ADD COLUMN {} integer").format(column)
                )
                connection.execute(
                    "INSERT INTO airflow_horsies.migrations (version, name, min_writer) VALUES (%s, 'later', %s)",
                    (version, min_writer),
                )
            try:
                yield
            finally:
                self._restore("DELETE FROM airflow_horsies.migrations WHERE version = %s", version)

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection]:
        with self._stack.connected() as connection:
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_WAIT)))
            yield connection

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        with self._alone:
            yield

    def _disconnect_some(self) -> None:
        """Every other backend of the role, so that some connect anew."""
        self._stack.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = %s AND usename = %s AND pid %% 2 = 0",
            HORSIES,
            SUBMITTER,
        )

    def _restore(self, query: Any, *params: Any) -> None:
        """Also where the database is down at the moment."""
        for _ in range(600):
            with suppress(psycopg.Error):
                self._stack.query(query, *params)
                return
            threading.Event().wait(0.1)
        raise RuntimeError(f"the database did not come back to undo {query}")

    def _light(self) -> LightLoad:
        assert self.light is not None
        return self.light


@contextmanager
def _waking(wake: Callable[[str], None] | None) -> Iterator[None]:
    if wake is None:
        raise NoTarget
    try:
        yield
    finally:
        wake("SIGCONT")


def _require(happened: bool) -> None:
    if not happened:
        raise NoTarget
