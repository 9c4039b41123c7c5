"""``horsies_app``: a horsies app with settings suited to its tasks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from horsies import AppConfig, CustomQueueConfig, Horsies, PostgresConfig, QueueMode, RecoveryConfig
from pydantic import SecretStr

from airflow_horsies.core.signals import SLEEP, WAIT_FOR_SIGNAL
from airflow_horsies.worker.catalog import make_catalog
from airflow_horsies.worker.child import start_child
from airflow_horsies.worker.control import register_control_tasks
from airflow_horsies.worker.defaults import WorkerApp, claims_of, may_prefetch
from airflow_horsies.worker.reporter import database_of
from airflow_horsies.worker.settings import Queue, WorkerSettings
from airflow_horsies.worker.tasks import apply_settings, python_task, uses_spark
from airflow_horsies.worker.waiting import sleep, wait_for_signal

log = logging.getLogger(__name__)

RECYCLING = "--max-tasks-per-child"
# A worker misses this many heartbeats before it counts as dead.
HEARTBEATS = 4


def horsies_app(
    database_url: str | None = None,
    *,
    direct_database_url: str | None = None,
    queues: str | Sequence[str | Queue] | None = None,
    dead_after: timedelta | None = None,
    spark_master: str | None = None,
    spark_conf: Mapping[str, Any] | None = None,
    **config: Any,
) -> Horsies:
    """
    Make the app that ``horsies worker`` loads from a module of tasks.

    Missing arguments are read from the environment variables in brackets.

    .. code-block:: python

        # my_tasks.py, run by: python -m airflow_horsies.worker my_tasks:app
        from airflow_horsies.worker import horsies_app, spark_task

        app = horsies_app()

    :param database_url: horsies' database [``HORSIES_DATABASE_URL``].
    :param direct_database_url: the URL that bypasses a pooler in transaction mode
        [``HORSIES_DIRECT_DATABASE_URL``].
    :param queues: the queues to serve, as Queue or as ``NAME:PRIORITY:MAX_RUNNING``; by default the queue
        ``default`` [``HORSIES_QUEUES``, separated by commas].
    :param dead_after: how long after its last heartbeat a worker counts as dead and its tasks are recovered; by default
        two minutes [``HORSIES_DEAD_AFTER_SECONDS``].
    :param spark_master: where Spark runs: ``local[*]``, ``spark://…``, ``yarn``, ``k8s://…`` or ``sc://…``
        [``HORSIES_SPARK_MASTER``].
    :param spark_conf: Spark's own settings [``HORSIES_SPARK_CONF``, a JSON object].
    :param config: any other field of horsies' own AppConfig. With ``python -m airflow_horsies.worker``,
        ``prefetch_buffer`` is 16 by default if no task of the app uses Spark and no limit of running tasks is set; else
        it is 0.
    """
    settings = WorkerSettings.resolve(
        database_url=database_url,
        direct_database_url=direct_database_url,
        queues=queues,
        dead_after=dead_after,
        spark_master=spark_master,
        spark_conf=spark_conf,
    )
    ours = _config_of(settings)
    app = WorkerApp(AppConfig(**{**ours, **claims_of(config), **config}))
    app.may_prefetch = may_prefetch({**{"custom_queues": ours.get("custom_queues")}, **config})
    apply_settings(app, settings)
    register_control_tasks(app, database_of(settings.direct_database_url or settings.database_url))
    python_task(app, WAIT_FOR_SIGNAL, parks=True)(wait_for_signal)
    python_task(app, SLEEP, parks=True)(sleep)
    if settings.spark.is_connect:
        # UDFs that are created when a module is imported depend on the kind of session.
        os.environ.update(SPARK_REMOTE=settings.spark.master, SPARK_CONNECT_MODE_ENABLED="1")

    @app.on_child_process_start
    def start_airflow_horsies_child() -> None:
        start_child(settings, uses_spark=uses_spark(app), make_catalog=partial(make_catalog, app))
        if uses_spark(app) and not any(argument.startswith(RECYCLING) for argument in sys.argv):
            log.warning(
                "horsies replaces a child process and its warm Spark session after 100 tasks. Start the worker with "
                "'python -m airflow_horsies.worker' instead of 'horsies worker', or add %s 1000000.",
                RECYCLING,
            )

    return app


def _config_of(settings: WorkerSettings) -> dict[str, Any]:
    direct = settings.direct_database_url
    dead_after_ms = int(settings.dead_after.total_seconds() * 1000)
    # Frequent enough for other workers with a shorter limit too: every worker checks all tasks.
    beat_ms = min(max(dead_after_ms // HEARTBEATS, 1_000), 5_000)
    config: dict[str, Any] = {
        "broker": PostgresConfig(
            database_url=SecretStr(settings.database_url),
            session_database_url=SecretStr(direct) if direct else None,
            pgbouncer_transaction_mode=bool(direct),
        ),
        "recovery": RecoveryConfig(
            runner_heartbeat_interval_ms=beat_ms,
            claimer_heartbeat_interval_ms=beat_ms,
            running_stale_threshold_ms=dead_after_ms,
            claimed_stale_threshold_ms=dead_after_ms,
            check_interval_ms=beat_ms,
            worker_state_snapshot_interval_ms=beat_ms,
        ),
    }
    if settings.queues:
        config["queue_mode"] = QueueMode.CUSTOM
        config["custom_queues"] = [
            CustomQueueConfig(name=queue.name, priority=queue.priority, max_concurrency=queue.max_running)
            for queue in settings.queues
        ]
    return config
