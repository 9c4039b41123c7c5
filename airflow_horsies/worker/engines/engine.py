"""The interface of Spark for a child, independent of where the driver runs."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from airflow_horsies.worker.engines.jvm import OnLine
from airflow_horsies.worker.errors import Failure
from airflow_horsies.worker.settings import SparkSettings

log = logging.getLogger(__name__)


class Spark(Protocol):
    """One warm Spark for all tasks of a child."""

    def start(self) -> Any:
        """Start Spark on the main thread, without waiting."""

    def open_session(self, task_id: str) -> Any:
        """Open a separate session for a task."""

    def close_session(self) -> None:
        """Remove everything that the task left in Spark."""

    def interrupt(self, task_id: str) -> None:
        """Cancel the Spark jobs of the task; may block."""

    def poll_progress(self) -> tuple[int, int, str] | None:
        """Spark tasks done, Spark tasks known, and a text; never blocks."""

    def metrics(self, task_id: str) -> dict[str, float]:
        """What the Spark jobs of the task have read, written and used."""

    @property
    def is_lost(self) -> bool:
        """Whether Spark was lost while the task ran."""

    def explain_loss(self, failure: Failure) -> Failure:
        """The failure to report instead of the one that the loss has caused."""

    def restart(self) -> None:
        """Discard Spark and start it again on the main thread, without waiting."""

    def stop(self) -> None:
        """Stop Spark at the end of the child."""


def close_session(spark: Spark, task_id: str) -> None:
    """Close the session of a task or an item. A Spark that cannot be cleaned up is replaced."""
    try:
        spark.close_session()
    except Exception:
        log.exception("Cleaning up Spark after task %s failed. Restarting Spark.", task_id)
        spark.restart()


def make_spark(settings: SparkSettings, on_line: OnLine) -> Spark:
    if settings.is_connect:
        from airflow_horsies.worker.engines.connect import ConnectSpark

        return ConnectSpark(settings)
    from airflow_horsies.worker.engines.classic import ClassicSpark

    return ClassicSpark(settings, on_line)
