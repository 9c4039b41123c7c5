"""The thread of a child that prunes our tables. Only one worker of a database prunes at a time."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from airflow_horsies.client.reporting import PruneRule, WorkerClient
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import HorsiesError

log = logging.getLogger(__name__)

# The pause after a page is nine times its duration, which limits the load on a large database.
PAUSE_FACTOR = 9.0
MAX_PAUSE_SECONDS = 5.0
JITTER = (0.5, 1.5)


class Housekeeper:
    """
    :param database: horsies' database.
    :param rule: which rows to delete.
    :param every_seconds: the average time between two passes over the tables, by all workers together.
    """

    def __init__(
        self,
        database: Database,
        rule: PruneRule,
        every_seconds: float,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._database = database
        self._rule = rule
        self._every_seconds = every_seconds
        self._sleep = sleep
        self._workers = 1
        self._last_warning: str | None = None

    def start(self) -> None:
        threading.Thread(target=self._serve, name="horsies-housekeeping", daemon=True).start()

    def _serve(self) -> None:
        # Workers that start together do not prune together.
        self._sleep(self._every_seconds * random.random())  # noqa: S311
        while True:
            self.prune_tables()
            self._sleep(self._every_seconds * self._workers * random.uniform(*JITTER))  # noqa: S311

    def prune_tables(self) -> None:
        """Prune the tables once. Never raises: the next pass tries again."""
        client = WorkerClient(self._database)
        try:
            self._prune_pages(client)
            self._last_warning = None
        except Exception as error:
            self._warn_once(error)
        finally:
            with suppress(Exception):
                client.close()

    def _prune_pages(self, client: WorkerClient) -> None:
        if not client.find_prunable():
            return
        client.carry_out_requests()
        self._workers = client.count_live_workers() or 1
        # Start at a random place, so that a worker that never reaches the end does not always prune the same rows.
        start: str | None = str(uuid.uuid4())
        after, wrapped = start, False
        while True:
            began = time.monotonic()
            page = client.prune_page(self._rule, after=after)
            if page is None:
                return
            if page.is_last:
                if wrapped:
                    return
                after, wrapped = None, True
            else:
                after = page.last_id
            if wrapped and after is not None and start is not None and after >= start:
                return
            self._sleep(min(PAUSE_FACTOR * (time.monotonic() - began), MAX_PAUSE_SECONDS))

    def _warn_once(self, error: Exception) -> None:
        """Log an error unless it is the same as the last one."""
        if str(error) != self._last_warning:
            self._last_warning = str(error)
            log.warning(
                "Pruning the airflow_horsies tables failed and is tried again later: %s",
                error,
                exc_info=not isinstance(error, HorsiesError),
            )
