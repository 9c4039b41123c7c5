"""The thread of a child that keeps our tables small. Of all workers on a database, one prunes at a time."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from airflow_horsies.database import LIMITS, Database, Session
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.cancelling import CANCELS_AT_ONCE, carry_out_requests
from airflow_horsies.ledger.pruning import SINCE, PrunedPage, PruneRule, prune_page
from airflow_horsies.wire.schema import detect_schema
from airflow_horsies.wire.scripts import read_workers
from airflow_horsies.wire.statement import Script
from airflow_horsies.wire.statements import Wire

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
        session = Session(self._database, limits=LIMITS)
        try:
            self._go_through(session)
            self._complaint = None
        except Exception as error:
            self._complain(error)
        finally:
            with suppress(Exception):
                session.close()

    def _go_through(self, session: Session) -> None:
        if session.run(ledger_schema.read_version) < SINCE:
            return
        wire = Wire(session.run(detect_schema))
        # A task on its way to the history is neither here nor there: absent is not gone.
        wire.schema.require_writable()
        while len(session.run(partial(carry_out_requests, wire))) == CANCELS_AT_ONCE:
            pass
        self._workers = session.run(partial(_count_live_workers, wire)) or 1
        # From anywhere on, so that a worker that never gets to the end does not always prune the same.
        start: str | None = str(uuid.uuid4())
        after, wrapped = start, False
        while True:
            began = time.monotonic()
            page: PrunedPage | None = session.run(partial(prune_page, wire, self._rule, after=after))
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


def _count_live_workers(wire: Wire) -> Script[int]:
    return sum(worker.alive for worker in (yield from read_workers(wire)))
