"""The part that runs in horsies workers. It needs the ``worker`` extra and Python 3.13.

.. code-block:: python

    from airflow_horsies.worker import horsies_app, spark_task

    app = horsies_app()

    @spark_task(app, "flights.count")
    def count_flights(spark: SparkSession, *, path: str) -> int:
        return spark.read.parquet(path).count()
"""

from __future__ import annotations

from airflow_horsies.core.task import ResultReference
from airflow_horsies.worker.app import horsies_app
from airflow_horsies.worker.child import checkpoint, last_checkpoint, park_for, park_until, progress, receive
from airflow_horsies.worker.errors import ERROR_CODES, TaskFault
from airflow_horsies.worker.masking import mask
from airflow_horsies.worker.results import save_result
from airflow_horsies.worker.settings import Queue
from airflow_horsies.worker.tasks import python_task, spark_task
from airflow_horsies.worker.waiting import signal_node, sleep_node
from airflow_horsies.worker.workflows import workflow

__all__ = [
    "ERROR_CODES",
    "Queue",
    "ResultReference",
    "TaskFault",
    "checkpoint",
    "horsies_app",
    "last_checkpoint",
    "mask",
    "park_for",
    "park_until",
    "progress",
    "python_task",
    "receive",
    "save_result",
    "signal_node",
    "sleep_node",
    "spark_task",
    "workflow",
]
