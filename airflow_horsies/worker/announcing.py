"""The thread of a child that records what its worker can do, so that Airflow sends nothing the worker does not know."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from airflow_horsies import __version__
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.chunk import CHUNKS
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import HorsiesError

log = logging.getLogger(__name__)

FEATURES = (CHUNKS,)
EVERY_SECONDS = 60.0
RETRY_SECONDS = 3.0
JITTER = (0.75, 1.25)


class Announcer:
    """
    :param database: horsies' database.
    :param pid: the worker process, which is the parent of this one.
    """

    def __init__(self, database: Database, pid: int, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._database = database
        self._pid = pid
        self._sleep = sleep

    def start(self) -> None:
        threading.Thread(target=self._serve, name="horsies-announcer", daemon=True).start()

    def _serve(self) -> None:
        while True:
            recorded = self.announce()
            self._sleep((EVERY_SECONDS if recorded else RETRY_SECONDS) * random.uniform(*JITTER))  # noqa: S311

    def announce(self) -> bool:
        """Record the worker once; False if that is not possible now. Never raises."""
        client = WorkerClient(self._database)
        try:
            return client.record_worker(
                hostname=socket.gethostname(), pid=self._pid, release=__version__, features=FEATURES
            )
        except HorsiesError as error:
            log.info("Recording the features of this worker failed and is tried again: %s", error)
        except Exception:
            log.exception("Recording the features of this worker failed and is tried again.")
        finally:
            with suppress(Exception):
                client.close()
        return False
