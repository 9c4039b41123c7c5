"""The options of the data source. They appear in plans and in Spark's UI, so none is a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Self

from airflow_horsies.exceptions import SourceError
from airflow_horsies.source.tables import ATTEMPTS, TABLES, Column, Table, find_table

BATCH_OPTIONS = ("table", "columns", "since", "until", "partitions", "snapshotSeconds", "pushFilters", "service")
SECRETS = ("url", "dsn", "conninfo", "password", "user", "passfile", "sslkey", "sslpassword", "host", "dbname")
MAX_PARTITIONS = 1_000
DEFAULT_ROWS_PER_BATCH = 100_000
# Long enough for a Spark task that is retried.
DEFAULT_SNAPSHOT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Options:
    """Validated options."""

    table: Table
    columns: tuple[Column, ...]
    since: datetime | None = None
    until: datetime | None = None
    partitions: int = 1
    snapshot_seconds: int = DEFAULT_SNAPSHOT_SECONDS
    push_filters: bool = False
    service: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, also: tuple[str, ...] = ()) -> Self:
        named = {name.lower(): value for name, value in given.items()}
        _require_known(named, (*BATCH_OPTIONS, *also))
        if "table" not in named:
            raise SourceError(f"Option table is missing. Set option('table', ...) to one of {', '.join(TABLES)}.")
        table = find_table(named["table"])
        since, until = _instant(named, "since"), _instant(named, "until")
        if since is not None and until is not None and since > until:
            raise SourceError(
                f"Option since must not be after until: {since.isoformat()} is after {until.isoformat()}."
            )
        names = [name.strip() for name in named.get("columns", "").split(",") if name.strip()]
        return cls(
            table=table,
            columns=table.select(names),
            since=since,
            until=until,
            partitions=_number(named, "partitions", 1, maximum=MAX_PARTITIONS),
            snapshot_seconds=_number(named, "snapshotSeconds", DEFAULT_SNAPSHOT_SECONDS, maximum=86_400),
            push_filters=_boolean(named, "pushFilters"),
            service=named.get("service") or None,
        )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Validated options of a stream."""

    read: Options
    starts_at_earliest: bool
    max_rows: int

    NAMES: ClassVar = ("startingOffsets", "maxRowsPerBatch")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        named = {name.lower(): value for name, value in given.items()}
        _require_known(named, ("table", "columns", "service", *cls.NAMES))
        read = Options.parse({name: named[name] for name in named if name in ("table", "columns", "service")})
        if read.table.name != ATTEMPTS.name:
            raise SourceError(
                f"Table {read.table.name} cannot be streamed, as its rows change. Use the table attempts."
            )
        starts = named.get("startingoffsets", "latest").strip().lower()
        if starts not in ("earliest", "latest"):
            raise SourceError(f"Option startingOffsets must be earliest or latest, not {starts!r}.")
        max_rows = _number(named, "maxRowsPerBatch", DEFAULT_ROWS_PER_BATCH, maximum=10_000_000)
        return cls(read=read, starts_at_earliest=starts == "earliest", max_rows=max_rows)


def _require_known(named: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name in named:
        if name in SECRETS:
            raise SourceError(
                f"Option {name!r} is not supported, because options appear in plans, logs and Spark's UI. Set "
                "HORSIES_DATABASE_URL in the environment of the driver and the executors, or name a section of their "
                "pg_service.conf with option('service', ...)."
            )
        if name not in {option.lower() for option in known}:
            raise SourceError(f"Unknown option {name!r}. Supported: {', '.join(known)}.")


def _instant(named: Mapping[str, str], name: str) -> datetime | None:
    text = named.get(name)
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SourceError(
            f"Option {name} must be a time such as 2026-01-31 or 2026-01-31T12:00:00+01:00, not {text!r}."
        ) from None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _number(named: Mapping[str, str], name: str, default: int, *, maximum: int) -> int:
    text = named.get(name.lower())
    if text is None:
        return default
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= maximum:
        raise SourceError(f"Option {name} must be an integer from 1 to {maximum}, not {text!r}.")
    return int(text)


def _boolean(named: Mapping[str, str], name: str) -> bool:
    text = named.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise SourceError(f"Option {name} must be true or false, not {text!r}.")
    return text == "true"
