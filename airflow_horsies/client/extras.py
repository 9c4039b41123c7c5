"""The extra of a connection, and the database of a connection."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.wire.encoding import DEFAULT_MAX_PAYLOAD_BYTES

LISTEN_NOTIFY = "notify"
LISTEN_POLL = "poll"
# Passed to libpq; every other extra is ours or is refused.
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
    # Milliseconds until sent data must be acknowledged: keepalives are not sent while data is in flight.
    "tcp_user_timeout": 30_000,
}


def given_extras(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The extras that are set: the connection form saves null for an empty field."""
    return {name: value for name, value in extra.items() if value not in (None, "")}


def require_known(extra: Mapping[str, Any], connection: str, *, also: Collection[str] = ()) -> None:
    """:param also: other known options."""
    unknown = sorted(set(extra) - LIBPQ_EXTRAS - OWN_EXTRAS - set(also))
    if unknown:
        raise InvalidTask(
            "extra",
            f"{connection} has unknown option(s) {', '.join(unknown)}. Supported: "
            f"{', '.join(sorted(OWN_EXTRAS))}, and the connection options of libpq",
        )


def namespace_of(extra: Mapping[str, Any]) -> str | None:
    """The namespace as text: in JSON it may be a number."""
    namespace = extra.get("namespace")
    return str(namespace) if namespace else None


def listens(extra: Mapping[str, Any], connection: str) -> bool:
    """Whether notifications wake waiters; otherwise they poll."""
    listen = extra.get("listen", LISTEN_NOTIFY)
    if listen not in (LISTEN_NOTIFY, LISTEN_POLL):
        raise InvalidTask("listen", f"must be 'notify' or 'poll' in the extra of {connection}, not {listen!r}")
    return bool(listen == LISTEN_NOTIFY)


def max_payload_bytes(extra: Mapping[str, Any], connection: str) -> int:
    given = extra.get("max_payload_bytes", DEFAULT_MAX_PAYLOAD_BYTES)
    try:
        return int(given)
    except (TypeError, ValueError):
        raise InvalidTask(
            "max_payload_bytes", f"must be an integer in the extra of {connection}, not {given!r}"
        ) from None


def make_database(extra: Mapping[str, Any], *, use_psycopg: bool, **address: Any) -> Database:
    """:param address: host, port, user, password and dbname; empty ones get the defaults of libpq."""
    args = {
        **DEFAULT_CONNECT_ARGS,
        **{name: value for name, value in extra.items() if name in LIBPQ_EXTRAS},
        **address,
    }
    args = {name: value for name, value in args.items() if value not in (None, "")}
    past_pooler = {"host": extra.get("listen_host"), "port": extra.get("listen_port")}
    return Database(
        connect_args=args,
        listen_args={**args, **{name: value for name, value in past_pooler.items() if value}},
        use_psycopg=use_psycopg,
        has_tokens=bool(extra.get("iam")),
    )
