"""What workers know, as they record it, and whether they accept what is about to be sent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_horsies.core.catalog import (
    KnownKind,
    KnownTask,
    Request,
    Spoken,
    accepts,
    find_refused,
    make_refusal,
    mark_disputed,
)
from airflow_horsies.core.control import OWN_PREFIX
from airflow_horsies.db.statement import Row, Rows, Script, Statement, sql_text
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.ledger.chunks import CLOCK_SECONDS
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.wire.cluster import read_workers
from airflow_horsies.wire.encoding import COMPACT, EncodedTask
from airflow_horsies.wire.statements import Wire

# The first version of the ledger with the catalog.
SINCE = 8
# A worker reports every 75 seconds. One that ended may count for this long: then the tables of horsies decide.
LIVE_FOR = timedelta(minutes=4)
KEEP_FOR = timedelta(days=7)
KEEP_WORKERS = 2_000
MAX_READ = 10_000
# How long this process remembers what it read.
REMEMBERED_SECONDS = 5.0
TRUSTED_SECONDS = 60.0
MAX_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """What a worker records of a task or a workflow.

    :param parameters: a JSON schema, as text.
    """

    kind: KnownKind
    name: str
    queue: str | None
    parameters: str
    doc: str | None


def record_catalog(
    *, hostname: str, pid: int, digest: bytes, release: str, queues: Sequence[str], entries: Sequence[CatalogEntry]
) -> Script[bool | None]:
    """
    Record what a worker knows; None if the tables are too old.

    :param entries: may be left out if they are recorded.
    :returns: whether the entries had been recorded before.
    """
    if (yield from read_version()) < SINCE:
        return None
    columns = [
        {"kind": entry.kind, "name": entry.name, "queue": entry.queue, "parameters": entry.parameters, "doc": entry.doc}
        for entry in entries
    ]
    (row,) = yield Statement(
        sql_text(PACKAGE, "record_catalog"),
        {
            "hostname": hostname,
            "pid": pid,
            "digest": digest,
            "release": release,
            "queues": list(queues),
            "entries": COMPACT.encode(columns),
        },
    )
    return bool(row["was_known"])


def prune_catalog() -> Statement:
    params = {"keep_seconds": KEEP_FOR.total_seconds(), "keep_workers": KEEP_WORKERS}
    return Statement(sql_text(PACKAGE, "prune_catalog"), params)


def read_catalog(*, kind: KnownKind | None, name: str | None, queue: str | None) -> Script[list[KnownTask]]:
    """What workers have recorded lately, by kind and name; live ones first."""
    rows = yield Statement(
        sql_text(PACKAGE, "read_catalog"),
        {
            "kind": None if kind is None else str(kind),
            "name": name,
            "queue": queue,
            "own_prefix": OWN_PREFIX,
            "live_seconds": LIVE_FOR.total_seconds(),
            "limit": MAX_READ,
        },
    )
    return mark_disputed([_decode(row) for row in rows])


def _decode(row: Row) -> KnownTask:
    return KnownTask(
        kind=KnownKind(row["kind"]),
        name=row["name"],
        parameters=_decode_schema(row["parameters"]),
        doc=row["doc"],
        queue=row["queue"],
        served_queues=tuple(row["queues"]),
        workers=row["workers"],
        releases=tuple(row["releases"]),
        hosts=tuple(row["hosts"]),
        seen_at=row["seen_at"].astimezone(UTC),
        is_live=row["is_live"],
    )


def _decode_schema(text: str | None) -> Mapping[str, Any]:
    try:
        schema = json.loads(text or "{}")
    except ValueError:
        schema = {}
    return schema if isinstance(schema, dict) else {}


# -- before something is sent ----------------------------------------------------------------------------------------


class Doubt(Exception):
    """Each worker that has spoken lately would refuse a request. Nothing was sent; :func:`judge` knows for certain."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.task_name)
        self.request = request


# What is asked for: the kind, the queue and the name.
Wanted = tuple[KnownKind, str, str]


@dataclass(slots=True)
class Memory:
    """What this process read lately of a database, so that a submission does not read it again."""

    _rows: dict[Wanted, tuple[float, Rows]] = field(default_factory=dict)

    def find(self, wanted: Wanted) -> Rows | None:
        until, rows = self._rows.get(wanted, (0.0, ()))
        return rows if time.monotonic() < until else None

    def keep(self, wanted: Iterable[Wanted], rows: Rows) -> None:
        if len(self._rows) > MAX_REMEMBERED:
            self._rows.clear()
        until = time.monotonic() + REMEMBERED_SECONDS
        for kind, queue, name in wanted:
            of_queue = [row for row in rows if row["queue"] == queue]
            # A row without a name tells that some worker of the queue has spoken.
            spoke = [{"queue": queue, "name": None, "parameters": None}] if of_queue else []
            self._rows[kind, queue, name] = until, [*spoke, *(row for row in of_queue if row["name"] == name)]

    def trust(self, wanted: Wanted) -> None:
        """Do not ask again for a while, and refuse nothing."""
        self._rows[wanted] = time.monotonic() + TRUSTED_SECONDS, []


