"""One Postgres database: how to reach it, and how its errors become ours."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import psycopg
import psycopg2
from psycopg.conninfo import conninfo_to_dict

from airflow_horsies.db.errors import (
    DRIVER_ERRORS,
    first_line,
    is_busy,
    is_connection_lost,
    lacks_history_partition,
    sqlstate_of,
)
from airflow_horsies.exceptions import (
    AccessDenied,
    DatabaseBusy,
    DatabaseError,
    DatabaseUnreachable,
    HistoryPartitionMissing,
)

POSTGRES_SCHEMES = ("postgresql", "postgresql+psycopg", "postgres")
# For all hosts of a connection together; libpq's connect_timeout is for each of them.
CONNECT_SECONDS = 30.0


def args_of_url(url: str) -> dict[str, Any]:
    """How to connect, as a URL says that SQLAlchemy takes, too; a ValueError, without a word of it, if none can."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in POSTGRES_SCHEMES:
        try:
            return dict(conninfo_to_dict(f"postgresql://{rest}"))
        except psycopg.Error:
            pass
    # Not from the driver's error, which tells what it could not read, a password among it.
    raise ValueError("The URL does not name a Postgres database. Use postgresql://USER:PASSWORD@HOST:PORT/DATABASE.")


@dataclass(frozen=True, slots=True)
class Database:
    """One Postgres database: how to reach it, and where notifications can be had.

    :param has_tokens: its password is a token, another one each time the connection is looked up.
    """

    # Both hold the password.
    connect_args: Mapping[str, Any] = field(repr=False)
    listen_args: Mapping[str, Any] = field(repr=False)
    use_psycopg: bool = True
    has_tokens: bool = False

    @property
    def key(self) -> Hashable:
        """The same for all who can share connections."""
        left_out = {"password"} if self.has_tokens else set()
        return tuple(
            frozenset((name, value) for name, value in args.items() if name not in left_out)
            for args in (self.connect_args, self.listen_args)
        )

    @property
    def address(self) -> str:
        """For messages: where, never with which password."""
        args = self.connect_args
        return (
            f"database {args.get('dbname') or '(default)'} of {args.get('user') or '(default user)'} "
            f"at {args.get('host') or 'localhost'}:{args.get('port') or 5432}"
        )

    def connect(self, args: Mapping[str, Any] | None = None) -> Any:
        """A new synchronous connection of the driver in use."""
        args = self.connect_args if args is None else args
        with self.translated():
            if self.use_psycopg:
                return psycopg.connect(**_unprepared(args))
            return psycopg2.connect(**args)

    async def connect_async(self, args: Mapping[str, Any] | None = None) -> psycopg.AsyncConnection[Any]:
        """A new asynchronous connection in autocommit mode; DatabaseUnreachable if it cannot be had in time."""
        args = self.connect_args if args is None else args
        with self.translated():
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await psycopg.AsyncConnection.connect(**_unprepared(args), autocommit=True)
            except TimeoutError:
                raise psycopg.OperationalError(f"no connection within {CONNECT_SECONDS:.0f} s") from None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Every driver error leaves as one of ours, from its cause."""
        try:
            yield
        except DRIVER_ERRORS as error:
            self._raise(error)

    def _raise(self, error: Exception) -> NoReturn:
        sqlstate = sqlstate_of(error)
        text = first_line(error).removesuffix(".")
        if sqlstate in ("28P01", "28000") or "authentication failed" in text:
            raise AccessDenied(f"Cannot log in to {self.address}: {text}. {CHECK_LOGIN}") from error
        if sqlstate == "42501":
            raise AccessDenied(f"Access denied on {self.address}: {text}. {ASK_FOR_PRIVILEGE}") from error
        if sqlstate == "3D000":
            raise DatabaseUnreachable(f"Cannot find {self.address}: {text}. {CHECK_DATABASE}") from error
        if is_connection_lost(error):
            raise DatabaseUnreachable(f"Cannot reach {self.address}: {text}. {CHECK_SERVER}") from error
        if is_busy(error):
            raise DatabaseBusy(f"Cannot run a statement on {self.address} now: {text}. Try again later.") from error
        if lacks_history_partition(error):
            raise HistoryPartitionMissing(HISTORY_PARTITION_MISSING.format(address=self.address)) from error
        raise DatabaseError(f"A statement failed on {self.address}: {text}. {SEE_SERVER_LOG}") from error


CHECK_LOGIN = "Check the login and the password of the connection."
ASK_FOR_PRIVILEGE = "Ask the owner of the database for this privilege."
CHECK_DATABASE = "Check the database of the connection."
CHECK_SERVER = "Check that the server runs, and the host and the port of the connection."
SEE_SERVER_LOG = "See the log of the database server."
HISTORY_PARTITION_MISSING = (
    "The history of horsies has no partition for the current time in {address}, so no task can end or be cancelled. "
    "Workers create the partitions some days ahead, and no worker has run for longer than that. Start a worker "
    "('horsies worker your_module:app'), then try again."
)


def _unprepared(args: Mapping[str, Any]) -> dict[str, Any]:
    """A pooler in transaction mode has no prepared statements, and nobody tells whether there is one."""
    return {**args, "prepare_threshold": None}
