"""What a child needs of Spark, wherever its driver is."""

from __future__ import annotations

from typing import Any, Protocol

from airflow_horsies.worker.engines.jvm import OnLine
from airflow_horsies.worker.errors import Failure
from airflow_horsies.worker.settings import SparkSettings


class Spark(Protocol):
    """One warm Spark for all tasks of a child."""

    def start(self) -> Any:
        """Begin to start it, on the main thread and without waiting."""

    def open_session(self, task_id: str) -> Any:
        """A session of its own for a task."""

    def close_session(self) -> None:
        """Leave nothing of the task behind."""

    def interrupt(self, task_id: str) -> None:
        """Cancel what the task has Spark do; may block."""

    def poll_progress(self) -> tuple[int, int, str] | None:
        """Tasks done, tasks known, and a text; never blocks."""

    def metrics(self, task_id: str) -> dict[str, float]:
        """What the task's jobs have read, written and used."""

    @property
    def is_lost(self) -> bool:
        """Whether it died under the task."""

    def how_it_was_lost(self, failure: Failure) -> Failure:
        """What to say instead of the failure that came of it."""

    def restart(self) -> None:
        """Throw it away and begin to start another one, on the main thread."""

    def stop(self) -> None:
        """The end of the child."""


def make_spark(settings: SparkSettings, on_line: OnLine) -> Spark:
    if settings.is_connect:
        from airflow_horsies.worker.engines.connect import ConnectSpark

        return ConnectSpark(settings)
    from airflow_horsies.worker.engines.classic import ClassicSpark

    return ClassicSpark(settings, on_line)
