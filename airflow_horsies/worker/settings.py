"""Settings of a worker: from arguments, from the environment, or defaults suited to Spark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from airflow_horsies.client.reporting import PRUNE_AFTER, PruneRule
from airflow_horsies.core.environment import (
    DATABASE_URL,
    DEAD_AFTER_SECONDS,
    DIRECT_DATABASE_URL,
    LOG_AGE_SECONDS,
    LOG_BYTES,
    LOG_LINES,
    PRUNE_AFTER_SECONDS,
    PRUNE_EVERY_SECONDS,
    QUEUES,
    RESULT_BYTES,
    SPARK_CONF,
    SPARK_HANG_SECONDS,
    SPARK_MASTER,
)
from airflow_horsies.db.connection import POSTGRES_SCHEMES
from airflow_horsies.exceptions import HorsiesError

LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One driver runs many short jobs, so it must not remember too many of them.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "500",
    "spark.sql.ui.retainedExecutions": "50",
    # Shuffle files are removed by the driver's garbage collection, which is rare in an idle driver.
    "spark.cleaner.periodicGC.interval": "5min",
    # These pools keep a thread for a minute after each query. The default limit is a thousand.
    "spark.sql.shuffleExchange.maxThreadThreshold": "32",
    "spark.sql.resultQueryStage.maxThreadThreshold": "32",
    # For option('pushFilters', 'true') of the data source horsies.
    "spark.sql.python.filterPushdown.enabled": "true",
    # How soon the Python workers of a cancelled task are killed.
    "spark.python.task.killTimeout": "1s",
}


DEFAULT_DEAD_AFTER = timedelta(minutes=2)
DEFAULT_MASTER = "local[*]"
DEFAULT_HANG_SECONDS = 60
DEFAULT_LOG_LINES = 10_000
DEFAULT_LOG_BYTES = 2_000_000
DEFAULT_LOG_AGE = timedelta(days=14)
DEFAULT_PRUNE_EVERY = timedelta(hours=1)
DEFAULT_RESULT_BYTES = 1_000_000
MASTER = re.compile(r"local(?:-cluster)?(?:\[.*\])?$|spark://|yarn$|k8s://|sc://")
# The limits of horsies.
MIN_DEAD_AFTER, MAX_DEAD_AFTER = timedelta(seconds=5), timedelta(hours=1)


class SettingsError(HorsiesError):
    """An invalid setting; the message names it and the accepted values."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue that the worker serves.

    :param name: the queue's name.
    :param priority: 1 (first) to 100 (last) among the queues.
    :param max_running: how many of its tasks may run at once on all workers; None for no limit.
    """

    name: str
    priority: int = 100
    max_running: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        name, *numbers = (part.strip() for part in text.split(":"))
        if not name or len(numbers) > 2 or not all(number.isdecimal() and number.isascii() for number in numbers):
            raise SettingsError(
                f"{QUEUES}: {text!r} is not a valid queue. Use NAME, NAME:PRIORITY or NAME:PRIORITY:MAX_RUNNING."
            )
        return cls(name, *(int(number) for number in numbers))

    def __post_init__(self) -> None:
        if not 1 <= self.priority <= 100:
            raise SettingsError(
                f"{QUEUES}: the priority of {self.name!r} must be from 1 (first) to 100 (last), not {self.priority}."
            )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where and how Spark runs.

    :param master: ``local[*]``, ``spark://host:7077``, ``yarn``, ``k8s://…``, or ``sc://host:15002`` for Spark Connect.
    :param conf: Spark's own settings; they override our defaults.
    :param start_seconds: how long a session may take to start before the task fails with SPARK_SESSION_LOST.
    :param hang_seconds: how long the JVM may not answer before it is killed.
    """

    master: str = field(default=DEFAULT_MASTER, repr=False)
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    start_seconds: float = 180.0
    hang_seconds: float = DEFAULT_HANG_SECONDS

    def __post_init__(self) -> None:
        if not MASTER.match(self.master):
            raise SettingsError(
                f"{SPARK_MASTER}: {self.address!r} is not a Spark master. Use local[*], spark://HOST:PORT, yarn, "
                "k8s://… or sc://HOST:PORT."
            )

    @property
    def address(self) -> str:
        """The master for messages, without the parameters, which may contain a token."""
        return self.master.partition(";")[0]

    @property
    def is_connect(self) -> bool:
        return self.master.startswith("sc://")

    def full_conf(self) -> dict[str, str]:
        """Our defaults, overridden by the author's settings."""
        local = LOCAL_DEFAULTS if self.master.startswith("local") else {}
        return {**DEFAULTS, **local, **self.conf}


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """How the airflow_horsies tables are pruned.

    :param every: the time between two passes, by all workers together; zero turns pruning off.
    :param rule: which rows to delete.
    """

    every: timedelta = DEFAULT_PRUNE_EVERY
    rule: PruneRule = field(default_factory=lambda: PruneRule(lines_older_than=DEFAULT_LOG_AGE))


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """All settings of ``horsies_app``."""

    database_url: str = field(repr=False)
    direct_database_url: str | None = field(default=None, repr=False)
    queues: tuple[Queue, ...] = ()
    dead_after: timedelta = DEFAULT_DEAD_AFTER
    spark: SparkSettings = SparkSettings()
    log_lines: int = DEFAULT_LOG_LINES
    log_bytes: int = DEFAULT_LOG_BYTES
    housekeeping: Housekeeping = Housekeeping()
    result_bytes: int = DEFAULT_RESULT_BYTES

    @classmethod
    def resolve(
        cls,
        *,
        database_url: str | None,
        direct_database_url: str | None,
        queues: str | Sequence[str | Queue] | None,
        dead_after: timedelta | None,
        spark_master: str | None,
        spark_conf: Mapping[str, Any] | None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Read missing settings from the environment."""
        environ = os.environ if environ is None else environ
        url = database_url or environ.get(DATABASE_URL)
        if not url:
            raise SettingsError(
                f"No database is configured. Set {DATABASE_URL} to a URL such as "
                "postgresql://user:password@host:5432/horsies, or pass database_url to horsies_app()."
            )
        direct = direct_database_url or (None if database_url else environ.get(DIRECT_DATABASE_URL))
        if dead_after is None:
            default_seconds = int(DEFAULT_DEAD_AFTER.total_seconds())
            dead_after = timedelta(seconds=_number(environ, DEAD_AFTER_SECONDS, default_seconds, minimum=5))
        if not MIN_DEAD_AFTER <= dead_after <= MAX_DEAD_AFTER:
            raise SettingsError(
                f"{DEAD_AFTER_SECONDS} must be from 5 to 3600 seconds, not {dead_after.total_seconds():g}."
            )
        return cls(
            database_url=_for_horsies(DATABASE_URL, url),
            direct_database_url=_for_horsies(DIRECT_DATABASE_URL, direct) if direct else None,
            queues=_queues(environ.get(QUEUES, "") if queues is None else queues),
            dead_after=dead_after,
            spark=SparkSettings(
                master=spark_master or environ.get(SPARK_MASTER) or DEFAULT_MASTER,
                conf=_as_text({**_parse_conf(environ.get(SPARK_CONF, "")), **(spark_conf or {})}),
                hang_seconds=_number(environ, SPARK_HANG_SECONDS, DEFAULT_HANG_SECONDS, minimum=1),
            ),
            log_lines=_number(environ, LOG_LINES, DEFAULT_LOG_LINES, minimum=0),
            log_bytes=_number(environ, LOG_BYTES, DEFAULT_LOG_BYTES, minimum=0),
            housekeeping=_housekeeping(environ),
            result_bytes=_number(environ, RESULT_BYTES, DEFAULT_RESULT_BYTES, minimum=1_000),
        )


def _housekeeping(environ: Mapping[str, str]) -> Housekeeping:
    def seconds(name: str, default: timedelta) -> timedelta:
        return timedelta(seconds=_number(environ, name, int(default.total_seconds()), minimum=0))

    return Housekeeping(
        every=seconds(PRUNE_EVERY_SECONDS, DEFAULT_PRUNE_EVERY),
        rule=PruneRule(
            older_than=seconds(PRUNE_AFTER_SECONDS, PRUNE_AFTER),
            lines_older_than=seconds(LOG_AGE_SECONDS, DEFAULT_LOG_AGE),
        ),
    )


def _queues(given: str | Sequence[str | Queue]) -> tuple[Queue, ...]:
    parts = [part for part in given.split(",") if part.strip()] if isinstance(given, str) else given
    queues = tuple(part if isinstance(part, Queue) else Queue.parse(part) for part in parts)
    for queue in queues:
        if sum(other.name == queue.name for other in queues) > 1:
            raise SettingsError(f"{QUEUES}: {queue.name!r} is listed twice. List each queue once.")
    return queues


def _for_horsies(variable: str, url: str) -> str:
    """horsies requires the driver name in its URL."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in POSTGRES_SCHEMES:
        raise SettingsError(f"{variable} is not a Postgres URL. Use postgresql://user:password@host:5432/horsies.")
    return f"postgresql+psycopg://{rest}"


def _number(environ: Mapping[str, str], name: str, default: int, *, minimum: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    if not (text.strip().isascii() and text.strip().isdecimal()) or int(text) < minimum:
        raise SettingsError(f"{name} must be an integer of at least {minimum}, not {text!r}.")
    return int(text)


def _parse_conf(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        conf = json.loads(text)
    except ValueError:
        conf = None
    if not isinstance(conf, dict):
        raise SettingsError(f'{SPARK_CONF} is not a JSON object. Use the form {{"spark.executor.memory": "2g"}}.')
    return conf


def _as_text(conf: Mapping[str, Any]) -> dict[str, str]:
    for name, value in conf.items():
        if not isinstance(value, str | int | float):
            raise SettingsError(f"{SPARK_CONF}: the value of {name!r} must be a string, a number or a boolean.")
    return {name: json.dumps(value) if isinstance(value, bool) else str(value) for name, value in conf.items()}
