"""A hook's connection to horsies' database: its settings, and scripts run on it from either side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Self, TypeVar

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import conf
from airflow.providers.postgres.hooks import postgres as postgres_module
from airflow.providers.postgres.hooks.postgres import PostgresHook

from airflow_horsies.database import Database, Limits, Listener, Session, misses_the_schema
from airflow_horsies.exceptions import DeploymentUnknown, HorsiesError, InvalidTask, TaskNotFound
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.schema import Migration
from airflow_horsies.pool import pool_of
from airflow_horsies.wire.encoding import DEFAULT_MAX_PAYLOAD_BYTES
from airflow_horsies.wire.known import KnownSchema, WireScript, writing
from airflow_horsies.wire.schema import Schema
from airflow_horsies.wire.statement import Script

T = TypeVar("T")

DEFAULT_NAMESPACE = "default"
LISTEN_NOTIFY = "notify"
LISTEN_POLL = "poll"

# Handed to libpq as they are; every other extra is ours or is refused by name.
LIBPQ_EXTRAS = frozenset(
    {
        "application_name",
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "options",
        "passfile",
        "require_auth",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslpassword",
        "sslrootcert",
        "target_session_attrs",
        "tcp_user_timeout",
    }
)
OWN_EXTRAS = frozenset({"namespace", "listen", "listen_host", "listen_port", "max_payload_bytes"})
DEFAULT_CONNECT_ARGS: Mapping[str, Any] = {
    "application_name": "airflow-horsies",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    # Milliseconds until what was sent must have arrived: keepalives are not sent while something is under way.
    "tcp_user_timeout": 30_000,
}


# A migration has limits of its own. Nothing is heard of it while a large table is rewritten.
MIGRATION_LIMITS = Limits(answer_seconds=1_800)


class LedgerBehind(Exception):
    """The tables must be brought up to date before this can be read, in a transaction of its own."""


class ConnectedHook(PostgresHook):
    """What the calls of HorsiesHook stand on."""

    conn_name_attr = "horsies_conn_id"
    default_conn_name = "horsies_default"
    conn_type = "horsies"
    hook_name = "Horsies"
    ignored_extra_options = PostgresHook.ignored_extra_options | OWN_EXTRAS

    def __init__(
        self, horsies_conn_id: str = default_conn_name, *, namespace: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(horsies_conn_id=horsies_conn_id, **kwargs)
        self.horsies_conn_id = horsies_conn_id
        self._given_namespace = namespace

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        from airflow_horsies.provider_info import CONNECTION_TYPE

        behaviour: dict[str, Any] = CONNECTION_TYPE["ui-field-behaviour"]
        return behaviour

    def get_conn(self) -> Any:
        """A new connection of the driver that Airflow's Postgres provider uses; the caller closes it."""
        return self._postgres.connect()

    @property
    def horsies_schema(self) -> Schema:
        """The horsies schema that was found; SchemaMissing or SchemaUnsupported where there is none to speak with."""
        return self._session.run(self._known_schema.find)

    @property
    def namespace(self) -> str:
        """Keeps Airflow deployments that share one horsies database apart."""
        return self._given_namespace or str(self._extra.get("namespace") or DEFAULT_NAMESPACE)

    @property
    def base_url(self) -> str:
        """The address of this Airflow deployment, recorded with each submission; empty where it has none."""
        return (conf.get("api", "base_url", fallback="") or "").rstrip("/")

    def stay_in(self, namespace: str | None) -> None:
        """Work under way stays in the namespace it was submitted in, whatever the connection says now."""
        if namespace and namespace != self.namespace:
            self._given_namespace = namespace

    def require_deployment(self) -> None:
        """Deployments that share a database must be told apart: a guess would mix up their tasks."""
        if not self.base_url and not self._given_namespace and not self._extra.get("namespace"):
            raise DeploymentUnknown(
                f"Nothing tells this Airflow deployment from others that use the same horsies database. Set "
                f"'namespace' in the extra of connection {self.horsies_conn_id} to a name of its own, or set "
                "[api] base_url for every component, workers included"
            )

    @property
    def connect_args(self) -> dict[str, Any]:
        """What libpq is told to connect; the password among it."""
        return dict(self._postgres.connect_args)

    def run_script(self, make_script: Callable[[], Script[T]]) -> T:
        """
        Run a script of statements in one transaction and return its outcome.

        .. code-block:: python

            from airflow_horsies.wire.checks import read_server

            print(hook.run_script(read_server).version)
        """
        return self._session.run(make_script)

    def can_listen(self) -> bool:
        """
        Whether notifications wake :meth:`wait`: False where the connection asks for polling, ListenUnavailable where
        they cannot arrive.

        .. code-block:: python

            if not hook.can_listen():
                print("waiting by polling")
        """
        if not self._listens:
            return False
        Listener(self._postgres).close()
        return True

    def close(self) -> None:
        """Let the kept connection go."""
        if "_session" in self.__dict__:
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @cached_property
    def _postgres(self) -> Database:
        return self._make_database(self.connection)

    @cached_property
    def _session(self) -> Session:
        return Session(self._postgres)

    @cached_property
    def _known_schema(self) -> KnownSchema:
        return KnownSchema()

    @cached_property
    def _extra(self) -> dict[str, Any]:
        return _given(self.connection.extra_dejson)

    @cached_property
    def _max_payload_bytes(self) -> int:
        given = self._extra.get("max_payload_bytes", DEFAULT_MAX_PAYLOAD_BYTES)
        try:
            return int(given)
        except (TypeError, ValueError):
            raise InvalidTask(
                "max_payload_bytes", f"in the extra of {self.horsies_conn_id} must be a whole number, not {given!r}"
            ) from None

    @property
    def _listens(self) -> bool:
        listen = self._extra.get("listen", LISTEN_NOTIFY)
        if listen not in (LISTEN_NOTIFY, LISTEN_POLL):
            raise InvalidTask(
                "listen",
                f"in the extra of connection {self.horsies_conn_id} must be 'notify' or 'poll', not {listen!r}",
            )
        return bool(listen == LISTEN_NOTIFY)

    def _make_database(self, connection: Any) -> Database:
        extra = _given(connection.extra_dejson)
        unknown = sorted(set(extra) - LIBPQ_EXTRAS - self.ignored_extra_options)
        if unknown:
            raise InvalidTask(
                "extra",
                f"of connection {self.horsies_conn_id} holds {', '.join(unknown)}, which is neither an option of this "
                f"provider ({', '.join(sorted(OWN_EXTRAS))}) nor one of libpq that it passes on",
            )
        login, password, port = connection.login, connection.password, connection.port
        if extra.get("iam"):
            login, password, port = self.get_iam_token(connection)
        args = {
            **DEFAULT_CONNECT_ARGS,
            **{name: value for name, value in extra.items() if name in LIBPQ_EXTRAS},
            "host": connection.host,
            "port": port,
            "user": login,
            "password": password,
            "dbname": self.database or connection.schema,
        }
        args = {name: value for name, value in args.items() if value not in (None, "")}
        past_pooler = {"host": extra.get("listen_host"), "port": extra.get("listen_port")}
        return Database(
            connect_args=args,
            listen_args={**args, **{name: value for name, value in past_pooler.items() if value}},
            use_psycopg=getattr(postgres_module, "USE_PSYCOPG3", False),
            has_tokens=bool(extra.get("iam")),
        )

    def _read(self, make_script: WireScript[T], *, pipelined: bool = True) -> T:
        """Run a script on the wire; once more if the schema turns out to be another one than was known."""
        known = self._known_schema
        try:
            return self._session.run(lambda: known.speak(make_script), pipelined=pipelined)
        except HorsiesError as error:
            if not (isinstance(error, TaskNotFound) or misses_the_schema(error)):
                raise
        known.doubt()
        return self._session.run(lambda: known.speak(make_script), pipelined=pipelined)

    def _write(self, make_script: WireScript[T], *, pipelined: bool = True) -> T:
        return self._read(writing(make_script), pipelined=pipelined)

    @property
    def _make_ledger(self) -> Callable[[], Script[list[Migration]]]:
        """What brings the ledger up to date, or says who does."""
        if conf.getboolean("horsies", "auto_migrate", fallback=True):
            return ledger_schema.migrate
        return ledger_schema.require_migrated

    def _read_current(self, since: int, make_script: Callable[[], Script[T]], otherwise: T) -> Script[T]:
        """What an older release wrote is found, too: LedgerBehind where its tables must be brought up to date first."""
        version = yield from ledger_schema.read_version()
        if not version:
            return otherwise
        if version < since:
            raise LedgerBehind
        return (yield from make_script())

    async def _postgres_async(self) -> Database:
        # Looking a connection up blocks unless it is asked for asynchronously; afterwards it is at hand for both sides.
        if self._connection is None:
            self._connection: Any = await get_async_connection(self.horsies_conn_id)
        # A token is asked for over the network.
        return await asyncio.to_thread(lambda: self._postgres) if self._extra.get("iam") else self._postgres

    async def _read_async(self, make_script: WireScript[T]) -> T:
        return await pool_of(await self._postgres_async()).speak(make_script)

    async def _write_async(self, make_script: WireScript[T]) -> T:
        return await self._read_async(writing(make_script))


def _given(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The connection form saves null for a field that was left empty."""
    return {name: value for name, value in extra.items() if value not in (None, "")}
