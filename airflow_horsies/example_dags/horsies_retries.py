"""Retries belong to horsies: the first attempt fails, the second heals it, and Airflow sees one success."""

from __future__ import annotations

from airflow.sdk import dag

from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesOperator


@dag(schedule=None, tags=["horsies"])
def horsies_retries():
    HorsiesOperator(
        task_id="healed",
        task_name="sample.fail_once",
        kwargs={"key": "{{ run_id }}"},
        retry_policy=RetryPolicy.exponential(1, max_retries=3, auto_retry_for=["TRY_AGAIN"], max_delay_seconds=60),
        deferrable=True,
    )


horsies_retries()
