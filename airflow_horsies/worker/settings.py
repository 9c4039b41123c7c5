"""How a worker is set up: from arguments, else from the environment, else sane for Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from airflow_horsies.exceptions import HorsiesError

DATABASE_URL = "HORSIES_DATABASE_URL"
DIRECT_DATABASE_URL = "HORSIES_DIRECT_DATABASE_URL"
QUEUES = "HORSIES_QUEUES"
DEAD_AFTER_SECONDS = "HORSIES_DEAD_AFTER_SECONDS"
SPARK_MASTER = "HORSIES_SPARK_MASTER"
SPARK_CONF = "HORSIES_SPARK_CONF"
SPARK_HANG_SECONDS = "HORSIES_SPARK_HANG_SECONDS"
LOG_LINES = "HORSIES_LOG_LINES"
RESULT_BYTES = "HORSIES_RESULT_BYTES"

LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What a worker runs are many short jobs of one driver: what it remembers of them must stay small.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "500",
    "spark.sql.ui.retainedExecutions": "50",
    # Pools that keep a thread for a minute after each query; a thousand are allowed otherwise.
    "spark.sql.shuffleExchange.maxThreadThreshold": "32",
    "spark.sql.resultQueryStage.maxThreadThreshold": "32",
    # A cancelled task's Python workers are killed this soon.
    "spark.python.task.killTimeout": "1s",
}


class SettingsError(HorsiesError):
    """A setting that cannot be used, named, with what to write instead."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue the worker serves.

    :param name: the queue's name.
    :param priority: 1 (first) to 100 (last), among the queues.
    :param max_running: how many of its tasks may run at once, over all workers; None is no bound.
    """

    name: str
    priority: int = 100
    max_running: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        name, *numbers = text.strip().split(":")
        if not name or len(numbers) > 2 or not all(number.isdigit() for number in numbers):
            raise SettingsError(
                f"{QUEUES}: {text!r} is no queue; write NAME, NAME:PRIORITY or NAME:PRIORITY:MAX_RUNNING"
            )
        return cls(name, *(int(number) for number in numbers))


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs and how.

    :param master: ``local[*]``, ``spark://host:7077``, ``yarn``, ``k8s://…``, or ``sc://host:15002`` for Spark Connect.
    :param conf: Spark's own settings; they win over our defaults.
    :param app_name: what Spark's pages call it.
    :param start_seconds: how long a session may take to start before a task fails with SPARK_SESSION_LOST.
    :param hang_seconds: how long a JVM may leave questions unanswered before it is killed.
    """

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    app_name: str = "airflow-horsies"
    start_seconds: float = 180.0
    hang_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.master.startswith(("local", "spark://", "yarn", "k8s://", "sc://")):
            raise SettingsError(
                f"{SPARK_MASTER} is {self.master!r}: write local[*], spark://HOST:PORT, yarn, k8s://… or sc://HOST:PORT"
            )

    @property
    def is_connect(self) -> bool:
        return self.master.startswith("sc://")

    def full_conf(self) -> dict[str, str]:
        """Spark's settings with our defaults below the author's."""
        local = LOCAL_DEFAULTS if self.master.startswith("local") else {}
        return {**DEFAULTS, **local, **{name: str(value) for name, value in self.conf.items()}}


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Everything ``horsies_app`` can be given."""

    database_url: str = field(repr=False)
    direct_database_url: str | None = field(default=None, repr=False)
    queues: tuple[Queue, ...] = ()
    dead_after: timedelta = timedelta(minutes=2)
    spark: SparkSettings = SparkSettings()
    log_lines: int = 10_000
    result_bytes: int = 1_000_000

    @classmethod
    def resolve(
        cls,
        *,
        database_url: str | None,
        direct_database_url: str | None,
        queues: Sequence[str | Queue] | None,
        dead_after: timedelta | None,
        spark_master: str | None,
        spark_conf: Mapping[str, Any] | None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """What is not given comes from the environment."""
        environ = os.environ if environ is None else environ
        url = database_url or environ.get(DATABASE_URL)
        if not url:
            raise SettingsError(
                f"no database: set {DATABASE_URL}, as in postgresql+psycopg://user:password@host:5432/horsies, "
                "or give horsies_app(database_url=…)"
            )
        given: Sequence[str | Queue] = queues if queues is not None else _split(environ.get(QUEUES, ""))
        return cls(
            database_url=url,
            direct_database_url=direct_database_url or environ.get(DIRECT_DATABASE_URL),
            queues=tuple(queue if isinstance(queue, Queue) else Queue.parse(queue) for queue in given),
            dead_after=dead_after or timedelta(seconds=_number(environ, DEAD_AFTER_SECONDS, 120, least=5)),
            spark=SparkSettings(
                master=spark_master or environ.get(SPARK_MASTER) or "local[*]",
                conf={**_parse_conf(environ.get(SPARK_CONF, "")), **(spark_conf or {})},
                hang_seconds=_number(environ, SPARK_HANG_SECONDS, 60, least=1),
            ),
            log_lines=_number(environ, LOG_LINES, 10_000, least=0),
            result_bytes=_number(environ, RESULT_BYTES, 1_000_000, least=1_000),
        )


def _split(text: str) -> list[str]:
    return [part for part in text.split(",") if part.strip()]


def _number(environ: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    if not text.strip().isdigit() or int(text) < least:
        raise SettingsError(f"{name} is {text!r}: write a whole number from {least} on")
    return int(text)


def _parse_conf(text: str) -> dict[str, str]:
    if not text.strip():
        return {}
    try:
        conf = json.loads(text)
    except ValueError:
        conf = None
    if not isinstance(conf, dict):
        raise SettingsError(f'{SPARK_CONF} is no JSON object; write {{"spark.executor.memory": "2g"}}')
    return {str(name): str(value) for name, value in conf.items()}
