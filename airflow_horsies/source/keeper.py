"""A process that keeps a database snapshot open while the parts of a read use it.

The planner of a read forks it. It ends with the driver, some time after the last part was read, or with its connection.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psycopg

from airflow_horsies.client.scanning import export_snapshot, find_parts_being_read
from airflow_horsies.db.driver import run
from airflow_horsies.exceptions import DatabaseError, HorsiesError
from airflow_horsies.source.connecting import find_database, open_reading

POLL_SECONDS = 0.25
# A part that holds its lock for this long is noticed by the keeper.
MIN_LOCK_SECONDS = 0.5
# The limit while some parts are not yet being read.
UNREAD_SECONDS = 60
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SharedSnapshot:
    """A snapshot that several readers share. A reader locks ``read_key`` while it uses the snapshot."""

    snapshot: str
    read_key: int


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters of a keeper."""

    service: str | None
    read_key: int
    parts: int
    snapshot_seconds: int
    driver_pid: int


def start_keeper(*, service: str | None, parts: int, snapshot_seconds: int) -> SharedSnapshot:
    """Start a keeper; returns when it holds a snapshot."""
    order = Order(
        service=service,
        read_key=secrets.randbelow(2**31 - 2**20) + 2**20,
        parts=parts,
        snapshot_seconds=snapshot_seconds,
        driver_pid=find_driver(os.getpid()),
    )
    answer_end, keeper_end = os.pipe()
    child = os.fork()
    if child == 0:
        _become_keeper(order, keeper_end)
    os.close(keeper_end)
    os.waitpid(child, 0)
    with os.fdopen(answer_end) as answers:
        text = answers.read() if select.select([answers], [], [], START_SECONDS)[0] else ""
    if not text:
        raise DatabaseError(
            "The process that keeps the database snapshot for this read did not start. Run the query again."
        )
    answer = json.loads(text)
    if "error" in answer:
        raise DatabaseError(answer["error"])
    return SharedSnapshot(snapshot=answer["snapshot"], read_key=order.read_key)


def find_driver(pid: int) -> int:
    """The JVM that is an ancestor of a Spark process; without one, the parent of this process."""
    while True:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return os.getppid()
        name, parent = stat[stat.index("(") + 1 : stat.rindex(")")], int(stat[stat.rindex(")") + 2 :].split()[1])
        if name == "java":
            return pid
        if parent <= 1:
            return os.getppid()
        pid = parent


def _become_keeper(order: Order, answer_end: int) -> NoReturn:
    """Detach from the planner: close its files and leave its session."""
    try:
        # In a new session, signals to the planner and a Ctrl-C for the driver do not reach the keeper.
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.closerange(3, answer_end)
        os.closerange(answer_end + 1, os.sysconf("SC_OPEN_MAX"))
        _keep(order, answer_end)
    finally:
        os._exit(0)


def _keep(order: Order, answer_end: int) -> None:
    database = find_database(order.service)
    try:
        driver = _open_process(order.driver_pid)
        with database.translated():
            connection = open_reading(database)
            snapshot = run(connection, export_snapshot())
    except HorsiesError as error:
        _answer(answer_end, {"error": str(error)})
        return
    _answer(answer_end, {"snapshot": snapshot})
    with suppress(psycopg.Error):
        _keep_open(connection, order, driver)
        connection.rollback()
    connection.close()


def _keep_open(connection: psycopg.Connection[Any], order: Order, driver: int) -> None:
    seen: set[int] = set()
    used_at = time.monotonic()
    while not _has_ended(driver, POLL_SECONDS):
        active = run(connection, find_parts_being_read(order.read_key))
        seen |= active
        if active:
            used_at = time.monotonic()
        elif time.monotonic() - used_at > _patience(order, seen):
            return


def _patience(order: Order, seen: set[int]) -> float:
    if len(seen) < order.parts:
        return max(UNREAD_SECONDS, order.snapshot_seconds)
    return order.snapshot_seconds


def _open_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends, also if its process id is reused."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -pid


def _has_ended(process: int, timeout_seconds: float) -> bool:
    if process >= 0:
        return bool(select.select([process], [], [], timeout_seconds)[0])
    time.sleep(timeout_seconds)
    try:
        os.kill(-process, 0)
    except OSError:
        return True
    return False


def _answer(answer_end: int, answer: dict[str, str]) -> None:
    """Write the answer and close the pipe, as the planner reads until its end."""
    with os.fdopen(answer_end, "w") as planner:
        json.dump(answer, planner)
