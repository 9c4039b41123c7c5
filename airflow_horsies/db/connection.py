"""One Postgres database: how to connect to it, and how its errors become ours."""

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
# For all hosts of a connection together; libpq's connect_timeout applies to each host.
CONNECT_SECONDS = 30.0


def args_of_url(url: str) -> dict[str, Any]:
    """The connection arguments of a URL as SQLAlchemy accepts it; ValueError, without the URL, if it is invalid."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in POSTGRES_SCHEMES:
        try:
            return dict(conninfo_to_dict(f"postgresql://{rest}"))
        except psycopg.Error:
            pass
    # Without the driver's error as its cause, which quotes the URL with its password.
    raise ValueError("The URL does not name a Postgres database. Use postgresql://USER:PASSWORD@HOST:PORT/DATABASE.")


@dataclass(frozen=True, slots=True)
class Database:
    """One Postgres database: how to connect to it, and how to receive its notifications.

    :param has_tokens: its password is a token, which changes with each lookup of the connection.
    """

    # Both contain the password.
    connect_args: Mapping[str, Any] = field(repr=False)
    listen_args: Mapping[str, Any] = field(repr=False)
    use_psycopg: bool = True
    has_tokens: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for all databases that can share connections."""
        omitted = {"password"} if self.has_tokens else set()
        return tuple(
            frozenset((name, value) for name, value in args.items() if name not in omitted)
            for args in (self.connect_args, self.listen_args)
        )

    @property
    def address(self) -> str:
        """The database for messages, without the password."""
        args = self.connect_args
        return (
            f"database {args.get('dbname') or '(default)'} of {args.get('user') or '(default user)'} "
            f"at {args.get('host') or 'localhost'}:{args.get('port') or 5432}"
        )

    def connect(self, args: Mapping[str, Any] | None = None) -> Any:
        """A new synchronous connection."""
        args = self.connect_args if args is None else args
        with self.translated():
            if self.use_psycopg:
                return psycopg.connect(**_unprepared(args))
            return psycopg2.connect(**args)

    async def connect_async(self, args: Mapping[str, Any] | None = None) -> psycopg.AsyncConnection[Any]:
        """A new asynchronous connection in autocommit mode; DatabaseUnreachable if it takes too long."""
        args = self.connect_args if args is None else args
        with self.translated():
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await psycopg.AsyncConnection.connect(**_unprepared(args), autocommit=True)
            except TimeoutError:
                raise psycopg.OperationalError(f"no connection within {CONNECT_SECONDS:.0f} s") from None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise our own error from every driver error."""
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
CHECK_SERVER = "Check that the server runs, and the host, the port and the database of the connection."
SEE_SERVER_LOG = "See the log of the database server."
HISTORY_PARTITION_MISSING = (
    "The history of horsies has no partition for the current time in {address}, so no task can end or be cancelled. "
    "Workers create the partitions some days ahead, and no worker has run for longer than that. Start a worker "
    "('horsies worker your_module:app'), then try again."
)


def _unprepared(args: Mapping[str, Any]) -> dict[str, Any]:
    """A pooler in transaction mode has no prepared statements, and a client cannot know that there is one."""
    return {**args, "prepare_threshold": None}
