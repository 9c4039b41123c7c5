"""One horsies task, and another that uses its result."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesOperator


@dag(schedule=None, tags=["horsies"])
def horsies_basic():
    add = HorsiesOperator(task_id="add", task_name="sample.add", kwargs={"a": 40, "b": 2}, deferrable=True)
    HorsiesOperator(
        task_id="count",
        task_name="sample.count_by_remainder",
        kwargs={"rows": add.output, "divisor": 2},
        retry_policy=RetryPolicy.fixed([5], auto_retry_for=["WORKER_CRASHED", "UNHANDLED_EXCEPTION"]),
        good_until=timedelta(minutes=10),
        execution_timeout=timedelta(minutes=10),
        deferrable=True,
    )


horsies_basic()
