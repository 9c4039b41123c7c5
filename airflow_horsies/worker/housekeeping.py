"""The thread of a child that keeps our tables small. Of all workers on a database, one prunes at a time."""

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

# After each page it rests for nine times as long, so that a large database is not busy with it.
REST = 9.0
MAX_REST_SECONDS = 5.0
JITTER = (0.5, 1.5)


class Housekeeper:
    """
    :param database: horsies' database.
    :param rule: what may go.
    :param every_seconds: how often the tables are gone through, on average, by all workers together.
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
        self._complaint: str | None = None

    def start(self) -> None:
        threading.Thread(target=self._serve, name="horsies-housekeeping", daemon=True).start()

    def _serve(self) -> None:
        # Workers that were started together do not come together.
        self._sleep(self._every_seconds * random.random())  # noqa: S311
        while True:
            self.keep_house()
            self._sleep(self._every_seconds * self._workers * random.uniform(*JITTER))  # noqa: S311

    def keep_house(self) -> None:
        """Go through the tables once. Never raises: what could not be pruned is pruned the next time."""
        client = WorkerClient(self._database)
        try:
            self._go_through(client)
            self._complaint = None
        except Exception as error:
            self._complain(error)
        finally:
            with suppress(Exception):
                client.close()

    def _go_through(self, client: WorkerClient) -> None:
        if not client.find_prunable():
            return
        client.carry_out_requests()
        self._workers = client.count_live_workers() or 1
        # From anywhere on, so that a worker that never gets to the end does not always prune the same.
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
            self._sleep(min(REST * (time.monotonic() - began), MAX_REST_SECONDS))

    def _complain(self, error: Exception) -> None:
        """Once about the same, as it may last."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning(
                "The airflow_horsies tables are not pruned for now: %s",
                error,
                exc_info=not isinstance(error, HorsiesError),
            )
