"""The thread of a child that records what its worker can do and knows, so that Airflow sends nothing else to it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_horsies import __version__
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.callback import CALLBACKS
from airflow_horsies.core.chunk import CHUNKS
from airflow_horsies.db.backoff import Backoff, jittered
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import AccessDenied, HorsiesError

if TYPE_CHECKING:
    from airflow_horsies.worker.catalog import Catalog

log = logging.getLogger(__name__)

FEATURES = (CHUNKS, CALLBACKS)
EVERY_SECONDS = 75.0
# A first submission of chunks creates the tables, and waits longer than this for the workers.
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 3.0, 15.0
TOO_OLD = (
    "The airflow_horsies tables are missing or too old to record the features of this worker. This is tried again "
    "until Airflow has migrated them."
)


class Announcer:
    """
    :param database: horsies' database.
    :param pid: the worker process, which is the parent of this one.
    :param make_catalog: finds what the app knows, once; None if nothing is to be told.
    """

    def __init__(
        self,
        database: Database,
        pid: int,
        *,
        make_catalog: Callable[[], Catalog | None] = lambda: None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._database = database
        self._pid = pid
        self._make_catalog = make_catalog
        self._catalog: Catalog | None = None
        self._has_made_catalog = False
        self._is_recorded = False
        self._sleep = sleep
        # What keeps the worker from being recorded, so that it is logged once.
        self._problem: str | None = None

    def start(self) -> None:
        threading.Thread(target=self._serve, name="horsies-announcer", daemon=True).start()

    def _serve(self) -> None:
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        while True:
            if self.announce():
                backoff.reset()
                self._sleep(jittered(EVERY_SECONDS))
            else:
                self._sleep(backoff.next_pause())

    def announce(self) -> bool:
        """Record the worker once; False if that is not possible now. Never raises."""
        client = WorkerClient(self._database)
        try:
            recorded = client.record_worker(
                hostname=socket.gethostname(), pid=self._pid, release=__version__, features=FEATURES
            )
            self._note(self._record_catalog(client) if recorded else TOO_OLD)
            return recorded
        except HorsiesError as error:
            self._note(f"Recording the features of this worker failed and is tried again: {error}")
        except Exception as error:
            self._note(f"Recording the features of this worker failed and is tried again: {error!r}", error)
        finally:
            with suppress(Exception):
                client.close()
        return False

    def _record_catalog(self, client: WorkerClient) -> str | None:
        """With all entries, until they are known to be there; returns the problem. Older tables have no place."""
        if not self._has_made_catalog:
            self._has_made_catalog = True
            self._catalog = self._make_catalog()
        known = self._catalog
        if known is None:
            return None
        place: dict[str, Any] = {"hostname": socket.gethostname(), "pid": self._pid, "release": __version__}
        record = partial(client.record_catalog, **place, digest=known.digest, queues=known.queues)
        try:
            if self._is_recorded:
                self._is_recorded = bool(record(entries=()))
            if not self._is_recorded:
                self._is_recorded = record(entries=known.entries) is not None
        except AccessDenied as error:
            # Only Airflow's checks before it sends something need it.
            return f"This worker cannot record which tasks it knows: {error}"
        return None

    def _note(self, problem: str | None, error: Exception | None = None) -> None:
        is_new, self._problem = problem != self._problem, problem
        if problem is not None and is_new:
            log.log(logging.INFO if error is None else logging.ERROR, "%s", problem, exc_info=error)
