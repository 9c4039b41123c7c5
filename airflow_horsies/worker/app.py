"""``horsies_app``: a horsies app with sane settings for Spark."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from horsies import AppConfig, CustomQueueConfig, Horsies, PostgresConfig, QueueMode, RecoveryConfig
from pydantic import SecretStr

from airflow_horsies.worker.child import start_child
from airflow_horsies.worker.settings import Queue, WorkerSettings
from airflow_horsies.worker.tasks import let_tasks_know, uses_spark

log = logging.getLogger(__name__)

RECYCLING = "--max-tasks-per-child"
# A heart beats several times before it is taken for dead.
BEATS = 4
# A worker that loses its connection while it claims may not know what it has claimed, and renews the claim all the
# same: horsies lets it do so for three minutes. A child takes up what is claimed for it within seconds.
CLAIM_LEASE_MS = 20_000
CLAIM_RENEWED_FOR_MS = 60_000


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
    Make the app that a module of tasks hands to ``horsies worker``.

    What is not given comes from the environment; the names are in brackets.

    .. code-block:: python

        # my_tasks.py, run by: python -m airflow_horsies.worker my_tasks:app
        from airflow_horsies.worker import horsies_app, spark_task

        app = horsies_app()

    :param database_url: horsies' database [``HORSIES_DATABASE_URL``].
    :param direct_database_url: the same past a pooler in transaction mode [``HORSIES_DIRECT_DATABASE_URL``].
    :param queues: the queues to serve, as Queue or as ``NAME:PRIORITY:MAX_RUNNING``; the queue ``default`` if none
        [``HORSIES_QUEUES``, separated by commas].
    :param dead_after: how long after its last sign of life a worker counts as dead, so that its tasks are recovered;
        two minutes if not given [``HORSIES_DEAD_AFTER_SECONDS``].
    :param spark_master: where Spark runs: ``local[*]``, ``spark://…``, ``yarn``, ``k8s://…`` or ``sc://…``
        [``HORSIES_SPARK_MASTER``].
    :param spark_conf: Spark's own settings [``HORSIES_SPARK_CONF``, a JSON object].
    :param config: anything else that horsies' own AppConfig takes.
    """
    settings = WorkerSettings.resolve(
        database_url=database_url,
        direct_database_url=direct_database_url,
        queues=queues,
        dead_after=dead_after,
        spark_master=spark_master,
        spark_conf=spark_conf,
    )
    app = Horsies(AppConfig(**{**_config_of(settings), **_claims_of(config), **config}))
    let_tasks_know(app, settings)
    if settings.spark.is_connect:
        # Functions that are made for Spark when a module is imported must know what they are made for.
        os.environ.update(SPARK_REMOTE=settings.spark.master, SPARK_CONNECT_MODE_ENABLED="1")

    @app.on_child_process_start
    def start_airflow_horsies_child() -> None:
        start_child(settings, uses_spark=uses_spark(app))
        if uses_spark(app) and not any(argument.startswith(RECYCLING) for argument in sys.argv):
            log.warning(
                "horsies replaces a child after 100 tasks, and its warm Spark session with it. Start the worker with "
                "'python -m airflow_horsies.worker' instead of 'horsies worker', or add %s 1000000",
                RECYCLING,
            )

    return app


def _claims_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """How long a claim lasts; left to horsies where other settings of the app depend on it."""
    if config.keys() & {"claim_lease_ms", "max_claim_renew_age_ms", "prefetch_buffer", "recovery"}:
        return {}
    return {"claim_lease_ms": CLAIM_LEASE_MS, "max_claim_renew_age_ms": CLAIM_RENEWED_FOR_MS}


def _config_of(settings: WorkerSettings) -> dict[str, Any]:
    direct = settings.direct_database_url
    dead_after_ms = int(settings.dead_after.total_seconds() * 1000)
    # Often enough for the others on the database, too, which may be less patient: each looks after all tasks.
    beat_ms = min(max(dead_after_ms // BEATS, 1_000), 5_000)
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