class Gate:
    """
    Refuses what no live worker would accept, before it is sent.

    :param memory: what this process read before.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._wanted: set[Wanted] = set()
        # In a pipeline, they arrive when they are read.
        self._read: Rows | None = None

    def look(self, pairs: Iterable[tuple[str, str]], kind: KnownKind = KnownKind.TASK) -> Script[None]:
        """Ask what is known of tasks or workflows, by queue and name. The answer is read when something is sent."""
        self._read = None
        if not self.has_read(pairs, kind):
            self._read = yield Statement(
                sql_text(PACKAGE, "read_spoken"),
                {
                    "kind": str(kind),
                    "queues": sorted({queue for _, queue, _ in self._wanted}),
                    "names": sorted({name for _, _, name in self._wanted}),
                    "live_seconds": LIVE_FOR.total_seconds(),
                },
            )

    def has_read(self, pairs: Iterable[tuple[str, str]], kind: KnownKind = KnownKind.TASK) -> bool:
        """Whether this process remembers what is known of these tasks or workflows."""
        self._wanted = {(kind, queue, Request(queue, name, None).name) for queue, name in pairs}
        return all(self._memory.find(wanted) is not None for wanted in self._wanted)

    def give_up(self) -> None:
        """Do not ask again for a while."""
        for wanted in self._wanted:
            self._memory.trust(wanted)

    def require(self, tasks: Iterable[EncodedTask]) -> None:
        """Raises a Doubt for a task that each worker that has spoken would refuse."""
        self.require_all([Request(task.queue_name, task.task_name, task.kwargs) for task in tasks])

    def require_all(self, requests: Sequence[Request]) -> None:
        if not requests:
            return
        refused = find_refused(requests, self._spoken())
        if refused is not None:
            raise Doubt(refused)

    def _spoken(self) -> Spoken:
        if self._read is not None:
            self._memory.keep(self._wanted, list(self._read))
            self._read = None
        rows = [row for wanted in self._wanted for row in self._memory.find(wanted) or ()]
        schemas: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in rows:
            if row["name"] is not None:
                schemas.setdefault((row["queue"], row["name"]), []).append(_decode_schema(row["parameters"]))
        return Spoken(frozenset(row["queue"] for row in rows), schemas)


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What the live workers of a queue say of a request.

    :param refusal: the error, if each of them would refuse it; None if one accepts it or has not told what it knows.
    :param seen: when each of them reported last: a worker that ended lately still counts as live.
    :param silent: a worker that has not told what it knows.
    """

    refusal: HorsiesError | None
    seen: Mapping[str, datetime] = field(default_factory=dict)
    silent: str | None = None


def judge(wire: Wire, request: Request) -> Script[Verdict]:
    """Ask of each live worker of the queue whether it accepts the request."""
    queue = request.queue
    live = [worker for worker in (yield from read_workers(wire)) if worker.alive and queue in worker.queues]
    if not live:
        return Verdict(None)
    described = [
        {"hostname": worker.hostname, "pid": worker.pid, "started_at": worker.started_at.isoformat()} for worker in live
    ]
    rows = yield Statement(
        sql_text(PACKAGE, "find_catalogs"),
        {
            "workers": COMPACT.encode(described),
            "kind": str(request.kind),
            "name": request.name,
            "clock_seconds": CLOCK_SECONDS,
        },
    )
    told = {(row["hostname"], row["pid"]): row for row in rows}
    # Of two workers with the same place, one has not told.
    places = {(worker.hostname, worker.pid) for worker in live}
    silent = [worker for worker in live if (worker.hostname, worker.pid) not in told]
    if silent or len(places) < len(live):
        worker = (silent or live)[0]
        return Verdict(None, silent=f"process {worker.pid} on {worker.hostname}")
    schemas = [_decode_schema(row["parameters"]) for row in rows if row["parameters"] is not None]
    if accepts(schemas, request):
        return Verdict(None)
    names = {name for row in rows for name in row["names"] or ()}
    return Verdict(make_refusal(request, schemas, names), {worker.id: worker.seen_at for worker in live})
