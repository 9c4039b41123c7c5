"""What ``option(...)`` may say. Options show in plans and in Spark's pages, so none is a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Self

from airflow_horsies.exceptions import SourceError
from airflow_horsies.source.tables import ATTEMPTS, Column, Table, find_table

BATCH_OPTIONS = ("table", "columns", "since", "until", "partitions", "snapshotSeconds", "pushFilters", "service")
SECRETS = ("url", "dsn", "conninfo", "password", "user", "passfile", "sslkey", "sslpassword", "host", "dbname")
MOST_PARTITIONS = 1_000
DEFAULT_ROWS_PER_BATCH = 100_000
# For a Spark task that is tried again.
DEFAULT_SNAPSHOT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options."""

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
            raise SourceError("no table: give option('table', ...) one of tasks, attempts, submissions, workers")
        table = find_table(named["table"])
        since, until = _instant(named, "since"), _instant(named, "until")
        if since is not None and until is not None and since > until:
            raise SourceError(f"since ({since.isoformat()}) is after until ({until.isoformat()})")
        names = [name.strip() for name in named.get("columns", "").split(",") if name.strip()]
        return cls(
            table=table,
            columns=table.select(names),
            since=since,
            until=until,
            partitions=_number(named, "partitions", 1, most=MOST_PARTITIONS),
            snapshot_seconds=_number(named, "snapshotSeconds", DEFAULT_SNAPSHOT_SECONDS, most=86_400),
            push_filters=_switch(named, "pushFilters"),
            service=named.get("service") or None,
        )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Checked options of a stream."""

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
            raise SourceError(f"{read.table.name} is no stream, as its rows change; only attempts can be streamed")
        starts = named.get("startingoffsets", "latest").strip().lower()
        if starts not in ("earliest", "latest"):
            raise SourceError(f"startingOffsets is {starts!r}: write earliest or latest")
        max_rows = _number(named, "maxRowsPerBatch", DEFAULT_ROWS_PER_BATCH, most=10_000_000)
        return cls(read=read, starts_at_earliest=starts == "earliest", max_rows=max_rows)


def _require_known(named: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name in named:
        if name in SECRETS:
            raise SourceError(
                f"the option {name!r} is refused, as options show in plans, logs and Spark's pages. Set "
                "HORSIES_DATABASE_URL in the environment of driver and executors, or name a section of their "
                "pg_service.conf with option('service', ...)"
            )
        if name not in {each.lower() for each in known}:
            raise SourceError(f"there is no option {name!r}; there are {', '.join(known)}")


def _instant(named: Mapping[str, str], name: str) -> datetime | None:
    text = named.get(name)
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SourceError(
            f"{name} is {text!r}, which is no time; write it as in 2026-01-31 or 2026-01-31T12:00:00+01:00"
        ) from None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _number(named: Mapping[str, str], name: str, default: int, *, most: int) -> int:
    text = named.get(name.lower())
    if text is None:
        return default
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= most:
        raise SourceError(f"{name} is {text!r}: write a whole number from 1 to {most}")
    return int(text)


def _switch(named: Mapping[str, str], name: str) -> bool:
    text = named.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise SourceError(f"{name} is {text!r}: write true or false")
    return text == "true"
